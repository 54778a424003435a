"""The compiles of one rank by source line: numbering, the nearest earlier compile, and the records."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tpu_magics.backends.observe.evidence import CompileCause, CompileEvidence
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

KEPT = 32  # earlier compiles of a site that a new one is compared with
FULL_RECORDS = 120  # later ones leave out the largest fields, so that a run's records stay small
_INPUTS, _DIFFERENCES, _LONGEST = 12, 6, 240

C = TypeVar("C", bound=CompileEvidence)


class History(Generic[C]):
    """The compiles so far. `distance`: of a new compile from an earlier one, a tuple to compare by; `explain`: why the
    new one was compiled although the earlier one existed."""

    def __init__(
        self,
        writer: EventWriter,
        distance: Callable[[C, C], tuple[int, ...]],
        explain: Callable[[C, C], CompileCause],
    ) -> None:
        self.writer = writer
        self.distance = distance
        self.explain = explain
        self.total = 0
        self.recompiles = 0
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.kept: defaultdict[int, deque[C]] = defaultdict(lambda: deque(maxlen=KEPT))

    def nth(self, site: events.Site) -> int:
        """The number of the next compile at this site."""
        return self.counts[site.id]

    def add(self, new: C, first: CompileCause | None = None) -> None:
        """Add a compile and write its record. `first`: a note for a first compile."""
        earlier = self.kept[new.site.id]
        nearest = min(earlier, key=lambda old: self.distance(new, old)) if earlier else None
        cause = self.explain(new, nearest) if nearest is not None else first
        self.writer.record(events.Compile, **self._fields(new, nearest, cause or CompileCause("", "", "")))
        self.total += 1
        self.recompiles += new.nth > 0
        self.counts[new.site.id] += 1
        earlier.append(new)

    def _fields(self, new: C, nearest: C | None, cause: CompileCause) -> dict[str, Any]:
        full, report = self.total < FULL_RECORDS, new.report
        return {
            "seconds": None if report.seconds is None else round(report.seconds, 4),
            "graph": report.name,
            "site": new.site,
            "nth": new.nth,
            "recompile": new.nth > 0,
            "inputs": new.inputs[:_INPUTS] if full else (),
            "nearest": None if nearest is None else nearest.nth,
            "difference": tuple(line[:_LONGEST] for line in cause.difference[: _DIFFERENCES if full else 1]),
            "cause": cause.cause,
            "text": cause.text[:_LONGEST] if full else "",
            "fix": cause.fix[:_LONGEST] if full else "",
            "memory": report.memory if full else None,
            "trigger": new.trigger,
            "host_collective": report.pieces > 1,
            "pieces": report.pieces,
            "by_rank": new.by_rank,
            "part": new.part_text[:_LONGEST],
            "step": new.step,
        }
