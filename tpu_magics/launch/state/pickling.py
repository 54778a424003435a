"""Pickles changes: the notebook's objects by their numbers, arrays and tensors beside the pickle."""

from __future__ import annotations

import gc
import importlib
import io
import pickle
import pickletools
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_magics.backends.protocols import NotebookState
from tpu_magics.launch.state import by_code
from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.launch.state.type_rules import rule_of

PROTOCOL = 5
Numbers = Mapping[int, int | tuple[str, int, str]]
"""The notebook's objects, by id: a number, or ("own", number, name) of a dict of an object."""
MARK = b"state:"
"""The prefix of a pickle with numbers of the notebook's objects."""


class WorkerOnlyError(Exception):
    """An object that only a worker can use: the notebook keeps its own."""


class StatePickler(pickle.Pickler):
    """Pickles the notebook's objects as numbers, and a worker's own objects in a form that the notebook can load.

    `numbers`: of the notebook's objects, by id; `fetched`: copies of device tensors on the CPU, by the tensors' ids.
    """

    def __init__(self, file: Any, snapshot: StateSnapshot, numbers: Numbers, adapter: NotebookState) -> None:
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
        if issubclass(type(value), by_code.BY_NAME):
            return self._defined(value)
        if issubclass(type(value), types.CellType):
            return by_code.reduced_cell(value)
        if issubclass(type(value), types.ModuleType):
            return importlib.import_module, (value.__name__,)
        attribute = by_code.reduced_attribute(value)
        if attribute is not None:
            return attribute
        rule = rule_of(type(value))
        recipe = self.adapter.recipe(value)
        if recipe is not None:
            return recipe
        if rule.stays:
            raise WorkerOnlyError(type(value).__name__)
        if rule.inner:
            return identity, (getattr(value, rule.inner),)
        if rule.constant:
            return self.adapter.reduced(value) or NotImplemented
        return self._tensor(value) if self.adapter.is_tensor(value) else NotImplemented

    def _defined(self, value: Any) -> Any:
        """A class or function that the notebook has too goes by its name, any other by its code."""
        name, main = _name_of(value).partition(".")[0], vars(sys.modules["__main__"])
        of_notebook = value.__module__ == "__main__"
        if of_notebook and name in main and self.snapshot.main.get(name) is not main[name]:
            return by_code.reduced(value)
        return NotImplemented if _is_importable(value) else by_code.reduced(value)

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


def _name_of(value: Any) -> str:
    return str(getattr(value, "__qualname__", value.__name__))


def _is_importable(value: Any) -> bool:
    """Whether pickle finds it under its name."""
    found: Any = sys.modules.get(str(value.__module__))
    for name in _name_of(value).split("."):
        found = getattr(found, name, None)
    return found is value or (found is None and isinstance(value, type) and value.__module__ == "builtins")


class SizeProbe(StatePickler):
    """Writes nothing: counts bytes, computes a checksum, and records the tensors on the device."""

    def __init__(self, snapshot: StateSnapshot, numbers: Numbers, adapter: NotebookState) -> None:
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
        own = vars(value)
        return repr, (
            self.adapter.describe(value),
            *((type(value), own) if own or self.adapter.is_of_user(value) else ()),
        )

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
        self, file: Any, snapshot: StateSnapshot, adapter: NotebookState, blob: Callable[[int], Any], buffers: Any
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
        how, number, token = key
        if how == "own":
            return self.adapter.own_dict(self.snapshot.nodes[number].value, token)
        if (number, token) not in self._storages:
            self._storages[number, token] = self.adapter.make_storage(self.blob(number), token)
        return self._storages[number, token]


Entries = tuple[dict[int, Any], dict[int, BaseException]]
"""What could be loaded, and why the others could not, by their order."""


def load_entries(
    written: bytes,
    ends: Sequence[tuple[int, int]],
    buffers: Sequence[Any],
    snapshot: StateSnapshot,
    adapter: NotebookState,
    blob: Callable[[int], Any],
) -> Entries:
    """Load what one StatePickler dumped one after the other, so that they share objects. `ends`: after each, the
    bytes and the buffers so far. If one cannot be loaded, the others can, unless they contain objects of that one."""
    quick = StateUnpickler(io.BytesIO(written), snapshot, adapter, blob, buffers)
    try:
        return {number: quick.load() for number in range(len(ends))}, {}
    except KeyboardInterrupt:
        raise
    except BaseException:  # also a SystemExit of an object's own code
        adapter.begin()
        return _TolerantUnpickler(written, ends, buffers, snapshot, adapter, blob).entries()


class _Memo(dict[int, Any]):
    """What earlier entries of a pickle have made. `lost`: objects of entries that could not be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[int] = set()

    def __getitem__(self, number: int) -> Any:
        if number in self.lost:
            raise pickle.UnpicklingError("it contains an object of another one that could not be loaded")
        return super().__getitem__(number)


class _TolerantUnpickler(pickle._Unpickler):
    """The unpickler in Python (3.10 to 3.14), which knows what it had made when an entry could not be loaded."""

    stack: list[Any]
    metastack: list[list[Any]]

    def __init__(
        self,
        written: bytes,
        ends: Sequence[tuple[int, int]],
        buffers: Sequence[Any],
        snapshot: StateSnapshot,
        adapter: NotebookState,
        blob: Callable[[int], Any],
    ) -> None:
        self._written, self._ends, self._given = written, ends, buffers
        self._file = io.BytesIO(written)
        super().__init__(self._file, buffers=buffers)
        self.memo = _Memo()
        self._persistent = StateUnpickler(io.BytesIO(), snapshot, adapter, blob, ())

    def persistent_load(self, key: Any) -> Any:
        """Called by pickle."""
        return self._persistent.persistent_load(key)

    def entries(self) -> Entries:
        """All that can be loaded."""
        found, problems = {}, {}
        start = used = 0
        for number, (end, used_at_end) in enumerate(self._ends):
            self._file.seek(start)
            self._buffers = iter(self._given[used:])
            made = len(self.memo)
            try:
                found[number] = self.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                problems[number] = error
                self._lose(made, self._written[start:end])
            start, used = end, used_at_end
        return found, problems

    def _lose(self, made: int, entry: bytes) -> None:
        """Forget what an entry has not made, or not completely. The next entry counts it."""
        count = sum(opcode.name == "MEMOIZE" for opcode, _, _ in pickletools.genops(entry))
        own = {at: dict.__getitem__(self.memo, at) for at in range(made, len(self.memo))}
        unfinished = {id(item) for stack in (*self.metastack, self.stack) for item in stack}
        found = -1
        while found != len(unfinished):  # also what refers to them
            found = len(unfinished)
            unfinished |= {id(item) for item in own.values() if not unfinished.isdisjoint(_near(item))}
        self.memo.lost |= {at for at, item in own.items() if id(item) in unfinished}
        for at in range(len(self.memo), made + count):
            self.memo[at] = None
            self.memo.lost.add(at)


def _near(item: Any) -> set[int]:
    """The ids of what an object refers to, also by its `__dict__` or a list of it."""
    if issubclass(type(item), (type, types.FunctionType, types.ModuleType)):
        return set()
    parts = gc.get_referents(item)
    inner = [part for part in parts if type(part) in (dict, list, tuple)]
    return {id(part) for part in (*parts, *(one for part in inner for one in gc.get_referents(part)))}


def dumps(value: Any, snapshot: StateSnapshot, numbers: Numbers, adapter: NotebookState) -> bytes:
    """Pickle `value` with its arrays, for `loads`. Raises what pickle raises."""
    file = io.BytesIO()
    pickler = StatePickler(file, snapshot, numbers, adapter)
    pickler.dump(value)
    inside = pickler.inside
    return pickle.dumps((file.getvalue(), [bytes(blob) for blob in pickler.blobs], inside), PROTOCOL)


def loads(data: bytes, snapshot: StateSnapshot | None, adapter: NotebookState | None) -> Any:
    """Unpickle; numbers become the notebook's objects."""
    if snapshot is None or adapter is None or not data.startswith(MARK):
        return pickle.loads(data)
    data = data[len(MARK) :]
    written, blobs, inside = pickle.loads(data)
    buffers = [bytearray(blob) for blob in blobs]
    return StateUnpickler(
        io.BytesIO(written), snapshot, adapter, buffers.__getitem__, [buffers[i] for i in inside]
    ).load()
