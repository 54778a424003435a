"""The compiles of one rank by source line: numbering, the nearest earlier compile, and the records."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tpu_magics.backends.observing.compile_evidence import CompileCause, CompileEvidence
from tpu_magics.runs import events

KEPT = 32  # earlier compiles of a site that a new one is compared with
FULL_RECORDS = 120  # later ones leave out the largest fields, so that a run's records stay small
_INPUTS, _DIFFERENCES, _LONGEST = 12, 6, 240

C = TypeVar("C", bound=CompileEvidence)


class History(Generic[C]):
    """The compiles so far. `write` takes an event; `distance`: of a new compile from an earlier one, a tuple to compare
    by; `explain`: why the new one was compiled although the earlier one existed."""

    def __init__(
        self,
        write: Callable[[events.Event], object],
        rank: int,
        distance: Callable[[C, C], tuple[int, ...]],
        explain: Callable[[C, C], CompileCause],
    ) -> None:
        self.write = write
        self.rank = rank
        self.distance = distance
        self.explain = explain
        self.total = 0
        self.recompiles = 0
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.kept: defaultdict[int, deque[C]] = defaultdict(lambda: deque(maxlen=KEPT))

    def nth(self, site: events.Site) -> int:
        """The number of the next compile at this site."""
        return self.counts[site.id]

    def add(self, new: C, first: CompileCause | None = None) -> events.Compile:
        """Add a compile and write its record. `first`: a note for a first compile."""
        earlier = self.kept[new.site.id]
        nearest = min(earlier, key=lambda old: self.distance(new, old)) if earlier else None
        verdict = self.explain(new, nearest) if nearest is not None else first
        event = self._event(new, nearest, verdict)
        self.total += 1
        self.recompiles += event.recompile
        self.counts[new.site.id] += 1
        earlier.append(new)
        self.write(event)
        return event

    def _event(self, new: C, nearest: C | None, verdict: CompileCause | None) -> events.Compile:
        full = self.total < FULL_RECORDS
        said = verdict or CompileCause("", "", "")
        return events.Compile(
            round(time.time(), 3),
            self.rank,
            seconds=None if new.report.seconds is None else round(new.report.seconds, 4),
            graph=new.report.hash or (new.report.graph.digest[:32] if new.report.graph else ""),
            site=new.site,
            nth=new.nth,
            recompile=new.nth > 0,
            inputs=new.inputs[:_INPUTS] if full else (),
            nearest=None if nearest is None else nearest.nth,
            difference=tuple(line[:_LONGEST] for line in said.difference[: _DIFFERENCES if full else 1]),
            cause=said.cause,
            text=said.text[:_LONGEST] if full else "",
            fix=said.fix[:_LONGEST] if full else "",
            memory=new.report.memory if full else None,
            trigger=new.trigger,
            host_collective=new.report.pieces > 1,
            pieces=new.report.pieces,
            by_rank=new.by_rank,
            part=new.part_text[:_LONGEST],
            step=new.step,
        )
