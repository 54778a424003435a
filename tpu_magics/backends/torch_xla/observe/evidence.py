"""The evidence of a compile: the runtime's report, the events of the step, a snapshot of Python values; and of how it
differs from another one."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_magics.backends.observe.compiles import (
    CompileCause,
    CompileComparison,
    CompileEvidence,
    changed,
    graph_distance,
)
from tpu_magics.backends.torch_xla.observe.parts import TrainingPart
from tpu_magics.backends.torch_xla.observe.snapshot import FrameSnapshot, Number
from tpu_magics.backends.torch_xla.observe.step_events import StepFacts
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport

NO_ACTION = "Expected once. No action needed."
_COMPARED = ("cuts", "backward", "stepped", "state_created", "autocast")  # facts


@dataclass(frozen=True)
class TorchCompileEvidence(CompileEvidence):
    """One compile at a site, with the events of the step and the snapshot of Python values."""

    report: XlaCompileReport
    facts: StepFacts = field(default_factory=StepFacts)
    snapshot: FrameSnapshot = field(default_factory=FrameSnapshot)
    part: TrainingPart = field(default_factory=TrainingPart)


def distance(new: TorchCompileEvidence, old: TorchCompileEvidence) -> tuple[bool, bool, int, int, int]:
    """Small for the same part, the same calling functions, the same operations and step events, and the latest
    compile."""
    parts = new.part.key != old.part.key, new.through != old.through
    return *parts, graph_distance(new, old), _facts_apart(new, old), -old.nth


def _facts_apart(new: TorchCompileEvidence, old: TorchCompileEvidence) -> int:
    facts = sum(bool(getattr(new.facts, name) != getattr(old.facts, name)) for name in _COMPARED)
    return facts + (new.snapshot.training != old.snapshot.training)


@dataclass
class TorchComparison(CompileComparison[TorchCompileEvidence]):
    """A compile and the nearest earlier one of its site."""

    @property
    def dims(self) -> tuple[tuple[int, int], ...]:
        """The sizes inside the graph that changed."""
        return self.change.dims if self.change is not None else ()

    @property
    def other_ops(self) -> bool:
        """The graphs have other operations (True also if they are unknown)."""
        return self.change is None or not self.change.same_ops

    def numbers(self) -> dict[str, tuple[Number, Number]]:
        """Numbers with the same name in both that changed: name -> (old, new)."""
        return changed(self.new.snapshot.numbers, self.old.snapshot.numbers)

    def part_cause(self, what: str) -> CompileCause:
        """The first graph of a part of what the line runs."""
        return CompileCause("new-part", f"{what}.", NO_ACTION, self.evidence)

    def new_code(self, what: str, fix: str) -> CompileCause:
        """The line runs other operations."""
        return CompileCause("new-code", f"{what}.", f"{fix}.", self.evidence)
