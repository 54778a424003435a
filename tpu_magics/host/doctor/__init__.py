"""The doctor: what is wrong with this environment, and the one command that mends it.

What lives here: the groups of checks in their order, and what `--fix` does and leaves. What does not: the checks (one
file per group), how they look (panel/doctor.py), a runtime, and any import of a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.host.doctor import (
    capacity,
    devices,
    frameworks,
    libtpu,
    metadata,
    packages,
    tpu_owners,
    variables,
    widgets,
)
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, STATES, WARNING, Check
from tpu_magics.host.doctor.facts import HostFacts, collect_facts
from tpu_magics.host.doctor.fixes import FixError

__all__ = [
    "BROKEN",
    "GROUPS",
    "NOT_AVAILABLE",
    "OK",
    "STATES",
    "WARNING",
    "Check",
    "HostFacts",
    "apply_fixes",
    "collect_facts",
    "examine",
]

Group = Callable[[HostFacts], Iterator[Check]]

GROUPS: tuple[tuple[str, Group], ...] = (
    (packages.GROUP, packages.checks),
    (frameworks.GROUP, frameworks.checks),
    (libtpu.GROUP, libtpu.checks),
    (devices.GROUP, devices.checks),
    (tpu_owners.HOLDERS, tpu_owners.holder_checks),
    (tpu_owners.LOCK_FILE, tpu_owners.lock_checks),
    (variables.GROUP, variables.checks),
    (capacity.MEMORY, capacity.memory_checks),
    (capacity.DISK, capacity.disk_checks),
    (widgets.GROUP, widgets.checks),
    (metadata.GROUP, metadata.checks),
)


def examine(facts: HostFacts) -> tuple[Check, ...]:
    """All checks, group by group. A check that fails itself is said, and does not hide the others."""
    return tuple(check for name, group in GROUPS for check in _of_group(name, group, facts))


def _of_group(name: str, group: Group, facts: HostFacts) -> Iterator[Check]:
    try:
        yield from group(facts)
    except Exception as fault:  # a doctor that dies of what it finds is of no use
        said = f"{type(fault).__name__}: {fault}"
        yield Check(name, "This check", NOT_AVAILABLE, f"It broke off with {said}", "That is a fault of tpu_magics.")


@dataclass(frozen=True)
class FixReport:
    """What `--fix` did: a sentence for each thing. `left`: (check, why it was left) for what was not safe any more."""

    done: tuple[str, ...]
    left: tuple[tuple[Check, str], ...]


_OF_THE_SHELL = "A command cannot change the environment of the shell that started it."


def apply_fixes(
    checks: tuple[Check, ...], environ: MutableMapping[str, str], root: Path = Path("/"), *, in_session: bool = True
) -> FixReport:
    """Do what is safe: this session's environment (`in_session`: there is one), and a lock file that nobody uses."""
    done: list[str] = []
    left: list[tuple[Check, str]] = []
    for check in checks:
        if check.fix is None or check.state == OK:
            continue
        if check.fix.of_session and not in_session:
            left.append((check, _OF_THE_SHELL))
            continue
        try:
            done.append(check.fix.apply(environ, root))
        except FixError as reason:
            left.append((check, str(reason)))
    return FixReport(tuple(done), tuple(left))
