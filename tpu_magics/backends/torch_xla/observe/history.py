"""The distance between two compiles of the same line: which earlier one a new one is compared with."""

from __future__ import annotations

from tpu_magics.backends.observing import hlo
from tpu_magics.backends.torch_xla.observe.compile_evidence import TorchCompileEvidence


def distance(new: TorchCompileEvidence, old: TorchCompileEvidence) -> tuple[bool, bool, int, int, int]:
    """Small for the same part, the same calling functions, the same operations and step events, and the latest
    compile."""
    graphs = hlo.distance(new.report.graph, old.report.graph) if new.report.graph and old.report.graph else 0
    return new.part.key != old.part.key, new.through != old.through, graphs, _facts_apart(new, old), -old.nth


def _facts_apart(new: TorchCompileEvidence, old: TorchCompileEvidence) -> int:
    a, b = new.facts, old.facts
    facts = (a.cuts != b.cuts) + (a.backward != b.backward) + (a.stepped != b.stepped) + (a.state_made != b.state_made)
    return facts + (a.autocast != b.autocast) + (new.snapshot.training != old.snapshot.training)
