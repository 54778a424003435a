"""A run as plain data: the frozen dataclasses between the model and the renderers. None means unknown, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.runs.events import (
    Batch,
    Cache,
    Compile,
    Fallback,
    Mesh,
    Metrics,
    Precision,
    Read,
    Resumed,
    RuleFinding,
    Saved,
    Transfer,
)

STARTING, COMPILING, TRAINING, COLLECTING = "starting", "compiling", "training", "collecting results"
CUT_SHORT = "cut short"  # of a rank without an end record
LIVE_STATES = (STARTING, COMPILING, TRAINING, COLLECTING)
# As run.json and runs/summary.py have them. "refused": nothing was forked; "unknown": there is no run.json.


@dataclass(frozen=True)
class CompileEntry:
    """One compile. `key` stays the same as long as the run exists; `rank`: whose record it is."""

    key: str
    rank: int
    compile: Compile


@dataclass(frozen=True)
class CauseCount:
    """The recompiles of one cause at one line: how many, their seconds together, and the newest of them."""

    count: int
    seconds: float
    newest: Compile


@dataclass(frozen=True)
class Point:
    """A part of a curve: `value` is its last value at `step`, `low` and `high` are the range in it."""

    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ValueSeries:
    """What was logged under one name. `first`: of its finite numbers (None: there is none). `not_finite_at`: the step
    of the first value that was "nan" or infinite. `points`: empty for texts."""

    name: str
    last: float | int | str
    step: int
    first: float | None
    not_finite_at: int | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class RankView:
    """One rank. `state`: its own, in the words of a run's states; `exit`: how its process ended, in words, or "".
    Bytes: `rss`, `pss` newest, `peak_rss`, `peak_pss` highest. `values`: the last of each name. `collectives`: seconds
    in collectives that the host carried, `collectives_share`: their part of the time since the function was entered, 0
    to 1; `busy_share`: the part of that time in neither these nor compiling, for which the others may have to wait.
    `host`: the name of its host, "" where the run has one only; `expected`: recompiles of it that need no action."""

    rank: int
    state: str
    steps: int | None
    steps_per_second: float | None
    compiles: int | None
    recompiles: int | None
    rss: int | None
    pss: int | None
    peak_rss: int | None
    peak_pss: int | None
    hbm_used: int | None
    hbm_total: int | None
    values: Mapping[str, float | int | str]
    exit: str
    collectives: float | None = None
    collectives_share: float | None = None
    busy_share: float | None = None
    host: str = ""
    expected: int = 0


@dataclass(frozen=True)
class Notice:
    """A warning or note, from `ranks` (empty: from the run itself). `state`: "warning", "broken" or "" for a note."""

    state: str
    text: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunFailure:
    """What happened, why, what to do next, and lines to show verbatim."""

    what: str
    why: str = ""
    todo: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunView:
    """Everything the panel shows. Counts, rates, times, precision, charts and reads are those of rank `lead`, the
    lowest rank that wrote records; `ranks` has the others.

    `state`: one of LIVE_STATES, or how it ended; `detail`: what else is known of it; `live`: the run goes on. `device`:
    "XLA:CPU", "TPU", or "" where nothing tells. `steps_per_second`: over the last seconds while it is live, over the
    whole training afterwards, compiles included. `step_seconds`: the median of the steps that compiled nothing,
    `step_times`: the same over time, each with the step that it reaches to; `compiled_steps`: how many did.
    `warming_up`: in words, or "". `compiles`: None where `compiles_missing` tells the reason; `expected`: how many of
    the recompiles need no action, `causes`: of the others; `at_least`: recompiles may have gone unseen. `pieces`: in
    how many pieces collectives on the host cut the graphs that they cut, together. `compiling`, `executing`, `waiting`:
    seconds; `compiling_share`: of the time since the function was entered, 0 to 1. `compile_log`: newest first, the
    newest thousand. `memory_total`: bytes of the machine; `memory_curve`: proportional (else resident) bytes of rank
    `lead` over time. `rehearsed`: workers on XLA:CPU act as ranks; `spmd`: one worker drives several devices, `mesh`:
    which (None: no record of it); `collectives`, `n_collectives`: of rank `lead`, as in `RankView`; `metrics`: its
    newest report of the runtime's. `total_steps`: how many steps the whole training has, as far as its program tells.
    `saves`: the newest checkpoints of `saved`, for which the training waited `saving` seconds, `saved_ago`: seconds
    since the newest; `resumed`: what the run went on from. `session`: seconds that the host's session has lasted, and
    may last (None: not known).
    """

    id: str
    name: str
    path: str
    state: str
    detail: str
    live: bool
    elapsed: float | None
    device: str
    lead: int
    ranks: tuple[RankView, ...]
    steps: int | None
    max_steps: int | None
    steps_per_second: float | None
    step_times: tuple[tuple[int, float], ...]
    step_seconds: float | None
    compiled_steps: int
    warming_up: str
    compiles: int | None
    compiles_missing: str
    recompiles: int | None
    expected: int
    at_least: bool
    pieces: int
    compiling: float | None
    compiling_share: float | None
    executing: float | None
    waiting: float | None
    compile_log: tuple[CompileEntry, ...]
    causes: tuple[CauseCount, ...]
    asked: str
    precision: Precision | None
    batch: Batch | None
    memory_total: int | None
    memory_curve: tuple[float, ...]
    transfers: tuple[Transfer, ...]
    reads: tuple[Read, ...]
    fallbacks: tuple[Fallback, ...]
    cache: Cache | None
    values: tuple[ValueSeries, ...]
    notices: tuple[Notice, ...]
    findings: tuple[RuleFinding, ...]
    failure: RunFailure | None
    models: tuple[str, ...]
    plan: Mapping[str, Any]
    rehearsed: bool = False
    spmd: bool = False
    mesh: Mesh | None = None
    collectives: float | None = None
    collectives_share: float | None = None
    n_collectives: int = 0
    metrics: Metrics | None = None
    total_steps: int | None = None
    saves: tuple[Saved, ...] = ()
    saved: int = 0
    saving: float = 0.0
    saved_ago: float | None = None
    resumed: Resumed | None = None
    session: tuple[float, float] | None = None
