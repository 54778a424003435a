"""The log of host reads during a trace, with their source lines."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from tpu_magics.backends.lowered import HostRead, SourceLine, UnsupportedOp
from tpu_magics.backends.torch_xla.trace.placeholders import HOST, TENSOR, TRUE
from tpu_magics.backends.torch_xla.trace.source_lines import SourceLineFinder
from tpu_magics.errors import TpuMagicsError

TOO_OFTEN = 10_000  # reads at one line without a sync


class HostReadLog:
    """The reads of one process; create it in the thread that runs the function."""

    def __init__(self, lines: SourceLineFinder) -> None:
        self.lines = lines
        self.thread = threading.get_ident()
        self.changed: Callable[[], None] = lambda: None  # called when something is read for the first time
        self._reads: Counter[HostRead] = Counter()
        self._on_host: Counter[UnsupportedOp] = Counter()
        self._since_sync: Counter[HostRead | UnsupportedOp] = Counter()
        self._silent = 0

    def reads(self) -> tuple[HostRead, ...]:
        return tuple(replace(one, count=count) for one, count in self._reads.items())

    def zeros(self) -> tuple[HostRead, ...]:
        """The reads that returned a placeholder."""
        return tuple(one for one in self.reads() if not one.known)

    def refused(self) -> tuple[UnsupportedOp, ...]:
        return tuple(replace(one, count=count) for one, count in self._on_host.items())

    @contextmanager
    def off(self) -> Iterator[None]:
        """Do not log our own reads."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def synced(self) -> None:
        """A step has ended."""
        self._since_sync.clear()

    def read(self, what: str, known: bool = False, frame: FrameType | None = None) -> None:
        """Log that a value was fetched. `frame`: of the caller that fetched it, if that is not the caller of this."""
        if not self._silent:
            found = frame or self._caller(sys._getframe(1))
            text = f"{what.partition(':')[0]}: {TRUE}" if known else what
            place = self.lines.place(found)
            inside = self.lines.inside(found) if place is not None else None
            self._note(self._reads, HostRead(place, text, inside=inside, known=known), text)

    def ran_on_host(self, op: str) -> None:
        """Log an operation without an XLA kernel."""
        if not self._silent:
            place = self.lines.place(self._caller(sys._getframe(1)))
            self._note(self._on_host, UnsupportedOp(op, HOST, "host", place), op)

    def part(self, frame: FrameType) -> None:
        """Log that a part of the step ran separately, which is done to fetch it."""
        self.read(TENSOR, frame=frame)

    def _note(self, into: Counter[HostRead] | Counter[UnsupportedOp], one: HostRead | UnsupportedOp, what: str) -> None:
        into[one] += 1  # type: ignore[index]
        if into[one] == 1:  # type: ignore[index]
            self.changed()
        self._since_sync[one] += 1
        if self._since_sync[one] > TOO_OFTEN:
            raise _endless(one.place, what)

    def _caller(self, frame: FrameType) -> FrameType:
        """Autograd's own threads have no frames of the user, except in the user's hooks."""
        if threading.get_ident() == self.thread or self.lines.place(frame) is not None:
            return frame
        # Never of this thread itself: a frame that refers to itself keeps its callers' objects alive.
        return sys._current_frames()[self.thread]


def _endless(place: SourceLine | None, what: str) -> TpuMagicsError:
    where = f" at {place} ({place.code})" if place is not None else ""
    return TpuMagicsError(
        f"The function read {what}{where} {TOO_OFTEN:,} times without a sync.",
        "A preflight runs no step, and every value that the function reads is zero. A loop that waits for a value may "
        "never end.",
        "Use a fixed number of steps in the loop for the preflight.",
    )
