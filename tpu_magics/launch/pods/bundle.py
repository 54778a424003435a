"""Packs the payload of a run into a bundle: pickles, and beside them the large arrays, which can go to shared memory.

Functions and classes of the notebook are pickled by value; objects of the notebook's dict go to the other process's
`__main__`. Tensors that share memory here share it there. The user's own modules (files beside the notebook) travel as
source and are imported from memory; installed packages are not sent: each host needs them.
"""

from __future__ import annotations

import importlib.abc
import io
import linecache
import marshal
import mmap
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import cloudpickle

from tpu_magics.runs.files import read_regular
from tpu_magics.runs.origin import is_library

LARGE_BYTES = 1 << 20  # bytes
MAX_FILE_BYTES = 1 << 20  # bytes of one module
MAX_TOTAL_BYTES = 16 << 20  # bytes of all modules
_MAIN, _STORAGE = "main", "storage"
_SHELL = "get_ipython"  # IPython puts this name into the notebook; magics inside functions call it


@dataclass(frozen=True)
class Bundle:
    """`data`: pickles; `arrays`: large arrays, as objects with a buffer of bytes."""

    data: bytes
    arrays: tuple[Any, ...] = ()

    @property
    def array_bytes(self) -> int:
        return sum(memoryview(one).nbytes for one in self.arrays)


class BundlePickler(cloudpickle.Pickler):
    """Leaves out `main` (the notebook's dict) and the content of tensors, and records what it pickled by value."""

    def __init__(self, file: Any, main: dict[str, Any], keep: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.storages: list[Any] = []
        self.defined: dict[str, Any] = {}
        self.files: set[str] = set()  # files of the pickled code
        self._numbers: dict[tuple[int, int], int] = {}
        self._main = main
        self.globals_ref[id(main)] = main  # of cloudpickle (3.1): the globals of functions, by id

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if value is self._main:
            return (_MAIN,)
        if value is not None and value is self._main.get(_SHELL):
            return (_SHELL,)
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, (torch.storage.TypedStorage, torch.UntypedStorage)):
            return None
        # torch 2.9, storage.py: the storage inside a TypedStorage; the public method prints a deprecation warning
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
        elif isinstance(value, types.CellType):
            return _cell_reduce(value)
        elif issubclass(type(value), types.ModuleType) and type(value) is not types.ModuleType:
            return _module_reduce(value)
        elif isinstance(value, types.CodeType):
            self.files.add(value.co_filename)
            # cloudpickle 3.1 writes "<dynamic-code>" for the file: the code would not be known as the user's.
            return marshal.loads, (marshal.dumps(value),)
        elif (torch := sys.modules.get("torch")) is not None and isinstance(
            value, (torch.device, torch.Tensor, torch.optim.Optimizer, torch.utils.data.DataLoader)
        ):
            from tpu_magics.backends.torch import sending

            return sending.reduced(value) or NotImplemented
        return super().reducer_override(value)

    def _function_getnewargs(self, func: types.FunctionType) -> Any:
        """With its own cells: functions that share a variable share it there. (cloudpickle 3.1 makes new ones.)"""
        *others, _ = super()._function_getnewargs(func)
        return (*others, func.__closure__)


def _module_reduce(module: types.ModuleType) -> Any:
    """By name: an object of a class of its own (torch.backends.cudnn, torch.ops), which cloudpickle 3.1 cannot send."""
    name = module.__name__
    parent, _, attribute = name.rpartition(".")
    if sys.modules.get(name) is module:
        return importlib.import_module, (name,)
    if parent in sys.modules and getattr(sys.modules[parent], attribute, None) is module:
        return getattr, (sys.modules[parent], attribute)
    return NotImplemented


def _cell_reduce(cell: types.CellType) -> tuple[Any, ...]:
    """Filled after it was made: its function may be in it."""
    try:
        return types.CellType, (), (cell.cell_contents,), None, None, _fill_cell
    except ValueError:
        return types.CellType, ()


def _fill_cell(cell: types.CellType, content: tuple[Any]) -> None:
    (cell.cell_contents,) = content


def pack(value: Any, main: dict[str, Any], texts: Mapping[str, list[str]] | None = None) -> Bundle:
    """Pack `value`; `main`: the globals of the notebook's functions. `texts`: lines of cells. Only cells whose code is
    packed are included: others may hold secrets. Raises what pickle raises."""
    arrays: list[Any] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer stays in the pickle."""
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


# -- the user's modules ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModuleSource:
    """A module's source. `path`: on the notebook's machine."""

    path: str
    text: bytes
    package: bool


def collect_user_modules() -> dict[str, ModuleSource]:
    """The loaded modules that are plain Python and not installed, by name. A package with another part (an extension, a
    large file) is not sent at all."""
    sources: dict[str, ModuleSource] = {}
    broken: set[str] = set()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or is_library(file):
            continue
        text = _source_of(Path(file))
        if text is None:
            broken.add(_top_package(name))
        else:
            sources[name] = ModuleSource(file, text, hasattr(module, "__path__"))
    complete = {name: one for name, one in sources.items() if _top_package(name) not in broken}
    return complete if sum(len(one.text) for one in complete.values()) <= MAX_TOTAL_BYTES else {}


def _source_of(path: Path) -> bytes | None:
    try:
        if path.suffix != ".py" or path.stat().st_size > MAX_FILE_BYTES:
            return None
        return read_regular(path)
    except OSError:
        return None


def _top_package(name: str) -> str:
    return name.partition(".")[0]


# -- on a host --------------------------------------------------------------------------------------------------------


class BundleUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Sequence[Any], storages: Callable[[int], Any], main: dict[str, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._storages = storages
        self._main = main

    def persistent_load(self, key: Any) -> Any:
        if key[0] == _MAIN:
            return self._main
        if key[0] == _SHELL:
            return self._main.get(_SHELL)
        import torch

        storage, dtype = self._storages(key[1]), key[2]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True)


def unpack(data: bytes, arrays: Sequence[Any], main: dict[str, Any]) -> Any:
    """The packed value. `arrays`: writable buffers. What was pickled by value gets its name in `main`, unless that name
    exists."""
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
    """A file mapped copy-on-write: workers share its memory, and a change is private to a worker."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


class SourceFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that were sent, before other modules of these names; also folders without `__init__.py`."""

    def __init__(self, texts: Mapping[str, ModuleSource]) -> None:
        self.texts = texts
        self.folders = {name[:at] for name in texts for at, letter in enumerate(name) if letter == "."} - set(texts)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name in self.texts:
            one = self.texts[name]
            spec = ModuleSpec(name, SourceLoader(one), origin=one.path, is_package=one.package)
            spec.has_location = True  # gives the module a `__file__`
            return spec
        if name in self.folders:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        return None


class SourceLoader(importlib.abc.SourceLoader):
    """Loads one module that was sent."""

    def __init__(self, one: ModuleSource) -> None:
        self.one = one

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return self.one.path

    def get_data(self, path: str | bytes) -> bytes:
        if path != self.one.path:  # its bytecode cache, which is not sent
            raise OSError(path)
        return self.one.text

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        return self.one.package


def install_modules(texts: Mapping[str, ModuleSource]) -> None:
    """Make the modules importable here, and their lines known to tracebacks."""
    if not texts:
        return
    sys.meta_path.insert(0, SourceFinder(texts))
    for one in texts.values():
        lines = one.text.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[one.path] = (len(one.text), None, lines, one.path)
