"""torch_xla.amp.autocast on XLA:CPU, with bf16 as on a TPU.

On a CPU device, torch_xla 2.9 only prints a warning, and entering it raises "'autocast' object has no attribute
'device'". `torch.autocast("xla")`, which it is on a TPU, works on both.
"""

from __future__ import annotations

from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport


def arrange() -> None:
    """Make it work on XLA:CPU as on a TPU, once it is imported. Only for workers."""
    PostImport().when_imported("torch_xla.amp.autocast_mode", _ask_as_on_tpu)


def _ask_as_on_tpu(module: Any) -> None:
    module.xm = _Model(module.xm)  # the only thing that torch_xla 2.9 asks of it there is xla_device_hw


class _Model:
    """torch_xla's xla_model, which reports a CPU as a TPU."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def xla_device_hw(self, device: Any) -> str:
        """The kind of hardware of an XLA device; as in autocast, "xla" alone is the rank's own."""
        import torch_xla

        found = str(self._model.xla_device_hw(torch_xla.device() if str(device) == "xla" else device))
        return "TPU" if found == "CPU" else found
