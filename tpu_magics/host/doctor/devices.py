"""Checks of the TPU's chips and device files, by names and modes. Opens no device: an open would take the TPU."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.host.chips import judge_chip_kinds, judge_files
from tpu_magics.host.doctor.check import NOT_AVAILABLE, WARNING, Check, from_problem, from_problems
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.problem import TPU, plural

GROUP = "Devices and permissions"
CONTAINERS = "a container's device rules show only when a device is opened, which this check does not do"


def checks(facts: HostFacts) -> Iterator[Check]:
    """The chips, then their device files."""
    host = facts.host
    if not host.chips:
        yield _no_chips(facts)
        return
    yield from from_problems(
        GROUP, "Chips", judge_chip_kinds(host.chips), f"{plural(len(host.chips), 'chip')} of {host.tpu}"
    )
    files = ", ".join(file.path for file in host.devices)
    yield from from_problems(
        GROUP, "Device files", judge_files(host.chips, host.devices), f"{files}: readable and writable ({CONTAINERS})"
    )
    if 0 < len(host.devices) < len(host.chips):
        yield _fewer(facts)


def _no_chips(facts: HostFacts) -> Check:
    place = facts.host.environment
    promised = next((one for one in facts.host.problems if one.about == TPU and one.state == WARNING), None)
    if promised is not None:
        return from_problem(GROUP, "Chips", promised)
    menu = f" On {place.name} select an accelerator in {place.menu}." if place.menu else ""
    return Check(
        GROUP,
        "Chips",
        NOT_AVAILABLE,
        "This host has no TPU. Cells run as a rehearsal on XLA:CPU.",
        f"No TPU chip in /sys.{menu}",
    )


def _fewer(facts: HostFacts) -> Check:
    host = facts.host
    return Check(
        GROUP,
        "Files of all chips",
        WARNING,
        f"{plural(len(host.chips), 'chip')} but {plural(len(host.devices), 'device file')}.",
        "One worker starts for each chip, and each opens its own device file.",
        then="start the container with all device files of the TPU (--privileged), or restart the host",
    )
