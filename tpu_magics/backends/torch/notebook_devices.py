"""A `torch.device` of the accelerator that comes to the notebook is the CPU there, where the weights are, and the
accelerator's again in the next worker."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch

from tpu_magics.backends.torch.runtime import DEVICE_TYPES

# The notebook's objects, by the device that each stands for. Assignments and containers keep an object, so it is found
# wherever the user's code has put it, in tuples and defaults as well.
_stand_ins: dict[str, Any] = {}


def stand_in(name: str) -> Any:
    """The notebook's object for the accelerator's device `name`."""
    if name not in _stand_ins:
        _stand_ins[name] = torch.device("cpu")
    return _stand_ins[name]


def reduced(value: Any) -> tuple[Any, ...] | None:
    """How such a device, or the object that stands for it, is pickled; None for any other value."""
    if not issubclass(type(value), torch.device):
        return None
    name = next((name for name, known in _stand_ins.items() if known is value), "")
    if not name and value.type in DEVICE_TYPES:
        name = str(value)
    return (stand_in, (name,)) if name else None


def restore() -> None:
    """In a worker, before its function: what stands for a device is that device.

    The objects themselves are changed, since tuples, defaults and the like cannot be. They are immutable for Python:
    torch 2.9 and 2.15 (torch/csrc/Device.h) have the type and the index of a device behind the object's head. Of
    another version they stay the CPU.
    """
    if all(map(_has_known_form, ("cpu", "meta", "cuda:3"))):
        for name, value in _stand_ins.items():
            device = torch.device(name)
            _content(value)[:] = _content(device)[:]


def rehash(values: Iterable[Any]) -> None:
    """After `restore`: the hash of a device is that of its content, so dicts and sets find it only where they are
    filled again."""
    known = set(map(id, _stand_ins.values()))
    for value in values if known else ():
        if issubclass(type(value), dict) and any(_holds(key, known) for key in dict.keys(value)):
            kind: Any = OrderedDict if issubclass(type(value), OrderedDict) else dict
            content = dict(kind.items(value))
            kind.clear(value)
            kind.update(value, content)
        elif issubclass(type(value), set) and any(_holds(item, known) for item in set.__iter__(value)):
            items = list(set.__iter__(value))
            set.clear(value)
            set.update(value, items)


def _holds(key: Any, known: set[int]) -> bool:
    parts = tuple.__iter__(key) if issubclass(type(key), tuple) else ()
    return id(key) in known or any(_holds(part, known) for part in parts)


_SIZE = 2  # bytes: the type and the index
_HEAD = object.__basicsize__


def _content(device: Any) -> Any:
    return (ctypes.c_int8 * _SIZE).from_address(id(device) + _HEAD)


def _has_known_form(name: str) -> bool:
    device = torch.device(name)
    index = -1 if device.index is None else device.index
    numbers = {"cpu": 0, "cuda": 1, "meta": 14}  # c10/core/DeviceType.h
    fits = _HEAD + _SIZE <= torch.device.__basicsize__ <= _HEAD + ctypes.sizeof(ctypes.c_void_p)
    return fits and list(_content(device)) == [numbers[device.type], index]
