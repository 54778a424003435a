"""The compiles of one rank, by site; the nearest earlier one; and their records.

What lives here: numbering, choosing what a compile is compared with, and writing the event. What does not: the causes
(causes.py), the evidence (steps.py).
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from tpu_magics.backends.torch_xla import hlo
from tpu_magics.backends.torch_xla.observe.causes import explain
from tpu_magics.backends.torch_xla.observe.compiled import Compiled, Verdict
from tpu_magics.runs import events

KEPT = 32  # earlier compiles of a site that a new one is compared with
FULL_RECORDS = 120  # later ones leave out what takes most room, so that a run's records stay small
_INPUTS, _DIFFERENCES, _LONGEST = 12, 6, 240


class History:
    """What has been compiled so far. `write` takes an event."""

    def __init__(self, write: Callable[[events.Event], object], rank: int) -> None:
        self.write = write
        self.rank = rank
        self.total = 0
        self.recompiles = 0
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.kept: defaultdict[int, deque[Compiled]] = defaultdict(lambda: deque(maxlen=KEPT))

    def nth(self, site: events.Site) -> int:
        """Which compile at this site the next one is."""
        return self.counts[site.id]

    def add(self, new: Compiled, first: Verdict | None = None) -> events.Compile:
        """Take a compile in and write its record. `first`: what there is to say of a first compile."""
        earlier = self.kept[new.site.id]
        nearest = min(earlier, key=lambda old: _distance(new, old)) if earlier else None
        verdict = explain(new, nearest) if nearest is not None else first
        event = self._event(new, nearest, verdict)
        self.total += 1
        self.recompiles += event.recompile
        self.counts[new.site.id] += 1
        earlier.append(new)
        self.write(event)
        return event

    def _event(self, new: Compiled, nearest: Compiled | None, verdict: Verdict | None) -> events.Compile:
        full = self.total < FULL_RECORDS
        said = verdict or Verdict("", "", "")
        return events.Compile(
            round(time.time(), 3),
            self.rank,
            seconds=None if new.told.seconds is None else round(new.told.seconds, 4),
            graph=new.told.hash or (new.told.graph.digest[:32] if new.told.graph else ""),
            site=new.site,
            nth=new.nth,
            recompile=new.nth > 0,
            inputs=new.inputs[:_INPUTS] if full else (),
            nearest=None if nearest is None else nearest.nth,
            difference=tuple(line[:_LONGEST] for line in said.difference[: _DIFFERENCES if full else 1]),
            cause=said.cause,
            text=said.text[:_LONGEST] if full else "",
            fix=said.fix[:_LONGEST] if full else "",
            memory=new.told.memory if full else None,
            trigger=new.trigger,
            host_collective=new.told.pieces > 1,
            pieces=new.told.pieces,
            by_rank=new.facts.by_rank,
            step=new.step,
        )


def _distance(new: Compiled, old: Compiled) -> tuple[bool, int, int, int]:
    """Near: run from the same place, the same operations, the same doings of the step, and the latest."""
    graphs = hlo.distance(new.told.graph, old.told.graph) if new.told.graph and old.told.graph else 0
    return new.through != old.through, graphs, _facts_apart(new, old), -old.nth


def _facts_apart(new: Compiled, old: Compiled) -> int:
    a, b = new.facts, old.facts
    facts = (a.cuts != b.cuts) + (a.backward != b.backward) + (a.stepped != b.stepped) + (a.state_made != b.state_made)
    return facts + (a.autocast != b.autocast) + (new.snapshot.training != old.snapshot.training)
