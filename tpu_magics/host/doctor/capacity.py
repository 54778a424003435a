"""Memory and disk: whether there is room for a run.

What lives here: host memory for the workers, and the folders that a run writes to. What does not: the forecast for one
cell, which knows its models (launch/), and the memory of the TPU (%tpu_preflight).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.problem import plural

MEMORY = "Memory"
DISK = "Disk"
GIB = 2**30
# Thresholds, chosen and not measured: they only decide what is worth a look.
FOR_A_WORKER, LITTLE = GIB, 2 * GIB
FULL, SCARCE = 64 * 2**20, GIB  # free bytes of a folder: broken, warning
SHARED_FULL = 2**20  # Docker gives /dev/shm 64 MiB, and with that only DataLoader workers fail
SHARED = "dev/shm"


def memory_checks(facts: HostFacts) -> Iterator[Check]:
    """What is free, and what is free for each of the workers that a TPU's chips ask for."""
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
            "When it runs out, the kernel ends a worker with SIGKILL, or the notebook itself.",
            then="shut other notebooks' kernels down, or delete what you do not need (`del name`), and look again",
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
            f"{plural(workers, 'worker')}, one for each chip, have {_gib(each)} each.",
            "A model that every worker builds for itself takes its memory so many times: they die of SIGSEGV or "
            "SIGKILL.",
            then="build the model in an earlier cell and hand it over: %%tpu_train model. Workers share it until they "
            "change it",
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
            "TMPDIR names it: Python writes temporary files there.",
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
    use = "DataLoader workers hand tensors over there; a worker dies of SIGBUS when it is full."
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
            DISK, name, NOT_AVAILABLE, f"The room in {path} could not be found out.", "The system does not tell it."
        )
    total, free = space
    said = f"{_gib(free)} free of {_gib(total)} in {path}"
    if free >= SCARCE:
        return Check(DISK, name, OK, said)
    return Check(DISK, name, BROKEN if free < full else WARNING, f"Only {said}.", use, then=todo)


def _closed(path: Path) -> str:
    """Why the folder, or the nearest above it that is there, cannot be written; "" where it can."""
    for each in (path, *path.absolute().parents):
        try:
            mode = each.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}."
        if not stat.S_ISDIR(mode):
            return f"{path} cannot be written: {each} is a file, not a folder."
        return "" if os.access(each, os.W_OK | os.X_OK) else f"This account may not write in {each}."
    return f"There is no {path}."


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 or not count else f"{count / 2**20:.1f} MiB"
