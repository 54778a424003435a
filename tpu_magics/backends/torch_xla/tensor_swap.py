"""Moves tensors to a device so that they stay the same Python objects: what other objects refer to is what is trained.

XLA cannot change the device of a tensor in place, so the old and the new tensor swap their contents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

# Those that were moved, by id: objects from before the fork are not among the garbage collector's (launch/process.py
# freezes it). Weak references; a tensor with one cannot be swapped.
_moved: dict[int, Any] = {}


def take(old: Any, new: Any) -> bool:
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


def forget() -> None:
    """Call this before other code swaps tensors."""
    _moved.clear()


def tensors() -> list[Any]:
    """The moved tensors that still exist."""
    found = (reference() for reference in list(_moved.values()))
    return [one for one in found if one is not None]
