"""The doctor: what is wrong with this environment, and the one command that mends it.

What lives here: the groups of checks in their order, and what `--fix` does and leaves. What does not: the checks (one
file per group), how they look (panel/doctor.py), a runtime, and any import of a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.host.doctor import (
    devices,
    environment,
    frameworks,
    holding,
    libtpu,
    metadata,
    packages,
    room,
    widgets,
)
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, STATES, WARNING, Check
from tpu_magics.host.doctor.mending import NotMended
from tpu_magics.host.doctor.seen import Seen, look

__all__ = ["BROKEN", "GROUPS", "NOT_AVAILABLE", "OK", "STATES", "WARNING", "Check", "Seen", "examine", "look", "mend"]

Group = Callable[[Seen], Iterator[Check]]

GROUPS: tuple[tuple[str, Group], ...] = (
    (packages.GROUP, packages.checks),
    (frameworks.GROUP, frameworks.checks),
    (libtpu.GROUP, libtpu.checks),
    (devices.GROUP, devices.checks),
    (holding.HOLDERS, holding.holder_checks),
    (holding.LOCK_FILE, holding.lock_checks),
    (environment.GROUP, environment.checks),
    (room.MEMORY, room.memory_checks),
    (room.DISK, room.disk_checks),
    (widgets.GROUP, widgets.checks),
    (metadata.GROUP, metadata.checks),
)


def examine(seen: Seen) -> tuple[Check, ...]:
    """All checks, group by group. A check that fails itself is said, and does not hide the others."""
    return tuple(check for name, group in GROUPS for check in _of_group(name, group, seen))


def _of_group(name: str, group: Group, seen: Seen) -> Iterator[Check]:
    try:
        yield from group(seen)
    except Exception as fault:  # a doctor that dies of what it finds is of no use
        said = f"{type(fault).__name__}: {fault}"
        yield Check(name, "This check", NOT_AVAILABLE, f"It broke off with {said}", "That is a fault of tpu_magics.")


@dataclass(frozen=True)
class Mended:
    """What `--fix` did: a sentence for each thing. `left`: (check, why it was left) for what was not safe any more."""

    done: tuple[str, ...]
    left: tuple[tuple[Check, str], ...]


_OF_THE_SHELL = "A command cannot change the environment of the shell that started it."


def mend(
    checks: tuple[Check, ...], environ: MutableMapping[str, str], root: Path = Path("/"), *, in_session: bool = True
) -> Mended:
    """Do what is safe: this session's environment (`in_session`: there is one), and a lock file that nobody uses."""
    done: list[str] = []
    left: list[tuple[Check, str]] = []
    for check in checks:
        if check.mending is None or check.state == OK:
            continue
        if check.mending.of_session and not in_session:
            left.append((check, _OF_THE_SHELL))
            continue
        try:
            done.append(check.mending.mend(environ, root))
        except NotMended as reason:
            left.append((check, str(reason)))
    return Mended(tuple(done), tuple(left))
