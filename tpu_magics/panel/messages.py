"""The messages from the kernel to its front ends over the comm `tpu_magics`.

`scripts/typescript.py` makes labextension/src/types.ts of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tpu_magics.panel.page import Chart, Problem
from tpu_magics.panel.protocol import HelloMessage, KernelHost

__all__ = [
    "ComparedMessage",
    "ComparedRow",
    "Comparison",
    "FindingsMessage",
    "HeartbeatMessage",
    "HelloMessage",
    "KernelHost",
    "ProblemMessage",
    "ProfileMessage",
    "RunLine",
    "RunMessage",
    "RunsMessage",
    "StoppingMessage",
    "UpdateMessage",
]

# -- parts of messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunLine:
    """A run in a list. Counts are those of rank 0, recompiles without the expected ones; None: not known. `value`: the
    last loss, else what was logged last, with its name ("loss 0.125"); `curve`: at most 30 numbers of it, evenly over
    the steps."""

    id: str
    name: str
    status: str
    created: float | None
    seconds: float | None
    workers: int | None
    steps: int | None
    compiles: int | None
    recompiles: int | None
    value: str = ""
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class ComparedRow:
    """What is compared, and a cell for each run."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `runs`: what each is called here; `different` and `equal`: rows, to be shown in this order,
    the equal ones folded; `charts`: the loss of each run, in the order of `runs`, to be drawn over each other (a run
    that logged none has no points)."""

    title: str
    runs: tuple[str, ...]
    different: tuple[ComparedRow, ...]
    equal: tuple[ComparedRow, ...]
    charts: tuple[Chart, ...]
    notes: tuple[str, ...]


# -- kernel -> front end ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeartbeatMessage:
    """A run is active. A front end that was reloaded learns the comm from it."""

    type: ClassVar[str] = "here"
    run: str
    seq: int


@dataclass(frozen=True)
class RunMessage:
    """A whole run, as it was after the update `seq`. `record`: its Page (page.py) as JSON."""

    type: ClassVar[str] = "run"
    seq: int
    record: Mapping[str, Any]
    request: str | None


@dataclass(frozen=True)
class UpdateMessage:
    """What has changed since the update `after`. `patch`: of the record (patch.py)."""

    type: ClassVar[str] = "update"
    run: str
    seq: int
    after: int
    patch: Any


@dataclass(frozen=True)
class RunsMessage:
    """Earlier runs, newest first."""

    type: ClassVar[str] = "runs"
    runs: tuple[RunLine, ...]
    request: str | None


@dataclass(frozen=True)
class ComparedMessage:
    """`runs`: their ids."""

    type: ClassVar[str] = "compared"
    runs: tuple[str, ...]
    comparison: Comparison
    request: str | None


@dataclass(frozen=True)
class FindingsMessage:
    """The findings of a check. `checked`: what was checked, in words."""

    type: ClassVar[str] = "findings"
    findings: tuple[Problem, ...]
    checked: str
    request: str | None


@dataclass(frozen=True)
class ProfileMessage:
    """The lines of a preflight's profile, with their part of the step. `profiled`: what was profiled, in words."""

    type: ClassVar[str] = "profile"
    lines: tuple[Problem, ...]
    profiled: str


@dataclass(frozen=True)
class StoppingMessage:
    type: ClassVar[str] = "stopping"
    run: str
    request: str | None


@dataclass(frozen=True)
class ProblemMessage:
    """A request failed."""

    type: ClassVar[str] = "problem"
    what: str
    why: str
    todo: str
    request: str | None
