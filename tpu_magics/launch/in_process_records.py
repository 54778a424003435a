"""What a run in the notebook's own process writes into its folder: rank 0's records, its log, and run.json.

What lives here: the files and the events that every run has. What does not: when they are written (local.py), steps and
compiles (backends/), and the records of forked workers (worker.py, supervise.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.launch import frames, session, tee
from tpu_magics.runs import events
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.writer import EventWriter


class InProcessRecords:
    """The records of one run, which has one rank. `totals`: steps, compiles and recompiles, for the last event."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.started = time.time()
        self.totals: dict[str, int | None] = {"steps": 0, "compiles": None, "recompiles": None}
        self.log = tee.Log(folder.log_path(0))
        self.writer = _AnnouncingWriter(folder.events_path(0), self.say)
        self._supervisor = EventWriter(folder.supervisor_path, 0)
        self.meter = MemoryMeter(self._supervisor, 0)

    def say(self, line: str) -> None:
        """A line of ours: shown, and not kept as the person's output."""
        with self.log.paused():
            session.current.notebook.say(line)

    def write(self, kind: type[events.Event], **fields: Any) -> None:
        """Write an event of this kind."""
        self.writer.write(kind(t=time.time(), rank=0, **fields))

    def note(self, code: str, text: str) -> None:
        """Write a warning, and say it."""
        self.write(events.Warned, code=code, text=text)

    def update(self, status: str, code: int | None = None, **fields: Any) -> None:
        """Replace run.json. `code`: 0 where it went well, else 1 (None: the run goes on)."""
        peak = {"peak_rss": self.meter.peak_rss, "peak_pss": self.meter.peak_pss}
        ended_well = 0 if code == 0 else None  # the notebook's process goes on, whatever the run came to
        worker = {"rank": 0, "pid": os.getpid(), "exit": ended_well, "signal": None, **peak}
        if code is not None:
            ended = time.time()
            fields = {"ended": ended, "seconds": ended - self.started, **fields}
        self.folder.update(status=status, workers=[worker], **fields)

    def end(self, status: str, **fields: Any) -> None:
        """The last event."""
        seconds = time.time() - self.started
        self.write(events.End, status=status, seconds=seconds, log_end=self.log.size, **self.totals, **fields)

    def end_failed(self, error: BaseException, cell_names: Mapping[str, str]) -> None:
        """The last event of a run that failed; the traceback stands in the log behind the person's output."""
        error_type, error_text = frames.describe(error)
        stack = frames.from_exception(error, cell_names)
        self.end("failed", error_type=error_type, error_text=error_text, frames=stack)
        self.log.write(frames.traceback_text(error))

    def close(self) -> None:
        """Nothing is written any more."""
        self.writer.close()
        self._supervisor.close()
        self.log.close()


class _AnnouncingWriter(EventWriter):
    """A record file whose warnings are also said, as the relay does for forked workers."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        super().__init__(path, 0)
        self._say = say

    def write(self, event: events.Event) -> int:
        if isinstance(event, events.Warned):
            self._say(event.text)
        return super().write(event)
