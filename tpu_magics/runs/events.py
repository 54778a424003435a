"""The records of a run: what may stand in `rank-<r>.jsonl`, and what each field means.

What lives here: one frozen dataclass per kind of event, and their way to and from one JSON line. What does not:
files (see writer.py and reader.py), and any thought about where an event came from. The field names are a contract:
both front ends and other tools read them.

Every line is a JSON object with `v` (schema version), `kind`, `t` (unix seconds), `rank`, and the fields of its kind.
Readers skip kinds and versions that they do not know.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

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

    `total`: steps so far; `n`: steps in this record; `seconds`: wall time from the previous record's last step (or the start) to this one's.
    """

    kind: ClassVar[str] = "steps"
    total: int = 0
    n: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Value(Event):
    """What the user logged under `name`. `step`: total steps when it was logged; for n > 1 the record stands for n values.

    `value` is the last of them, `low` and `high` their range (non-finite numbers are the strings "nan", "inf", "-inf").
    A value that is not a number is kept as text (at most 200 characters).
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
    counts them; None: not available) are totals of this rank."""

    kind: ClassVar[str] = "end"
    status: str = "done"
    seconds: float = 0.0
    steps: int = 0
    compiles: int | None = None
    error_type: str = ""
    error_text: str = ""
    frames: tuple[Frame, ...] = field(default_factory=tuple)


KINDS: dict[str, type[Event]] = {
    cls.kind: cls for cls in (Start, Phase, Steps, Value, Memory, Display, Warned, End)
}


def to_line(event: Event) -> bytes:
    """One event as one line of UTF-8 JSON, newline included."""
    record = {"v": VERSION, "kind": event.kind, **dataclasses.asdict(event)}
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace") + b"\n"


def from_record(record: Any) -> Event | None:
    """An event from a parsed line, or None where the line is not one this version knows."""
    if not isinstance(record, dict) or record.get("v") != VERSION:
        return None
    cls = KINDS.get(record.get("kind", ""))
    if cls is None:
        return None
    known = {f.name for f in dataclasses.fields(cls)}
    fields = {key: value for key, value in record.items() if key in known}
    if cls is End:
        fields["frames"] = tuple(Frame(**frame) for frame in fields.get("frames", ()))
    try:
        return cls(**fields)
    except TypeError:
        return None
