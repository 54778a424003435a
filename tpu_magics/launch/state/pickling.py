"""Pickles changes: the notebook's objects by their numbers, arrays and tensors beside the pickle."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.launch.state.type_rules import rule_of

PROTOCOL = 5
MARK = b"state:"
"""The prefix of a pickle with numbers of the notebook's objects."""


class WorkerOnlyError(Exception):
    """An object that only a worker can use: the notebook keeps its own."""


class StatePickler(pickle.Pickler):
    """Pickles the notebook's objects as numbers, and a worker's own objects in a form that the notebook can load.

    `numbers`: of the notebook's objects, by id; `fetched`: copies of device tensors on the CPU, by the tensors' ids.
    """

    def __init__(self, file: Any, snapshot: StateSnapshot, numbers: Mapping[int, int], adapter: Any) -> None:
        super().__init__(file, PROTOCOL, buffer_callback=self._outside)
        self.snapshot = snapshot
        self.numbers = numbers
        self.adapter = adapter
        self.fetched: dict[int, Any] = {}
        self.blobs: list[Any] = []
        self.inside: list[int] = []  # numbers of the blobs that are pickle's own buffers, in order
        self._storages: dict[tuple[int, int], int] = {}
        self._held: list[Any] = []  # keeps the objects alive, so that ids stay valid

    def persistent_id(self, value: Any) -> Any:
        """Called by pickle."""
        number = self.numbers.get(id(value))
        if number is not None:
            return number
        found = self.adapter.storage(value)
        return None if found is None else self._storage(value, *found)

    def _storage(self, value: Any, content: Any, token: str, address: int) -> Any:
        key = (address or id(value), content.nbytes)
        if key not in self._storages:
            self._held.append(value)
            self._storages[key] = len(self.blobs)
            self.blobs.append(content)
        return ("storage", self._storages[key], token)

    def _outside(self, buffer: pickle.PickleBuffer) -> bool:
        """Put an array's buffer beside the pickle."""
        self._held.append(buffer)
        self.inside.append(len(self.blobs))
        self.blobs.append(buffer.raw())
        return False

    def reducer_override(self, value: Any) -> Any:
        """Called by pickle."""
        if isinstance(value, (type, types.FunctionType)):
            return self._defined(value)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        rule = rule_of(type(value))
        if rule.stays:
            raise WorkerOnlyError(type(value).__name__)
        if rule.inner:
            return identity, (getattr(value, rule.inner),)
        return self._tensor(value) if self.adapter.is_tensor(value) else NotImplemented

    def _defined(self, value: Any) -> Any:
        """A class or function of the notebook must have existed before the fork."""
        name, main = value.__qualname__.partition(".")[0], vars(sys.modules["__main__"])
        if value.__module__ == "__main__" and name in main and self.snapshot.main.get(name) is not main[name]:
            raise pickle.PicklingError(f"`{name}` was defined in the worker")
        return NotImplemented

    def _tensor(self, value: Any) -> Any:
        if not self.adapter.on_device(value):
            plain = self.adapter.compact(value)
        else:
            plain = self.fetched.get(id(value))
            if plain is None:
                plain = self.adapter.fetch([value])[0]
        if plain is None:
            return NotImplemented
        self._held.append(plain)
        return plain.__reduce_ex__(PROTOCOL)


class SizeProbe(StatePickler):
    """Writes nothing: counts bytes, computes a checksum, and records the tensors on the device."""

    def __init__(self, snapshot: StateSnapshot, numbers: Mapping[int, int], adapter: Any) -> None:
        self.sink = _Sink()
        super().__init__(self.sink, snapshot, numbers, adapter)
        self.tensors: list[Any] = []

    def look(self, value: Any) -> tuple[int, int]:
        """Bytes and checksum of `value`. Raises what pickle raises."""
        bytes_before, self.sink.sum = self.sink.bytes, 0
        self.dump(value)
        return self.sink.bytes - bytes_before, self.sink.sum

    def _tensor(self, value: Any) -> Any:
        if self.adapter.on_device(value):
            self.tensors.append(value)
        self.sink.bytes += self.adapter.tensor_bytes(value)
        return repr, (self.adapter.describe(value),)

    def _outside(self, buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        self.sink.bytes += content.nbytes
        self.sink.sum = zlib.crc32(content, self.sink.sum)
        return False


class _Sink(io.RawIOBase):
    def __init__(self) -> None:
        self.bytes = 0
        self.sum = 0

    def write(self, data: Any) -> int:
        self.bytes += len(data)
        self.sum = zlib.crc32(data, self.sum)
        return len(data)


def identity(value: Any) -> Any:
    """Returns its argument: a worker's wrapper is unpickled as the object inside."""
    return value


class StateUnpickler(pickle.Unpickler):
    """Reads what StatePickler wrote. `blob(number)`: writable bytes from beside the pickle."""

    def __init__(
        self, file: Any, snapshot: StateSnapshot, adapter: Any, blob: Callable[[int], Any], buffers: Any
    ) -> None:
        super().__init__(file, buffers=buffers)
        self.snapshot = snapshot
        self.adapter = adapter
        self.blob = blob
        self._storages: dict[tuple[int, str], Any] = {}

    def persistent_load(self, key: Any) -> Any:
        """Called by pickle."""
        if isinstance(key, int):
            return self.snapshot.nodes[key].value
        _, number, token = key
        if (number, token) not in self._storages:
            self._storages[number, token] = self.adapter.make_storage(self.blob(number), token)
        return self._storages[number, token]


def dumps(value: Any, snapshot: StateSnapshot, numbers: Mapping[int, int], adapter: Any) -> bytes:
    """Pickle `value` with its arrays, for `loads`. Raises what pickle raises."""
    file = io.BytesIO()
    pickler = StatePickler(file, snapshot, numbers, adapter)
    pickler.dump(value)
    inside = pickler.inside
    return pickle.dumps((file.getvalue(), [bytes(blob) for blob in pickler.blobs], inside), PROTOCOL)


def loads(data: bytes, snapshot: StateSnapshot | None, adapter: Any) -> Any:
    """Unpickle; numbers become the notebook's objects."""
    if snapshot is None or not data.startswith(MARK):
        return pickle.loads(data)
    data = data[len(MARK) :]
    written, blobs, inside = pickle.loads(data)
    buffers = [bytearray(blob) for blob in blobs]
    return StateUnpickler(
        io.BytesIO(written), snapshot, adapter, buffers.__getitem__, [buffers[i] for i in inside]
    ).load()
