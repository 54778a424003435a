"""A run in one line, for long lists: only run.json and the records of rank 0 are looked at."""

from __future__ import annotations

import time
from pathlib import Path

from tpu_magics.panel.formats import number, short
from tpu_magics.panel.messages import RunLine
from tpu_magics.panel.model_info import as_seconds
from tpu_magics.runs.files import LIVE
from tpu_magics.runs.reader import Run
from tpu_magics.runs.scan import RecordScan
from tpu_magics.runs.summary import loss_name, run_created, run_name, run_status, run_workers

CURVE = 30  # numbers of a small curve
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
    records = RecordScan(run.events_path(0))
    values = records.last_values()
    shown = loss_name(values) or next(reversed(values), "")
    return RunLine(
        id=run.id,
        name=run_name(info, run.id),
        status=status,
        created=created,
        seconds=seconds,
        workers=len(run_workers(info)) or None,
        steps=records.steps,
        compiles=records.compiles,
        recompiles=None if records.recompiles is None else max(0, records.recompiles - records.expected),
        value=f"{short(shown, 40)} {number(values[shown])}" if shown else "",
        curve=records.curve(shown, CURVE),
    )
