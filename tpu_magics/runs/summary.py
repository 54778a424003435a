"""The summary of a run from `run.json` and its events. `run.json` may be from another version: no field is trusted."""

from __future__ import annotations

import calendar
import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.runs.events import MOST_NAMES, Compile, End, Event, Memory, Start, Steps, Value, Warned, only
from tpu_magics.runs.files import LIVE
from tpu_magics.runs.owner import same_process

ID_PATTERN = re.compile(r"(\d{8}T\d{6}Z)-(.+)", re.DOTALL)
_LARGEST = 1e18
_LONGEST = 200  # characters of a name or a status: ours are shorter
_MOST_WARNINGS = 100


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run; None where a value is unknown.

    `created`: unix seconds; `seconds`: wall time, so far where it runs. `steps`, `compiles` and `recompiles` are those
    of rank 0, `causes` counts its recompiles by cause,
    `avoidable` those that need action, `compiling` is the time of its compiles in seconds,
    `steps_per_second` is over its whole training, the time of compiles included, `step_seconds` the median of the steps
    that compiled nothing, `values` holds the last value of each
    name it logged, and `complete`: whether it wrote its last record. `peak_memory`: highest resident memory of each
    rank that was seen, in bytes. `models`: names that were updated in the notebook. `warnings`: texts.
    """

    id: str
    name: str
    status: str
    created: float | None
    seconds: float | None
    ranks: tuple[int, ...]
    steps: int | None
    steps_per_second: float | None
    step_seconds: float | None
    compiles: int | None
    recompiles: int | None
    causes: Mapping[str, int]
    compiling: float | None
    complete: bool
    values: Mapping[str, float | int | str]
    peak_memory: Mapping[int, int]
    failure: Mapping[str, Any] | None
    models: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    avoidable: Mapping[str, int] = field(default_factory=dict)


def summarize(
    info: Mapping[str, Any], run_id: str, ranks: tuple[int, ...], events: list[Event], refused: tuple[str, ...] = ()
) -> RunSummary:
    """The summary of a run from its run.json, its folder's name and the events about rank 0 and from the supervisor.
    `refused`: what was not read, as sentences."""
    first = [event for event in events if event.rank == 0]
    ends = only(first, End)
    status = run_status(info)
    recompiled = [event for event in only(first, Compile) if event.recompile]
    return RunSummary(
        id=run_id,
        name=run_name(info, run_id),
        status=status,
        created=run_created(info, run_id),
        seconds=_seconds(info, status, events),
        ranks=ranks,
        steps=_steps(first, ends, status),
        steps_per_second=_rate(only(first, Steps)),
        step_seconds=_step_seconds(only(first, Steps)),
        compiles=_compiles(first, ends),
        recompiles=_recompiles(first, ends),
        causes=_causes(recompiled),
        avoidable=_causes(event for event in recompiled if not event.expected),
        compiling=_compiling(first),
        complete=bool(ends),
        values=_values(only(first, Value)),
        peak_memory=_peaks(info, events),
        failure=_failure(info, ends),
        models=_names(info.get("models")),
        warnings=_first(
            [*refused, *_names(info.get("warnings")), *(event.text for event in only(events, Warned))], _MOST_WARNINGS
        ),
    )


def run_name(info: Mapping[str, Any], run_id: str) -> str:
    """The run's name; from the folder's name where run.json has none."""
    match = ID_PATTERN.fullmatch(run_id)
    return str(info.get("name") or (match[2] if match else run_id))[:_LONGEST]


def loss_name(names: Iterable[str]) -> str:
    """The name of the loss among those that were logged, "" where there is none."""
    listed = list(names)
    exact = [name for name in listed if name == "loss"]
    return next(iter(exact or [name for name in listed if "loss" in name.lower()]), "")


def run_status(info: Mapping[str, Any]) -> str:
    """The status in run.json; "lost" where the run is live but its kernel is gone, "unknown" without a status."""
    status = str(info.get("status") or "unknown")[:_LONGEST]
    pid, started = info.get("pid"), info.get("pid_started")
    if status not in LIVE:
        return status
    alive = isinstance(pid, int) and same_process(pid, started if isinstance(started, int) else None)
    return status if alive else "lost"


def run_created(info: Mapping[str, Any], run_id: str) -> float | None:
    """Unix seconds; from the folder's name where run.json has none."""
    told = _number(info.get("created"))
    match = ID_PATTERN.fullmatch(run_id)
    if told is not None or not match:
        return told
    with contextlib.suppress(ValueError):
        return float(calendar.timegm(time.strptime(match[1], "%Y%m%dT%H%M%SZ")))
    return None


def run_order(info: Mapping[str, Any], run_id: str) -> float | None:
    """By which runs are in order; see `RunFolder.create`."""
    told = _number(info.get("order"))
    return told if told is not None else run_created(info, run_id)


def _seconds(info: Mapping[str, Any], status: str, events: list[Event]) -> float | None:
    told, created = _number(info.get("seconds")), _number(info.get("created"))
    if told is not None or created is None:
        return told
    if status in LIVE:
        return max(0.0, time.time() - created)
    return max(0.0, events[-1].t - created) if events else None


def _steps(first: list[Event], ends: list[End], status: str) -> int | None:
    """Steps of rank 0: 0 while it runs without a record of steps, None where it died before the first one."""
    if ends:
        return ends[-1].steps
    counted = only(first, Steps)
    if counted:
        return counted[-1].total
    return 0 if status in LIVE and only(first, Start) else None


def _compiles(first: list[Event], ends: list[End]) -> int | None:
    """The compiles that the runtime counted; those recorded, where rank 0 did not come to its end."""
    if ends:
        return ends[-1].compiles
    return len(only(first, Compile)) or None


def _recompiles(first: list[Event], ends: list[End]) -> int | None:
    if ends:
        return ends[-1].recompiles
    found = only(first, Compile)
    return sum(event.recompile for event in found) if found else None


def _causes(recompiled: Iterable[Compile]) -> dict[str, int]:
    return dict(Counter(event.cause for event in recompiled).most_common())


def _compiling(first: list[Event]) -> float | None:
    seconds = [event.seconds for event in only(first, Compile) if event.seconds is not None]
    return sum(seconds) if seconds else None


def _rate(counted: list[Steps]) -> float | None:
    seconds = sum(event.seconds for event in counted)
    return sum(event.n for event in counted) / seconds if seconds > 0 else None


def _step_seconds(counted: list[Steps]) -> float | None:
    """The median over the records, each by its number of steps without a compile."""
    return median_step((seconds / n, n) for n, seconds in (event.clean for event in counted) if n)


def median_step(times: Iterable[tuple[float, int]]) -> float | None:
    """Seconds of a step: half of the steps took no more. `times`: seconds of one, and of how many. None where there is
    none."""
    ordered = sorted(times)
    half = sum(n for _seconds, n in ordered) / 2
    for seconds, n in ordered:
        half -= n
        if half <= 0:
            return seconds
    return None


def _values(logged: list[Value]) -> dict[str, float | int | str]:
    """The last value of each of the first names."""
    kept: dict[str, float | int | str] = {}
    for event in logged:
        if event.name in kept or len(kept) < MOST_NAMES:
            kept[event.name] = event.value
    return kept


def _first(texts: list[str], most: int) -> tuple[str, ...]:
    """Each text once, at most so many."""
    kept = tuple(dict.fromkeys(texts))
    return kept if len(kept) <= most else (*kept[:most], f"{len(kept) - most:,} more warnings are in its records.")


def _peaks(info: Mapping[str, Any], events: list[Event]) -> dict[int, int]:
    """The highest resident memory of each rank, from the worker's entry in run.json and from the samples."""
    peaks = {rank: int(_number(worker.get("peak_rss")) or 0) for rank, worker in run_workers(info).items()}
    for event in only(events, Memory):
        peaks[event.rank] = max(event.rss, peaks.get(event.rank, 0))
    return {rank: peaks[rank] for rank in sorted(peaks) if peaks[rank] > 0}


def _failure(info: Mapping[str, Any], ends: list[End]) -> Mapping[str, Any] | None:
    told = info.get("failure")
    if isinstance(told, dict) and told:
        return told
    if ends and ends[-1].status == "failed":
        what = f"{ends[-1].error_type}: {ends[-1].error_text}"
        return {"what": what, "why": "", "todo": "", "details": []}
    return None


def run_workers(info: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The workers' entries in run.json, by rank."""
    entries = info.get("workers")
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {entry["rank"]: entry for entry in found if isinstance(entry.get("rank"), int)}


def _names(value: object) -> tuple[str, ...]:
    """The texts of a list, or the names of its objects, or the keys of an object."""
    items = list(value) if isinstance(value, (list, tuple, dict)) else []
    return tuple(str(item.get("name", "")) if isinstance(item, dict) else str(item) for item in items)


def _number(value: object) -> float | None:
    """A number of usable size, or None."""
    if not isinstance(value, (int, float)) or abs(value) > _LARGEST or math.isnan(value):
        return None
    return float(value)
