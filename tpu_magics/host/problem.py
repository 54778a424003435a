"""What is wrong with a host, in a form that can be shown and mended.

What lives here: the record of one problem, and how things are counted in its sentences. What does not: finding any
(versions, chips, holders and repairs do).
"""

from __future__ import annotations

from dataclasses import dataclass

BROKEN = "broken"
WARNING = "warning"

VERSIONS = "versions"
TPU = "tpu"
IN_USE = "holder"
ENVIRONMENT = "environment"


def plural(count: int, noun: str) -> str:
    """ "1 chip", "8 chips"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    `about`: what it concerns: "versions", "tpu", "holder" or "environment";
    `what`: what is wrong; `why`: why that matters, with the values seen; `command`: the one command that mends it, as
    it is typed in a notebook ("" where no command can); `then`: what to do after it, or instead of it, as an
    instruction; `state`: "broken" (training on this device will fail) or "warning" (it may not do what is expected).
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
