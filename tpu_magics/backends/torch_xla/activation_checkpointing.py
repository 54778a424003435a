"""`torch.utils.checkpoint` (gradient checkpointing) on XLA devices, in a worker.

torch 2.9.0 (utils/checkpoint.py): both forms use `torch.xla`, which torch_xla 2.9.0 does not set, for the device's
random state. XLA removes the recomputation as a common subexpression unless there is an optimization barrier before it,
which only `torch_xla.utils.checkpoint` (reentrant) has.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def arrange() -> None:
    """Patch torch. Only for workers, after torch_xla is imported."""
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
