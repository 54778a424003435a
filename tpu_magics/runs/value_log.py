"""`tpu_magics.log(...)`: log values from inside the training function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_recorder: Callable[[Mapping[str, Any]], None] | None = None


@contextmanager
def recorded_by(recorder: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """While the block runs, logged values go to `recorder`."""
    global _recorder
    _recorder = recorder
    try:
        yield
    finally:
        _recorder = None


def log(**values: Any) -> None:
    """Record values of this step, e.g. `tpu_magics.log(loss=loss, lr=0.1)`.

    Numbers, texts and tensors of one element; a tensor on a device is read after the step's sync, so logging never
    splits the graph. Outside a worker it does nothing, so the function also runs without `%%tpu_train`.
    """
    if _recorder is not None:
        _recorder(values)
