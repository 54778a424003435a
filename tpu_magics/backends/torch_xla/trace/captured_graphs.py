"""The graphs captured from one process, each once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends import hlo
from tpu_magics.backends.base import TraceSpec
from tpu_magics.backends.hlo.proto import number_ops
from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport, XlaDumps
from tpu_magics.backends.torch_xla.trace.graph_diff import GraphListing, difference
from tpu_magics.backends.torch_xla.trace.parameter_names import ParameterNames
from tpu_magics.backends.torch_xla.trace.pending_graph import PendingGraph, graph_hash
from tpu_magics.backends.torch_xla.trace.source_lines import SourceLineFinder

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver


class CapturedGraphs:
    """`graphs`: by torch_xla's own hash; `counts`: as torch_xla counts them; `observer`: the observer, as in
    training."""

    def __init__(self, tracing: TraceSpec, names: ParameterNames, lines: SourceLineFinder) -> None:
        self.tracing = tracing
        self.names = names
        self.lines = lines
        self.graphs: dict[str, LoweredGraph] = {}
        self.counts: Counter[str] = Counter()
        self.observer: TorchObserver | None = None
        self.reports: list[XlaCompileReport] = []
        self._seen: list[GraphListing] = []
        self.rows: dict[str, int | None] = {}  # of the largest input, by the graph's hash

    def add(self, pending: Sequence[Any], frame: FrameType, nth: int, step: bool) -> str:
        """Capture the graph of these inner tensors; returns its hash. `step`: all pending tensors; `nth`: number of its
        sync."""
        key = graph_hash(pending)
        self.rows[key] = self.rows.get(key) or self._rows_now()
        if key in self.graphs:
            self.counts["CachedCompile"] += 1
        else:
            self.counts["UncachedCompile"] += 1
            self.graphs[key] = self._graph(PendingGraph.of(pending, step), frame, nth)
        return key

    def _graph(self, found: PendingGraph, frame: FrameType, nth: int) -> LoweredGraph:
        parsed = hlo.parse(found.text)
        module = number_ops(found.module, by_type=True)
        print_ = hlo.fingerprint(parsed)
        users = {frames: self.lines.users(frames) for frames in dict.fromkeys(module.frames.values())}
        known = {number: users[frames] for number, frames in module.frames.items()}
        places = {number: place for number, place in known.items() if place is not None}
        parameters = self.names.describe(parsed.parameters, found.ids, frame, self.observer)
        self.reports.append(
            XlaCompileReport(print_[:32], inputs=len(parsed.parameters), outputs=len(parsed.outputs), graph=parsed)
        )
        self._seen.append(GraphListing.of(found.text, parsed, places, parameters))
        return LoweredGraph(
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
        """The difference of each graph from the one before it, in sentences; "" for the first."""
        pairs = zip(self._seen[1:], self._seen, strict=False)
        return [*[""][: len(self._seen)], *(difference(new, old) for new, old in pairs)]

    def batch(self, steady: Sequence[str]) -> int | None:
        """Rows of the steady graph's input; if it got no new input, of the last one before it."""
        order = [*(one for one in self.graphs if one not in steady), *steady]
        return next((self.rows[one] for one in reversed(order) if self.rows[one]), None)

    def _rows_now(self) -> int | None:
        """Rows of the largest input of this step."""
        arrivals = self.observer.events.arrivals if self.observer is not None else []
        shapes = [tuple(one.shape) for one in arrivals if len(one.shape)]
        return max(shapes, key=math.prod)[0] if shapes else None


class CapturedDumps(XlaDumps):
    """Replaces the files that the runtime would write for each graph."""

    def __init__(self, taken: CapturedGraphs) -> None:
        super().__init__(None)
        self.source = taken
        self.given = 0

    def read(self, count: int) -> list[XlaCompileReport]:
        reports = self.source.reports[self.given : self.given + count]
        self.given += count
        return reports
