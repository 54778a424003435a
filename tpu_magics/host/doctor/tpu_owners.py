"""Who holds the TPU, and libtpu's lock file.

What lives here: two groups of checks on what host/holders.py sees. What does not: ending a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpu_magics.host.device_owners import LOCK, DeviceOwners, find_owners, judge_in_use, judge_lock
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, from_problem, from_problems
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.doctor.fixes import LockFileFix
from tpu_magics.host.problem import plural

HOLDERS = "Who holds the TPU"
LOCK_FILE = "Lock file"


def holder_checks(facts: HostFacts) -> Iterator[Check]:
    """Other processes, then this one."""
    host = facts.host
    if not host.chips:
        yield Check(HOLDERS, "Processes", NOT_AVAILABLE, "Nobody can hold a TPU here.", "This host has none.")
    else:
        held = DeviceOwners(host.owners, host.unseen, host.lock)
        problems = judge_in_use(held, in_workers=host.framework == "torch")
        yield from from_problems(HOLDERS, "Processes", problems, "Nobody that this account can see")
        if host.unseen:
            yield _unseen(facts)
    yield _own(facts)


def _unseen(facts: HostFacts) -> Check:
    count = plural(facts.host.unseen, "process").replace("processs", "processes")
    return Check(
        HOLDERS,
        "Other accounts",
        NOT_AVAILABLE,
        f"{count} of other accounts could not be looked into.",
        "Only their own account and root may see their open files.",
        "!sudo lsof /dev/accel* /dev/vfio/*",
    )


def _own(facts: HostFacts) -> Check:
    """The runtime in this very process: workers are forked from it, and cannot use what their parent has started."""
    if facts.runtime is None or facts.host.framework != "torch":
        why = "Only a notebook's own process can be asked." if facts.runtime is None else "TensorFlow trains in it."
        return Check(HOLDERS, "This notebook's runtime", NOT_AVAILABLE, "Not looked at.", why)
    if facts.runtime:
        return Check(
            HOLDERS,
            "This notebook's runtime",
            BROKEN,
            "The XLA runtime is already initialised in this notebook.",
            'A worker cannot use it; torch_xla would stop with "Runtime is already initialized. Do not use the XLA '
            'device before calling xmp.spawn."',
            then="restart the kernel, run %tpu_init first, and use XLA devices in %%tpu_train cells only",
        )
    return Check(HOLDERS, "This notebook's runtime", OK, "Not initialised, as it must be before %%tpu_train")


def lock_checks(facts: HostFacts) -> Iterator[Check]:
    """The file matters with a TPU only, but one that was left over is found without one, too."""
    lock = facts.host.lock if facts.host.chips else find_owners(facts.root).lock
    problems = judge_lock(lock)
    if lock.state == "absent":
        yield Check(LOCK_FILE, f"/{LOCK}", OK, "There is none: nobody has left one over")
    elif lock.state == "held":
        yield Check(LOCK_FILE, f"/{LOCK}", OK, f"In use{f' by process {lock.locked_by}' if lock.locked_by else ''}")
    elif problems:
        yield from (from_problem(LOCK_FILE, f"/{LOCK}", problem) for problem in problems)
    else:
        yield Check(
            LOCK_FILE,
            f"/{LOCK}",
            WARNING,
            f"{lock.path} was left over by a process of this account that is gone.",
            "libtpu can use it again; another account on this host would stop with "
            '"Internal error when accessing libtpu multi-process lockfile".',
            f"!rm {lock.path}",
            fix=LockFileFix(Path(lock.path)),
        )
