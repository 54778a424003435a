"""Fingerprints of values, of what a builder reads besides its arguments, and of files: equal for equal values.

They are valid in this process and its forks only: a value without a comparable content is identified by its id.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.launch.state.snapshot import global_names
from tpu_magics.runs.origin import is_library, is_library_type

SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
GLOBAL_LIMIT = 1 << 20  # bytes: globals with a larger pickle are compared by identity
SHARED_ITEMS = 1_000_000  # in containers that a builder can change, of which the contents are kept
FILES = 1000  # of a folder that are compared


class NotComparable(Exception):
    """A value that cannot be compared later."""


# -- values ---------------------------------------------------------------------------------------------------------
def fingerprint(
    value: object, backend: Backend, alias: Mapping[int, int] | None = None, limit: int | None = None
) -> str:
    """A text that is equal for equal values. Models, functions and classes are compared by identity.

    `alias`: ids that stand for other ids; `limit`: bytes after which NotComparable is raised.
    """
    sink = _Sink(limit)
    try:
        _feed(value, sink, backend, alias or {})
    except NotComparable:
        raise
    except Exception as error:
        raise NotComparable(f"{type(error).__name__}: {error}") from error
    return sink.hash.hexdigest()


class _Sink:
    """A file that only computes a hash."""

    def __init__(self, limit: int | None) -> None:
        self.hash = hashlib.sha256()
        self.limit = limit
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.size += view.nbytes
        if self.limit is not None and self.size > self.limit:
            raise NotComparable("too large to be compared")
        self.hash.update(view)
        return view.nbytes

    def text(self, *words: object) -> None:
        self.write("\0".join([*map(str, words), "\1"]).encode("utf-8", "surrogatepass"))


def _feed(value: Any, sink: _Sink, backend: Backend, alias: Mapping[int, int]) -> None:
    kind = type(value)
    if kind in SIMPLE:
        sink.text(kind.__name__, repr(value))
    elif kind in (list, tuple):
        sink.text(kind.__name__, len(value))
        for item in value:
            _feed(item, sink, backend, alias)
    elif kind in (dict, OrderedDict):
        sink.text(kind.__name__, len(value))
        for pair in value.items():
            _feed(pair, sink, backend, alias)
    elif kind in (set, frozenset):
        sink.text(kind.__name__, *sorted(fingerprint(item, backend, alias) for item in value))
    elif issubclass(type(value), types.MethodType):
        sink.text("method", alias.get(id(value.__self__), id(value.__self__)), id(value.__func__))
    elif issubclass(type(value), BY_IDENTITY) or backend.models.is_model(value):
        sink.text("identity", alias.get(id(value), id(value)))
    else:
        sink.text("pickle", id(kind))
        _pickle(value, sink, backend)


def _pickle(value: object, sink: _Sink, backend: Backend) -> None:
    """First without the memo, so that equal values give equal bytes however they share their parts."""
    start, size = sink.hash.copy(), sink.size
    try:
        _Pickler(sink, backend, fast=True).dump(value)
    except (ValueError, RecursionError):  # cycles
        sink.hash, sink.size = start, size
        _Pickler(sink, backend, fast=False).dump(value)


class _Pickler(pickle.Pickler):
    """Writes equal bytes for equal tensors."""

    def __init__(self, sink: _Sink, backend: Backend, *, fast: bool) -> None:
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.fast = fast
        self.backend = backend

    def reducer_override(self, value: Any) -> Any:
        content = self.backend.models.tensor_content(value)
        return NotImplemented if content is None else (tuple, (list(content),))


def same_callee(left: object, right: object) -> bool:
    """Whether both are the same function; a bound method is a new object each time it is named."""
    return left is right or (isinstance(left, types.MethodType) and left == right)


# -- files ----------------------------------------------------------------------------------------------------------
def files(value: object) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of all files whose paths are in `value`: a checkpoint may change before the build."""
    return tuple(status for text in _paths(value) for status in _stat(text))


def _paths(value: Any) -> Iterator[str]:
    if issubclass(type(value), (str, os.PathLike)):
        yield os.fspath(value)
    elif issubclass(type(value), (list, tuple)):
        for item in value:
            yield from _paths(item)
    elif issubclass(type(value), dict):
        yield from _paths(tuple(dict.values(value)))


def _stat(text: str) -> Iterator[tuple[str, int, int]]:
    try:
        path = Path(text)
        paths = sorted(path.iterdir())[:FILES] if path.is_dir() else [path]
        stats = [(str(one), one.stat()) for one in paths if text and one.is_file()]
    except (OSError, ValueError):
        return
    yield from ((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


# -- what a builder reads -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CodeReference:
    """A global, or an attribute of its class, that a builder's code uses."""

    label: str
    value: Any


def reference_fingerprints(callee: object, backend: Backend) -> dict[str, str]:
    """Fingerprints of all that the user code behind `callee` can read besides its arguments."""
    return {read.label: _global_fingerprint(read.value, backend) for read in reads(callee)}


def model_use(callee: object, backend: Backend) -> str:
    """A model of the notebook that the builder's code reads; "" if none."""
    return next((read.label for read in reads(callee) if backend.models.is_model(read.value)), "")


def generator_use(callee: object) -> str:
    """A random generator of the notebook that the builder's code reads; "" if none."""
    generators = (read.label for read in reads(callee) if is_generator(read.value))
    return next(generators, "")


def is_generator(value: object) -> bool:
    """Whether `value` is a random generator of Python, NumPy or torch, by the names of its classes."""
    names = {base.__name__ for base in type(value).__mro__}
    return not issubclass(type(value), type) and bool(names & {"Random", "Generator", "RandomState"})


def device_use(callee: object, backend: Backend) -> str:
    """What in the user code behind `callee` may start the accelerator's runtime; "" if nothing."""
    for read in reads(callee, names=True):
        if backend.models.touches_device(read.value):
            return read.label
    return ""


def reads(
    callee: object, *, names: bool = False, holders: list[types.FunctionType | type] | None = None
) -> Iterator[CodeReference]:
    """What the code behind `callee` uses, through functions and classes that do not belong to a library.

    `names`: include the names and strings in the code; `holders`: gets these functions and classes.
    """
    holders = [] if holders is None else holders
    seen: set[int] = set()
    waiting: list[tuple[Any, type | None]] = [(getattr(callee, "__func__", callee), None)]
    if isinstance(getattr(callee, "__self__", None), type):
        waiting.append((getattr(callee, "__self__", None), None))
    while waiting:
        value, owner = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), type):
            holders += [base for base in value.__mro__ if base not in holders and not is_library_type(base)]
            waiting += [(method, value) for method in _constructors(value)]
        elif issubclass(type(value), types.FunctionType) and not is_library(value.__code__.co_filename):
            holders.append(value)
            for read in _function_reads(value, owner, names):
                yield read
                waiting.append((_plain(read.value), owner if read.label.startswith("self.") else None))


def _constructors(cls: type) -> list[Any]:
    return [_plain(vars(base)[name]) for base in cls.__mro__ for name in ("__new__", "__init__") if name in vars(base)]


def _function_reads(function: types.FunctionType, owner: type | None, names: bool) -> Iterator[CodeReference]:
    outer = {**function.__globals__, **_closure(function)}
    variables = {*global_names(function.__code__)[0], *function.__code__.co_freevars}  # not: attributes of that name
    for name in _names(function.__code__):
        if names:
            yield CodeReference(f"`{name}`", name)
        if name in outer and name in variables:
            yield CodeReference(f"`{name}`", outer[name])
        for base in owner.__mro__ if owner is not None else ():
            if name in vars(base) and base is not object:
                yield CodeReference(f"self.{name} of `{base.__name__}`", vars(base)[name])
                break
    for name, used in outer.items():
        if name in variables and issubclass(type(used), type) and used is not owner and not is_library_type(used):
            for attribute in _names(function.__code__) & {*vars(used)}:
                yield CodeReference(f"`{name}.{attribute}`", vars(used)[attribute])
    if names:
        yield from (CodeReference(f'"{text}"', text) for text in _texts(function.__code__))


class SharedState:
    """What the code behind a builder can change besides its arguments, as it is now: the names that it uses, the
    attributes of the user's classes, and what is in containers and objects below them."""

    def __init__(self, callee: object) -> None:
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []  # namespaces, and what was in them
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        self._items = 0
        holders: list[types.FunctionType | type] = []
        waiting = [getattr(callee, "__self__", None), callee]
        waiting += [read.value for read in reads(callee, holders=holders)]
        for holder in holders:
            self._keep_holder(holder)
        while waiting and self._items < SHARED_ITEMS:
            waiting += self._keep(waiting.pop())

    def _keep_holder(self, holder: types.FunctionType | type) -> None:
        if isinstance(holder, type):
            self._classes.append((holder, dict(vars(holder))))
            return
        names = itertools.chain(*global_names(holder.__code__))
        space = holder.__globals__
        self._tables.append((space, {name: space.get(name, _MISSING) for name in names}))
        self._cells += [(cell, _in_cell(cell)) for cell in holder.__closure__ or ()]

    def _keep(self, value: Any) -> list[Any]:
        """Returns what is in it."""
        contents = _contents_of(value)
        if contents is None or id(value) in self._seen:
            return []
        self._seen.add(id(value))
        self._contents.append((value, contents))
        self._items += len(contents)
        return [*contents.values()] if isinstance(contents, dict) else list(contents)

    def restore(self) -> None:
        """Make it what it was."""
        for space, before in self._tables:
            for name, value in before.items():
                if value is not _MISSING:
                    space[name] = value
                elif name in space:
                    del space[name]
        for cls, attributes in self._classes:
            for name in [name for name in vars(cls) if name not in attributes]:
                type.__delattr__(cls, name)
            for name, value in attributes.items():
                if vars(cls).get(name) is not value:
                    type.__setattr__(cls, name, value)
        for cell, value in self._cells:
            if value is not _MISSING:
                cell.cell_contents = value
        for value, contents in self._contents:
            _put_contents(value, contents)


_MISSING = object()


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _contents_of(value: Any) -> Any:
    """A copy of what is directly in a container, or of the attributes of an object of the user's."""
    kind = type(value)
    for base, copied in _CONTAINERS.items():
        if issubclass(kind, base):
            return copied(value)
    if issubclass(kind, (*BY_IDENTITY, types.MethodType)) or is_library_type(kind):
        return None
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if type(attributes) is dict else None


_CONTAINERS: dict[type, Callable[[Any], Any]] = {
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    deque: lambda value: list(deque.__iter__(value)),
}


def _same_contents(now: Any, before: Any) -> bool:
    if isinstance(before, dict):
        return [*map(id, now), *map(id, now.values())] == [*map(id, before), *map(id, before.values())]
    return [*map(id, now)] == [*map(id, before)]


def _put_contents(value: Any, contents: Any) -> None:
    if _same_contents(_contents_of(value), contents):
        return  # another thread may use it
    if isinstance(value, list):
        list.__setitem__(value, slice(None), contents)
        return
    if isinstance(value, deque):
        deque.clear(value)
        deque.extend(value, contents)
        return
    kind: Any = dict if isinstance(value, dict) else set if isinstance(value, set) else None
    target = value if kind is not None else value.__dict__
    kind = kind or dict
    kind.clear(target)
    kind.update(target, contents)


def _names(code: types.CodeType) -> set[str]:
    inner = {name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)}
    return {*code.co_names, *code.co_freevars} | inner


def _texts(code: types.CodeType) -> Iterator[str]:
    for part in code.co_consts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, types.CodeType):
            yield from _texts(part)


def _closure(function: types.FunctionType) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue
    return values


def _plain(value: Any) -> Any:
    """The function of a method, classmethod, staticmethod or property; other values unchanged."""
    if issubclass(type(value), (types.MethodType, classmethod, staticmethod)):
        return value.__func__
    return value.fget if issubclass(type(value), property) else value


def _global_fingerprint(value: Any, backend: Backend) -> str:
    """By value if that is cheap, else by identity."""
    try:
        return fingerprint(_plain(value), backend, limit=GLOBAL_LIMIT)
    except NotComparable:
        return f"identity {id(value)}"
