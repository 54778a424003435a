"""The state of one rank, built up from its records.

Its size is bounded: curves are downsampled, and logs and tables have a maximum length.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tpu_magics.panel.model_series import Curve, Downsampled, StepTimes, merge_times
from tpu_magics.panel.run_view import COLLECTING, COMPILING, STARTING, TRAINING, CauseCount, CompileEntry
from tpu_magics.runs.events import (
    MOST_NAMES,
    Batch,
    Cache,
    Compile,
    End,
    Event,
    Fallback,
    Memory,
    Mesh,
    Metrics,
    Phase,
    Precision,
    Read,
    Resumed,
    Saved,
    Start,
    Steps,
    Times,
    Total,
    Transfer,
    Value,
)
from tpu_magics.runs.summary import median_step

LEAD_LOG, OTHER_LOG = 1_000, 100  # compiles that are kept with all they say
MOST_SITES = 500
MOST_SAVES = 200
RECENT = 10.0  # seconds over which "now" is measured
WARM = 5  # so many steps after a compile the next ones are still unlike the later ones

K = TypeVar("K")
T = TypeVar("T")


class RankRecords:
    """One rank. `lead`: its curves and its log are shown, so they are kept."""

    def __init__(self, rank: int, lead: bool) -> None:
        self.rank = rank
        self.last_t = -math.inf
        self.start: Start | None = None
        self.phase = ""
        self.training_at: float | None = None
        self.end: End | None = None
        # steps
        self.total: int | None = None
        self.whole: Total | None = None
        self.counted = self.compiled_steps = 0
        self.seconds = 0.0
        self.step_times: Downsampled[StepTimes] = Downsampled(merge_times)
        self.recent: deque[tuple[int, float]] = deque(maxlen=64)  # steps and their seconds, compiles included
        self.only_compiled = False  # whether all steps of the newest record compiled
        self.compiled_since = False  # whether a compile came after the newest record of steps
        # compiles
        self.compiles = self.recompiles = self.expected = self.pieces = 0
        self.compile_seconds: float | None = None
        self.log: deque[CompileEntry] = deque(maxlen=LEAD_LOG if lead else OTHER_LOG)
        self.causes: dict[tuple[str, str, int], CauseCount] = {}
        # the rest
        self.transfers: dict[tuple[str, int], Transfer] = {}
        self.reads: dict[tuple[str, int], Read] = {}
        self.fallbacks: dict[str, Fallback] = {}
        self.cache: Cache | None = None
        self.times: Times | None = None
        self.precision: Precision | None = None
        self.disagreeing: dict[str, Precision] = {}
        self.advice: dict[str, None] = {}
        self.batch: Batch | None = None
        self.mesh: Mesh | None = None
        self.metrics: Metrics | None = None
        self.saves: deque[Saved] = deque(maxlen=MOST_SAVES)
        self.saved = 0
        self.saving = 0.0  # seconds that the training waited for
        self.resumed: Resumed | None = None
        self.rss: int | None = None
        self.pss: int | None = None
        self.peak_rss: int | None = None
        self.peak_pss: int | None = None
        self.memory: Downsampled[float] = Downsampled(max) if lead else Downsampled(max, 1)
        self.hbm_used: int | None = None
        self.hbm_total: int | None = None
        self.curves: dict[str, Curve] = {}
        self._curve_limit = 200 if lead else 1

    def take(self, event: Event) -> None:
        """Add one event of this rank."""
        self.last_t = max(self.last_t, event.t)
        taker = _TAKERS.get(type(event))
        if taker is not None:
            taker(self, event)

    # -- figures ---------------------------------------------------------------------------------------------------
    @property
    def steps(self) -> int | None:
        """Steps so far; None without any record, 0 where the rank runs and has done none."""
        if self.end is not None:
            return max(self.end.steps, self.total or 0)
        return 0 if self.total is None and self.start is not None else self.total

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole training; None: not known, or more were done. The start can take one more step, for what
        was pending before it."""
        whole, done = self.whole.steps if self.whole is not None else 0, self.steps or 0
        return max(whole, done) if 0 < whole >= done - 1 else None

    @property
    def state(self) -> str:
        """The state of the rank while the run is active, from its records."""
        if self.phase == "collecting" or self.end is not None:
            return COLLECTING
        if self.phase not in ("training", "finishing"):
            return STARTING
        return COMPILING if self.total is None or self.only_compiled or self.compiled_since else TRAINING

    def rate(self, recent: bool) -> float | None:
        """Steps per second, of the last seconds or of all; None where there is none."""
        if not recent:
            return self.counted / self.seconds if self.seconds > 0 else None
        n, seconds = 0, 0.0
        for steps, took in reversed(self.recent):
            n, seconds = n + steps, seconds + took
            if seconds >= RECENT:
                break
        return n / seconds if seconds > 0 else None

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of a step that compiled nothing; None where there was none."""
        return median_step((one.each, one.n) for one in self.step_times.points)

    @property
    def all_compiles(self) -> int | None:
        """Compiles as the runtime counted them at the end, else those recorded; None if steps came without a record."""
        if self.end is not None and self.end.compiles is not None:
            return self.end.compiles
        return self.compiles if self.compiles or not self.steps or self._cached else None

    @property
    def all_recompiles(self) -> int | None:
        if self.end is not None and self.end.recompiles is not None:
            return self.end.recompiles
        return self.recompiles if self.compiles or self.all_compiles == 0 else None

    @property
    def unseen(self) -> bool:
        """Whether recompiles may have gone unseen: the rank ended, and says that it was not observed to the end."""
        return self.end is not None and self.end.recompiles is None and self.recompiles > 0

    @property
    def _cached(self) -> bool:
        return self.cache is not None and self.cache.hits > 0

    @property
    def compiling(self) -> float | None:
        """Seconds spent compiling: by the runtime's own count, which may be older than the newest compile."""
        told = None if self.times is None else self.times.compiling
        known = [seconds for seconds in (told, self.compile_seconds) if seconds is not None and _good(seconds)]
        return max(known, default=None)

    @property
    def compiling_share(self) -> float | None:
        """The share of the time since the function was entered."""
        return None if self.compiling is None else self._share(self.compiling, self.last_t)

    @property
    def collectives_share(self) -> float | None:
        """The part of the time since the function was entered that the rank spent in collectives on the host."""
        if self.times is None or not _good(self.times.collectives):
            return None
        return self._share(self.times.collectives or 0.0, self.times.t)

    @property
    def busy_share(self) -> float | None:
        """The part of the same time in neither collectives nor compiling."""
        if self.times is None or self.collectives_share is None or not _good(self.times.compiling):
            return None
        compiling = self._share(self.times.compiling or 0.0, self.times.t) or 0.0
        return max(0.0, 1.0 - self.collectives_share - compiling)

    def _share(self, seconds: float, until: float) -> float | None:
        """The share of the time since the function was entered."""
        began = self.training_at if self.training_at is not None else self.start.t if self.start else None
        return None if began is None or until <= began else min(1.0, seconds / (until - began))

    @property
    def warming(self) -> bool:
        """Whether every step so far compiled, or the newest compile is only a few steps old."""
        if not self.log:
            return False
        return self.counted <= self.compiled_steps or (self.total or 0) - self.log[-1].compile.step <= WARM


def _good(number: object) -> bool:
    """Whether it is a finite number of at least 0."""
    return isinstance(number, (int, float)) and math.isfinite(number) and number >= 0


def _keep(table: dict[K, T], key: K, value: T, most: int = MOST_SITES) -> None:
    if key in table or len(table) < most:
        table[key] = value


def _highest(left: int | None, right: int | None) -> int | None:
    return max((value for value in (left, right) if value is not None), default=None)


# -- one function for each kind -----------------------------------------------------------------------------------


def _take_start(self: RankRecords, event: Start) -> None:
    self.start = event


def _take_phase(self: RankRecords, event: Phase) -> None:
    self.phase = event.name
    if event.name == "training" and self.training_at is None:
        self.training_at = event.t


def _take_steps(self: RankRecords, event: Steps) -> None:
    self.total = max(0, event.total)
    n, seconds = max(0, event.n), event.seconds if _good(event.seconds) else 0.0
    self.counted += n
    self.seconds += seconds
    self.compiled_steps += max(0, min(n, event.compiled))
    self.only_compiled = 0 < n <= event.compiled
    self.compiled_since = False
    self.recent.append((n, seconds))
    clean, took = event.clean
    if took > 0:
        self.step_times.add(StepTimes(clean, took, self.total))


def _take_compile(self: RankRecords, event: Compile) -> None:
    self.log.append(CompileEntry(f"{self.rank}-{self.compiles}", self.rank, event))
    self.compiles += 1
    self.recompiles += event.recompile
    self.expected += event.expected
    self.pieces += max(0, event.pieces) if event.host_collective else 0
    self.compiled_since = True
    seconds = event.seconds if event.seconds is not None and _good(event.seconds) else None
    if seconds is not None:
        self.compile_seconds = (self.compile_seconds or 0.0) + seconds
    if event.recompile and not event.expected:
        key = (event.cause, event.site.path, event.site.line)
        before = self.causes.get(key, CauseCount(0, 0.0, event))
        _keep(self.causes, key, CauseCount(before.count + 1, before.seconds + (seconds or 0.0), event))


def _take_transfer(self: RankRecords, event: Transfer) -> None:
    _keep(self.transfers, (event.site.path, event.site.line), event)


def _take_read(self: RankRecords, event: Read) -> None:
    _keep(self.reads, (event.site.path, event.site.line), event)


def _take_fallback(self: RankRecords, event: Fallback) -> None:
    _keep(self.fallbacks, event.op, event)


def _take_precision(self: RankRecords, event: Precision) -> None:
    """The graph with the most multiplications speaks for the run; the others only where they contradict."""
    if self.precision is None or event.ops >= self.precision.ops:
        self.precision = event
    if not event.agrees:
        _keep(self.disagreeing, event.text, event, 20)
    for note in event.notes:
        _keep(self.advice, str(note), None, 20)


def _take_memory(self: RankRecords, event: Memory) -> None:
    if event.rss > 0:
        self.rss, self.pss = event.rss, event.pss
        self.peak_rss = _highest(self.peak_rss, event.rss)
        self.peak_pss = _highest(self.peak_pss, event.pss)
        self.memory.add(float(event.rss if event.pss is None else event.pss))
    if event.hbm_used is not None:
        self.hbm_used = event.hbm_used
        self.hbm_total = self.hbm_total if event.hbm_total is None else event.hbm_total


def _take_value(self: RankRecords, event: Value) -> None:
    if event.name not in self.curves and len(self.curves) < MOST_NAMES:
        self.curves[event.name] = Curve(self._curve_limit)
    if event.name in self.curves:
        self.curves[event.name].add(event)


def _take_saved(self: RankRecords, event: Saved) -> None:
    self.saves.append(event)
    self.saved += 1
    self.saving += event.copied if _good(event.copied) else 0.0


def _setter(name: str) -> Callable[[RankRecords, Any], None]:
    """For the kinds whose newest record replaces the older ones."""
    return lambda self, event: setattr(self, name, event)


_TAKERS: dict[type[Event], Callable[[RankRecords, Any], None]] = {
    Start: _take_start,
    Phase: _take_phase,
    Steps: _take_steps,
    Compile: _take_compile,
    Transfer: _take_transfer,
    Read: _take_read,
    Fallback: _take_fallback,
    Precision: _take_precision,
    Memory: _take_memory,
    Value: _take_value,
    Cache: _setter("cache"),
    Times: _setter("times"),
    Total: _setter("whole"),
    Batch: _setter("batch"),
    Mesh: _setter("mesh"),
    Metrics: _setter("metrics"),
    Saved: _take_saved,
    Resumed: _setter("resumed"),
    End: _setter("end"),
}
