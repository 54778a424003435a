"""A profile as a file for other tools: a trace for Perfetto and chrome://tracing, and a profile for pprof.

Formats: the Trace Event Format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) and pprof's
profile.proto (github.com/google/pprof/blob/main/proto/profile.proto, whose messages and numbers are those below).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tpu_magics.backends.hlo.proto import message_field, varint_field
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.profile import Profile, ProfiledOp

ESTIMATE = "times are the TPU compiler's estimate, without what it does not estimate; nothing was measured"
_FORMS = "NAME.json or NAME.json.gz for Perfetto and chrome://tracing, NAME.pb.gz for pprof"


def export(found: Profile, name: str, path: Path) -> None:
    """Write the profile of the step `name`; the ending of the path says how. Raises TpuMagicsError where the ending is
    another one, the profile has no times, or the file cannot be written."""
    forms = {".json": _json, ".json.gz": lambda *of: gzip.compress(_json(*of)), ".pb.gz": _pprof}
    form = next((make for ending, make in forms.items() if path.name.endswith(ending)), None)
    if form is None:
        raise TpuMagicsError(
            f"{path.name} is no name for a profile.", "Its ending says what it is for.", f"Use {_FORMS}."
        )
    if found.missing:
        raise TpuMagicsError("There is no profile to export.", f"{found.missing}.", "See the profile's other figures.")
    try:
        path.write_bytes(form(found, name))
    except OSError as error:
        raise TpuMagicsError(f"{path} cannot be written.", str(error), "Choose another path.") from error


# -- Perfetto and chrome://tracing ------------------------------------------------------------------------------------

_OPS, _MODULES = 1, 2  # threads of the trace


def _json(found: Profile, name: str) -> bytes:
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"{name} ({ESTIMATE})"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": _OPS, "args": {"name": "operations"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": _MODULES, "args": {"name": "modules"}},
        *_events(found),
        *_memory(found),
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"note": ESTIMATE}}).encode()


def _events(found: Profile) -> Iterator[dict[str, Any]]:
    at = 0.0
    opened: list[tuple[str, float]] = []  # slices of the modules' thread, with their starts
    for one in found.ops:
        if not one.seconds:
            continue
        yield {**_slice(one.cost.op or one.cost.name, at, one.seconds, _OPS), "cat": one.cost.kind, "args": _args(one)}
        path = _path(one)
        same = next(
            (n for n, (a, b) in enumerate(zip(path, opened, strict=False)) if a != b[0]), min(len(path), len(opened))
        )
        yield from _closed(opened, same, at)
        opened += [(part, at) for part in path[same:]]
        at += one.seconds
    yield from _closed(opened, 0, at)


def _closed(opened: list[tuple[str, float]], keep: int, at: float) -> Iterator[dict[str, Any]]:
    while len(opened) > keep:
        name, start = opened.pop()
        yield _slice(name, start, at - start, _MODULES)


def _slice(name: str, start: float, seconds: float, thread: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start * 1e6, "dur": seconds * 1e6}


def _args(one: ProfiledOp) -> dict[str, Any]:
    cost = one.cost
    told = {
        "instruction": cost.name,
        "shape": cost.shape,
        "module": cost.scope.module,
        "phase": cost.scope.phase,
        "line": str(cost.place or ""),
        "runs": cost.runs,
        "FLOPs": cost.flops,
        "HBM bytes": cost.bytes,
        "at least (us)": one.least * 1e6,
        "bound": one.bound,
    }
    return {name: value for name, value in told.items() if value}


def _path(one: ProfiledOp) -> list[str]:
    scope = one.cost.scope
    return [scope.phase or "other", *(scope.module.split(".") if scope.module else ())]


def _memory(found: Profile) -> Iterator[dict[str, Any]]:
    for share, held in found.curve:
        yield {"ph": "C", "name": "HBM", "pid": 1, "ts": share * found.whole.seconds * 1e6, "args": {"bytes": held}}


# -- pprof ------------------------------------------------------------------------------------------------------------

_SAMPLES = (("estimate", "nanoseconds"), ("at_least", "nanoseconds"), ("hbm", "bytes"), ("flops", "count"))


class _Table:
    """Values with their numbers."""

    def __init__(self, first: int, *values: Any) -> None:
        self.first = first
        self.numbers = {value: number for number, value in enumerate(values, first)}

    def of(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers) + self.first)


def _pprof(found: Profile, name: str) -> bytes:
    texts, functions = _Table(0, ""), _Table(1)
    types = [_value_type(texts, *one) for one in _SAMPLES]
    samples = [_sample(texts, functions, one) for one in found.ops]
    parts = [*(message_field(1, one) for one in types), *(message_field(2, one) for one in samples)]
    for (function, file, line), number in functions.numbers.items():
        made = varint_field(1, number) + varint_field(2, function) + varint_field(4, file)
        place = varint_field(1, number) + varint_field(2, line)
        parts += [message_field(5, made), message_field(4, varint_field(1, number) + message_field(4, place))]
    parts += [varint_field(13, texts.of(f"{name}: {ESTIMATE}")), varint_field(14, texts.of("estimate"))]
    parts += [message_field(6, text.encode()) for text in texts.numbers]
    return gzip.compress(b"".join(parts))


def _value_type(texts: _Table, name: str, unit: str) -> bytes:
    return varint_field(1, texts.of(name)) + varint_field(2, texts.of(unit))


def _sample(texts: _Table, functions: _Table, one: ProfiledOp) -> bytes:
    """The operation, the modules around it, and the line that called them, innermost first."""
    cost, place = one.cost, one.cost.place
    leaf = f"{cost.kind}: {cost.op or cost.name}"
    file, line = (place.path, place.line) if place is not None else ("", 0)
    stack = [
        (leaf, file, line),
        *((part, "", 0) for part in reversed(_path(one))),
        (place.code if place else "step", file, line),
    ]
    places = (functions.of((texts.of(text), texts.of(path), number)) for text, path, number in stack)
    values = ((one.seconds or 0.0) * 1e9, one.least * 1e9, cost.bytes, cost.flops)
    return _repeated(1, places) + _repeated(2, map(round, values))


def _repeated(number: int, values: Iterable[int]) -> bytes:
    return b"".join(varint_field(number, value, zero=True) for value in values)
