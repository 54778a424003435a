"""From a run that did not end well to the record that is explained.

What lives here: gathering what diagnose.py wants to know. What does not: the explanations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import diagnose, supervise
from tpu_magics.runs.files import RunFiles, open_record

if TYPE_CHECKING:
    from tpu_magics.launch.train import Going

TAIL = 20_000  # bytes of a log that are looked at
BUSY = "Device or resource busy"


def explain(going: Going, watch: supervise.Watch) -> TrainingFailed:
    """The error that the person reads."""
    return diagnose.diagnose(record(going, watch))


def record(going: Going, watch: supervise.Watch) -> diagnose.Failure:
    """What is known of a run that did not end well."""
    memory = host_memory(Path("/"))
    before, now = going.oom_kills, oom_kills()
    return diagnose.Failure(
        reason=watch.reason if watch.reason != "done" else "worker",
        outcomes=tuple(_outcome(going.folder, one) for one in watch.workers),
        timeout=watch.timeout,
        memory_total=memory.total or 0,
        memory_available_at_start=going.available,
        memory_low=watch.memory_low,
        oom_kills=None if before is None or now is None else now - before,
        devices=going.plan.device,
        holders=tuple((holder.pid, holder.command) for holder in going.host.owners if not holder.own),
        versions={name: version for name, version in going.host.versions.items() if version},
        models_bytes=going.models_bytes,
        models_built_in_function=_built_inside(going),
        run=str(going.folder.path),
        cell_names=going.cell_names,
    )


def _built_inside(going: Going) -> tuple[str, ...]:
    if going.hoists is None:
        return ()
    return tuple(f"line {one.line}: {one.code}" for one in going.hoists.declined)


def _outcome(files: RunFiles, one: supervise.Watched) -> diagnose.WorkerOutcome:
    meter = one.meter
    return diagnose.WorkerOutcome(
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
    )


def _tail(path: Path) -> str:
    try:
        with open_record(path) as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def device_was_busy(watch: supervise.Watch) -> bool:
    """Whether the run failed only because the device was still busy, before any of the person's code ran."""
    failed = [one for one in watch.workers if not one.good and not one.stopped_by_us]
    return bool(failed) and watch.reason == "worker" and all(_was_busy(one) for one in failed)


def _was_busy(one: supervise.Watched) -> bool:
    return one.end is not None and one.end.steps == 0 and BUSY in one.end.error_text and "/dev/" in one.end.error_text


def oom_kills() -> int | None:
    """How often the kernel's OOM killer has acted on this machine; None where it does not tell (proc(5), vmstat)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def host_record(host: Host) -> dict[str, Any]:
    """What run.json keeps of the host."""
    return {
        "place": host.environment.key,
        "device": host.device,
        "tpu": host.tpu,
        "chips": len(host.chips),
        "memory": host.memory.total,
    }


def cannot_read_results(error: OSError, files: RunFiles) -> TrainingFailed:
    """The run ended well, and its results could not be read."""
    return TrainingFailed(
        "The results of the run could not be brought home through its folder.",
        f"{files.path}: {error.strerror or error}.",
        "The notebook's models are unchanged. Check the disk, and run the cell again.",
        rank=0,
        run=str(files.path),
    )
