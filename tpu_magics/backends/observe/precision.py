"""The precision of the matmuls and convolutions of a run's graphs, compared with the requested one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.runs import events

Facts = dict[str, Any]  # the fields of events.Precision, without `t` and `rank`


class PrecisionWatch:
    """Records the precision of one rank: that of the graph with the most matmuls and convolutions so far, which
    represents the run. A framework overrides `facts`. `option`: as in ObserverConfig; `write` takes a kind of event and
    its fields."""

    def __init__(self, option: str, write: Callable[..., None]) -> None:
        self.option = option
        self.write = write
        self.best: tuple[hlo.Graph, str] | None = None
        self.last: Facts | None = None

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph. `digest`: its name in the compile record."""
        raise NotImplementedError

    def graph_compiled(self, graph: hlo.Graph, digest: str) -> None:
        """A graph was compiled."""
        if self.best is None or hlo.multiplications(graph)[0] > hlo.multiplications(self.best[0])[0]:
            self.best = graph, digest
            self.record()

    def record(self) -> None:
        """Write the record, if it is new."""
        facts = self.facts(*self.best) if self.best is not None else self.last
        if facts is not None and facts != self.last:
            self.last = facts
            self.write(events.Precision, **facts)

    def close(self) -> None:
        """The user's function has ended."""


def precision_facts(
    request: tuple[str, str], graph: hlo.Graph, digest: str, agrees: bool, reason: str, notes: Iterable[str]
) -> Facts:
    """`request`: the requested precision and its source; `agrees`: whether the graph has it, else `reason`: why it may
    not."""
    precision, source = request
    total, bf16 = hlo.multiplications(graph)
    return {
        "asked": precision,
        "source": source,
        "ops": total,
        "share": bf16 / total if total else None,
        "parameters": hlo.dtype_counts(graph),
        "graph": digest,
        "agrees": agrees,
        "text": _text(*request, graph) + ("" if agrees else reason),
        "notes": tuple(notes),
    }


def _text(precision: str, source: str, graph: hlo.Graph) -> str:
    request = f"{precision} requested by {source}" if precision else "no precision requested"
    types = hlo.multiplied_types(graph)
    total, bf16 = hlo.multiplications(graph)
    if not total:
        return f"{request}: the graph has no matmuls and no convolutions."
    others = ", ".join(f"{count} {dtype}" for dtype, count in types.items() if dtype != "bf16")
    rest = f" (others: {others})" if 0 < bf16 < total else f" ({others})" if others else ""
    return f"{request}: {bf16} of {total} matmuls and convolutions in bf16{rest}, before XLA optimizes the graph."
