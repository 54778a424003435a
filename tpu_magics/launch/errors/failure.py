"""The record of a failed run, collected from its supervisor and its files. diagnosis.py explains it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.environments import session_since
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import supervisor
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles, open_record
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run, Tail

if TYPE_CHECKING:
    from tpu_magics.launch.run import TrainingRun

TAIL = 20_000  # bytes of a log that are read
BUSY = "Device or resource busy"


@dataclass(frozen=True)
class WorkerOutcome:
    """How one worker ended.

    `signal` or `exit_code`: what the kernel reported (the other is None); `ended`: unix seconds; `peak_rss` and
    `peak_pss`: bytes (None: not available); `end`: its last record, if it wrote one; `stack`: faulthandler's dump of
    its threads, "" for none; `log_tail`: the end of its output; `stopped_by_us`: the supervisor ended it;
    `address_space`: its RLIMIT_AS at the end, in bytes (None: no limit); `after`: what it did last after its function,
    "" where that has not returned; `threads`: sentences about its threads that ended with an exception.
    """

    rank: int
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    ended: float = 0.0
    peak_rss: int = 0
    peak_pss: int | None = None
    end: events.End | None = None
    stack: str = ""
    log_tail: str = ""
    stopped_by_us: bool = False
    address_space: int | None = None
    after: str = ""
    threads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A run that did not succeed, as the supervisor saw it.

    `reason`: "worker" (one ended badly), "ranks" (two workers began as the same), "timeout", "interrupt", "kernel" (the
    notebook's process ended), "collect" (loading the results), "host" (one of several was lost, or could not start).
    Memory is in bytes, 0 where it was not measured; `memory_low`: the lowest available during the run; `oom_kills`:
    how often the kernel's OOM killer acted during it (None: not available). `models_built_in_function`: lines that
    build a model in every worker, as "In [4], line 3: model = Net()". `run`: path of the run folder; `cell_names`: a
    cell's file name -> "In [n]"; `claims`: rank -> how many workers began as it; `can_keep`: --keep-partial was not
    given and would have kept something.
    Of several hosts: `hosts`: rank -> its host's name; `lost`: name, ranks, how; `refused`: name, what, why, todo.
    """

    reason: str
    outcomes: tuple[WorkerOutcome, ...]
    timeout: float | None = None
    memory_total: int = 0
    memory_available_at_start: int = 0
    memory_low: int = 0
    oom_kills: int | None = None
    devices: str = ""
    holders: tuple[tuple[int, str], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    models_bytes: int = 0
    models_built_in_function: tuple[str, ...] = ()
    run: str = ""
    cell_names: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[int, int] = field(default_factory=dict)
    can_keep: bool = False
    hosts: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    refused: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True)
class MemoryAtStart:
    """The host's memory before a run. `available`: bytes, 0 if not known; `oom_kills`: how often the kernel's OOM
    killer had acted (None: not available)."""

    available: int
    oom_kills: int | None

    @classmethod
    def measure(cls) -> MemoryAtStart:
        return cls(host_memory(Path("/")).available or 0, oom_kills())


def record(run: TrainingRun, watch: supervisor.Supervisor, start: MemoryAtStart) -> Failure:
    """What is known about a failed run."""
    assert run.host is not None
    memory = host_memory(Path("/"))
    before, now = start.oom_kills, oom_kills()
    return Failure(
        reason=watch.reason if watch.reason != "done" else "worker",
        outcomes=tuple(_outcome(run.folder, one) for one in watch.workers),
        timeout=watch.timeout,
        memory_total=memory.total or 0,
        memory_available_at_start=start.available,
        memory_low=watch.memory_low,
        oom_kills=None if before is None or now is None else now - before,
        devices=run.plan.device,
        holders=tuple((holder.pid, holder.command) for holder in run.host.owners if not holder.own),
        versions={name: version for name, version in run.host.versions.items() if version},
        models_bytes=run.models_bytes,
        models_built_in_function=_built_inside(run),
        run=str(run.folder.path),
        cell_names=run.cell_names,
        claims={rank: len(workers) for rank, workers in watch.claims.items()},
        can_keep=not run.plan.keep_partial and run.request.script is None,
    )


def _built_inside(run: TrainingRun) -> tuple[str, ...]:
    if run.hoists is None:
        return ()
    return tuple(f"line {one.line}: {one.code}" for one in run.hoists.declined)


def _outcome(files: RunFiles, one: supervisor.WorkerProcess) -> WorkerOutcome:
    meter = one.meter
    return WorkerOutcome(
        rank=one.rank,
        pid=one.pid,
        exit_code=one.exit_code,
        signal=one.signal,
        ended=one.end.t if one.end is not None else one.ended or 0.0,
        peak_rss=meter.peak_rss if meter else 0,
        peak_pss=meter.peak_pss if meter else None,
        end=one.end,
        stack=_tail(files.stacks_path(one.index)),
        log_tail=_tail(files.log_path(one.rank)),
        stopped_by_us=one.stopped_by_us,
        address_space=one.address_space,
        after=_after_function(files, one.rank),
        threads=_ended_threads(files, one.rank),
    )


DEVICE_RUNS = "The function has ended. The device still ran the steps that it had queued"
_ENDED = {
    "finishing": DEVICE_RUNS,
    "collecting": "The function has ended. Its results are written, or what it started is waited for",
}


def _ended_threads(files: RunFiles, rank: int) -> tuple[str, ...]:
    recorded = events.only(Tail(files.events_path(rank)).read(), events.Warned)
    return tuple(one.text for one in recorded if one.code == events.THREAD_ERROR)


def _after_function(files: RunFiles, rank: int) -> str:
    found = Tail(files.events_path(rank)).read()
    said = [one.text for one in found if isinstance(one, events.Warned) and one.code == "threads"]
    if said:
        return said[-1].rstrip(".")
    phases = [one.name for one in found if isinstance(one, events.Phase)]
    return _ENDED.get(phases[-1], "") if phases else ""


def _tail(path: Path) -> str:
    try:
        with open_record(path) as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def device_was_busy(watch: supervisor.Supervisor) -> bool:
    """Whether the run failed only because the device was still busy, before any user code ran."""
    failed = [one for one in watch.workers if not one.good and not one.stopped_by_us]
    return bool(failed) and watch.reason == "worker" and all(_was_busy(one) for one in failed)


def _was_busy(one: supervisor.WorkerProcess) -> bool:
    return one.end is not None and one.end.steps == 0 and BUSY in one.end.error_text and "/dev/" in one.end.error_text


def fork_was_refused(watch: supervisor.Supervisor) -> bool:
    """Whether no worker got as far as its rank: the device's runtime did not start in a fork."""
    failed = [one for one in watch.workers if not one.good and not one.stopped_by_us]
    begun = Run(watch.files.path).events("start")
    return bool(failed) and watch.reason == "worker" and not any(True for _ in begun)


def oom_kills() -> int | None:
    """How often the kernel's OOM killer has acted on this machine; None if not available (proc(5), vmstat)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def host_record(host: Host) -> dict[str, Any]:
    """The host as run.json has it."""
    return {
        "place": host.environment.key,
        "device": host.device,
        "tpu": host.tpu,
        "chips": len(host.chips),
        "memory": host.memory.total,
        "session_limit": host.environment.limit,
        "session_since": session_since() if host.environment.limit is not None else None,
    }


def cannot_read_results(error: OSError, files: RunFiles) -> TrainingFailed:
    """The run succeeded, but its results could not be read."""
    return TrainingFailed(
        "The results of the run could not be read from its run folder.",
        f"{files.path}: {error.strerror or error}.",
        "The notebook's models are unchanged. Check the disk and run the cell again.",
        rank=0,
        run=str(files.path),
    )


def error_record(error: TpuMagicsError) -> dict[str, Any]:
    """An error as run.json has it."""
    return {"what": error.what, "why": error.why, "todo": error.todo, "details": list(error.details)}


def record_refused(folder: RunFolder, refused: TpuMagicsError) -> None:
    """Note in a run's folder why the run was never started."""
    folder.update(status="refused", ended=time.time(), failure=error_record(refused))
