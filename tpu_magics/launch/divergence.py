"""Ranks that compile other graphs than rank 0 (on a TPU such a run hangs), or that end with other weights."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from tpu_magics.runs.events import Compile, Divergence


class GraphSequences:
    """The graphs that each rank compiled, in order."""

    def __init__(self) -> None:
        self.graphs: defaultdict[int, list[str]] = defaultdict(list)
        self.reported = False

    def add(self, event: Compile) -> Divergence | None:
        """Add a compile. Only the first divergence is returned: later ones follow from it."""
        own = self.graphs[event.rank]
        own.append("" if event.by_rank else event.graph)
        return self._divergence_at(len(own) - 1)

    def ended(self, ranks: list[int]) -> Divergence | None:
        """All these ranks have ended: a rank that compiled fewer graphs than the others also diverges."""
        most = max((len(self.graphs[rank]) for rank in ranks), default=0)
        return self._divergence_at(most - 1, ranks) if most else None

    def _divergence_at(self, nth: int, ranks: list[int] | None = None) -> Divergence | None:
        graphs = {rank: self._graph(rank, nth) for rank in sorted(ranks if ranks is not None else self.graphs)}
        known = {rank: graph for rank, graph in graphs.items() if graph is not None or ranks is not None}
        if self.reported or len(set(known.values())) < 2 or "" in known.values():
            return None  # a graph without a name cannot be compared
        self.reported = True
        first = min(known)
        others = tuple(rank for rank in known if known[rank] != known[first])
        named = {str(rank): graph or "" for rank, graph in known.items()}
        return Divergence(round(time.time(), 3), others[0], others, nth, named, _divergence_text(others, first, nth))

    def _graph(self, rank: int, nth: int) -> str | None:
        graphs = self.graphs[rank]
        return graphs[nth] if nth < len(graphs) else None


def weight_differences(digests: Mapping[int, Mapping[str, str]]) -> str:
    """A warning if ranks ended with other weights than rank 0, else "". `digests`: rank -> model -> checksum."""
    differing = []
    for name, own in digests.get(0, {}).items():
        others = [rank for rank, models in sorted(digests.items()) if models.get(name, own) != own]
        if others:
            differing.append(f"`{name}` (rank{'s' * (len(others) > 1)} {', '.join(map(str, others))})")
    if not differing:
        return ""
    return (
        f"Some ranks ended with different weights than rank 0, whose weights are kept: {', '.join(differing)}. The "
        "gradients were not averaged: use accelerator.backward() and a prepared optimizer, or xm.optimizer_step()."
    )


def _divergence_text(others: tuple[int, ...], first: int, nth: int) -> str:
    who = f"Rank {others[0]} compiles" if len(others) == 1 else f"Ranks {', '.join(map(str, others))} compile"
    return (
        f"{who} another graph than rank {first} (compile {nth + 1}): the ranks do not run the same program. On a TPU "
        "the run would hang. Look for code or shapes that depend on the rank."
    )
