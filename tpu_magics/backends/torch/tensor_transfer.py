"""Tensors between the host and the device: fetched in batches after one sync, and moved so that they stay the same
Python objects."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import TensorWeakRef

from tpu_magics.backends.torch.runtime import fetch, on_device, settle

__all__ = ["on_device", "one_by_one", "settle", "to_cpu"]

# -- to the host ------------------------------------------------------------------------------------------------------


# Fetching a tensor while a step is pending compiles a separate graph for it (twenty parameters, twenty compiles), so
# pending operations run first.

# Fetched at once. A transfer needs its tensors twice for a moment, and memory that is soon reused is
# faster than new memory.
BATCH_BYTES = 16 * 2**20


def to_cpu(tensors: Sequence[Any]) -> list[Any]:
    """The tensors on the CPU, detached, in order. Those on the CPU keep their memory; shards are gathered."""
    return list(one_by_one(tensors))


def one_by_one(tensors: Sequence[Any]) -> Iterator[Any]:
    """Like `to_cpu`, but fetches at most one batch ahead."""
    for batch in _batches([unwrap(tensor) for tensor in tensors]):
        yield from fetch(batch)


def unwrap(tensor: Any) -> Any:
    """`tensor` detached; the tensor inside an XLAShardedTensor; a plain tensor if a subclass only adds Python
    attributes."""
    inner = getattr(tensor, "global_tensor", None)  # XLAShardedTensor, torch_xla 2.9.0
    detached = (tensor if inner is None else inner).detach()
    if type(detached) is not torch.Tensor and has_own_memory(detached):
        return detached.as_subclass(torch.Tensor)
    return detached


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, readable and writable. Not by `numpy()`: after that, the tensor cannot be
    resized any more (torch 2.9)."""
    held = tensor.detach()
    memory = (ctypes.c_char * (held.numel() * held.element_size())).from_address(held.data_ptr())
    memory.tensor = held
    return memoryview(np.frombuffer(memory, np.uint8) if len(memory) else np.empty(0, np.uint8))


def has_own_memory(tensor: Any) -> bool:
    """Whether `tensor` holds its values itself; False for subclasses that wrap other tensors."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def tensor_bytes(tensor: Any) -> int:
    """Bytes of the values of `tensor`; of a sparse one, those of its nonzero values."""
    count = tensor._nnz() if str(tensor.layout).startswith("torch.sparse") else tensor.numel()
    return int(count) * int(tensor.element_size())


def _batches(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """`tensors` in order, in groups that are all on the device or all not, of at most BATCH_BYTES (or of one
    tensor)."""
    batch: list[Any] = []
    size = 0
    for tensor in tensors:
        needed = tensor_bytes(tensor)
        if batch and (size + needed > BATCH_BYTES or on_device(tensor) != on_device(batch[0])):
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += needed
    if batch:
        yield batch


# -- the same objects on the device -----------------------------------------------------------------------------------


# XLA cannot change the device of a tensor in place, so the old and the new tensor swap their contents.

# Those that were moved, by id: objects from before the fork are not among the garbage collector's (launch/process.py
# freezes it). Weak references; a tensor with one cannot be swapped.
_moved: dict[int, Any] = {}


def take_contents(old: Any, new: Any) -> bool:
    """Give the object `old` the contents of `new`; it keeps its class, its attributes and its hooks. False if that is
    not possible: a graph holds it, or it wraps other tensors."""
    if not (type(old) is type(new) or (has_own_memory(old) and has_own_memory(new))):
        return False
    attributes, hooks = dict(vars(old)), hooks_of(old)
    _moved.pop(id(old), None)
    try:
        if has_own_memory(old):
            _swap(old, new)
        else:
            torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return False
    vars(old).update({name: value for name, value in attributes.items() if name not in vars(old)})
    set_hooks(old, hooks)
    _moved[id(old)] = TensorWeakRef(old)
    return True


def _swap(old: Any, new: Any) -> None:
    """Like torch.utils.swap_tensors (torch 2.9 and 2.15), but `old` keeps its class, and may have weak references of
    Python's: it stays the same object, so they stay right."""
    for tensor in (old, new):
        if tensor._use_count() > 1:
            node = torch.autograd.graph.get_gradient_edge(tensor).node if tensor.is_leaf else None
            if node is None or tensor._use_count() > 2:
                raise RuntimeError("something else in a graph holds the tensor")
            node.register_prehook(_refuse_backward)
    vars(old).update(vars(new))
    torch._C._swap_tensor_impl(old, new)


def _refuse_backward(_gradients: Any) -> None:
    raise RuntimeError(
        "backward() of a loss that was computed before its model moved to another device: the gradients would not "
        "reach the model. Compute the loss after the move."
    )


def inherit(new: Any, old: Any) -> None:
    """Where `new` has to replace `old`: what hangs on it."""
    vars(new).update({name: value for name, value in vars(old).items() if name not in vars(new)})
    set_hooks(new, hooks_of(old))
    if has_own_memory(old) and has_own_memory(new):
        with contextlib.suppress(TypeError):  # another layout
            new.__class__ = type(old)


Hooks = tuple[Any, Any]


def hooks_of(tensor: Any) -> Hooks:
    """The dicts of its hooks, in which their handles find them: `register_hook` and, of a leaf,
    `register_post_accumulate_grad_hook`; None without one. (torch 2.9 and 2.15, torch/_tensor.py)"""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: Any, hooks: Hooks) -> None:
    """Call these hooks for `tensor`."""
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks


def forget_moved() -> None:
    """Call this before other code swaps tensors."""
    _moved.clear()


def moved_tensors() -> list[Any]:
    """The moved tensors that still exist."""
    found = (reference() for reference in list(_moved.values()))
    return [one for one in found if one is not None]
