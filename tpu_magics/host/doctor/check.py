"""One check of the doctor: what was checked, its state, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.host.doctor.fixes import Fix
from tpu_magics.host.problem import BROKEN, WARNING, Problem

__all__ = ["BROKEN", "NOT_AVAILABLE", "OK", "STATES", "WARNING", "Check", "from_problem", "from_problems"]

OK = "ok"
NOT_AVAILABLE = "not available"
STATES = (BROKEN, WARNING, NOT_AVAILABLE, OK)


@dataclass(frozen=True)
class Check:
    """One check and its result.

    `group`, `name`: what was checked; `state`: one of STATES; `what`: the result, in a sentence; `why`: why that
    matters (where it is not available: the reason); `command`: the one command that fixes it, as it is typed in a
    notebook ("": none does); `then`: what to do after it, or instead of it; `fix`: what `--fix` does about it (None:
    nothing, because it is not safe or not possible).
    """

    group: str
    name: str
    state: str
    what: str
    why: str = ""
    command: str = ""
    then: str = ""
    fix: Fix | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"A check's state is one of {', '.join(map(repr, STATES))}, not {self.state!r}.")

    @property
    def todo(self) -> str:
        """The command and what follows it, in one sentence."""
        return ", then ".join(part for part in (self.command, self.then) if part)


def from_problem(group: str, name: str, problem: Problem, fix: Fix | None = None) -> Check:
    """The check of this problem."""
    return Check(group, name, problem.state, problem.what, problem.why, problem.command, problem.then, fix)


def from_problems(group: str, name: str, problems: Sequence[Problem], fine: str) -> Iterator[Check]:
    """A check for each problem, or one with the text `fine`."""
    if not problems:
        yield Check(group, name, OK, fine)
    for problem in problems:
        yield from_problem(group, name, problem)
