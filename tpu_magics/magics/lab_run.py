"""The run that the JupyterLab extension follows: when its front ends get which message."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from tpu_magics.magics import lab
from tpu_magics.panel.feed import Feed
from tpu_magics.panel.messages import RunMessage
from tpu_magics.panel.model import SharedView
from tpu_magics.runs.files import LIVE, RunFiles, read_info
from tpu_magics.runs.summary import run_status

SHARE = 0.02  # of the watching thread's time that updates may take; a live panel has so much less
WHOLE_EVERY = 10.0  # seconds between whole runs where a busy kernel cannot answer a request for one


class LabRun:
    """One run, as front ends are told of it: an observer (launch/run_observer.py) that never fails.

    Args:
        stop: stops the run, from any thread.
        reading: of the run, which the panel may share.
        answers: whether requests are answered while it runs.
        hears: whether messages are certainly read while it runs, because its thread looks for them.
    """

    def __init__(
        self, files: RunFiles, stop: Callable[[], None], reading: SharedView, answers: bool, hears: bool = False
    ) -> None:
        self.files, self.stop, self.reading = files, stop, reading
        self.answers, self.hears = answers, hears
        self.live = True
        self._feed = Feed(files.id)
        self._lock = threading.RLock()
        self._next = self._next_whole = 0.0

    def look(self) -> None:
        """Send the changes, if a front end is active and it is time."""
        desk = lab.current
        began = time.monotonic()
        if desk is None or began < self._next or not desk.heard:
            return
        with contextlib.suppress(Exception), self._lock:
            if self.live:
                self._tell(desk, began)
        self._next = began + max(desk.every, (time.monotonic() - began) / SHARE)

    def _tell(self, desk: lab.Lab, now: float) -> None:
        message = self._feed.update(self.reading.view())
        if not self.answers and now >= self._next_whole:
            message = self._feed.whole(None)
            self._next_whole = now + WHOLE_EVERY
        desk.tell(*(one for one in (message, self._feed.heartbeat()) if one is not None))

    def whole(self, request: str | None) -> RunMessage | None:
        """The run as front ends have it, as an answer; None where it has ended: its records have more."""
        with self._lock:
            if not self.live:
                return None
            if not self._feed.seq:
                self._feed.begin(self.reading.anew())
            return self._feed.whole(request)

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended; a run that is no longer followed may still be active."""
        return self.live or run_status(read_info(self.files.info_path)) in LIVE

    def settle(self) -> None:
        """All workers have ended, or the results are loaded: send the whole run."""
        was_live = self.live
        with contextlib.suppress(Exception), self._lock:
            if lab.current is None or not lab.current.heard:
                self.live = run_status(read_info(self.files.info_path)) in LIVE
            else:
                view = self.reading.anew()
                self.live = view.live
                lab.current.tell(self._feed.begin(view))
        if was_live and not self.live and lab.current is not None and lab.current.answers != self.answers:
            lab.say_hello()  # whether a busy kernel answers has changed

    def deafen(self, answers: bool) -> None:
        """The waiting thread no longer reads messages. `answers`: whether the kernel still does."""
        self.answers, self.hears = answers, False
        lab.say_hello()

    def close(self, why: str) -> None:  # noqa: ARG002
        """Stop following, and tell the front ends that their figures are final."""
        with self._lock:
            self.live = False
        lab.say_hello()


_newest: LabRun | None = None


def following() -> LabRun | None:
    """The newest run of this kernel."""
    return _newest


def follow(
    files: RunFiles, stop: Callable[[], None], reading: SharedView, answers: bool, hears: bool = False
) -> LabRun:
    """Follow a run; one that is followed already stays what it is."""
    global _newest
    if _newest is None or _newest.files.path != files.path or not _newest.live:
        _newest = LabRun(files, stop, reading, answers, hears)
        lab.say_hello()
    return _newest
