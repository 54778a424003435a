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


@dataclass(frozen=True)
class CompileCause:
    """Why a graph was compiled: a code of events.CAUSES, a sentence, the fix in a sentence, and what differs."""

    cause: str
    text: str
    fix: str
    difference: tuple[str, ...] = ()
