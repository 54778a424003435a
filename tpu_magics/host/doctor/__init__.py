"""The doctor: checks of this environment, each with the one command that fixes it, and `--fix`.

Starts no runtime and imports no framework. The checks are in one file of this folder per topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.host.doctor import machine, packages, variables
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, STATES, WARNING, Check, FixError
from tpu_magics.host.doctor.facts import HostFacts, collect_facts

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
    (packages.PACKAGES, packages.package_checks),
    (packages.FRAMEWORK_VERSIONS, packages.framework_checks),
    (packages.LIBTPU, packages.libtpu_checks),
    (machine.DEVICES, machine.device_checks),
    (machine.IN_USE_BY, machine.owner_checks),
    (machine.LOCK_FILE, machine.lock_checks),
    (variables.VARIABLES, variables.variable_checks),
    (machine.MEMORY, machine.memory_checks),
    (machine.DISK, machine.disk_checks),
    (packages.WIDGETS, packages.widget_checks),
    (variables.METADATA, variables.metadata_checks),
)


def examine(facts: HostFacts) -> tuple[Check, ...]:
    """All checks, group by group. A check that raises is reported, and does not hide the others."""
    return tuple(check for name, group in GROUPS for check in _of_group(name, group, facts))


def _of_group(name: str, group: Group, facts: HostFacts) -> Iterator[Check]:
    try:
        yield from group(facts)
    except Exception as error:  # one broken check must not hide the others
        what = f"This check failed with {type(error).__name__}: {error}"
        yield Check(name, "This check", NOT_AVAILABLE, what, "This is a bug in tpu_magics.")


@dataclass(frozen=True)
class FixReport:
    """What `--fix` did, one sentence each. `left`: (check, reason) for what was no longer safe."""

    done: tuple[str, ...]
    left: tuple[tuple[Check, str], ...]


_SHELL = "A command cannot change the variables of the shell that started it."


def apply_fixes(
    checks: tuple[Check, ...], environ: MutableMapping[str, str], root: Path = Path("/"), *, in_session: bool = True
) -> FixReport:
    """Apply the safe fixes: variables of this session (`in_session`: there is one), and an unused lock file."""
    done: list[str] = []
    left: list[tuple[Check, str]] = []
    for check in checks:
        if check.fix is None or check.state == OK:
            continue
        if check.fix.of_session and not in_session:
            left.append((check, _SHELL))
            continue
        try:
            done.append(check.fix.apply(environ, root))
        except FixError as reason:
            left.append((check, str(reason)))
    return FixReport(tuple(done), tuple(left))
