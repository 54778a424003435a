"""Checks of the TPU's chips and device files, of the processes that use it, and of libtpu's lock file.

Opens no device: an open would take the TPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpu_magics.host.chips import judge_chip_kinds, judge_files
from tpu_magics.host.device_owners import LOCK, DeviceOwners, find_owners, judge_in_use, judge_lock
from tpu_magics.host.doctor.check import (
    BROKEN,
    NOT_AVAILABLE,
    OK,
    WARNING,
    Check,
    LockFileFix,
    from_problem,
    from_problems,
)
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.problem import TPU, plural

DEVICES = "Devices and permissions"
CONTAINERS = "a container's device rules show only when a device is opened, which this check does not do"


def device_checks(facts: HostFacts) -> Iterator[Check]:
    """The chips, then their device files."""
    host = facts.host
    if not host.chips:
        yield _no_chips(facts)
        return
    yield from from_problems(
        DEVICES, "Chips", judge_chip_kinds(host.chips), f"{plural(len(host.chips), 'chip')} of {host.tpu}"
    )
    files = ", ".join(file.path for file in host.devices)
    yield from from_problems(
        DEVICES, "Device files", judge_files(host.chips, host.devices), f"{files}: readable and writable ({CONTAINERS})"
    )
    if 0 < len(host.devices) < len(host.chips):
        yield _fewer(facts)


def _no_chips(facts: HostFacts) -> Check:
    place = facts.host.environment
    promised = next((one for one in facts.host.problems if one.about == TPU and one.state == WARNING), None)
    if promised is not None:
        return from_problem(DEVICES, "Chips", promised)
    menu = f" On {place.name} select an accelerator in {place.menu}." if place.menu else ""
    return Check(
        DEVICES,
        "Chips",
        NOT_AVAILABLE,
        "This host has no TPU. Cells run as a rehearsal on XLA:CPU.",
        f"No TPU chip in /sys.{menu}",
    )


def _fewer(facts: HostFacts) -> Check:
    host = facts.host
    return Check(
        DEVICES,
        "Files of all chips",
        WARNING,
        f"{plural(len(host.chips), 'chip')} but {plural(len(host.devices), 'device file')}.",
        "One worker starts for each chip, and each opens its own device file.",
        then="start the container with all device files of the TPU (--privileged), or restart the host",
    )


# -- processes that use the TPU, and the lock file --------------------------------------------------------------------

IN_USE_BY = "TPU in use by"
LOCK_FILE = "Lock file"


def owner_checks(facts: HostFacts) -> Iterator[Check]:
    """Other processes, then this one."""
    host = facts.host
    if not host.chips:
        yield Check(IN_USE_BY, "Processes", NOT_AVAILABLE, "No process can use a TPU here.", "This host has no TPU.")
    else:
        owners = DeviceOwners(host.owners, host.unseen, host.lock)
        problems = judge_in_use(owners, in_workers=host.framework == "torch")
        yield from from_problems(IN_USE_BY, "Processes", problems, "None that this account can see")
        if host.unseen:
            yield _unseen(facts)
    yield _own(facts)


def _unseen(facts: HostFacts) -> Check:
    count = plural(facts.host.unseen, "process").replace("processs", "processes")
    return Check(
        IN_USE_BY,
        "Other accounts",
        NOT_AVAILABLE,
        f"{count} of other accounts could not be inspected.",
        "Only their own account and root can see their open files.",
        "!sudo lsof /dev/accel* /dev/vfio/*",
    )


def _own(facts: HostFacts) -> Check:
    """The runtime of this process: forked workers cannot use a runtime that their parent initialised."""
    if facts.runtime is None or facts.host.framework != "torch":
        why = (
            "Only a notebook's own process can be checked."
            if facts.runtime is None
            else "TensorFlow trains in this process."
        )
        return Check(IN_USE_BY, "This notebook's runtime", NOT_AVAILABLE, "Not checked.", why)
    if facts.runtime:
        return Check(
            IN_USE_BY,
            "This notebook's runtime",
            BROKEN,
            "This notebook has already initialised the XLA runtime.",
            'Workers cannot use it. torch_xla would stop with "Runtime is already initialized. Do not use the XLA '
            'device before calling xmp.spawn."',
            then="restart the kernel, run %tpu_init first, and use XLA devices in %%tpu_train cells only",
        )
    return Check(IN_USE_BY, "This notebook's runtime", OK, "Not initialised, as required before %%tpu_train")


def lock_checks(facts: HostFacts) -> Iterator[Check]:
    """The file matters with a TPU only, but a stale one is reported without one, too."""
    lock = facts.host.lock if facts.host.chips else find_owners(facts.root).lock
    problems = judge_lock(lock)
    if lock.state == "absent":
        yield Check(LOCK_FILE, f"/{LOCK}", OK, "No lock file")
    elif lock.state == "held":
        yield Check(LOCK_FILE, f"/{LOCK}", OK, f"In use{f' by process {lock.locked_by}' if lock.locked_by else ''}")
    elif problems:
        yield from (from_problem(LOCK_FILE, f"/{LOCK}", problem) for problem in problems)
    else:
        yield Check(
            LOCK_FILE,
            f"/{LOCK}",
            WARNING,
            f"{lock.path} was left by a process of this account that is gone.",
            "libtpu can use it again. Under another account of this host it would stop with "
            '"Internal error when accessing libtpu multi-process lockfile".',
            f"!rm {lock.path}",
            fix=LockFileFix(Path(lock.path)),
        )
