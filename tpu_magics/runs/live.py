"""`tpu_magics.log(...)`: values from inside the training function.

What lives here: the function that people call, and the one place a worker plugs its recorder into. What does not: how
values are recorded (meter.py) and when a device's tensor may be read (backends/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_recorder: Callable[[Mapping[str, Any]], None] | None = None


def set_recorder(recorder: Callable[[Mapping[str, Any]], None] | None) -> None:
    """Called once in each worker."""
    global _recorder
    _recorder = recorder


def log(**values: Any) -> None:
    """Record values of this step, e.g. `tpu_magics.log(loss=loss, lr=0.1)`.

    Numbers, texts and tensors of one element; a tensor on a device is read after the step's sync, so that logging never
    cuts the graph. Outside a worker it does nothing, so the function also runs without `%%tpu_train`.
    """
    if _recorder is not None:
        _recorder(values)
