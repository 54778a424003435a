"""Fixes for torch, torch_xla and torchax in a worker."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
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


# -- torch.utils.checkpoint -------------------------------------------------------------------------------------------

# torch 2.9.0 (utils/checkpoint.py): both forms use `torch.xla`, which torch_xla 2.9.0 does not set, for the device's
# random state. XLA removes the recomputation as a common subexpression unless there is an optimization barrier before
# it, which only `torch_xla.utils.checkpoint` (reentrant) has.


def fix_checkpointing() -> None:
    """Make gradient checkpointing work and save memory. Only for workers, after torch_xla is imported."""
    import torch
    import torch.utils.checkpoint as checkpoint

    if not hasattr(torch, "xla"):
        torch._register_device_module("xla", _device_module())
    with contextlib.suppress(AttributeError):  # another version: without barriers
        _recompute_behind_barriers(checkpoint)
        _use_torch_xlas(checkpoint.CheckpointFunction)


def _device_module() -> ModuleType:
    """`torch.xla` for torch's functions, like `torch.cuda`."""
    module = ModuleType("torch.xla", "XLA's random state, for torch.utils.checkpoint and torch.random.fork_rng.")
    module.__dict__.update(
        _initialized=True,
        device=lambda _index: contextlib.nullcontext(),
        device_count=lambda: 1,
        get_rng_state=_get_rng_state,
        set_rng_state=_set_rng_state,
    )
    return module


def _get_rng_state(device: Any = None) -> int:
    import torch_xla.core.xla_model as xm

    return int(xm.get_rng_state(_name(device)))


def _set_rng_state(state: int, device: Any = None) -> None:
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(state, _name(device))


def _name(device: Any) -> Any:
    return f"xla:{device}" if isinstance(device, int) else device


def _recompute_behind_barriers(module: Any) -> None:
    """The non-reentrant form: its function is only called to recompute."""
    original = module._checkpoint_without_reentrant_generator

    @functools.wraps(original)
    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(_behind_barrier(function), *args, **kwargs)

    module._checkpoint_without_reentrant_generator = generator


def _behind_barrier(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, assigned=())
    def recompute(*args: Any, **kwargs: Any) -> Any:
        tensors = list(_on_xla((*args, *kwargs.values())))
        if tensors:
            import torch_xla.core.xla_model as xm

            xm.optimization_barrier_(tensors)
        return function(*args, **kwargs)

    return recompute


def _use_torch_xlas(cls: Any) -> None:
    """The reentrant form: use torch_xla's own if a tensor is on an XLA device."""
    original = cls.apply.__func__

    def apply(kind: Any, function: Any, preserve: Any, *args: Any) -> Any:
        if kind is not cls or next(_on_xla(args), None) is None:
            return original(kind, function, preserve, *args)
        from torch_xla.utils.checkpoint import CheckpointFunction

        return CheckpointFunction.apply(function, preserve, *args)

    cls.apply = classmethod(apply)


def _on_xla(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "xla":
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _on_xla(value)
