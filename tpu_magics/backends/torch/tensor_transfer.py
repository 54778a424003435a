"""Tensors between the host and the device: fetched in batches after one sync, and moved so that they stay the same
Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
    """Give the object `old` the contents of `new`; False if that is not possible: a graph or a weak reference holds
    it."""
    if type(old) is not type(new):
        return False
    attributes = dict(vars(old))
    _moved.pop(id(old), None)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return False
    vars(old).update({name: value for name, value in attributes.items() if name not in vars(old)})
    _moved[id(old)] = TensorWeakRef(old)
    return True


def forget_moved() -> None:
    """Call this before other code swaps tensors."""
    _moved.clear()


def moved_tensors() -> list[Any]:
    """The moved tensors that still exist."""
    found = (reference() for reference in list(_moved.values()))
    return [one for one in found if one is not None]
