"""Pickles of results that a process without an XLA runtime can load: XLA tensors become CPU tensors, and the device
the CPU.

Loading a pickled XLA tensor would start the runtime in the notebook, and on a TPU take the device from the workers.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tpu_magics.backends.torch import notebook_devices
from tpu_magics.backends.torch.tensor_transfer import on_device, settle, to_cpu
from tpu_magics.errors import TpuMagicsError

_PROTOCOL = 5
# Limits of the search for what cannot be pickled: tries and depth.
_MOST_TRIES = 2000
_DEEPEST = 50


def dumps(value: Any, name: str = "value") -> bytes:
    """`value` as a pickle in which every XLA tensor, however deep, is a CPU tensor.

    Pending operations on the device run first, once. Call it on the thread that the training function ran on.

    Args:
        value: anything that pickle takes.
        name: the user's name for it, for the error.

    Raises:
        TpuMagicsError: something in it cannot be pickled; it names the type and the path, such as `value['m'].hook`.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, _PROTOCOL).dump(value)
    except TpuMagicsError:
        raise
    except Exception as error:  # pickle.PicklingError, TypeError, AttributeError, RecursionError, or a class's own
        raise _unpicklable(value, name, error) from error
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Replaces XLA tensors. Parameters need nothing: their pickle contains the tensor inside."""

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol)
        self._settled = False

    def reducer_override(self, value: Any) -> Any:
        """pickle's hook: what to write for `value`, or NotImplemented for the default."""
        if issubclass(type(value), torch.device):
            return notebook_devices.reduced(value) or NotImplemented
        if not issubclass(type(value), torch.Tensor) or not on_device(value) or type(value) is torch.nn.Parameter:
            return NotImplemented
        if not self._settled:
            settle()
            self._settled = True
        return _on_cpu(value).__reduce_ex__(_PROTOCOL)


def _on_cpu(tensor: Any) -> Any:
    """A CPU tensor with the values and Python attributes of `tensor`, and, if it is a leaf, its `requires_grad`."""
    copy = to_cpu([tensor])[0]
    if isinstance(tensor, torch.nn.Parameter):  # a subclass, which would be rebuilt on the device
        copy = torch.nn.Parameter(copy, tensor.requires_grad)
    elif tensor.requires_grad and tensor.is_leaf:
        copy.requires_grad_()
    plain = {key: attribute for key, attribute in vars(tensor).items() if key != "global_tensor"}
    copy.__dict__.update(plain)
    return copy


# -- what is wrong with it ---------------------------------------------------------------------------------------------
def _unpicklable(value: Any, name: str, error: Exception) -> TpuMagicsError:
    path, culprit = _Search().find(value, name)
    return TpuMagicsError(
        f"`{path}` cannot be returned to the notebook: it is {_kind(culprit)}, which cannot be pickled.",
        f"{type(error).__name__}: {error}",
        "Return numbers, strings, lists, dicts, arrays, tensors or a state_dict() instead. Models passed as arguments "
        "are updated in the notebook automatically.",
    )


def _kind(value: Any) -> str:
    if issubclass(type(value), types.FunctionType) and "<locals>" in value.__qualname__:
        return f"the function `{value.__name__}`, defined inside `{value.__qualname__.split('.<locals>')[0]}`"
    kind = type(value)
    if "<locals>" in kind.__qualname__:
        return f"of the class `{kind.__name__}`, defined inside `{kind.__qualname__.split('.<locals>')[0]}`"
    return (
        f"of type `{kind.__qualname__}`"
        if kind.__module__ == "builtins"
        else f"of type `{kind.__module__}.{kind.__qualname__}`"
    )


class _Search:
    """Finds the smallest part of a value that cannot be pickled."""

    def __init__(self) -> None:
        self._tries = 0

    def find(self, value: Any, path: str) -> tuple[str, Any]:
        """The path of that part, and the part."""
        above: set[int] = set()
        while len(above) < _DEEPEST:
            above.add(id(value))
            below = next(
                (child for child in _children(value, path) if id(child[1]) not in above and self._fails(child[1])), None
            )
            if below is None:
                break
            path, value = below
        return path, value

    def _fails(self, value: Any) -> bool:
        self._tries += 1
        if self._tries > _MOST_TRIES:
            return False
        try:
            _Probe(_NullWriter(), _PROTOCOL).dump(value)
        except Exception:
            return True
        return False


class _Probe(pickle.Pickler):
    """Pickles everything except the values of tensors, which can always be pickled."""

    def reducer_override(self, value: Any) -> Any:
        """pickle's hook."""
        return (int, ()) if issubclass(type(value), torch.Tensor) else NotImplemented


class _NullWriter(io.RawIOBase):
    def write(self, data: Any) -> int:
        """Forget `data`."""
        return len(data)


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with its path as Python code."""
    if issubclass(type(value), Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
        yield from ((f"a key of {path}", key) for key in value)
    elif issubclass(type(value), (list, tuple)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif issubclass(type(value), (set, frozenset)):
        yield from ((f"a member of {path}", item) for item in value)
    if issubclass(type(value), torch.nn.Module):
        yield from ((f"{path}.{name}", module) for name, module in value.named_children())
    if not issubclass(type(value), (type, types.FunctionType, types.ModuleType)):
        yield from ((f"{path}.{name}", item) for name, item in _attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    """Instance attributes, of `__slots__` as well."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found
