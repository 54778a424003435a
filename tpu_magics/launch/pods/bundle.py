"""What a run sends to its hosts, packed: one parcel of pickles, and beside it the large arrays.

What lives here: packing and unpacking. Tensors that share memory here share it there; what takes `LARGE` bytes or more
is not in the pickle, so that it can lie in shared memory. What does not: what is packed (freight.py), who may not be
pickled (unsendable.py), and the way to the hosts (ship.py).

Functions and classes of the notebook travel by value; what the notebook's own dict holds comes to lie in the other
process's `__main__`.
"""

from __future__ import annotations

import io
import linecache
import mmap
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from tpu_magics.launch import session
from tpu_magics.launch.pods.user_modules import collect_user_modules, install_modules

if TYPE_CHECKING:
    from tpu_magics.launch.work import Work

LARGE_BYTES = 1 << 20  # bytes
_MAIN, _STORAGE = "main", "storage"
_SHELL = "get_ipython"  # a name that IPython gives to the notebook: magics within functions call it


@dataclass(frozen=True)
class Bundle:
    """`data`: pickles; `arrays`: what lies beside them, as objects with a buffer of bytes."""

    data: bytes
    arrays: tuple[Any, ...] = ()

    @property
    def array_bytes(self) -> int:
        return sum(memoryview(one).nbytes for one in self.arrays)


class BundlePickler(cloudpickle.Pickler):
    """Leaves `main` (the notebook's own dict) and the content of tensors out, and notes what it defined by value."""

    def __init__(self, file: Any, main: dict[str, Any], keep: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.storages: list[Any] = []
        self.defined: dict[str, Any] = {}
        self.files: set[str] = set()  # in which the code stands that is sent
        self._numbers: dict[tuple[int, int], int] = {}
        self._main = main
        self.globals_ref[id(main)] = main  # cloudpickle's own (3.1): the dict of a function, by its id

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if value is self._main:
            return (_MAIN,)
        if value is not None and value is self._main.get(_SHELL):
            return (_SHELL,)
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, (torch.storage.TypedStorage, torch.UntypedStorage)):
            return None
        # torch 2.9, storage.py: what a TypedStorage holds; asking it in public warns that it is deprecated
        whole = value if isinstance(value, torch.UntypedStorage) else value._untyped_storage
        if whole.device.type != "cpu":
            return None
        dtype = None if value is whole else str(value.dtype).removeprefix("torch.")
        return (_STORAGE, self._number(whole), dtype)

    def _number(self, storage: Any) -> int:
        key = (storage.data_ptr() or id(storage), storage.nbytes())
        if key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[key]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            name = value.__qualname__
            if name.isidentifier():
                self.defined.setdefault(name, value)
        elif isinstance(value, types.CodeType):
            self.files.add(value.co_filename)
        return super().reducer_override(value)


def pack(value: Any, main: dict[str, Any], texts: Mapping[str, list[str]] | None = None) -> Bundle:
    """Pack `value`, a function's globals being `main`. `texts`: lines of cells, of which those are sent whose code is:
    others may hold what is nobody's business. Raises what pickle raises."""
    arrays: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether it stays in the pickle."""
        if memoryview(buffer).nbytes < LARGE_BYTES:
            return True
        arrays.append(buffer.raw())
        return False

    file = io.BytesIO()
    pickler = BundlePickler(file, main, keep)
    pickler.dump(value)
    pickler.dump(pickler.defined)
    inside: dict[int, bytes] = {}
    outside: dict[int, int] = {}
    count = len(arrays)
    for number, storage in enumerate(pickler.storages):
        content = _storage_bytes(storage)
        if content.nbytes < LARGE_BYTES:
            inside[number] = content.tobytes()
        else:
            outside[number] = len(arrays)
            arrays.append(content)
    sent = {name: lines for name, lines in (texts or {}).items() if name in pickler.files}
    return Bundle(pickle.dumps((collect_user_modules(), sent, file.getvalue(), inside, outside, count)), tuple(arrays))


def _storage_bytes(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


@dataclass(frozen=True)
class BundleSize:
    """What a run sends, in bytes. `parcel`: the pickles; `shared`: large arrays, which go through the object store."""

    parcel: int
    shared: int


def measure(work: Work) -> BundleSize:
    """What this work takes along. Raises TpuMagicsError naming what cannot be pickled."""
    from tpu_magics.launch.pods import payload, pickling_errors

    current = session.current
    current.backend.prepare()
    gathered = payload.gather(work, current.backend, cell_names=current.notebook.cell_names())
    try:
        packed = pack(gathered, current.notebook.namespace, payload.cell_sources(current.notebook.cell_names()))
    except Exception as error:
        raise pickling_errors.explain_pickling_error(gathered, current.notebook.namespace, error) from None
    return BundleSize(len(packed.data), packed.array_bytes)


# -- there ------------------------------------------------------------------------------------------------------------


class BundleUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Sequence[Any], storages: Callable[[int], Any], main: dict[str, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._storages = storages
        self._main = main

    def persistent_load(self, told: Any) -> Any:
        if told[0] == _MAIN:
            return self._main
        if told[0] == _SHELL:
            return self._main.get(_SHELL)
        import torch

        storage, dtype = self._storages(told[1]), told[2]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True)


def unpack(data: bytes, arrays: Sequence[Any], main: dict[str, Any]) -> Any:
    """The packed value. `arrays`: buffers that may be written to; what was defined by value becomes a name of `main`,
    unless one is there."""
    modules, texts, pickles, inside, outside, count = pickle.loads(data)
    install_modules(modules)
    for name, lines in texts.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    known: dict[int, Any] = {}

    def storage(number: int) -> Any:
        if number not in known:
            import torch

            content = bytearray(inside[number]) if number in inside else arrays[outside[number]]
            known[number] = (
                torch.frombuffer(content, dtype=torch.uint8).untyped_storage()
                if len(content)
                else torch.UntypedStorage(0)
            )
        return known[number]

    unpickler = BundleUnpickler(io.BytesIO(pickles), arrays[:count], storage, main)
    value = unpickler.load()
    for name, defined in unpickler.load().items():
        main.setdefault(name, defined)
    return value


def map_file(path: Path) -> Any:
    """A file's content, to be read by all and changed by each for itself."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
