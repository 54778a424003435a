"""The graphs that were taken from one process, each once.

What lives here: a pending graph -> what travels, what the observer is told of it, and the rows of the batch. What does
not: what is pending (live.py), its graph (pending.py), and when one is taken (tracer.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import Tracing
from tpu_magics.backends.hlo_proto import numbered
from tpu_magics.backends.lowered import Graph
from tpu_magics.backends.observing import hlo
from tpu_magics.backends.torch_xla.observe.told import Files, Told
from tpu_magics.backends.torch_xla.trace.changes import Seen, difference
from tpu_magics.backends.torch_xla.trace.lines import Lines
from tpu_magics.backends.torch_xla.trace.names import Names
from tpu_magics.backends.torch_xla.trace.pending import Pending, graph_hash

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import Observer


class Taken:
    """`graphs`: by torch_xla's own hash; `counts`: as torch_xla counts them; `observer`: who looks on."""

    def __init__(self, tracing: Tracing, names: Names, lines: Lines) -> None:
        self.tracing = tracing
        self.names = names
        self.lines = lines
        self.graphs: dict[str, Graph] = {}
        self.counts: Counter[str] = Counter()
        self.observer: Observer | None = None
        self.told: list[Told] = []
        self._seen: list[Seen] = []
        self.rows: dict[str, int | None] = {}  # of the largest input, by the graph's hash

    def add(self, pending: Sequence[Any], frame: FrameType, nth: int, step: bool) -> str:
        """Take the graph of these inner tensors; returns its hash. `step`: all that is pending; `nth`: of its sync."""
        key = graph_hash(pending)
        self.rows[key] = self.rows.get(key) or self._rows_now()
        if key in self.graphs:
            self.counts["CachedCompile"] += 1
        else:
            self.counts["UncachedCompile"] += 1
            self.graphs[key] = self._graph(Pending.of(pending, step), frame, nth)
        return key

    def _graph(self, found: Pending, frame: FrameType, nth: int) -> Graph:
        parsed = hlo.parse(found.text)
        module = numbered(found.module, by_type=True)
        print_ = hlo.fingerprint(parsed)
        users = {frames: self.lines.users(frames) for frames in dict.fromkeys(module.frames.values())}
        known = {number: users[frames] for number, frames in module.frames.items()}
        places = {number: place for number, place in known.items() if place is not None}
        parameters = self.names.told(parsed.parameters, found.ids, frame, self.observer)
        self.told.append(Told(print_[:32], inputs=len(parsed.parameters), outputs=len(parsed.outputs), graph=parsed))
        self._seen.append(Seen.of(found.text, parsed, places, parameters))
        return Graph(
            module=module.module,
            form="hlo",
            hash=print_,
            donors=found.donors,
            replicas=self.tracing.world,
            partitions=self.tracing.devices,
            site=self.lines.place(frame),
            nth=nth,
            steady=False,
            parameters=parameters,
            places=places,
        )

    def differences(self) -> list[str]:
        """What is different in each graph from the one before it, in sentences; of the first one nothing."""
        pairs = zip(self._seen[1:], self._seen, strict=False)
        return [*[""][: len(self._seen)], *(difference(new, old) for new, old in pairs)]

    def batch(self, steady: Sequence[str]) -> int | None:
        """Rows of what the steady graph was given; where it got nothing new, of what came last before it."""
        order = [*(one for one in self.graphs if one not in steady), *steady]
        return next((self.rows[one] for one in reversed(order) if self.rows[one]), None)

    def _rows_now(self) -> int | None:
        """Rows of the largest input of this step."""
        arrivals = self.observer.doing.arrivals if self.observer is not None else []
        shapes = [tuple(one.shape) for one in arrivals if len(one.shape)]
        return max(shapes, key=math.prod)[0] if shapes else None


class TakenFiles(Files):
    """Stands where the observer reads what the runtime wrote of each graph."""

    def __init__(self, taken: Taken) -> None:
        super().__init__(None)
        self.source = taken
        self.given = 0

    def read(self, count: int) -> list[Told]:
        told = self.source.told[self.given : self.given + count]
        self.given += count
        return told
