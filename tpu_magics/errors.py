"""The errors and problems that users read: what happened, why, and what to do next, in that order."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100  # columns of a shown error


def plural(count: float, noun: str, form: str = ",") -> str:
    """ "1 chip", "1,200 steps", "2 batches". `form`: how the number is written ("": without commas)."""
    end = "" if count == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count:{form}} {noun}{end}"


class TpuMagicsError(Exception):
    """What happened, why, and what to do next.

    Args:
        what: one sentence: what happened.
        why: why it happened, with measured numbers where there are any; may be empty.
        todo: the next action, as an instruction; may be empty.
        details: lines shown below as they are, e.g. the user's own frames.
    """

    def __init__(self, what: str, why: str = "", todo: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.todo = todo
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The text that is shown, line by line."""
        out = [self.what]
        if self.why:
            out.append(f"Why: {self.why}")
        if self.todo:
            out.append(f"What to do: {self.todo}")
        if self.details:
            out.extend(["", *self.details])
        return out

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: shows the paragraph instead of our own stack (IPython 7.34 and newer), wrapped at words."""
        said = [f"{type(self).__name__}: {self.what}"]
        said += [f"{label}: {text}" for label, text in (("Why", self.why), ("What to do", self.todo)) if text]
        lines = [line for part in said for paragraph in part.splitlines() for line in _wrapped(paragraph)]
        return [*lines, "", *self.details] if self.details else lines


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False) or [""]


class TrainingFailed(TpuMagicsError):
    """A worker failed. `run` is the path of the run folder, `rank` the rank that failed first (None: no single one)."""

    def __init__(
        self,
        what: str,
        why: str = "",
        todo: str = "",
        details: Sequence[str] = (),
        *,
        rank: int | None = None,
        run: str = "",
    ) -> None:
        super().__init__(what, why, todo, details)
        self.rank = rank
        self.run = run


class TrainingInterrupted(TrainingFailed, KeyboardInterrupt):
    """The person stopped the run. Also a KeyboardInterrupt, so that "run all" stops here."""


# -- problems of a host -----------------------------------------------------------------------------------------------

BROKEN = "broken"
WARNING = "warning"

VERSIONS = "versions"
TPU = "tpu"
IN_USE = "in use"
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class HostProblem:
    """One problem of the host.

    `about`: "versions", "tpu", "in use" or "environment"; `what`: what is wrong; `why`: why that matters, with the
    values found; `command`: the one command that fixes it, as it is typed in a notebook ("" where no command can);
    `then`: what to do after it, or instead of it, as an instruction; `state`: "broken" (training on this device will
    fail) or "warning" (it may not do what is expected).
    """

    about: str
    what: str
    why: str
    command: str = ""
    then: str = ""
    state: str = BROKEN

    @property
    def todo(self) -> str:
        """The command and what follows it, in one sentence."""
        return ", then ".join(part for part in (self.command, self.then) if part)
