"""The evidence of one compile that every framework provides, and its cause."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_magics.backends import hlo
from tpu_magics.runs.events import Input, Site


@dataclass(frozen=True)
class CompileReport:
    """What the runtime reports of one compile. `hash`: the runtime's own; `memory`, `pieces`: see events.Compile (0: a
    collective with no computation before it); `graph`: before optimization. What is not reported is empty or None."""

    hash: str = ""
    memory: dict[str, int] | None = None
    seconds: float | None = None
    graph: hlo.Graph | None = None
    pieces: int = 1


@dataclass(frozen=True)
class CompileEvidence:
    """One compile at a site. `nth`: from 0; `inputs`: what the step received from the host; `through`: (file, function)
    of the libraries between the user's line and the call that ran the graph; `trigger`: see events.Compile."""

    site: Site
    nth: int
    step: int
    report: CompileReport
    trigger: str = ""
    through: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Input, ...] = ()

    @property
    def by_rank(self) -> bool:
        """See events.Compile."""
        return False

    @property
    def part_text(self) -> str:
        """See events.Compile."""
        return ""


@dataclass(frozen=True)
class CompileCause:
    """Why a graph was compiled: a code of events.CAUSES, a sentence, the fix in a sentence, and what differs."""

    cause: str
    text: str
    fix: str
    difference: tuple[str, ...] = ()


def evaluation_batch(size: int, training: int) -> CompileCause:
    """The note for a first compile: an evaluation with another batch size than training."""
    text = f"Evaluation uses batches of {size} (training: {training}), so it compiles its own graph."
    return CompileCause(
        "", text, "Use the training batch size in evaluation. One compile for the evaluation loop remains."
    )
