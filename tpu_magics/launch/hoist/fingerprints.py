"""Fingerprints of values, of what a builder reads besides its arguments, and of files: equal for equal values.

They are valid in this process and its forks only: a value without a comparable content is identified by its id.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.launch.hoist.values import HoistBackend
from tpu_magics.launch.state.snapshot import global_names
from tpu_magics.runs.origin import is_library

SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
GLOBAL_LIMIT = 1 << 20  # bytes: globals with a larger pickle are compared by identity
FILES = 1000  # of a folder that are compared


class NotComparable(Exception):
    """A value that cannot be compared later."""


# -- values ---------------------------------------------------------------------------------------------------------
def fingerprint(
    value: object, backend: HoistBackend, alias: Mapping[int, int] | None = None, limit: int | None = None
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


def _feed(value: Any, sink: _Sink, backend: HoistBackend, alias: Mapping[int, int]) -> None:
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
    elif issubclass(type(value), BY_IDENTITY) or backend.is_model(value):
        sink.text("identity", alias.get(id(value), id(value)))
    else:
        sink.text("pickle", id(kind))
        _pickle(value, sink, backend)


def _pickle(value: object, sink: _Sink, backend: HoistBackend) -> None:
    """First without the memo, so that equal values give equal bytes however they share their parts."""
    start, size = sink.hash.copy(), sink.size
    try:
        _Pickler(sink, backend, fast=True).dump(value)
    except (ValueError, RecursionError):  # cycles
        sink.hash, sink.size = start, size
        _Pickler(sink, backend, fast=False).dump(value)


class _Pickler(pickle.Pickler):
    """Writes equal bytes for equal tensors."""

    def __init__(self, sink: _Sink, backend: HoistBackend, *, fast: bool) -> None:
        super().__init__(sink, protocol=pickle.HIGHEST_PROTOCOL)
        self.fast = fast
        self.backend = backend

    def reducer_override(self, value: Any) -> Any:
        content = self.backend.tensor_content(value)
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


def reference_fingerprints(callee: object, backend: HoistBackend) -> dict[str, str]:
    """Fingerprints of all that the user code behind `callee` can read besides its arguments."""
    return {read.label: _global_fingerprint(read.value, backend) for read in reads(callee)}


def generator_use(callee: object) -> str:
    """A random generator of the notebook that the builder's code reads; "" if none."""
    generators = (read.label for read in reads(callee) if is_generator(read.value))
    return next(generators, "")


def is_generator(value: object) -> bool:
    """Whether `value` is a random generator of Python, NumPy or torch, by the names of its classes."""
    names = {base.__name__ for base in type(value).__mro__}
    return not issubclass(type(value), type) and bool(names & {"Random", "Generator", "RandomState"})


def device_use(callee: object, backend: HoistBackend) -> str:
    """What in the user code behind `callee` may start the accelerator's runtime; "" if nothing."""
    for read in reads(callee, names=True):
        if backend.touches_device(read.value):
            return read.label
    return ""


def reads(callee: object, *, names: bool = False) -> Iterator[CodeReference]:
    """What the code behind `callee` uses, through functions and classes that do not belong to a library.

    `names`: include the names and strings in the code.
    """
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
            waiting += [(method, value) for method in _constructors(value)]
        elif issubclass(type(value), types.FunctionType) and not is_library(value.__code__.co_filename):
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
    if names:
        yield from (CodeReference(f'"{text}"', text) for text in _texts(function.__code__))


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


def _global_fingerprint(value: Any, backend: HoistBackend) -> str:
    """By value if that is cheap, else by identity."""
    try:
        return fingerprint(_plain(value), backend, limit=GLOBAL_LIMIT)
    except NotComparable:
        return f"identity {id(value)}"
