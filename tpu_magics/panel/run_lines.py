"""A run in one line, for long lists: only run.json and the end of the records are read."""

from __future__ import annotations

import time
from pathlib import Path

from tpu_magics.panel.messages import RunLine
from tpu_magics.panel.model_info import as_seconds
from tpu_magics.runs.events import Compile, End, Event, Steps, from_line, only
from tpu_magics.runs.files import LIVE, open_record
from tpu_magics.runs.reader import Run
from tpu_magics.runs.summary import run_created, run_name, run_status, run_workers

LAST = 2_000  # bytes at the end of rank 0's records that are read: a run that has ended tells its counts there
END = 64_000  # those of one that has not
MOST_KEPT = 1_000

_kept: dict[Path, tuple[tuple[int, int], RunLine]] = {}  # of ended runs, and when their run.json was written, how long


def run_line(run: Run) -> RunLine:
    """The line of a run, with the counts of rank 0. A run that has ended is read once."""
    written = _written(run.info_path)
    known = _kept.get(run.path)
    if known is not None and known[0] == written:
        return known[1]
    line = _read(run)
    if written is not None and line.status not in LIVE:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[run.path] = (written, line)
    return line


def _written(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(run: Run) -> RunLine:
    info = run.info
    status, created = run_status(info), run_created(info, run.id)
    seconds = as_seconds(info.get("seconds"))
    if seconds is None and status in LIVE and created is not None:
        seconds = max(0.0, time.time() - created)
    steps, compiles, recompiles = _counts(run.events_path(0))
    return RunLine(
        run.id, run_name(info, run.id), status, created, seconds, len(run_workers(info)) or None,
        steps, compiles, recompiles,
    )  # fmt: skip


def _counts(path: Path) -> tuple[int | None, int | None, int | None]:
    """Steps, compiles and recompiles, as far as the end of the records tells them."""
    events, whole = _last_events(path)
    ends = only(events, End)
    if ends:
        return ends[-1].steps, ends[-1].compiles, ends[-1].recompiles
    counted, compiled = only(events, Steps), only(events, Compile)
    steps = counted[-1].total if counted else None
    if not whole or not compiled:
        return steps, None, None
    return steps, len(compiled), sum(one.recompile for one in compiled)


def _last_events(path: Path) -> tuple[list[Event], bool]:
    """The newest events, and whether these are all."""
    events, whole = _end_of(path, LAST)
    return (events, whole) if whole or only(events, End) else _end_of(path, END)


def _end_of(path: Path, size: int) -> tuple[list[Event], bool]:
    """The events of the last bytes of a file, and whether these are all."""
    try:
        with open_record(path) as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - size))
            lines = file.read().split(b"\n")
    except OSError:
        return [], False
    found = (from_line(line) for line in lines[:-1])
    return [event for event in found if event is not None], length <= size
