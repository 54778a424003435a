"""Checks of the machine: the TPU's chips and device files, the processes that use it, libtpu's lock file, host memory
and disk space. Opens no device: an open would take the TPU."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tpu_magics.errors import TPU, TpuMagicsError, plural
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
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts

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
    return Check(
        DEVICES,
        "Chips",
        NOT_AVAILABLE,
        "This host has no TPU. Cells run as a rehearsal on XLA:CPU.",
        f"No TPU chip in /sys. {place.how_to_select}".rstrip(),
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


# -- host memory and disk space ---------------------------------------------------------------------------------------


MEMORY = "Memory"
DISK = "Disk"
GIB = 2**30
# Thresholds, chosen and not measured: they only decide what is shown as a warning.
FOR_A_WORKER, LITTLE = GIB, 2 * GIB
FULL, SCARCE = 64 * 2**20, GIB  # free bytes of a folder: broken, warning
SHARED_FULL = 2**20  # Docker gives /dev/shm 64 MiB, and with that only DataLoader workers fail
SHARED = "dev/shm"


def memory_checks(facts: HostFacts) -> Iterator[Check]:
    """Free memory, in all and for each worker."""
    memory, workers = facts.host.memory, facts.host.workers
    if memory.available is None or memory.total is None:
        yield Check(MEMORY, "Host memory", NOT_AVAILABLE, "It could not be read.", memory.reason)
        return
    said = f"{_gib(memory.available)} free of {_gib(memory.total)}"
    limit = " (a control group's limit)" if memory.limited_by != "machine" else ""
    if memory.available < LITTLE:
        yield Check(
            MEMORY,
            "Host memory",
            WARNING,
            f"Only {said}{limit}.",
            "When it runs out, Linux kills a worker or the notebook itself (SIGKILL).",
            then="shut down other notebooks' kernels, or delete what you do not need (`del name`), and run this again",
        )
    else:
        yield Check(MEMORY, "Host memory", OK, f"{said}{limit}")
    yield _for_workers(memory.available, workers)


def _for_workers(available: int, workers: int) -> Check:
    each = available // workers
    if workers > 1 and each < FOR_A_WORKER:
        return Check(
            MEMORY,
            "For each worker",
            WARNING,
            f"Each of {plural(workers, 'worker')} (one for each chip) has {_gib(each)}.",
            "If each worker builds the model, it takes that many times its memory, and workers die with SIGSEGV or "
            "SIGKILL.",
            then="build the model in an earlier cell and pass it: %%tpu_train model. Workers share its memory until "
            "they change it",
        )
    return Check(MEMORY, "For each worker", OK, f"{_gib(each)} for {plural(workers, 'worker')}")


def disk_checks(facts: HostFacts) -> Iterator[Check]:
    """The run folder, the temporary folder, and shared memory."""
    yield _run_folder(facts)
    yield _folder(
        facts,
        "/tmp",
        facts.root / "tmp",
        "libtpu, XLA and Python write temporary files there.",
        "free some space there",
    )
    if facts.environ.get("TMPDIR", "") not in ("", "/tmp"):
        yield _folder(
            facts,
            "TMPDIR",
            Path(facts.environ["TMPDIR"]),
            "TMPDIR is set to it: Python writes temporary files there.",
            "free some space there",
            change({"TMPDIR": None}),
        )
    yield _shared(facts)


def _run_folder(facts: HostFacts) -> Check:
    name, command = "Run folder", "%env TPU_MAGICS_RUNS=/tmp/tpu_runs"
    if isinstance(facts.runs, TpuMagicsError):
        return Check(DISK, name, BROKEN, facts.runs.what, facts.runs.why, command)
    return _folder(
        facts,
        name,
        facts.runs,
        "Events and trained weights are written there.",
        "free some space, or set TPU_MAGICS_RUNS to a folder on another disk",
        command,
    )


def _shared(facts: HostFacts) -> Check:
    name, path = f"/{SHARED}", facts.root / SHARED
    use = "DataLoader workers pass tensors through it. When it is full, a worker dies with SIGBUS."
    todo = "use DataLoader(num_workers=0), or start the container with --shm-size=8g"
    if not path.is_dir():
        return Check(DISK, name, WARNING, f"There is no {path}.", use, then=todo)
    return _folder(facts, name, path, use, todo, full=SHARED_FULL)


def _folder(facts: HostFacts, name: str, path: Path, use: str, todo: str, command: str = "", full: int = FULL) -> Check:
    closed = _closed(path)
    if closed:
        return Check(DISK, name, BROKEN, closed, use, command, "" if command else todo)
    space = facts.disk(path)
    if space is None:
        return Check(
            DISK, name, NOT_AVAILABLE, f"The free space in {path} is not available.", "The system does not report it."
        )
    total, free = space
    said = f"{_gib(free)} free of {_gib(total)} in {path}"
    if free >= SCARCE:
        return Check(DISK, name, OK, said)
    return Check(DISK, name, BROKEN if free < full else WARNING, f"Only {said}.", use, then=todo)


def _closed(path: Path) -> str:
    """Why the folder, or its nearest existing parent, cannot be written; "" where it can."""
    for each in (path, *path.absolute().parents):
        try:
            mode = each.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}."
        if not stat.S_ISDIR(mode):
            return f"{path} cannot be written: {each} is a file, not a folder."
        return "" if os.access(each, os.W_OK | os.X_OK) else f"This account has no permission to write in {each}."
    return f"There is no {path}."


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 or not count else f"{count / 2**20:.1f} MiB"
