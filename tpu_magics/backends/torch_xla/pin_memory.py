"""Loaders with `pin_memory=True` in a worker where torch_xla has imported torchax.

What lives here: a gap between torchax and torch 2.8 (the versions on Kaggle), closed where it is. What does not: other
repairs of FSDP v2 (trainer_fsdp.py).

torch_xla 2.8 imports torchax where jax is installed, e.g. when FSDP v2 wraps a Linear. torchax registers itself as
torch's accelerator, without the hooks that torch asks an accelerator for, so that every loader with `pin_memory=True`
(transformers' default) raises: "Please register PrivateUse1HooksInterface". Inside an MpDeviceLoader this ends its
thread, the loader gives no batch, and a Trainer ends after no step without an error. XLA has no use for pinned memory.
"""

from __future__ import annotations

from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport


def arrange() -> None:
    """Let torch find no accelerator in torchax, once that is imported. Only for workers."""
    PostImport().when_imported("torchax.device_module", _be_unavailable)


def _be_unavailable(module: Any) -> None:
    module.is_available = lambda: False  # torch.accelerator.is_available() asks this, and a loader asks torch
