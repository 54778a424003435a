"""Memory and disk: whether there is room for a run.

What lives here: host memory for the workers, and the folders that a run writes to. What does not: the forecast for one
cell, which knows its models (launch/), and the memory of the TPU (%tpu_preflight).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check
from tpu_magics.host.doctor.seen import Seen
from tpu_magics.host.problem import plural

MEMORY = "Memory"
DISK = "Disk"
GIB = 2**30
# Thresholds, chosen and not measured: they only decide what is worth a look.
FOR_A_WORKER, LITTLE = GIB, 2 * GIB
FULL, SCARCE = 64 * 2**20, GIB  # free bytes of a folder: broken, warning
SHARED = "dev/shm"


def memory_checks(seen: Seen) -> Iterator[Check]:
    """What is free, and what is free for each of the workers that a TPU's chips ask for."""
    memory, workers = seen.host.memory, seen.host.workers
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


def disk_checks(seen: Seen) -> Iterator[Check]:
    """The run folder, the temporary folder, and shared memory."""
    yield _folder(
        seen,
        "Run folder",
        seen.runs,
        "Events and trained weights are written there.",
        "free some space, or set TPU_MAGICS_RUNS to a folder on another disk",
        "%env TPU_MAGICS_RUNS=/tmp/tpu_runs",
    )
    yield _folder(
        seen,
        "/tmp",
        seen.root / "tmp",
        "libtpu, XLA and Python write temporary files there.",
        "free some space there",
    )
    yield _folder(
        seen,
        f"/{SHARED}",
        seen.root / SHARED,
        "DataLoader workers hand tensors over there; a worker dies of SIGBUS when it is full.",
        "use DataLoader(num_workers=0), or start the container with --shm-size=8g",
    )


def _folder(seen: Seen, name: str, path: Path, use: str, todo: str, command: str = "") -> Check:
    space = seen.disk(path)
    if space is None:
        return Check(
            DISK, name, NOT_AVAILABLE, f"The room in {path} could not be found out.", "It cannot be looked at."
        )
    if not _writable(path):
        return Check(
            DISK, name, BROKEN, f"This account may not write in {path}.", use, command, "" if command else todo
        )
    total, free = space
    said = f"{_gib(free)} free of {_gib(total)} in {path}"
    if free >= SCARCE:
        return Check(DISK, name, OK, said)
    return Check(DISK, name, BROKEN if free < FULL else WARNING, f"Only {said}.", use, then=todo)


def _writable(path: Path) -> bool:
    """Whether the folder, or the nearest above it that is there, may be written."""
    nearest = next((each for each in (path, *path.absolute().parents) if each.exists()), Path("/"))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
