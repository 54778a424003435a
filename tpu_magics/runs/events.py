"""The events of a run: the records in `rank-<r>.jsonl`, and what each field means.

Every line is a JSON object with `v` (schema version), `kind`, `t` (unix seconds), `rank`, and the fields of its kind.
Readers skip kinds and versions that they do not know. Field names are a contract with both front ends and other tools.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

VERSION = 1
LONGEST_TEXT = 64 * 1024  # characters of a text from outside that are kept
MOST_NAMES = 64  # of logged values of a rank


@dataclass(frozen=True)
class Event:
    """What all events have. `t`: unix seconds, `rank`: the global rank it is about."""

    kind: ClassVar[str] = ""
    terse: ClassVar[bool] = False  # whether fields that hold their default are left out of the line
    t: float
    rank: int


@dataclass(frozen=True)
class Site:
    """The user's source line that triggered something. `id`: its number in this rank, from 0, in the order of first
    sight; `path` is "In [n]" for a cell, else a path; `line` counts from 1 in the cell as the user sees it, the
    `%%tpu_train` line included; `cell_id`: where the front end provides it."""

    id: int
    path: str
    line: int
    function: str = ""
    code: str = ""
    cell_id: str = ""


@dataclass(frozen=True)
class Input:
    """A tensor that a step received from the host. `dtype`: the framework's name, without "torch."."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Start(Event):
    """A worker has begun, before the training function is entered."""

    kind: ClassVar[str] = "start"
    pid: int = 0
    device: str = ""
    world_size: int = 1


@dataclass(frozen=True)
class Phase(Event):
    """A worker entered a phase: "starting", "training", "finishing" (the function has ended, the device runs what is
    queued), "collecting" (transferring weights to the notebook)."""

    kind: ClassVar[str] = "phase"
    name: str = ""


@dataclass(frozen=True)
class Steps(Event):
    """Steps done since the last record of this kind; never one record per step of a long run.

    `total`: steps so far; `n`: steps in this record; `seconds`: wall time from the previous record's last step (or the
    start) to this one's. Of these, `compiled` steps compiled something, and took `compiled_seconds`.
    """

    kind: ClassVar[str] = "steps"
    terse: ClassVar[bool] = True
    total: int = 0
    n: int = 0
    seconds: float = 0.0
    compiled: int = 0
    compiled_seconds: float = 0.0

    @property
    def clean(self) -> tuple[int, float]:
        """How many of its steps compiled nothing, and their seconds together."""
        n = max(0, self.n) - max(0, min(self.n, self.compiled))
        seconds = max(0.0, self.seconds - self.compiled_seconds)
        return (n, seconds) if n and math.isfinite(seconds) else (0, 0.0)


@dataclass(frozen=True)
class Total(Event):
    """How many steps the rank's whole training has, as far as its program tells; a later record replaces an earlier.
    `steps`: those already done included; 0: not known any longer. `source`: where it comes from, e.g. "64 batches x 3
    epochs", "Trainer.max_steps", "--steps"."""

    kind: ClassVar[str] = "total"
    terse: ClassVar[bool] = True
    steps: int = 0
    source: str = ""


@dataclass(frozen=True)
class Value(Event):
    """What the user logged under `name`. `step`: total steps when it was logged.

    For n > 1 the record aggregates n values: `value`, `step` and `t` are those of the last, `low` and `high` the range
    of the numbers among them; `high` is "nan" where one of them was not a number. Non-finite numbers are the strings
    "nan", "inf" and "-inf". A value of another type is kept as text (at most 200 characters).
    """

    kind: ClassVar[str] = "value"
    terse: ClassVar[bool] = True
    name: str = ""
    value: float | int | str = 0.0
    step: int = 0
    n: int = 1
    low: float | int | str | None = None
    high: float | int | str | None = None


@dataclass(frozen=True)
class Memory(Event):
    """Memory of one rank in bytes. Host memory as the worker's parent saw it: resident (0: not in this record), and
    proportional (None: not available). HBM as the rank's runtime reports it (None: not available, or not in this
    record)."""

    kind: ClassVar[str] = "memory"
    terse: ClassVar[bool] = True
    rss: int = 0
    pss: int | None = None
    hbm_used: int | None = None
    hbm_total: int | None = None


@dataclass(frozen=True)
class Compile(Event):
    """One XLA compile of a graph that was in no cache.

    `seconds`: its time (None: not available); `graph`: the framework's hash, else of its text; `site`: the line that
    triggered it; `nth`: which compile at this site, from 0; `recompile`: the site had compiled before; `inputs`: what
    the step received from the host. For a recompile: `nearest`: the `nth` of the compile it was compared with;
    `difference`: what differs, e.g. "input_ids now int64[32,129], before int64[32,128]"; `cause`: a code of CAUSES;
    `text` and `fix`: one sentence each. A first compile has a `text` and a `fix` only where there is something to say.
    `memory`: bytes of the compiled program by use ("arguments", "outputs", "aliased", "temporaries", "code"), None
    where the runtime does not report it. `host_collective`: in a rehearsal, collectives on the host split this graph
    into `pieces` that were compiled one by one; together they are one logical graph (`graph`: of all their hashes).
    `by_rank`: torch_xla itself made it another one for each rank (an all_gather pads by the rank). `trigger`: what ran
    the graph ("sync", "loader", "read", "finish", "library"); `step`: steps done before it. `part`: if a library is
    between the line and the graph, what it did, and its own line. `normal`: it needs no action, whatever the cause.
    `deciding`: of a branch, the line that read the value.
    """

    kind: ClassVar[str] = "compile"
    seconds: float | None = None
    graph: str = ""
    site: Site = field(default_factory=lambda: Site(0, "", 0))
    nth: int = 0
    recompile: bool = False
    inputs: tuple[Input, ...] = ()
    nearest: int | None = None
    difference: tuple[str, ...] = ()
    cause: str = ""
    text: str = ""
    fix: str = ""
    memory: dict[str, int] | None = None
    host_collective: bool = False
    trigger: str = ""
    step: int = 0
    pieces: int = 1
    by_rank: bool = False
    part: str = ""
    normal: bool = False
    deciding: tuple[Site, ...] = ()

    @property
    def expected(self) -> bool:
        """Whether it is a recompile that correct programs have, too."""
        return self.recompile and (self.normal or self.cause in EXPECTED_CAUSES)


CAUSES = {
    "input-shape": "the shape of an input changes",
    "last-batch": "the last batch is smaller",
    "input-dtype": "the type of an input changes",
    "data-shape": "a shape depends on the data",
    "data-branch": "Python takes another branch",
    "python-number": "a Python number changes",
    "mode-switch": "one line runs in training and evaluation mode",
    "optimizer-state": "the optimizer creates its state",
    "early-read": "a value is read in the middle of a step",
    "no-sync": "nothing ends the steps of the loop",
    "live-tensors": "other tensors are kept alive",
    "new-part": "another part of the training",
    "graph-break": "torch.compile splits the function",
    "new-code": "other code runs",
    "unknown": "unknown cause",
}
# Of them, those that correct programs have: one graph for each part of a training, one after the first step, one for
# evaluation.
EXPECTED_CAUSES = ("new-part", "optimizer-state", "mode-switch")


@dataclass(frozen=True)
class Transfer(Event):
    """A value that the host read in the middle of a step, which splits the step's graph. `count`: reads here so far
    (a later record of the same site replaces the earlier); `seconds`: waited for them so far; `code`: the line."""

    kind: ClassVar[str] = "transfer"
    site: Site = field(default_factory=lambda: Site(0, "", 0))
    count: int = 0
    seconds: float = 0.0
    code: str = ""
    text: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Read(Event):
    """A value that the host read from the device after its step had run: the host waits, but the graph is not split.
    Fields as in `Transfer`."""

    kind: ClassVar[str] = "read"
    site: Site = field(default_factory=lambda: Site(0, "", 0))
    count: int = 0
    seconds: float = 0.0
    code: str = ""


@dataclass(frozen=True)
class Fallback(Event):
    """An operation that XLA does not have and the host ran. `op`: e.g. "aten::nonzero"; `count`: so far."""

    kind: ClassVar[str] = "fallback"
    op: str = ""
    count: int = 0


@dataclass(frozen=True)
class Cache(Event):
    """The persistent compile cache so far. `text`: why it is off, or ""."""

    kind: ClassVar[str] = "cache"
    hits: int = 0
    misses: int = 0
    path: str = ""
    text: str = ""


@dataclass(frozen=True)
class Times(Event):
    """Where rank's time went so far, in seconds; None: not available. `compiling` and `executing` as the runtime
    measured them (they overlap with the host's own work), `waiting`: the host waited for the device; in a rehearsal
    `collectives`: in `n_collectives` collectives that the host carried, waiting for other ranks included."""

    kind: ClassVar[str] = "times"
    terse: ClassVar[bool] = True
    compiling: float | None = None
    executing: float | None = None
    waiting: float | None = None
    collectives: float | None = None
    n_collectives: int = 0


@dataclass(frozen=True)
class Mesh(Event):
    """The devices of an SPMD run, and what lies on them. `shape` and `axes`: of the global mesh, e.g. (8, 1) and
    ("data", "model"); `devices`: how many; `virtual`: they are parts of one host's CPU. Of the model's parameters,
    `sharded` are split over devices, `replicated` lie whole on each; None: not available; `sharded_bytes` and
    `replicated_bytes`: their sizes, whole. `text`: why something is not available, or ""."""

    kind: ClassVar[str] = "mesh"
    shape: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    devices: int = 0
    virtual: bool = False
    sharded: int | None = None
    replicated: int | None = None
    sharded_bytes: int = 0
    replicated_bytes: int = 0
    text: str = ""


@dataclass(frozen=True)
class Precision(Event):
    """The requested precision, and that of the graph `graph` before XLA optimised it.

    `asked`: "fp32", "bf16", "bf16-downcast", another name, or ""; `source`: where it was requested ("--precision",
    "Accelerator(mixed_precision=...)", a variable's name, ...). `ops`: matrix multiplications and convolutions;
    `share`: the part of them that is bf16, 0 to 1 (None: there is none, or not available). `parameters`: how many of
    the graph's parameters have each element type ("f32": 12). `agrees`: the graph has the requested precision. `text`:
    one sentence; `notes`: deprecations and advice.
    """

    kind: ClassVar[str] = "precision"
    asked: str = ""
    source: str = ""
    ops: int = 0
    share: float | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    graph: str = ""
    agrees: bool = True
    text: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch(Event):
    """The parts of the effective batch; None: not known. `per_device`: samples of one rank in one micro-batch."""

    kind: ClassVar[str] = "batch"
    per_device: int | None = None
    accumulation: int | None = None
    ranks: int = 1


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint is whole. `step`: optimizer steps before it; `synced`: steps as `Steps` counts them; `copied`:
    seconds that the training waited for it; `written`: seconds that it took meanwhile; `size`: bytes; `name`: of the
    checkpoint."""

    kind: ClassVar[str] = "saved"
    step: int = 0
    synced: int = 0
    copied: float = 0.0
    written: float = 0.0
    size: int = 0
    name: str = ""


@dataclass(frozen=True)
class Resumed(Event):
    """The run goes on from a checkpoint. `step`: optimizer steps before it; `synced`: steps of that run as `Steps`
    counts them; `saved`: when it was saved, in unix seconds; `name`: of the checkpoint; `ranks`: that
    it was saved by."""

    kind: ClassVar[str] = "resumed"
    step: int = 0
    synced: int = 0
    saved: float = 0.0
    name: str = ""
    ranks: int = 1


@dataclass(frozen=True)
class Divergence(Event):
    """Ranks that compiled another graph than rank 0 as their compile number `nth`. `graphs`: rank -> hash ("" where it
    compiled none). On a TPU such a run hangs."""

    kind: ClassVar[str] = "divergence"
    ranks: tuple[int, ...] = ()
    nth: int = 0
    graphs: dict[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Digest(Event):
    """Checksums of the trained parameters of each model on this rank of a rehearsal, at the end: name -> hexadecimal.
    Models whose parameters are split over the ranks are left out. `optimizers`: the same of what the notebook has no
    model of, by the class of the optimizer that trained it."""

    kind: ClassVar[str] = "digest"
    models: dict[str, str] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Display(Event):
    """Rank 0 displayed something. `file`: JSON in the run folder with "data" and "metadata"; `offset`: bytes of
    rank-0.log that had been written before; `update`: replaces the display with the same `display_id`;
    `action` is "display" or "clear" (clear_output; then `wait`: whether to wait for the next output)."""

    kind: ClassVar[str] = "display"
    file: str = ""
    offset: int = 0
    display_id: str = ""
    update: bool = False
    action: str = "display"
    wait: bool = False


@dataclass(frozen=True)
class Metrics(Event):
    """A report of the runtime's metrics was made (TrainingArguments(debug="tpu_metrics_debug")), the report `number` of
    this rank, from 0. `file`: text in the run folder ("": it could not be written), of which the newest 16 are kept;
    the counts are of the whole process so far, so the last report is complete. `compiles` and `executions`: of graphs,
    as the runtime counts them (in a rehearsal of their pieces), with their seconds; None: none was measured yet."""

    kind: ClassVar[str] = "metrics"
    file: str = ""
    number: int = 0
    compiles: int | None = None
    compile_seconds: float | None = None
    executions: int | None = None
    execute_seconds: float | None = None


@dataclass(frozen=True)
class RuleFinding(Event):
    """A rule of XLA or of the launcher that the code breaks, found before the run (check/). `code`: e.g. "TPU101";
    `group`: e.g. "values"; `column` counts from 1; `message` says what, `why` and `fix` one sentence each; `advice`:
    a note, nothing is broken. `site.id` is the number of the finding, from 0. `name`: of the rule, e.g.
    "branch-on-value". `first`, `last`: the lines of the statement that it is in."""

    kind: ClassVar[str] = "finding"
    code: str = ""
    group: str = ""
    site: Site = field(default_factory=lambda: Site(0, "", 0))
    column: int = 0
    message: str = ""
    why: str = ""
    fix: str = ""
    advice: bool = False
    name: str = ""
    first: int = 0
    last: int = 0


THREAD_ERROR = "thread-error"  # a Warned's code: a thread of the user's ended with an exception


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know; `code` is stable, `text` is one sentence."""

    kind: ClassVar[str] = "warning"
    code: str = ""
    text: str = ""


@dataclass(frozen=True)
class Frame:
    """One line of a stack as the user knows it: `path` is "In [n]" for a cell, else a path; `line` counts from 1
    in the cell as it is seen, the `%%tpu_train` line included. `library`: not the user's own code."""

    path: str
    line: int
    function: str
    code: str = ""
    library: bool = False


@dataclass(frozen=True)
class End(Event):
    """A worker's last record. `status`: "done", "failed", "limit" (`--steps` reached) or "stopped" (the run was ended,
    and what was learned is kept). For "failed": the exception's
    qualified type, its text, the stack (outermost first). Totals of this rank: `steps`, `compiles` (uncached compiles
    as the runtime counts them, in a rehearsal those of logical graphs; None: not available) and `recompiles` (None:
    not observed to the end). `log_end`: bytes of the rank's log that are the user's output; a traceback may follow
    them."""

    kind: ClassVar[str] = "end"
    status: str = "done"
    seconds: float = 0.0
    steps: int = 0
    compiles: int | None = None
    recompiles: int | None = None
    error_type: str = ""
    error_text: str = ""
    frames: tuple[Frame, ...] = field(default_factory=tuple)
    log_end: int | None = None


STOPPED = "stopped"  # status of the last record of a rank that was stopped on request (--keep-partial)

KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        *(Start, Phase, Steps, Total, Value, Memory, Display, Warned, End),
        *(Compile, Transfer, Read, Fallback, Cache, Times, Precision, Batch, Divergence, Digest, Mesh, Metrics),
        *(Saved, Resumed),
        RuleFinding,
    )
}
# Fields that hold objects of their own: the class, and whether there are many.
_NESTED: dict[str, tuple[type[Any], bool]] = {
    "frames": (Frame, True),
    "site": (Site, False),
    "deciding": (Site, True),
    "inputs": (Input, True),
}

E = TypeVar("E", bound=Event)

# What json.loads may give for a field of each annotation; an annotation that is not here is not checked.
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
    "dict[str, int]": (dict,),
    "dict[str, str]": (dict,),
}
_LARGEST_INT = 2**63
_DIGITS = 19  # of _LARGEST_INT


def to_line(event: Event) -> bytes:
    """One event as one line of UTF-8 JSON, newline included."""
    fields = dict(vars(event))
    if event.terse:
        fields = {name: value for name, value in fields.items() if value != _DEFAULTS[event.kind].get(name, _NONE)}
    for name in fields.keys() & _NESTED.keys():
        many, value = _NESTED[name][1], fields[name]
        fields[name] = [vars(one) for one in value] if many else value and vars(value)
    record = {"v": VERSION, "kind": event.kind, **fields}
    line = to_json(record)
    return (line if len(line) <= LONGEST_TEXT else to_json(_shortened(record))) + b"\n"


def cut_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text from outside as it is recorded: a longer one is cut and ends with its length."""
    if len(text) <= longest:
        return text
    told = f"... ({len(text):,} characters in all)"
    return text[: longest - len(told)] + told


def plain_text(text: str) -> str:
    """The text without a terminal's escape sequences and other control characters; a carriage return begins a line."""
    if text.isprintable() or not _CONTROL.search(text):
        return text
    return _CONTROL.sub("", _RETURN.sub("\n", text))


_RETURN = re.compile(r"\r\n?")
# ECMA-48: CSI sequences, OSC strings, other escapes, control characters besides tab and newline. A lone surrogate is
# none of them.
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]"
)
_ESCAPED = re.compile(r"\\u00[01]|\\[bfr]|[\x7f-\x9f]")  # as JSON text has them


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(record: Any, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8: non-finite numbers become the strings "nan", "inf" and "-inf", because JSON has no such
    numbers and a browser refuses the whole line; other objects become their text; texts are plain (`plain_text`)."""
    separators = (",", ":") if indent is None else None
    dumps = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    try:
        text = dumps(record, default=str)
    except ValueError:
        text = dumps(_finite(record), default=str)
    if _ESCAPED.search(text):
        text = dumps(_plain(json.loads(text)))
    return text.encode("utf-8", "replace")


def from_json(text: bytes | str) -> Any:
    """What JSON text holds. An integer that is too large to reckon with becomes a text of its first digits: CPython
    refuses to parse or print one of more than 4,300. Texts are plain. Raises ValueError where it is no JSON."""
    found = json.loads(text, parse_int=_bounded)
    known = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return _plain(found) if _ESCAPED.search(known) else found


class LargeNumber(str):
    """The first digits of an integer that is too large to reckon with, as they are shown."""


def _bounded(digits: str) -> int | LargeNumber:
    if len(digits) < _DIGITS:
        return int(digits)
    if len(digits) <= _DIGITS + 1:
        return int(digits) if abs(int(digits)) <= _LARGEST_INT else LargeNumber(digits)
    return LargeNumber(f"{digits[:_DIGITS]}… ({len(digits.lstrip('-')):,} digits)")


def number_text(value: float) -> float | str:
    """The number as JSON can hold it: itself, or "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(float(value))


def as_number(value: object) -> float | None:
    """The number that a record's value is, "nan" and "inf" included; None for a text."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return float(value) if isinstance(value, (int, float)) else None


def only(events: Iterable[Event], cls: type[E]) -> list[E]:
    """The events of one kind, typed."""
    return [event for event in events if isinstance(event, cls)]


def from_line(line: bytes) -> Event | None:
    """An event from one line of a record file, or None where the line is torn, garbage or of another version."""
    try:
        return from_record(from_json(line))
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
    for name in fields.keys() & _NESTED.keys():
        nested, many = _NESTED[name]
        value = fields[name]
        fields[name] = tuple(_nested(nested, one) for one in value) if many else _nested(nested, value)
    return _tuples(cls, fields)


def _nested(cls: type[Any], record: Any) -> Any:
    return cls(**_tuples(cls, _checked(cls, record)))


def _tuples(cls: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the dataclasses have tuples. Raises TypeError for other values."""
    for name in fields.keys() & _TUPLES[cls.__name__]:
        if not isinstance(fields[name], (list, tuple)):
            raise TypeError(f"{name} is {fields[name]!r}")
        fields[name] = tuple(fields[name])
    return fields


def _checked(cls: type[Any], record: Any) -> dict[str, Any]:
    """The fields of `record` that `cls` has. Raises TypeError where one holds what its annotation does not allow."""
    if not isinstance(record, dict):
        raise TypeError(f"{record!r} is not an object")
    accepted = _TYPES[cls.__name__]
    fields = {key: value for key, value in record.items() if key in accepted}
    for key, value in fields.items():
        if isinstance(value, LargeNumber) and str not in accepted[key] and type(None) in accepted[key]:
            fields[key] = None
        elif accepted[key] and not isinstance(value, accepted[key]):
            raise TypeError(f"{key} is {value!r}")
        if isinstance(value, int) and abs(value) > _LARGEST_INT:
            raise ValueError(f"{key} is too large to reckon with")
    return fields


def _accepted(annotation: str) -> tuple[type, ...]:
    """The types that a parsed line may hold there; empty where anything goes."""
    parts = [_ACCEPTED.get(part.strip()) for part in annotation.split("|")]
    return () if None in parts else tuple(cls for part in parts if part for cls in part)


_CLASSES = (*KINDS.values(), Frame, Site, Input)
_TYPES = {cls.__name__: {f.name: _accepted(str(f.type)) for f in dataclasses.fields(cls)} for cls in _CLASSES}
_TUPLES = {
    cls.__name__: {f.name for f in dataclasses.fields(cls) if str(f.type).startswith("tuple[")} for cls in _CLASSES
}
_NONE = object()
_DEFAULTS = {cls.kind: {f.name: f.default for f in dataclasses.fields(cls)} for cls in KINDS.values()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
