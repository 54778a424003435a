"""The records of a run: what may stand in `rank-<r>.jsonl`, and what each field means.

What lives here: one frozen dataclass per kind of event, and their way to and from one JSON line. What does not:
files (see writer.py and reader.py), and any thought about where an event came from. The field names are a contract:
both front ends and other tools read them.

Every line is a JSON object with `v` (schema version), `kind`, `t` (unix seconds), `rank`, and the fields of its kind.
Readers skip kinds and versions that they do not know.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

VERSION = 1


@dataclass(frozen=True)
class Event:
    """What all events have. `t`: unix seconds, `rank`: the global rank it is about."""

    kind: ClassVar[str] = ""
    t: float
    rank: int


@dataclass(frozen=True)
class Start(Event):
    """A worker has begun, before the training function is entered."""

    kind: ClassVar[str] = "start"
    pid: int = 0
    device: str = ""
    world_size: int = 1


@dataclass(frozen=True)
class Phase(Event):
    """A worker entered a phase: "starting", "training", "collecting" (bringing weights home)."""

    kind: ClassVar[str] = "phase"
    name: str = ""


@dataclass(frozen=True)
class Steps(Event):
    """Steps done since the last record of this kind; never one record per step of a long run.

    `total`: steps so far; `n`: steps in this record; `seconds`: wall time from the previous record's last step (or the
    start) to this one's.
    """

    kind: ClassVar[str] = "steps"
    total: int = 0
    n: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Value(Event):
    """What the user logged under `name`. `step`: total steps when it was logged.

    For n > 1 the record stands for n values: `value`, `step` and `t` are those of the last, `low` and `high` the range
    of the numbers among them; `high` is "nan" where one of them was not a number. Non-finite numbers are the strings
    "nan", "inf" and "-inf". A value of another type is kept as text (at most 200 characters).
    """

    kind: ClassVar[str] = "value"
    name: str = ""
    value: float | int | str = 0.0
    step: int = 0
    n: int = 1
    low: float | int | str | None = None
    high: float | int | str | None = None


@dataclass(frozen=True)
class Memory(Event):
    """Host memory of one worker in bytes, as its parent saw it: resident, and proportional (None: not available)."""

    kind: ClassVar[str] = "memory"
    rss: int = 0
    pss: int | None = None


@dataclass(frozen=True)
class Display(Event):
    """Rank 0 displayed something. `file`: JSON in the run folder with "data" and "metadata"; `offset`: bytes of
    rank-0.log that had been written before; `update`: replaces the display with the same `display_id`;
    `action` is "display" or "clear" (clear_output; then `wait` tells whether to wait for the next output)."""

    kind: ClassVar[str] = "display"
    file: str = ""
    offset: int = 0
    display_id: str = ""
    update: bool = False
    action: str = "display"
    wait: bool = False


@dataclass(frozen=True)
class Warned(Event):
    """Something the person should know; `code` is stable, `text` is one sentence."""

    kind: ClassVar[str] = "warning"
    code: str = ""
    text: str = ""


@dataclass(frozen=True)
class Frame:
    """One line of a stack as the person knows it: `path` is "In [n]" for a cell, else a path; `line` counts from 1
    in the cell as it is seen, the `%%tpu_train` line included. `library`: not the user's own code."""

    path: str
    line: int
    function: str
    code: str = ""
    library: bool = False


@dataclass(frozen=True)
class End(Event):
    """A worker's last record. `status`: "done", "failed" or "limit" (`--steps` reached). For "failed": the exception's
    qualified type, its text, the stack (outermost first). `steps` and `compiles` (uncached compiles as the runtime
    counts them; None: not available) are totals of this rank. `log_end`: bytes of the rank's log that are the user's
    output; a traceback may follow them."""

    kind: ClassVar[str] = "end"
    status: str = "done"
    seconds: float = 0.0
    steps: int = 0
    compiles: int | None = None
    error_type: str = ""
    error_text: str = ""
    frames: tuple[Frame, ...] = field(default_factory=tuple)
    log_end: int | None = None


KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in (Start, Phase, Steps, Value, Memory, Display, Warned, End)}

E = TypeVar("E", bound=Event)

# What json.loads may give for a field of each annotation; an annotation that is not here is not checked.
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_LARGEST_INT = 2**63


def to_line(event: Event) -> bytes:
    """One event as one line of UTF-8 JSON, newline included."""
    return to_json({"v": VERSION, "kind": event.kind, **dataclasses.asdict(event)}) + b"\n"


def to_json(record: Any, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8: non-finite numbers become the strings "nan", "inf" and "-inf", because JSON has no such
    numbers and a browser refuses the whole line; other objects become their text."""
    separators = (",", ":") if indent is None else None
    dumps = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    try:
        text = dumps(record, default=str)
    except ValueError:
        text = dumps(_finite(record), default=str)
    return text.encode("utf-8", "replace")


def number_text(value: float) -> float | str:
    """The number as JSON can hold it: itself, or "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(float(value))


def only(events: Iterable[Event], cls: type[E]) -> list[E]:
    """The events of one kind, typed."""
    return [event for event in events if isinstance(event, cls)]


def from_line(line: bytes) -> Event | None:
    """An event from one line of a record file, or None where the line is torn, garbage or of another version."""
    try:
        return from_record(json.loads(line))
    except (ValueError, RecursionError):
        return None


def from_record(record: Any) -> Event | None:
    """An event from a parsed line, or None where the line is not one this version knows."""
    if not isinstance(record, dict) or record.get("v") != VERSION:
        return None
    kind = record.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return None
    try:
        return cls(**_fields(cls, record))
    except (TypeError, ValueError, OverflowError):
        return None


def _fields(cls: type[Event], record: dict[str, Any]) -> dict[str, Any]:
    fields = _checked(cls, record)
    if not math.isfinite(fields.get("t", math.nan)):
        raise ValueError("a record without a time")
    if "frames" in fields:
        fields["frames"] = tuple(Frame(**_checked(Frame, frame)) for frame in fields["frames"])
    return fields


def _checked(cls: type[Any], record: Any) -> dict[str, Any]:
    """The fields of `record` that `cls` has. Raises TypeError where one holds what its annotation does not allow."""
    if not isinstance(record, dict):
        raise TypeError(f"{record!r} is not an object")
    accepted = _TYPES[cls.__name__]
    fields = {key: value for key, value in record.items() if key in accepted}
    for key, value in fields.items():
        if accepted[key] and not isinstance(value, accepted[key]):
            raise TypeError(f"{key} is {value!r}")
        if isinstance(value, int) and abs(value) > _LARGEST_INT:
            raise ValueError(f"{key} is too large to reckon with")
    return fields


def _accepted(annotation: str) -> tuple[type, ...]:
    """The types that a parsed line may hold there; empty where anything goes."""
    parts = [_ACCEPTED.get(part.strip()) for part in annotation.split("|")]
    return () if None in parts else tuple(cls for part in parts if part for cls in part)


_TYPES = {
    cls.__name__: {f.name: _accepted(str(f.type)) for f in dataclasses.fields(cls)} for cls in (*KINDS.values(), Frame)
}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
