"""The objects that a training function can reach: through arguments, globals, closures, defaults, helper functions of
the notebook, and containers.

No object's own code runs: a lazy one would load, raise or never end, and its `__class__` may be another's. So types are
those of `type()`, and containers are read with the methods of the built-in types.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

DEPTH = 3  # levels of containers and attributes to follow
WIDTH = 256  # entries of a container to visit
MOST = 20_000  # objects to visit in total


def reachable_objects(function: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of all objects that the function is given or reads, each once, with the names that the user
    knows."""
    return _all_contents((*arguments.items(), *_objects_read(function, set())))


def names_in(code: types.CodeType) -> Iterator[str]:
    """All global and attribute names in a code object, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def objects_of_code(code: types.CodeType, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`reachable_objects` for statements that run with `namespace` as their globals."""
    return _all_contents(_globals_of(code, namespace, set()))


def _objects_read(function: Any, done: set[int]) -> Iterator[tuple[str, Any]]:
    """What a callable reads besides its arguments, helper functions included."""
    if id(function) in done:
        return
    done.add(id(function))
    kind = type(function)
    if issubclass(kind, functools.partial):
        yield from ((f"argument {i}", value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _objects_read(function.func, done)
    elif kind is types.MethodType:
        yield "self", function.__self__
        yield from _objects_read(function.__func__, done)
    elif kind is types.FunctionType:
        yield from _objects_read_by_function(function, done)
    wrapped = _attribute(function, "__wrapped__")
    if wrapped is not None:
        yield from _objects_read(wrapped, done)


def _objects_read_by_function(function: types.FunctionType, done: set[int]) -> Iterator[tuple[str, Any]]:
    yield from _globals_of(function.__code__, function.__globals__, done)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield name, value
        yield from _objects_read_by_helper(value, function.__globals__, done)


def _globals_of(code: types.CodeType, space: Mapping[str, Any], done: set[int]) -> Iterator[tuple[str, Any]]:
    for name in dict.fromkeys(names_in(code)):
        if name in space:
            yield name, space[name]
            yield from _objects_read_by_helper(space[name], space, done)


def _objects_read_by_helper(value: Any, space: Mapping[str, Any], done: set[int]) -> Iterator[tuple[str, Any]]:
    """What a helper function of the same notebook reads; library functions are skipped."""
    inner = value
    for name in ("__func__", "__wrapped__"):
        found = _attribute(inner, name)
        inner = inner if found is None else found
    if type(inner) is types.FunctionType and inner.__globals__ is space:
        yield from _objects_read(value, done)


def _all_contents(roots: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """`roots` and their contents. An object with a name of its own keeps that name, also inside of another one."""
    first: dict[int, tuple[str, Any]] = {}
    for name, value in roots:
        first.setdefault(id(value), (name, value))
    seen = set(first)
    for number, (name, value) in first.items():
        seen.discard(number)
        yield from _contents_by_level(name, value, DEPTH, seen)


def contents(name: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """`value` and its contents, with names."""
    yield from _contents_by_level(name, value, depth, set())


def _contents_by_level(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Level by level, so that an object reached in several ways gets the shortest name."""
    level: list[tuple[str, Any]] = []
    waiting: Iterable[tuple[str, Any]] = [(name, value)]
    for _ in range(depth + 1):
        for inner, item in waiting:
            if id(item) in seen or len(seen) > MOST or issubclass(type(item), _ATOMS):
                continue
            seen.add(id(item))
            yield inner, item
            level.append((inner, item))
        waiting = itertools.chain.from_iterable(itertools.starmap(_parts, level))
        level = []


# The stream for a thread's own error: in a notebook the kernel's, with threads of its own. (CPython 3.10 to 3.14)
_OF_KERNEL = ("_stderr",)
_ATOMS = (types.ModuleType, type, str, bytes, int, float)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        yield from ((f"{name}[{_key(key)}]", item) for key, item in _first(dict.items(value)))
    elif issubclass(kind, (list, tuple)):
        items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        yield from ((f"{name}[{i}]", item) for i, item in enumerate(_first(items)))
    elif kind not in (types.FunctionType, types.MethodType) and not _is_array(value):
        attributes = _attribute(value, "__dict__")
        if type(attributes) is dict:
            of_kernel = _OF_KERNEL if issubclass(kind, threading.Thread) else ()
            yield from ((f"{name}.{key}", item) for key, item in _first(attributes.items()) if key not in of_kernel)


def _first(items: Iterable[Any]) -> list[Any]:
    return list(itertools.islice(items, WIDTH))


def _key(key: Any) -> str:
    """A key as text; the repr of a tensor would take long."""
    return repr(key) if type(key) in (str, int, float, bool, tuple) else f"<{type(key).__name__}>"


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "dtype") and hasattr(type(value), "shape")


def _attribute(value: Any, name: str) -> Any:
    """An attribute, or None: without `__getattr__` or `__getattribute__` of its class."""
    try:
        return object.__getattribute__(value, name)
    except Exception:  # of a property
        return None


def find_models(items: Iterator[tuple[str, Any]], is_model: Callable[[object], bool]) -> dict[str, Any]:
    """The models among `items`, without those that are part of another one."""
    models: dict[str, Any] = {}
    inner: set[int] = set()
    for name, value in items:
        if is_model(value) and id(value) not in inner:
            models[name] = value
            inner.update(id(part) for part in value.modules())
    return {n: v for n, v in models.items() if not any(v is not o and _contains(o, v) for o in models.values())}


def _contains(outer: Any, part: Any) -> bool:
    return any(module is part for module in outer.modules())
