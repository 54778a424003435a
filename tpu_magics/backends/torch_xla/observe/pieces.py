"""The logical graphs of a rehearsal, in which collectives on the host split a step's graph into pieces.

On a TPU the pieces between two syncs are one graph, so they count as one here, identified by the tuple of their hashes.
It is compiled if the tuple is new, even if each piece was compiled before in another combination. A value that is read
in the middle of a step has its own graph, as it has without a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tpu_magics.backends import hlo
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport, XlaDumps

KEPT = 512  # pieces whose graphs are kept for comparison
LONGEST = 4096  # pieces of a step
COMPARED = 64  # pieces that are compared one by one
_READ = "read at "
_RESULT = "made by a collective"


@dataclass
class GraphPieces:
    """The pieces of the current step, and all logical graphs so far."""

    files: XlaDumps
    current: list[str] = field(default_factory=list)
    _read: set[int] = field(default_factory=set)
    _fresh: dict[str, XlaCompileReport] = field(default_factory=dict)
    _known: set[tuple[str, ...]] = field(default_factory=set)
    _reports: dict[str, XlaCompileReport] = field(default_factory=dict)
    _unnamed: int = 0

    def cut(self, executed: int, compiled: int) -> None:
        """A collective ran the pending operations: a piece of the step's graph."""
        self.current += self._names(executed, compiled)
        if len(self.current) > LONGEST:  # no sync for very long
            self.current = list(dict.fromkeys(self.current))

    def add_result(self) -> None:
        """A collective returned a tensor. Without the host it would be part of the graph, even if nothing else is."""
        self.current.append(_RESULT)

    def end_step(self, executed: int, compiled: int) -> list[XlaCompileReport]:
        """The step's graph has run to its end, in `executed` last pieces (0: the collective was its end). Returns the
        new logical graphs."""
        current = self.current
        if executed:
            reports = self._new([(*current, name) for name in self._names(executed, compiled)])
            reports = reports if compiled else _elsewhere(reports)
        else:
            reports = _elsewhere(self._new([tuple(current)] if current else []))
        self.current = []
        self._fresh.clear()
        self._read.clear()
        return reports

    def run(self, executed: int, compiled: int, grows: bool = False) -> list[XlaCompileReport]:
        """Something else ran a part of the step, which continues: without the splits it would have been one graph with
        everything that leads to it, and the step's graph would still be whole. `grows`: what is read depends on
        everything before it without a sync (weights that were updated); otherwise a loop of reads repeats."""
        before = self._before(grows)
        reports = self._new([(*before, name) for name in self._names(executed, compiled)])
        return reports if compiled else _elsewhere(reports)

    def _before(self, grows: bool) -> tuple[str, ...]:
        return tuple(self.current if grows else dict.fromkeys(self.current))

    def read(self, tensor: int, site: int, grows: bool = False) -> list[XlaCompileReport]:
        """A tensor of this step was read, and a split had already run what leads to it. Without the split, this read
        would have run a graph, once for each tensor."""
        if not self.current or tensor in self._read:
            return []
        self._read.add(tensor)
        reports = _elsewhere(self._new([(*self._before(grows), f"{_READ}{site}")]))
        if all(name == _RESULT for name in self.current):
            self.current = []  # the read has run everything
        return reports

    def _new(self, keys: Sequence[tuple[str, ...]]) -> list[XlaCompileReport]:
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        self._known.update(new)
        reports = [self._joined([name for name in key if not name.startswith((_READ, _RESULT))]) for key in new]
        self._fresh = {name: one for name, one in self._fresh.items() if name in self.current}
        return reports

    def _joined(self, names: Sequence[str]) -> XlaCompileReport:
        names = names if len(names) <= COMPARED else list(dict.fromkeys(names))
        return joined(names, [self._reports.get(name, XlaCompileReport(name)) for name in names], self._fresh)

    def _names(self, executed: int, compiled: int) -> list[str]:
        hashes, reports = self.files.read_executions(executed, compiled)
        reports = [one if one.hash else replace(one, hash=self._name(one)) for one in reports]
        for one in reports:
            self._keep(one)
        if all(hashes):
            return hashes
        return [one.hash for one in reports]  # a graph from the cache without a hash is not new

    def _keep(self, report: XlaCompileReport) -> None:
        self._fresh[report.hash] = report
        self._reports[report.hash] = report
        if len(self._reports) > KEPT:
            self._reports.pop(next(iter(self._reports)))

    def _name(self, report: XlaCompileReport) -> str:
        """A name for a graph without a reported hash: that of its text, else a number."""
        if report.graph is not None:
            return report.graph.digest[:32]
        self._unnamed += 1
        return f"not-reported-{self._unnamed}"


def _elsewhere(reports: list[XlaCompileReport]) -> list[XlaCompileReport]:
    """Of pieces that were compiled earlier, or by a collective: their frames are not those that ran the whole."""
    return [replace(one, frames=()) for one in reports]


def joined(
    key: Sequence[str], parts: Sequence[XlaCompileReport], fresh: dict[str, XlaCompileReport]
) -> XlaCompileReport:
    """The pieces of a logical graph as one report; `fresh`: those that were compiled now, whose seconds count (0 if all
    had been compiled before)."""
    if not parts:
        return XlaCompileReport(hash=hashlib.sha256(_RESULT.encode()).hexdigest()[:32], seconds=0.0, pieces=0)
    if len(parts) == 1:
        return parts[0] if key[0] in fresh else replace(parts[0], seconds=0.0)
    now = [fresh[name] for name in key if name in fresh]
    seconds = [one.seconds for one in now if one.seconds is not None]
    graphs = [one.graph for one in parts if one.graph is not None]
    return XlaCompileReport(
        hash=hashlib.sha256(" ".join(key).encode()).hexdigest()[:32],
        inputs=_sum([one.inputs for one in parts]),
        outputs=_sum([one.outputs for one in parts]),
        frames=parts[-1].frames,
        memory=_largest([one.memory for one in parts if one.memory]),
        seconds=sum(seconds) if seconds or not now else None,
        graph=hlo.join(graphs) if len(graphs) == len(parts) else None,
        pieces=len(parts),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _largest(memories: Sequence[dict[str, int]]) -> dict[str, int] | None:
    """The maximum of each use over the pieces: they do not run at the same time."""
    uses = {use for memory in memories for use in memory}
    return {use: max(memory.get(use, 0) for memory in memories) for use in sorted(uses)} or None
