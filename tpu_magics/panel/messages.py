"""The messages from the kernel to its front ends over the comm `tpu_magics`.

labextension/src/types.ts mirrors the names and fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tpu_magics.panel.protocol import HelloMessage, KernelHost

__all__ = [
    "ComparedMessage",
    "ComparedRow",
    "ComparedTable",
    "FailureText",
    "FindingsMessage",
    "HeartbeatMessage",
    "HelloMessage",
    "KernelHost",
    "NoticeText",
    "ProblemMessage",
    "RankTable",
    "RehearsalNote",
    "RunLine",
    "RunMessage",
    "RunRecord",
    "RunTexts",
    "RunsMessage",
    "StoppingMessage",
    "UpdateMessage",
]

# -- parts of messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """A whole run, over the comm and in a saved notebook. `view`: RunView as JSON."""

    v: int
    view: Mapping[str, Any]
    said: Mapping[str, Any]


@dataclass(frozen=True)
class RunTexts:
    """The texts of a run (sections*.py), as JSON. `tone`: "", "ok", "warning" or "broken"; `causes`: the
    names of the causes, by code; `failure` and `likeness`: None where there is nothing to say."""

    state: str
    tone: str
    notes: str
    figures: Any
    facts: Any
    compiles: str
    causes: Mapping[str, str]
    ranks: Any
    notices: Any
    failure: Any
    likeness: Any
    footer: str


@dataclass(frozen=True)
class NoticeText:
    word: str
    text: str
    state: str


@dataclass(frozen=True)
class FailureText:
    """`facts`: Fact; `lines`: shown as they are."""

    facts: Any
    lines: Any


@dataclass(frozen=True)
class RehearsalNote:
    """What a rehearsal has in common with a TPU. `short`: in one line; `facts`: Fact."""

    short: str
    facts: Any


@dataclass(frozen=True)
class RankTable:
    """The ranks as a table of texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RunLine:
    """A run in a list. Counts are those of rank 0; None: not known."""

    id: str
    name: str
    status: str
    created: float | None
    seconds: float | None
    workers: int | None
    steps: int | None
    compiles: int | None
    recompiles: int | None


@dataclass(frozen=True)
class ComparedRow:
    """`state`: as in panel/table.py."""

    cells: tuple[str, ...]
    state: str


@dataclass(frozen=True)
class ComparedTable:
    """Runs side by side."""

    title: str
    columns: tuple[str, ...] | None
    rows: tuple[ComparedRow, ...]
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
    """A whole run, as it was after the update `seq`. `record`: see run_json.py."""

    type: ClassVar[str] = "run"
    seq: int
    record: Mapping[str, Any]
    request: str | None


@dataclass(frozen=True)
class UpdateMessage:
    """What has changed since the update `after`: fields of the view and of its texts. `log`: new compiles,
    newest first, which go before those that are known."""

    type: ClassVar[str] = "update"
    run: str
    seq: int
    after: int
    view: Mapping[str, Any]
    said: Mapping[str, Any]
    log: tuple[Any, ...]


@dataclass(frozen=True)
class RunsMessage:
    """Earlier runs, newest first."""

    type: ClassVar[str] = "runs"
    runs: tuple[RunLine, ...]
    request: str | None


@dataclass(frozen=True)
class ComparedMessage:
    type: ClassVar[str] = "compared"
    runs: tuple[str, ...]
    table: ComparedTable
    request: str | None


@dataclass(frozen=True)
class FindingsMessage:
    """The findings of a check. `findings`: RuleFinding; `checked`: what was checked, in words."""

    type: ClassVar[str] = "findings"
    findings: tuple[Any, ...]
    checked: str
    request: str | None


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
