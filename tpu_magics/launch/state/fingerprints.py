"""Whether an object of any type has changed: fingerprints of what it contains, also where it cannot be pickled."""

from __future__ import annotations

import gc
import io
import itertools
import operator
import pickle
import types
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 32 * 2**20  # pickled, besides buffers
_DEPTH = 6
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType)
# What tells that an object without a pickle was used: methods without side effects, and attributes.
_PROBES = ("total_changes", "qsize", "locked", "hexdigest", "tell", "cache_info")


class TooLargeError(Exception):
    """It would take too long."""


def fingerprint(value: Any) -> Any:
    """Equal for an object that has not changed. Raises TooLargeError, and what an object's own code raises."""
    pickler = _Pickler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pickling iterators is deprecated
        pickler.dump(_parts(value))
    return pickler.sink.sum, pickler.sink.bytes


def _parts(value: Any) -> Any:
    """What an object consists of, as far as it tells."""
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        return position(value)
    if isinstance(reduced, str):
        return reduced, probes(value)
    return [*reduced[1:3], *(list(part or ()) for part in reduced[3:5])]


def probes(value: Any) -> tuple[Any, ...]:
    """What is known of an object that cannot be pickled."""
    found = []
    for name in _PROBES:
        item = getattr(value, name, None)
        try:
            found.append(item() if callable(item) else item)
        except Exception:  # closed, or in another state
            found.append(None)
    return tuple(found)


def position(value: Any, depth: int = 0) -> Any:
    """How far an iterator or a generator has come, by what it refers to; of other objects, which they are."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if depth > _DEPTH or issubclass(type(value), _CODE) or not hasattr(kind, "__next__"):
        return _of_other(value, depth)
    frame = getattr(value, "gi_frame", None)
    parts = [position(part, depth + 1) for part in gc.get_referents(value)]
    text = repr(value) if kind in (itertools.count, itertools.repeat) else ""
    return frame and frame.f_lasti, operator.length_hint(value, -1), text, parts


def _of_other(value: Any, depth: int) -> tuple[Any, ...]:
    if type(value) is tuple:  # as in zip
        return tuple(position(part, depth + 1) for part in value)
    if type(value) in (list, dict, set):
        return id(value), len(value)
    return (id(value),) if depth else (id(value), probes(value), attributes(value))


def attributes(value: Any) -> Any:
    """The attributes of an instance, without running its own code."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


class _Pickler(pickle.Pickler):
    """Writes nothing, and never fails because of a part that cannot be pickled."""

    def __init__(self) -> None:
        self.sink = _Sink()
        super().__init__(self.sink, pickle.HIGHEST_PROTOCOL, buffer_callback=self.sink.buffer)
        self._held: list[Any] = []  # keeps what is made here, so that no id is used again

    def reducer_override(self, value: Any) -> Any:
        """Called by pickle for all but plain values and containers."""
        if value is _token:
            return NotImplemented
        if issubclass(type(value), _CODE):
            return _token, (getattr(value, "__module__", ""), getattr(value, "__qualname__", str(type(value))))
        kind = type(value)
        if str(kind.__module__).partition(".")[0] == "torch":  # compared for itself
            return _token, (kind.__qualname__, id(value))
        parts = _parts(value)
        self._held.append(parts)
        return _token, (kind.__qualname__,), parts  # after the object: it may contain itself


def _token(*_parts: Any) -> None:
    """Stands for an object."""


class _Sink(io.RawIOBase):
    def __init__(self) -> None:
        self.sum = 0
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.sum = zlib.crc32(data, self.sum)
        self.bytes += len(data)
        if self.bytes > MAX_BYTES:
            raise TooLargeError
        return len(data)

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """The content of an array."""
        self.sum = zlib.crc32(buffer.raw(), self.sum)
        return False


def hidden_parts(value: Any) -> Iterator[Any]:
    """What an object refers to whose pickle does not tell it, such as the file of a csv.writer, of which it has a
    method."""
    try:
        hidden = isinstance(value.__reduce_ex__(pickle.HIGHEST_PROTOCOL), str)
    except Exception:
        hidden = True
    for part in gc.get_referents(value) if hidden else ():
        if issubclass(type(part), (types.BuiltinFunctionType, types.MethodType)):
            yield part.__self__
        elif not issubclass(type(part), _CODE):
            yield part
