"""What a run saved from its device is loaded to the CPU by a cell without a magic, which has no device."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tpu_magics.backends.torch import runtime


def load_on_cpu(utils: ModuleType) -> None:
    """Until the runtime runs in this process; `utils`: torch._utils.

    A tensor of such a device is pickled with the device's name (torch 2.9: torch/_tensor.py), so `torch.load(path)`
    would move it there: that starts the runtime in the notebook, and on a TPU no run could have the chip any more. A
    callable `map_location`, which torch refuses for these tensors, is not called.
    """
    original = getattr(utils, "_get_restore_location", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def location(device: Any) -> Any:
        if str(device).partition(":")[0] in runtime.DEVICE_TYPES and not runtime.running() and not _names_one():
            return "cpu"
        return original(device)

    utils._get_restore_location = location  # type: ignore[attr-defined]


def _names_one() -> bool:
    """Whether the cell has said which device it wants."""
    import torch

    wanted = torch.serialization._serialization_tls.map_location
    return wanted is not None and not callable(wanted)
