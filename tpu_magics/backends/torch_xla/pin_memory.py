"""DataLoaders with `pin_memory=True` in a worker in which torch_xla imported torchax (torch 2.8, as on Kaggle).

torch_xla 2.8 imports torchax if jax is installed, e.g. when FSDP v2 wraps a Linear. torchax registers itself as torch's
accelerator, without the hooks that torch needs, so every loader with `pin_memory=True` (transformers' default) raises
"Please register PrivateUse1HooksInterface". In an MpDeviceLoader this ends its thread, the loader returns no batch, and
a Trainer ends after no step without an error. XLA does not use pinned memory.
"""

from __future__ import annotations

from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport


def arrange() -> None:
    """Hide torchax from torch's accelerator lookup, once it is imported. Only for workers."""
    PostImport().when_imported("torchax.device_module", _be_unavailable)


def _be_unavailable(module: Any) -> None:
    module.is_available = lambda: False  # torch.accelerator.is_available() asks this, and a loader asks torch
