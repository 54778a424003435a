"""How objects of the notebook are pickled for a worker that is a new process."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from tpu_magics.backends.torch import notebook_devices, recreate
from tpu_magics.backends.torch.tensor_transfer import on_device, to_cpu

_waiting: list[tuple[Any, str, bool]] = []  # tensors in host memory, their device, and whether they need gradients


def reduced(value: Any) -> tuple[Any, ...] | None:
    """As `__reduce__` returns it; None if pickle may take it as it is."""
    if issubclass(type(value), torch.device):
        return notebook_devices.reduced(value)
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_leaf and on_device(value):
        [host] = to_cpu([value.detach()])
        made = torch.nn.Parameter(host, False) if isinstance(value, torch.nn.Parameter) else host
        return wait_for_device, (made, str(value.device), value.requires_grad)
    return _of_optimizer(value) if issubclass(type(value), torch.optim.Optimizer) else None


def wait_for_device(tensor: Any, device: str, requires_grad: bool) -> Any:
    """In the new process, whose runtime does not run yet: `to_devices` sends it."""
    _waiting.append((tensor, device, requires_grad))
    return tensor


def to_devices() -> None:
    """In a worker whose runtime runs, before its function: send the tensors that were on a device in the notebook. The
    objects stay the same."""
    while _waiting:
        tensor, device, requires_grad = _waiting.pop()
        moved = tensor.detach().to(device)
        made = torch.nn.Parameter(moved, False) if isinstance(tensor, torch.nn.Parameter) else moved
        torch.utils.swap_tensors(tensor, made.requires_grad_(requires_grad))


def _of_optimizer(optimizer: Any) -> tuple[Any, ...] | None:
    """With its own attributes. A `step` that a scheduler has wrapped is wrapped again: the wrapper refers to the
    notebook's optimizer."""
    found = recreate.of_optimizer(optimizer)
    if found is None or not hasattr(vars(optimizer).get("step"), _WRAPPED):
        return found
    make, args, own = found
    own.pop("step", None)
    return make, args, own, None, None, _set_and_wrap


_WRAPPED = "_wrapped_by_lr_sched"


def _set_and_wrap(optimizer: Any, state: dict[str, Any]) -> None:
    """In the parts that LRScheduler gives its wrapper (torch 2.9 and 2.15, optim/lr_scheduler.py): a copy is compared
    with the notebook's part by part. It warns where `step` is not wrapped."""
    optimizer.__setstate__(state)
    func, opt_ref = optimizer.step.__func__, weakref.ref(optimizer)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        opt: Any = opt_ref()
        opt._opt_called = True
        return func.__get__(opt, type(opt))(*args, **kwargs)

    setattr(wrapper, _WRAPPED, True)
    optimizer.step = wrapper
