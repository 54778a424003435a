"""A problem of the host: what is wrong, why it matters, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass

BROKEN = "broken"
WARNING = "warning"

VERSIONS = "versions"
TPU = "tpu"
IN_USE = "in use"
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class HostProblem:
    """One problem.

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
