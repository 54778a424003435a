"""Packs the payload of a run; if that fails, finds and names the part that cannot be pickled."""

from __future__ import annotations

import inspect
import io
import types
from collections.abc import Iterator, Mapping
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods.bundle import Bundle, BundlePickler, pack
from tpu_magics.launch.pods.payload import Payload, loaded_names
from tpu_magics.launch.work import CellWork, FunctionWork
from tpu_magics.runs.origin import is_library

_DEPTH = 12
_WIDTH = 1000  # parts of one object that are searched


def pack_payload(payload: Payload, namespace: dict[str, Any], texts: Mapping[str, list[str]]) -> Bundle:
    """The bundle of a run. Raises TpuMagicsError that names what cannot be pickled."""
    try:
        return pack(payload, namespace, texts)
    except Exception as error:
        raise explain_pickling_error(payload, namespace, error) from None


def explain_pickling_error(payload: Payload, namespace: dict[str, Any], error: Exception) -> TpuMagicsError:
    """The error that names the part; `error`: the one that pickling the whole payload raised."""
    culprit = _find(_roots(payload), namespace, set(), ())
    path, value, reason = culprit if culprit is not None else (("the training function",), None, error)
    name = path[-1]
    via = f", found in {' -> '.join(f'`{one}`' for one in path[:-1])}" if len(path) > 1 else ""
    kind = "" if value is None else f"It is of type {type(value).__module__}.{type(value).__qualname__}{via}. "
    return TpuMagicsError(
        f"`{name}` cannot be sent to the hosts.",
        f"{kind}{type(reason).__name__}: {' '.join(str(reason).split())[:300]}. For several hosts the function and all "
        "objects that it uses are pickled. On one host workers inherit them and nothing is pickled.",
        f"Create `{name}` inside the training function (for example open files, connections, locks and generators), or "
        "pass the function the data that it is created from.",
    )


Unpicklable = tuple[tuple[str, ...], Any, Exception]


def _roots(payload: Payload) -> Iterator[tuple[str, Any]]:
    work = payload.work
    if isinstance(work, FunctionWork):
        yield from _arguments(work)
        yield str(getattr(work.function, "__name__", "") or type(work.function).__name__), work.function
    elif isinstance(work, CellWork):
        yield from payload.names.items()
    yield from payload.models.items()
    yield from payload.arguments.items()


def _arguments(work: FunctionWork) -> list[tuple[str, Any]]:
    try:
        names = list(inspect.signature(work.function).parameters)
    except (TypeError, ValueError):
        names = []
    names = names[1:] if work.index_first else names
    names += [f"argument {number}" for number in range(len(names), len(work.args))]
    return [*zip(names, work.args, strict=False), *work.kwargs.items()]


def _find(
    parts: Iterator[tuple[str, Any]], namespace: dict[str, Any], seen: set[int], path: tuple[str, ...]
) -> Unpicklable | None:
    """The innermost part that cannot be pickled, with its path."""
    for name, value in parts:
        if id(value) in seen or len(path) > _DEPTH:
            continue
        seen.add(id(value))
        problem = _problem(value, namespace)
        if problem is not None:
            inner = (*path, name)
            return _find(_parts(value), namespace, seen, inner) or (inner, value, problem)
    return None


def _problem(value: Any, namespace: dict[str, Any]) -> Exception | None:
    try:
        BundlePickler(io.BytesIO(), namespace, lambda _buffer: False).dump(value)
    except Exception as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, with names that a user knows."""
    if isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield value.__func__.__name__, value.__func__
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, dict):
        yield from ((_entry(key), item) for key, item in list(value.items())[:_WIDTH])
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{number}]", item) for number, item in enumerate(list(value)[:_WIDTH]))
    elif isinstance(value, type):
        yield from ((name, item) for name, item in vars(value).items() if isinstance(item, types.FunctionType))
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from list(attributes.items())[:_WIDTH]
        yield type(value).__name__, type(value)


def _entry(key: object) -> str:
    return key if isinstance(key, str) else f"[{key!r}]"


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if is_library(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in dict.fromkeys(loaded_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from ((f"a default of {function.__name__}", one) for one in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
