"""How objects of the notebook are pickled for a worker that is a new process."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from tpu_magics.backends.torch import notebook_devices, recreate, user_hooks
from tpu_magics.backends.torch.tensor_transfer import on_device, to_cpu

# Tensors in host memory that belong on a device: the object, how it is made there, and whether it needs gradients.
_waiting: list[tuple[Any, Callable[[], Any], bool]] = []
_later: list[Callable[[], None]] = []  # these give leaves of them their gradients and hooks


def reduced(value: Any) -> tuple[Any, ...] | None:
    """What `__reduce__` returns for it; None if pickle may take it as it is."""
    if issubclass(type(value), torch.device):
        return notebook_devices.reduced(value)
    if issubclass(type(value), torch.optim.Optimizer):
        return _of_optimizer(value)
    if issubclass(type(value), torch.utils.data.DataLoader):
        return _of_loader(value)
    made = _of_device(value) if type(value) in (torch.Tensor, torch.nn.Parameter) and on_device(value) else None
    hooks, after = value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)
    gradient = value.grad if user_hooks.is_leaf(value) else None
    if gradient is None and not hooks and not after:
        return made
    if made is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch leaves out the hooks
            made = value.__reduce_ex__(5)[:2]
    return (*made[:2], (gradient, hooks, after), None, None, _add)


def _of_device(value: Any) -> tuple[Any, ...]:
    """A tensor of the accelerator, or a view of one, which is a view there, too."""
    base = value._base
    if base is not None and on_device(base):
        place = value.size(), value.stride(), value.storage_offset()
        return _view_of_waiting, (base, place)
    [host] = to_cpu([value.detach()])
    made = torch.nn.Parameter(host, False) if isinstance(value, torch.nn.Parameter) else host
    return _wait_for_device, (made, str(value.device), value.requires_grad)


def _add(tensor: Any, more: tuple[Any, ...]) -> None:
    """A leaf's gradient and hooks, which torch leaves out. The dictionaries of hooks are those that the handles of the
    hooks refer to."""
    gradient, hooks, after = more

    def add_hooks() -> None:
        if hooks is not None:
            tensor._backward_hooks = hooks
        if after is not None:
            tensor._post_accumulate_grad_hooks = after

    def add_all() -> None:
        tensor.grad = gradient
        add_hooks()

    numbers = (*(hooks or ()), *(after or ()))
    RemovableHandle.next_id = max(RemovableHandle.next_id, 0, *(number + 1 for number in numbers))
    if any(one is tensor or one is gradient for one, _, _ in _waiting):
        add_hooks()  # it is compared before it is sent
        _later.append(add_all)
    else:
        add_all()


def _wait_for_device(tensor: Any, device: str, requires_grad: bool) -> Any:
    """In the new process, whose runtime does not run yet: `to_devices` sends it."""
    _waiting.append((tensor, lambda: tensor.detach().to(device), requires_grad))
    return tensor


def _view_of_waiting(base: Any, place: tuple[Any, ...]) -> Any:
    view = base.detach().as_strided(*place)
    _waiting.append((view, lambda: base.as_strided(*place), False))
    return view


def to_devices() -> None:
    """In a worker whose runtime runs, before its function: send the tensors that were on a device in the notebook. The
    objects stay the same."""
    for tensor, make, requires_grad in _waiting:
        with torch.no_grad():
            moved = make()
        made = torch.nn.Parameter(moved, False) if isinstance(tensor, torch.nn.Parameter) else moved
        torch.utils.swap_tensors(tensor, made.requires_grad_(True) if requires_grad else made)
        tensor._backward_hooks = None  # pickle leaves a dictionary, which torch would take for one of this tensor
    _waiting.clear()
    for add in _later:
        add()
    _later.clear()


def _of_loader(loader: Any) -> tuple[Any, ...] | None:
    """Without the iterator that it keeps with persistent workers: those are processes of the notebook."""
    if getattr(loader, "_iterator", None) is None:
        return None
    made = loader.__reduce_ex__(5)
    return (*made[:2], {**made[2], "_iterator": None}, *made[3:]) if isinstance(made[2], dict) else None


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
