"""The compiles of one rank: the evidence that every framework provides, the earlier ones of a site, and the causes of a
recompile that every framework has."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tpu_magics.backends import hlo
from tpu_magics.runs import events
from tpu_magics.runs.events import Input, Site
from tpu_magics.runs.writer import EventWriter


@dataclass(frozen=True)
class CompileReport:
    """What the runtime reports of one compile. `hash`: the runtime's own; `memory`, `pieces`: see events.Compile (0: a
    collective with no computation before it); `graph`: before optimization. What is not reported is empty or None."""

    hash: str = ""
    memory: dict[str, int] | None = None
    seconds: float | None = None
    graph: hlo.Graph | None = None
    pieces: int = 1

    @property
    def name(self) -> str:
        """The name of the graph in the records: the runtime's hash, else that of its text."""
        return self.hash or (self.graph.digest[:32] if self.graph else "")


@dataclass(frozen=True)
class CompileEvidence:
    """One compile at a site. `nth`: from 0; `inputs`: what the step received from the host; `through`: (file, function)
    of the libraries between the user's line and the call that ran the graph; `short`: (full, last) batch sizes of data
    whose last batch is short; `trigger`, `by_rank`: see events.Compile, `part_text`: its `part`."""

    site: Site
    nth: int
    step: int
    report: CompileReport
    trigger: str = ""
    through: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Input, ...] = ()
    short: frozenset[tuple[int, int]] = frozenset()
    by_rank: bool = False
    part_text: str = ""

    @property
    def key(self) -> Hashable:
        """What it is a recompile of if there was one before: its site."""
        return self.site.id


@dataclass(frozen=True)
class CompileCause:
    """Why a graph was compiled: a code of events.CAUSES, a sentence, the fix in a sentence, and what differs. `normal`:
    correct programs have it, too, and nothing is to be done; `deciding`: see events.Compile."""

    cause: str
    text: str
    fix: str
    difference: tuple[str, ...] = ()
    normal: bool = False
    deciding: tuple[events.Site, ...] = ()

    @property
    def expected(self) -> bool:
        return self.normal or self.cause in events.EXPECTED_CAUSES


# -- history ----------------------------------------------------------------------------------------------------------


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
        self.expected = 0  # of the recompiles
        self.counts: defaultdict[Hashable, int] = defaultdict(int)
        self.kept: defaultdict[Hashable, deque[C]] = defaultdict(lambda: deque(maxlen=KEPT))

    def nth(self, key: Hashable) -> int:
        """The number of the next compile of this key (CompileEvidence.key)."""
        return self.counts[key]

    def add(self, new: C, first: CompileCause | None = None) -> None:
        """Add a compile and write its record. `first`: a note for a first compile."""
        earlier = self.kept[new.key]
        nearest = min(earlier, key=lambda old: self.distance(new, old)) if earlier else None
        cause = self.explain(new, nearest) if nearest is not None else first
        self.writer.record(events.Compile, **self._fields(new, nearest, cause or CompileCause("", "", "")))
        self.total += 1
        self.recompiles += new.nth > 0
        self.expected += new.nth > 0 and cause is not None and cause.expected
        self.remember(new)

    def remember(self, new: C) -> None:
        """Compare later compiles with it. On its own: of a program that an earlier process had compiled."""
        self.counts[new.key] += 1
        self.kept[new.key].append(new)

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
            "normal": cause.normal and new.nth > 0,
            "deciding": cause.deciding,
            "step": new.step,
        }


# -- comparisons ------------------------------------------------------------------------------------------------------


P = TypeVar("P")
T = TypeVar("T")

_SHOWN = 6


@dataclass
class CompileComparison(Generic[C]):
    """A compile and the nearest earlier one of its site. `change`: of their graphs, None if one is unknown; `inputs`:
    (new, old) of inputs with the same name that differ."""

    new: C
    old: C
    change: hlo.GraphChange | None = None
    inputs: list[tuple[Input, Input]] = field(default_factory=list)

    def __post_init__(self) -> None:
        new, old = self.new.report.graph, self.old.report.graph
        if new is not None and old is not None:
            self.change = hlo.compare(new, old)
        before = {one.name: one for one in self.old.inputs}
        pairs = [(one, before[one.name]) for one in self.new.inputs if one.name in before]
        self.inputs = [(one, other) for one, other in pairs if one != other]

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences about the graphs."""
        return self.change.lines() if self.change is not None else ()

    @property
    def input_lines(self) -> tuple[str, ...]:
        """Sentences about the inputs."""
        return tuple(f"{new.name} now {tensor_text(new)}, before {tensor_text(old)}" for new, old in self.inputs)

    def cause(self, code: str, text: str, fix: str, *first: str) -> CompileCause:
        """A cause with the evidence of the graphs, and other evidence `first`."""
        return CompileCause(code, text, fix, (*first, *self.evidence))

    @property
    def only_batch_changed(self) -> bool:
        """Whether the inputs differ in the first dimension alone."""
        return all(new.shape[1:] == old.shape[1:] and new.shape[:1] != old.shape[:1] for new, old in self.inputs)

    def short_batch(self) -> tuple[int, int] | None:
        """(full, last) if an input's first dimension became the size of a short last batch, or back."""
        sizes = self.new.short | self.old.short
        for new, old in self.inputs:
            if new.shape and old.shape and new.shape[1:] == old.shape[1:]:
                for full, last in sizes:
                    if {old.shape[0], new.shape[0]} == {full, last}:
                        return full, last
        return None


def first_cause(rules: Iterable[Callable[[P], CompileCause | None]], pair: P) -> CompileCause:
    """The answer of the first rule that explains the new compile; the last one always does."""
    return next(cause for rule in rules if (cause := rule(pair)) is not None)


def graph_distance(new: CompileEvidence, old: CompileEvidence) -> int:
    """How much the graphs differ; 0 if one is unknown."""
    return hlo.distance(new.report.graph, old.report.graph) if new.report.graph and old.report.graph else 0


# -- causes -----------------------------------------------------------------------------------------------------------


def evaluation_batch(size: int | None, training: int | None) -> CompileCause | None:
    """The note for a first compile: an evaluation with another batch size than training."""
    if size is None or training is None or size == training:
        return None
    text = f"Evaluation uses batches of {size} (training: {training}), so it compiles its own graph."
    return CompileCause(
        "", text, "Use the training batch size in evaluation. One compile for the evaluation loop remains."
    )


def mode_switch(pair: CompileComparison[C], what: str, modes: Sequence[str], fix: str) -> CompileCause | None:
    """`what` ran in two modes. `modes`: what differs, in sentences."""
    if not modes:
        return None
    batch = "".join(f"; {line}" for line in pair.input_lines[:1])
    text = f"This line runs the {what} in two modes: {modes[0]}{batch}."
    return CompileCause("mode-switch", text, fix, (*modes, *pair.input_lines))


@dataclass(frozen=True)
class InputFixes:
    """How a framework's user changes the last batch, the dtype or the shape of an input: a sentence each."""

    last_batch: str
    dtype: str
    shape: str


def input_change(pair: CompileComparison[C], fixes: InputFixes) -> CompileCause | None:
    """An input has another shape or dtype."""
    if not pair.inputs:
        return None
    lines = pair.input_lines
    short = pair.short_batch()
    if short is not None:
        text = f"The last batch has {short[1]} samples instead of {short[0]}: {lines[0]}."
        return CompileCause("last-batch", text, fixes.last_batch, lines)
    if all(new.shape == old.shape for new, old in pair.inputs):
        return CompileCause("input-dtype", f"The dtype of an input changed: {lines[0]}.", fixes.dtype, lines)
    return CompileCause("input-shape", f"The shape of an input changed: {lines[0]}.", fixes.shape, lines)


def unknown(pair: CompileComparison[C], more: Sequence[str] = ()) -> CompileCause:
    """No other rule explains it. `more`: further evidence."""
    why = "the graphs could not be compared" if pair.change is None else "no known cause matches"
    return CompileCause(
        "unknown",
        f"The cause is unknown: {why}.",
        "Compare the evidence with your code. If your code does not explain it, please report it.",
        (*pair.evidence, *pair.input_lines, *more)[:_SHOWN],
    )


# -- differences ------------------------------------------------------------------------------------------------------


def changed(new: Mapping[str, T], old: Mapping[str, T]) -> dict[str, tuple[T, T]]:
    """What both have under the same name and differs: name -> (old, new)."""
    return {name: (old[name], value) for name, value in new.items() if name in old and _differs(old[name], value)}


def _differs(old: object, new: object) -> bool:
    return old != new and not (old != old and new != new)  # nan is nan


def tensor_text(one: Input) -> str:
    """int64[32,129]"""
    return f"{one.dtype}[{','.join(map(str, one.shape))}]"
