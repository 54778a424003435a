"""One check of the doctor, the command that fixes it, and what `--fix` may change.

`--fix` changes variables of this session and a lock file that no process uses. Each fix checks again, right before it
acts, that it is still safe.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tpu_magics.errors import BROKEN, WARNING, HostProblem
from tpu_magics.host.device_owners import find_owners

__all__ = ["BROKEN", "NOT_AVAILABLE", "OK", "STATES", "WARNING", "Check", "from_problem", "from_problems"]


class FixError(Exception):
    """The fix is no longer safe or possible; the text says why."""


class Fix(Protocol):
    """One change that `--fix` makes. `of_session`: it changes this process, and is of no use from a shell."""

    @property
    def of_session(self) -> bool: ...

    def apply(self, environ: MutableMapping[str, str], root: Path) -> str:
        """Apply it; returns a sentence about what was done. Raises FixError where it was left."""


@dataclass(frozen=True)
class VariableFix:
    """Variables of this session: a value, or None to unset it."""

    values: Mapping[str, str | None]
    of_session: bool = True

    def apply(self, environ: MutableMapping[str, str], root: Path) -> str:  # noqa: ARG002
        done = [_set(environ, name, value) for name, value in self.values.items()]
        return f"{', '.join(done)}, in this session."


def _set(environ: MutableMapping[str, str], name: str, value: str | None) -> str:
    before = environ.pop(name, None)
    if value is None:
        return f"{name} was unset (before: {before!r})"
    environ[name] = value
    return f"{name}={value} was set (before: {before!r})" if before is not None else f"{name}={value} was set"


@dataclass(frozen=True)
class LockFileFix:
    """libtpu's lock file, left over by a process of this account that is gone."""

    path: Path
    of_session: bool = False

    def apply(self, environ: MutableMapping[str, str], root: Path) -> str:  # noqa: ARG002
        lock = find_owners(root).lock  # again: a process may have started since
        if lock.state == "absent":
            raise FixError(f"{self.path} is already gone.")
        if lock.state != "stale" or not lock.ours:
            raise FixError(f"{self.path} is in use now, or belongs to another account.")
        _remove_unlocked(self.path)
        return f"{self.path} was removed. Its process is gone."


def _remove_unlocked(path: Path) -> None:
    """Remove the file while we have it locked ourselves: a process that is not visible here (another container with
    this /tmp, another account) may use it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FixError(f"{path} could not be opened ({error.strerror}).") from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the other kind: the two do not see each other
        if os.path.samestat(os.fstat(file), path.lstat()):
            path.unlink()
    except OSError as error:
        raise FixError(f"{path} is locked by a process that is not visible here ({error.strerror}).") from error
    finally:
        os.close(file)


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


def from_problem(group: str, name: str, problem: HostProblem, fix: Fix | None = None) -> Check:
    """The check of this problem."""
    return Check(group, name, problem.state, problem.what, problem.why, problem.command, problem.then, fix)


def from_problems(group: str, name: str, problems: Sequence[HostProblem], fine: str) -> Iterator[Check]:
    """A check for each problem, or one with the text `fine`."""
    if not problems:
        yield Check(group, name, OK, fine)
    for problem in problems:
        yield from_problem(group, name, problem)
