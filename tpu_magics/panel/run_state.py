"""A run that is followed: it reads new records from the run folder and makes a `RunView`.

Only new bytes are read. Records of other versions, torn lines and an incomplete run.json are skipped.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.panel.end_reasons import (
    DETAILS,
    OUTCOMES,
    diverged,
    exit_words,
    failed_rank,
    rank_state,
    warming_up,
    why_no_compiles,
)
from tpu_magics.panel.model_info import (
    as_count,
    as_object,
    as_seconds,
    as_text,
    as_texts,
    device_name,
    host_name,
)
from tpu_magics.panel.rank_state import RankRecords
from tpu_magics.panel.run_view import (
    COLLECTING,
    COMPILING,
    LIVE_STATES,
    TRAINING,
    CompileEntry,
    Notice,
    RankView,
    RunFailure,
    RunView,
)
from tpu_magics.runs.events import Divergence, Event, RuleFinding, Warned
from tpu_magics.runs.files import LIVE, RunFiles, read_info
from tpu_magics.runs.reader import MOST_READ, Tail, partly_read, share_of_bytes
from tpu_magics.runs.summary import run_name, run_status, run_workers

__all__ = ["RunModel", "RunView"]

MOST_RANKS = 1_024
MOST_NOTICES = 100
CALM = ("jit", "precision", "retrace")  # codes of warnings that are only notes
MOST_FINDINGS = 200
_RECORDS = re.compile(r"rank-\d{1,6}\.jsonl")


class RunModel:
    """A run, read from its folder. `clock` gives unix seconds, for the elapsed time."""

    def __init__(self, files: RunFiles, clock: Callable[[], float] = time.time) -> None:
        self.files = files
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._info: dict[str, Any] = {}
        self._info_mark: tuple[int, int, int] | None = None
        self._status = "unknown"
        self._tails: dict[Path, Tail] = {}
        self._read_up_to: dict[Path, tuple[int, int]] = {}
        self._ranks: dict[int, RankRecords] = {}
        self._warned: dict[str, list[int]] = {}
        self._calm: set[str] = set()
        self._divergences: list[Divergence] = []
        self._findings: list[RuleFinding] = []

    # -- reading ---------------------------------------------------------------------------------------------------
    def refresh(self) -> bool:
        """Read new records. True where anything changed; passing time alone is no change."""
        found = self._record_files()
        if self._rewritten(found):
            self._forget()
        changed = self._read_info()
        for path, mark in found.items():
            changed = self._read_records(path, mark, len(found)) or changed
        return changed

    def _record_files(self) -> dict[Path, tuple[int, int]]:
        """The record files with their inode and size."""
        try:
            named = [path for path in self.files.path.iterdir() if _RECORDS.fullmatch(path.name)]
        except OSError:
            return {}
        ordered = sorted(named, key=lambda path: (len(path.name), path.name))[:MOST_RANKS]
        marks = {path: _mark(path) for path in (*ordered, self.files.supervisor_path)}
        return {path: (mark[0], mark[1]) for path, mark in marks.items() if mark is not None}

    def _rewritten(self, found: Mapping[Path, tuple[int, int]]) -> bool:
        """Whether records that were read are gone: a device was busy, and the attempt started again. What was read of a
        run whose folder was removed is kept."""
        if not self.files.path.is_dir():
            return False
        return any(
            path not in found or found[path][0] != inode or found[path][1] < size
            for path, (inode, size) in self._read_up_to.items()
        )

    def _read_info(self) -> bool:
        mark = _mark(self.files.info_path)
        if mark is not None and mark != self._info_mark:
            self._info, self._info_mark = read_info(self.files.info_path), mark
            self._status = run_status(self._info)
            return True
        status, self._status = self._status, run_status(self._info)  # "lost" comes without a change of any file
        return status != self._status

    def _read_records(self, path: Path, mark: tuple[int, int], files: int) -> bool:
        """The first of the `files` is the one that is shown; of many others only so much is read."""
        if self._read_up_to.get(path) == mark:
            return False
        self._read_up_to[path] = mark
        if path not in self._tails:
            most = share_of_bytes(files) if self._tails else MOST_READ
            self._tails[path] = Tail(path, most)
            if text := partly_read(path, most):
                self._warned.setdefault(text, [])
        events = self._tails[path].read()
        for event in events:
            self._take(event)
        return bool(events)

    def _take(self, event: Event) -> None:
        if isinstance(event, Warned):
            self._note(event.text, event.rank)
            self._calm.update({event.text} if event.code in CALM else ())
        elif isinstance(event, RuleFinding):
            self._findings = [*self._findings, event][:MOST_FINDINGS]
        elif isinstance(event, Divergence):
            self._divergences = [*self._divergences, event][:20]
        elif event.rank in self._ranks or len(self._ranks) < MOST_RANKS:
            if event.rank not in self._ranks:
                self._ranks[event.rank] = RankRecords(event.rank, lead=not self._ranks or event.rank < min(self._ranks))
            self._ranks[event.rank].take(event)

    def _note(self, text: str, rank: int) -> None:
        if text in self._warned or len(self._warned) < MOST_NOTICES:
            ranks = self._warned.setdefault(text, [])
            if rank not in ranks and len(ranks) < MOST_RANKS:
                ranks.append(rank)

    # -- the view --------------------------------------------------------------------------------------------------
    def view(self) -> RunView:
        """The current state of everything that the panel shows."""
        info, plan, host = self._info, as_object(self._info.get("plan")), as_object(self._info.get("host"))
        lead = self._lead()
        state = self._state(lead)
        live = state in LIVE_STATES
        ended = self._status not in LIVE
        compiles = lead.all_compiles
        return RunView(
            id=self.files.id,
            name=run_name(info, self.files.id),
            path=str(self.files.path),
            state=state,
            detail=self._detail(state, lead, plan),
            live=live,
            elapsed=self._elapsed(live),
            device=device_name(plan, host, lead),
            lead=lead.rank,
            ranks=tuple(self._rank(rank, live) for rank in self._all_ranks()),
            steps=lead.steps,
            max_steps=as_count(plan.get("steps")),
            steps_per_second=lead.rate(recent=live),
            step_times=tuple((one.until, one.each) for one in lead.step_times.points),
            step_seconds=lead.step_seconds,
            compiled_steps=lead.compiled_steps,
            warming_up=warming_up(lead) if live and state in (COMPILING, TRAINING) else "",
            compiles=compiles,
            compiles_missing="" if compiles is not None else why_no_compiles(lead, ended),
            recompiles=lead.all_recompiles,
            expected=lead.expected,
            at_least=lead.unseen,
            pieces=lead.pieces,
            **_times(lead),
            compile_log=self._compile_log(lead, live),
            causes=tuple(sorted(lead.causes.values(), key=lambda each: (-each.count, each.newest.cause))),
            asked=as_text(plan.get("precision")),
            precision=lead.precision,
            batch=lead.batch,
            memory_total=as_count(host.get("memory")),
            memory_curve=tuple(lead.memory.points),
            transfers=tuple(sorted(lead.transfers.values(), key=lambda each: -each.count)),
            reads=tuple(sorted(lead.reads.values(), key=lambda each: -each.count)),
            fallbacks=tuple(sorted(lead.fallbacks.values(), key=lambda each: (-each.count, each.op))),
            cache=lead.cache,
            values=tuple(curve.series() for curve in lead.curves.values()),
            findings=tuple(self._findings),
            notices=tuple(self._notices()),
            failure=self._failure(),
            models=as_texts(info.get("models")) if state == "done" else (),
            plan=plan,
            rehearsed=plan.get("rehearsed") is True,
            spmd=as_count(plan.get("spmd")) is not None,
            mesh=lead.mesh,
            metrics=lead.metrics,
            total_steps=lead.total_steps,
            saves=tuple(lead.saves),
            saved=lead.saved,
            saving=lead.saving,
            saved_ago=max(0.0, self._clock() - lead.saves[-1].t) if lead.saves and live else None,
            resumed=lead.resumed,
            session=_session(host, self._clock()) if live else None,
        )

    def _lead(self) -> RankRecords:
        """The rank whose counts are shown: the lowest one that started."""
        begun = [rank for rank, records in self._ranks.items() if records.start is not None]
        lowest = min(begun or self._ranks, default=None)
        return RankRecords(0, lead=True) if lowest is None else self._ranks[lowest]

    def _all_ranks(self) -> list[int]:
        named = (rank for rank in run_workers(self._info) if not isinstance(rank, bool))
        return sorted({*named, *self._ranks})[:MOST_RANKS]

    # -- its state ---------------------------------------------------------------------------------------------------
    def _state(self, lead: RankRecords) -> str:
        if self._status == "collecting":
            return COLLECTING
        if self._status == "running":
            return lead.state
        if self._status == "unknown" and lead.end is not None:
            return OUTCOMES.get(lead.end.status, "unknown")
        return self._status

    def _detail(self, state: str, lead: RankRecords, plan: Mapping[str, Any]) -> str:
        failed = sorted(rank for rank, each in self._ranks.items() if each.end and each.end.status == "failed")
        if state in LIVE_STATES and failed:
            return f"rank {failed[0]} failed; stopping the run"
        kept = self._info.get("kept")
        if isinstance(kept, str) and state not in LIVE_STATES:
            return f"kept in the notebook: {kept}"
        return DETAILS[state](lead, plan) if state in DETAILS else ""

    def _elapsed(self, live: bool) -> float | None:
        told, created = as_seconds(self._info.get("seconds")), as_seconds(self._info.get("created"))
        if told is not None or created is None:
            return told
        newest = self._clock() if live else max((each.last_t for each in self._ranks.values()), default=None)
        return None if newest is None else as_seconds(max(0.0, newest - created))

    # -- its parts ---------------------------------------------------------------------------------------------------
    def _rank(self, rank: int, live: bool) -> RankView:
        records = self._ranks.get(rank) or RankRecords(rank, lead=False)
        worker = run_workers(self._info).get(rank, {})
        return RankView(
            rank=rank,
            state=rank_state(records, live),
            steps=records.steps,
            steps_per_second=records.rate(recent=live),
            compiles=records.all_compiles,
            recompiles=records.all_recompiles,
            rss=records.rss,
            pss=records.pss,
            peak_rss=_highest(records.peak_rss, as_count(worker.get("peak_rss"))),
            peak_pss=_highest(records.peak_pss, as_count(worker.get("peak_pss"))),
            hbm_used=records.hbm_used,
            hbm_total=records.hbm_total,
            values={name: curve.last.value for name, curve in records.curves.items()},
            exit=exit_words(worker),
            collectives=as_seconds(records.times and records.times.collectives),
            collectives_share=records.collectives_share,
            busy_share=records.busy_share,
            host=host_name(self._info, rank, worker),
            expected=records.expected,
        )

    def _compile_log(self, lead: RankRecords, live: bool) -> tuple[CompileEntry, ...]:
        """The lead's compiles, and those that only other ranks did, newest first. What a rank compiled ahead of the
        lead is left out: the lead will compile it too."""
        known = {_identity(entry) for entry in lead.log}
        strange = [
            entry
            for rank, records in sorted(self._ranks.items())
            if rank != lead.rank
            for number, entry in enumerate(records.log, records.compiles - len(records.log))
            if _identity(entry) not in known and (not live or number < lead.compiles)
        ]
        # A rank's own compiles stay in the order of its file, also where a clock was set back.
        merged = sorted((*lead.log, *strange), key=lambda entry: entry.compile.t) if strange else lead.log
        return tuple(reversed(merged))

    def _notices(self) -> Iterable[Notice]:
        by_rank = [records for _rank, records in sorted(self._ranks.items())]
        for divergence in self._divergences:
            yield Notice("broken", divergence.text or diverged(divergence))
        for text in dict.fromkeys(text for records in by_rank for text in records.disagreeing):
            whose = tuple(records.rank for records in by_rank if text in records.disagreeing)
            yield Notice("warning", text or "The actual precision differs from the requested one.", whose)
        for text, ranks in self._warned.items():
            yield Notice("" if text in self._calm else "warning", text, tuple(sorted(ranks)))
        for text in as_texts(self._info.get("warnings")):
            if text not in self._warned:
                yield Notice("warning", text)
        for text in dict.fromkeys(text for records in by_rank for text in records.advice):
            yield Notice("", text)

    def _failure(self) -> RunFailure | None:
        told = self._info.get("failure")
        if isinstance(told, dict) and told:
            what, why, todo = (as_text(told.get(key)) for key in ("what", "why", "todo"))
            return RunFailure(what, why, todo, as_texts(told.get("details")))
        ends = [(each.end.t, each.end) for _rank, each in sorted(self._ranks.items()) if each.end is not None]
        failed = [end for _t, end in sorted(ends, key=lambda pair: pair[0]) if end.status == "failed"]
        return failed_rank(failed[0]) if failed else None


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _session(host: Mapping[str, Any], now: float) -> tuple[float, float] | None:
    """How long the host's session has lasted, and may last, in seconds; None where it has no known limit."""
    limit, since = as_seconds(host.get("session_limit")), as_seconds(host.get("session_since"))
    return None if limit is None or since is None else (max(0.0, now - since), limit)


def _times(lead: RankRecords) -> dict[str, Any]:
    """Fields of the view: where the time went, in seconds or as shares of the training time."""
    times = lead.times
    return {
        "compiling": lead.compiling,
        "compiling_share": lead.compiling_share,
        "executing": as_seconds(times and times.executing),
        "waiting": as_seconds(times and times.waiting),
        "collectives": as_seconds(times and times.collectives),
        "collectives_share": lead.collectives_share,
        "n_collectives": times.n_collectives if times else 0,
    }


def _identity(entry: CompileEntry) -> tuple[str, int, int]:
    return entry.compile.site.path, entry.compile.site.line, entry.compile.nth


def _highest(left: int | None, right: int | None) -> int | None:
    return max((value for value in (left, right) if value is not None), default=None)


SHARED = 0.25  # seconds in which those who look get the same view


class SharedView:
    """A run's view, from any thread. `keep`: seconds for which a view is reused."""

    def __init__(self, files: RunFiles, keep: float = 0.0) -> None:
        self.files = files
        self._keep = keep
        self._model = RunModel(files)
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._at = 0.0

    def view(self) -> RunView:
        """The view, at most `keep` seconds old."""
        with self._lock:
            if self._view is None or not self._keep or time.monotonic() - self._at >= self._keep:
                return self._read()
            return self._view

    def anew(self) -> RunView:
        """The current view."""
        with self._lock:
            return self._read()

    def _read(self) -> RunView:
        self._model.refresh()
        self._view, self._at = self._model.view(), time.monotonic()
        return self._view
