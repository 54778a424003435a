"""Fixes for torch_xla and torchax in a worker, applied when their modules are imported."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport

# torch_xla 2.8 and 2.9: the module, and the function in it that works without either.
_OPTIONAL = (("torch_xla.debug.profiler", "__enter__"), ("torch_xla.distributed.spmd.xla_sharding", "mark_sharding"))
_IMPORTS = {"maybe_get_jax": "jax", "maybe_get_torchax": "torchax"}


def fix_autocast() -> None:
    """Make torch_xla.amp.autocast work on XLA:CPU, with bf16 as on a TPU. Only for workers.

    On a CPU device, torch_xla 2.9 only prints a warning, and entering it raises "'autocast' object has no attribute
    'device'". `torch.autocast("xla")`, which it is on a TPU, works on both.
    """
    PostImport().when_imported("torch_xla.amp.autocast_mode", _ask_as_on_tpu)


def _ask_as_on_tpu(module: Any) -> None:
    module.xm = _Model(module.xm)  # torch_xla 2.9 only uses its xla_device_hw there


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


def hide_torchax() -> None:
    """Make torch ignore torchax as an accelerator, so that loaders with `pin_memory=True` work. Only for workers.

    torch_xla 2.8 (torch 2.8, as on Kaggle) imports torchax if jax is installed, e.g. when FSDP v2 wraps a Linear.
    torchax registers itself as torch's accelerator, without the hooks that torch needs, so every loader with
    `pin_memory=True` (transformers' default) raises "Please register PrivateUse1HooksInterface". In an MpDeviceLoader
    this ends its thread, the loader returns no batch, and a Trainer ends after no step without an error. XLA does not
    use pinned memory.
    """
    PostImport().when_imported("torchax.device_module", _be_unavailable)


def _be_unavailable(module: Any) -> None:
    module.is_available = lambda: False  # torch.accelerator.is_available() calls this, and a loader calls torch


def skip_jax() -> None:
    """Keep torch_xla from importing jax and torchax when that is not needed. Only for workers.

    torch_xla 2.9 imports both, if installed, with the first batch of an MpDeviceLoader (to name a scope in jax) and
    with the first `mark_sharding` (to check for a torchax tensor): up to several seconds in every worker. Code that has
    such a scope or tensor has already imported them.
    """
    for module, function in _OPTIONAL:
        PostImport().when_imported(module, functools.partial(_do_without, function))


def _do_without(function: str, module: Any) -> None:
    for name, package in _IMPORTS.items():
        if hasattr(module, name):
            setattr(module, name, _unless_there(getattr(module, name), package, function))


def _unless_there(original: Callable[..., Any], package: str, function: str) -> Callable[..., Any]:
    def found(*args: Any, **kwargs: Any) -> Any:
        if package in sys.modules or sys._getframe(1).f_code.co_name != function:
            return original(*args, **kwargs)
        return None

    return found
