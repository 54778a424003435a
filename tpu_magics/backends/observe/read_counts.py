"""Device-to-host reads by source line: how often, how long the host waited, and whether they split a graph."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

_SITES = 100  # of each kind that are recorded
_TEXT = "The host reads a value in the middle of a step (device-to-host read). This splits the step's graph."
_OP_TEXT = (
    "This line splits the step's graph: an operation needs a shape that depends on values, or an operation that XLA "
    "does not support runs on the host."
)
_FIX = "Read it after the step's sync, or every N steps. To log values, use tpu_magics.log(): it reads after the sync."
_OP_FIX = "Keep the full shape (multiply by the mask, divide by its sum), or use an operation that XLA supports."


@dataclass
class _Count:
    site: events.Site
    count: int = 0
    seconds: float = 0.0
    written: int = 0
    by_op: bool = False


class ReadCounter:
    """The reads of one rank."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self.cutting: dict[int, _Count] = {}
        self.waiting: dict[int, _Count] = {}
        self.seconds = 0.0

    def add(self, site: events.Site, seconds: float, cut: bool, by_op: bool = False, count: int = 1) -> None:
        """A read at `site`; `by_op`: not by the user's code, but by an operation that needs the value."""
        self.seconds += seconds
        kind = self.cutting if cut else self.waiting
        one = kind.get(site.id)
        if one is None:
            if len(kind) >= _SITES:
                return
            one = kind[site.id] = _Count(site, by_op=by_op)
        one.count += count
        one.seconds += seconds
        if one.count >= 2 * one.written:  # each record replaces the one before: a dozen for a thousand reads
            self._write(one, cut)

    def flush(self) -> None:
        """Write the current counts."""
        for kind, cut in ((self.cutting, True), (self.waiting, False)):
            for one in kind.values():
                if one.count != one.written:
                    self._write(one, cut)

    def _write(self, one: _Count, cut: bool) -> None:
        one.written = one.count
        fields = {"site": one.site, "count": one.count, "seconds": round(one.seconds, 4), "code": one.site.code}
        if cut:
            text, fix = (_OP_TEXT, _OP_FIX) if one.by_op else (_TEXT, _FIX)
            self.writer.record(events.Transfer, **fields, text=text, fix=fix)
        else:
            self.writer.record(events.Read, **fields)
