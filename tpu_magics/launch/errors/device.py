"""Errors of the accelerator: in use, no permission, wrong configuration, out of device memory.

The patterns match texts of libtpu 0.0.17-0.0.51, of the PJRT client and XLA's TPU compiler, and of torch_xla 2.8-2.9.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_IN_USE = re.compile(r"TPU is already in use by process with pid (\d+)|libtpu\.so already in used? by another process")
_LOCK = re.compile(r"libtpu multi-process lockfile|/tmp/libtpu_lockfile")
_NODE = r"(/dev/(?:accel|vfio/)\w+)"
_BUSY = re.compile(rf"{_NODE}\W.{{0,40}}Device or resource busy|Device or resource busy.{{0,40}}{_NODE}")
_FORBIDDEN = re.compile(
    rf"{_NODE}\W.{{0,40}}(Operation not permitted|Permission denied)"
    rf"|(Operation not permitted|Permission denied).{{0,40}}{_NODE}"
)
_ADDRESSES = re.compile(r"Expected (\d+) worker addresses, got (\d+)")
_METADATA = re.compile(
    r"Failed to get 'tpu-env' from instance metadata|instance/attributes/tpu-env|Failed to get TPU metadata"
)
_NPROCS = re.compile(r"Unsupported nprocs \((\d+)\)")
_SIZE = r"(\d+(?:\.\d+)?[KMGT]?)"
# Groups: bytes needed, bytes available.
_HBM = (
    re.compile(rf"Ran out of memory in memory space hbm\.\s*Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"memory required for [^()]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)
# At run time; free but fragmented memory is not reservable.
_HBM_LEFT = re.compile(
    rf"Attempting to (?:allocate|reserve) {_SIZE}[^.]*\. That was not possible\. There are {_SIZE} free"
    rf"(?:, \S+ reserved, and {_SIZE} reservable)?"
)


# -- device not used -----------------------------------------------------------------------------------------------


def host_trained(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """With --strict: the run trained on the host only."""
    if base.error_type(outcome) != "HostTrainingError":
        return None
    what, _, rest = base.error_text(outcome).partition(". ")
    return Explanation(
        f"{what}.",
        f"With --strict a run fails if no step runs on the device. {base.UNCHANGED}",
        f"{rest} Without --strict this is a warning, and the trained weights are loaded.",
    )


# -- in use -------------------------------------------------------------------------------------------------------


def in_use(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Another process uses the TPU."""
    match = _IN_USE.search(base.device_evidence(outcome))
    if not match:
        return None
    own = next((one.rank for one in failure.outcomes if match[1] and one.pid == int(match[1])), None)
    if own is not None:
        return _shared_by_ranks(outcome, own)
    named = _command(failure, int(match[1])) if match[1] else ""
    holder = named or _holders(failure) or "another process (unknown: it may belong to another user)"
    kill = f", or end it: `!kill {match[1]}`" if match[1] else ""
    return Explanation(
        f"Rank {outcome.rank} could not start: the TPU is already in use by {holder}.",
        "Only one process at a time can use a TPU chip, and a notebook that used it keeps it until its kernel ends.",
        f"Shut down the kernel or program that uses it{kill}. Then run the cell again; %tpu_init shows the process.",
    )


def _shared_by_ranks(outcome: WorkerOutcome, other: int) -> Explanation:
    return Explanation(
        f"Rank {outcome.rank} could not start: rank {other} of this run already uses the TPU.",
        "Only one process at a time can use a TPU chip, and both ranks tried to use the same chip.",
        "Run %tpu_init and start at most as many workers (-n) as it shows chips. Remove variables that select chips "
        "(TPU_VISIBLE_CHIPS, TPU_VISIBLE_DEVICES, TPU_PROCESS_BOUNDS) from the environment.",
    )


def _command(failure: Failure, pid: int) -> str:
    command = dict(failure.holders).get(pid)
    return f"process {pid}" + (f" ({base.one_line(command, 120)})" if command else "")


def _holders(failure: Failure) -> str:
    own = {one.pid for one in failure.outcomes}
    return ", ".join(_command(failure, pid) for pid, _ in failure.holders if pid not in own)


def lock_file(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """libtpu's lock file was left behind, or another process uses it."""
    if not _LOCK.search(base.device_evidence(outcome)):
        return None
    holders = _holders(failure)
    todo = "Remove it (`!sudo rm /tmp/libtpu_lockfile`) and run the cell again."
    if holders:
        todo = f"End {holders} first; keep the lock file while that process runs. Then run the cell again."
    return Explanation(
        f"Rank {outcome.rank} could not start: libtpu could not use its lock file /tmp/libtpu_lockfile.",
        f"The TPU is in use by {holders}."
        if holders
        else "No process was found that uses the TPU, so the file was probably left behind.",
        todo,
    )


def busy(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Another process has the device node open, or it is not released yet."""
    match = _BUSY.search(base.device_evidence(outcome))
    if not match:
        return None
    holders = _holders(failure)
    held = f"It is in use by {holders}." if holders else "No process was found that uses it."
    return Explanation(
        f"Rank {outcome.rank} could not open {match[1] or match[2]}: the device is busy.",
        f"{held} The device can stay busy for 10 to 30 seconds after a process that used the TPU was killed.",
        f"End {holders}, then run the cell again." if holders else "Wait 30 seconds and run the cell again.",
    )


def forbidden(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The user may not open the device node."""
    match = _FORBIDDEN.search(base.device_evidence(outcome))
    if not match:
        return None
    node, said = match[1] or match[4], match[2] or match[3]
    holders = _holders(failure)
    return Explanation(
        f"Rank {outcome.rank} has no permission to open {node} ({said}).",
        "The device belongs to another user or group, or the container was started without access to it."
        + (f" The TPU is also in use by {holders}." if holders else ""),
        f"Check the owner with `!ls -l {node}`. On a TPU VM: add yourself to the group that owns it (sudo usermod -aG "
        "GROUP $USER) and log in again. In Docker: start the container with --privileged. On GKE: request "
        "google.com/tpu.",
    )


# -- configuration ------------------------------------------------------------------------------------------------


def worker_addresses(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Kaggle's image sets TPU_PROCESS_ADDRESSES=local, and libtpu reads it as the list of all workers."""
    match = _ADDRESSES.search(base.device_evidence(outcome))
    if not match:
        return None
    return Explanation(
        f"Rank {outcome.rank} could not start: libtpu expected {match[1]} worker addresses but got {match[2]}.",
        "TPU_PROCESS_ADDRESSES and CLOUD_TPU_TASK_ID are set in the environment (Kaggle's image sets them) and do not "
        "describe one process for each chip.",
        "Run %tpu_init before %%tpu_train: it unsets both in the workers. To do it yourself: "
        "os.environ.pop('TPU_PROCESS_ADDRESSES', None); os.environ.pop('CLOUD_TPU_TASK_ID', None).",
    )


def metadata(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The metadata server does not describe a TPU, or cannot be reached."""
    if not _METADATA.search(base.device_evidence(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} could not detect the TPU type: the metadata server did not return 'tpu-env'.",
        "Either this machine has no TPU, or its metadata server cannot be reached (containers, GKE, other networks).",
        "Run %tpu_init and check the line about chips. Without a TPU, set PJRT_DEVICE=CPU. With one, set "
        "TPU_SKIP_MDS_QUERY=1, TPU_ACCELERATOR_TYPE (for example v5litepod-8) and TPU_WORKER_ID=0 before you start.",
    )


def nprocs(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A number of processes that torch_xla does not start."""
    match = _NPROCS.search(base.error_text(outcome))
    if not match:
        return None
    return Explanation(
        f"Rank {outcome.rank} called xmp.spawn or torch_xla.launch with nprocs={match[1]}, inside the function.",
        "torch_xla starts one process (nprocs=1) or one for each chip (nprocs=None). The code already runs in each "
        "rank, where a call without nprocs runs its function.",
        f"Omit nprocs, or start as many ranks: %%tpu_train -n {match[1]}, for a script %tpu_train -n {match[1]} FILE.",
    )


# -- device memory ------------------------------------------------------------------------------------------------


def hbm(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The device's memory is exhausted, found by the compiler or at run time."""
    text = base.evidence(outcome)
    compiled = next((found for found in (pattern.search(text) for pattern in _HBM) if found), None)
    left = _HBM_LEFT.search(text)
    found = compiled or left
    if not found:
        return None
    needed, available = base.xla_bytes(found[1]), min(base.xla_bytes(size) for size in found.groups()[1:] if size)
    needs = "The compiled program needs" if compiled else "It requested"
    over = base.precise(needed - available)
    device = f" Device: {failure.devices}." if failure.devices else ""
    free = "available" if compiled else "free in one piece" if found.re is _HBM_LEFT and found[3] else "free"
    return Explanation(
        f"Rank {outcome.rank} ran out of device memory (HBM){base.at(failure, outcome)}.",
        f"{needs} {base.precise(needed)}; {base.precise(available)} are {free}, {over} too little"
        f"{_factor(needed, available)}.{_weights(failure)}{device}",
        "Lower the batch size (raise gradient_accumulation_steps to keep the product), use bf16 (--precision bf16), "
        "shorten the sequences, or recompute activations (gradient checkpointing).",
    )


def _factor(needed: float, available: float) -> str:
    return f" ({needed / available:.1f} times the available memory)" if available and needed >= 2 * available else ""


def _weights(failure: Failure) -> str:
    return f" The models' weights alone take {base.precise(failure.models_bytes)}." if failure.models_bytes else ""


EXPLAINERS = (host_trained, in_use, lock_file, busy, forbidden, worker_addresses, hbm, metadata, nprocs)
