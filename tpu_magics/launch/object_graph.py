"""What a training function can reach: the models that it is given or reads, and the optimisers.

What lives here: arguments, globals, closures and defaults, followed through helper functions of the notebook and
through containers. What does not: what is a model (backends/), what is done about it (guards.py, results).
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

DEPTH = 3  # levels of containers and attributes that are looked into
WIDTH = 256  # entries of a container that are looked at
MOST = 20_000  # objects looked at in all


def reachable_objects(function: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything the function is given or reads, each object once, names as the person knows them."""
    return _all_inside((*arguments.items(), *_read(function, set())))


def names_in(code: types.CodeType) -> Iterator[str]:
    """Every global or attribute name that a code object mentions, its inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def objects_of_code(code: types.CodeType, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The same for statements that run with `namespace` as their globals."""
    return _all_inside(_globals_of(code, namespace, set()))


def _read(function: Any, done: set[int]) -> Iterator[tuple[str, Any]]:
    """What a callable reads that is not an argument, through its own helper functions."""
    if id(function) in done:
        return
    done.add(id(function))
    if isinstance(function, functools.partial):
        yield from ((f"argument {i}", value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _read(function.func, done)
    elif isinstance(function, types.MethodType):
        yield "self", function.__self__
        yield from _read(function.__func__, done)
    elif isinstance(function, types.FunctionType):
        yield from _read_function(function, done)
    wrapped = _attribute(function, "__wrapped__")
    if wrapped is not None:
        yield from _read(wrapped, done)


def _read_function(function: types.FunctionType, done: set[int]) -> Iterator[tuple[str, Any]]:
    yield from _globals_of(function.__code__, function.__globals__, done)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield name, value
        yield from _helper(value, function.__globals__, done)


def _globals_of(code: types.CodeType, space: Mapping[str, Any], done: set[int]) -> Iterator[tuple[str, Any]]:
    for name in dict.fromkeys(names_in(code)):
        if name in space:
            yield name, space[name]
            yield from _helper(space[name], space, done)


def _helper(value: Any, space: Mapping[str, Any], done: set[int]) -> Iterator[tuple[str, Any]]:
    """What a helper of the same notebook reads; functions of libraries are left alone."""
    inner = _attribute(value, "__func__") or value
    inner = _attribute(inner, "__wrapped__") or inner
    if isinstance(inner, types.FunctionType) and inner.__globals__ is space:
        yield from _read(value, done)


def _all_inside(roots: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """`roots` and what they hold. What has a name of its own goes by that, also where another one holds it."""
    first: dict[int, tuple[str, Any]] = {}
    for name, value in roots:
        first.setdefault(id(value), (name, value))
    seen = set(first)
    for number, (name, value) in first.items():
        seen.discard(number)
        yield from _inside(name, value, DEPTH, seen)


def contents(name: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """`value` and what it holds, with names."""
    yield from _inside(name, value, depth, set())


def _inside(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Level by level: what is reached in several ways goes by the shortest name."""
    level: list[tuple[str, Any]] = []
    waiting: Iterable[tuple[str, Any]] = [(name, value)]
    for _ in range(depth + 1):
        for inner, item in waiting:
            if id(item) in seen or len(seen) > MOST or isinstance(item, _ATOMS):
                continue
            seen.add(id(item))
            yield inner, item
            level.append((inner, item))
        waiting = itertools.chain.from_iterable(itertools.starmap(_parts, level))
        level = []


_ATOMS = (types.ModuleType, type, str, bytes, int, float)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{_key(key)}]", item) for key, item in list(value.items())[:WIDTH])
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", item) for i, item in enumerate(value[:WIDTH]))
    elif not isinstance(value, (types.FunctionType, types.MethodType)) and not _is_array(value):
        attributes = _attribute(value, "__dict__")
        if isinstance(attributes, dict):
            yield from ((f"{name}.{key}", item) for key, item in list(attributes.items())[:WIDTH])


def _key(key: Any) -> str:
    """A key as it is written; the text of a tensor would take long."""
    return repr(key) if isinstance(key, (str, int, float, tuple)) else f"<{type(key).__name__}>"


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "dtype") and hasattr(type(value), "shape")


def _attribute(value: Any, name: str) -> Any:
    """An attribute, or None; also of objects whose own code raises something else when they are asked."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def find_models(items: Iterator[tuple[str, Any]], is_model: Callable[[object], bool]) -> dict[str, Any]:
    """The models among `items`, outermost ones only: a part of a model comes home with it."""
    found: dict[str, Any] = {}
    inner: set[int] = set()
    for name, value in items:
        if is_model(value) and id(value) not in inner:
            found[name] = value
            inner.update(id(part) for part in value.modules())
    return {n: v for n, v in found.items() if not any(v is not o and _contains(o, v) for o in found.values())}


def _contains(outer: Any, part: Any) -> bool:
    return any(module is part for module in outer.modules())
