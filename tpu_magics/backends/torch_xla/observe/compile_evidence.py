"""The evidence of one compile: the runtime's report, the events of the step, and a snapshot of Python values."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field

from tpu_magics.backends import hlo
from tpu_magics.backends.observing import compile_evidence
from tpu_magics.backends.observing.sites import Place
from tpu_magics.backends.torch_xla.observe.snapshot import FrameSnapshot
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport
from tpu_magics.runs.events import Site

Number = int | float | bool
_LONGEST = 100


@dataclass(frozen=True)
class StepFacts:
    """What happened since the last step when a graph ran.

    `cuts`: sites where the host read a value of this step; `deciding`: those that decide which branch Python takes;
    `values`: numbers that were read; `backward`, `stepped`: there was a backward pass, an optimizer step; `optimizer`:
    its class; `state_made`: the optimizer created its state; `autocast`: the kinds of autocast that were entered;
    `grad`: grad mode when it ran; `data_ops`: operations whose shape depends on values; `short`: (full, last) sizes of
    batches of loaders whose last batch is short and has been returned; `by_rank`: an all_gather padded by the rank.
    """

    cuts: tuple[Site, ...] = ()
    deciding: tuple[Site, ...] = ()
    values: tuple[Number, ...] = ()
    backward: bool = False
    stepped: bool = False
    optimizer: str = ""
    state_made: bool = False
    autocast: frozenset[str] = frozenset()
    grad: bool = True
    data_ops: tuple[str, ...] = ()
    short: frozenset[tuple[int, int]] = frozenset()
    by_rank: bool = False


@dataclass(frozen=True)
class TrainingPart:
    """A part of what a user's line runs. `work`: what it does, or ""; `place`: the library's line (None: the user's
    line is the nearest that is known); `key`: equal for graphs of the same part; `weights`: the graph takes the
    parameters of a model; `activity`: "evaluation", "logging", ..., or ""; `first`: the first graph of this part at its
    site."""

    work: str = ""
    place: Place | None = None
    key: tuple[object, ...] = ()
    weights: bool = False
    activity: str = ""
    first: bool = False

    @property
    def text(self) -> str:
        """E.g. "evaluation: forward of BertForSequenceClassification, transformers/trainer.py line 2995: ..."."""
        return ", ".join(filter(None, [self.work, self.line]))

    @property
    def line(self) -> str:
        """The library's line: "transformers/trainer.py line 2999: losses = self.gather_function(...)"."""
        if self.place is None:
            return ""
        _function, path, number = self.place
        code = linecache.getline(path, number).strip()
        shown = f": {code[:_LONGEST]}" if code else ""
        return f"{short_path(path)} line {number}{shown}"


def short_path(path: str) -> str:
    """The last folder and the file."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


@dataclass(frozen=True)
class TorchCompileEvidence(compile_evidence.CompileEvidence):
    """One compile at a site, with the events of the step and the snapshot of Python values."""

    report: XlaCompileReport
    facts: StepFacts = field(default_factory=StepFacts)
    snapshot: FrameSnapshot = field(default_factory=FrameSnapshot)
    part: TrainingPart = field(default_factory=TrainingPart)

    @property
    def by_rank(self) -> bool:
        """See events.Compile."""
        return self.facts.by_rank

    @property
    def part_text(self) -> str:
        """See events.Compile."""
        return self.part.text


def distance(new: TorchCompileEvidence, old: TorchCompileEvidence) -> tuple[bool, bool, int, int, int]:
    """Small for the same part, the same calling functions, the same operations and step events, and the latest
    compile."""
    graphs = hlo.distance(new.report.graph, old.report.graph) if new.report.graph and old.report.graph else 0
    return new.part.key != old.part.key, new.through != old.through, graphs, _facts_apart(new, old), -old.nth


def _facts_apart(new: TorchCompileEvidence, old: TorchCompileEvidence) -> int:
    a, b = new.facts, old.facts
    facts = (a.cuts != b.cuts) + (a.backward != b.backward) + (a.stepped != b.stepped) + (a.state_made != b.state_made)
    return facts + (a.autocast != b.autocast) + (new.snapshot.training != old.snapshot.training)
