"""Who holds the TPU, and libtpu's lock file.

What lives here: two groups of checks on what host/holders.py sees. What does not: ending a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, from_problem, from_problems
from tpu_magics.host.doctor.mending import RemoveLock
from tpu_magics.host.doctor.seen import Seen
from tpu_magics.host.holders import LOCK, Holding, find_holding, judge_lock, judge_taken
from tpu_magics.host.problem import plural

HOLDERS = "Who holds the TPU"
LOCK_FILE = "Lock file"


def holder_checks(seen: Seen) -> Iterator[Check]:
    """Other processes, then this one."""
    host = seen.host
    if not host.chips:
        yield Check(HOLDERS, "Processes", NOT_AVAILABLE, "Nobody can hold a TPU here.", "This host has none.")
    else:
        held = Holding(host.holders, host.unseen, host.lock)
        problems = judge_taken(held, in_workers=host.framework == "torch")
        yield from from_problems(HOLDERS, "Processes", problems, "Nobody that this account can see")
        if host.unseen:
            yield _unseen(seen)
    yield _own(seen)


def _unseen(seen: Seen) -> Check:
    count = plural(seen.host.unseen, "process").replace("processs", "processes")
    return Check(
        HOLDERS,
        "Other accounts",
        NOT_AVAILABLE,
        f"{count} of other accounts could not be looked into.",
        "Only their own account and root may see their open files.",
        "!sudo lsof /dev/accel* /dev/vfio/*",
    )


def _own(seen: Seen) -> Check:
    """The runtime in this very process: workers are forked from it, and cannot use what their parent has started."""
    if seen.runtime is None or seen.host.framework != "torch":
        why = "Only a notebook's own process can be asked." if seen.runtime is None else "TensorFlow trains in it."
        return Check(HOLDERS, "This notebook's runtime", NOT_AVAILABLE, "Not looked at.", why)
    if seen.runtime:
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


def lock_checks(seen: Seen) -> Iterator[Check]:
    """The file matters with a TPU only, but one that was left over is found without one, too."""
    lock = seen.host.lock if seen.host.chips else find_holding(seen.root).lock
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
            mending=RemoveLock(Path(lock.path)),
        )
