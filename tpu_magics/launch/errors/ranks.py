"""Workers that do not agree on who they are: two have one rank, one has a rank that is not of the run, or a rank has no
result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure

# What tells libtpu and torch_xla 2.9 which process of which TPU this is (torch_xla/_internal/tpu.py).
_VARIABLES = (
    *("CLOUD_TPU_TASK_ID", "TPU_WORKER_ID", "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_PORT"),
    *("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"),
    *("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_TOPOLOGY", "PJRT_LOCAL_PROCESS_COUNT"),
)


def claimed_twice(failure: Failure) -> Explanation:
    """Several workers began as the same rank."""
    known = sum(failure.claims.values())
    shared = {rank: count for rank, count in sorted(failure.claims.items()) if count > 1}
    parts = [f"{count} have rank {rank}" for rank, count in shared.items()]
    why, todo = _cause(len(failure.outcomes))
    raised = [one for one in failure.outcomes if base.raised(one)]
    also = {f"A worker also raised {base.error_type(one)}: {base.one_line(base.error_text(one))}" for one in raised}
    return Explanation(
        f"The workers do not agree on their ranks: of {known} that began, {' and '.join(parts)}.",
        f"{why} {base.UNCHANGED}",
        todo,
        tuple(sorted(also)),
    )


def no_such_rank(ordinal: int, ranks: int, environ: Mapping[str, str]) -> TpuMagicsError:
    """In a worker: the runtime gave it a rank that the run does not have. `environ`: the notebook's variables."""
    has = "the one rank 0" if ranks == 1 else f"ranks 0 to {ranks - 1}"
    return TpuMagicsError(
        f"The runtime gave this worker rank {ordinal}, but the run has {has}.", *_cause(ranks, environ)
    )


def _cause(ranks: int, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Why that is so, and what to do."""
    given = {name: environ[name] for name in _VARIABLES if name in environ}
    own = given.get("PJRT_LOCAL_PROCESS_COUNT") == str(ranks)  # torch_xla sets it in each worker
    found = [f"{name}={value}" for name, value in given.items() if not (own and name == "PJRT_LOCAL_PROCESS_COUNT")]
    why = (
        f"The runtime must give each of the {ranks} workers a rank of its own. Without it, the workers are not one "
        "run: their collectives do not reach each other. "
    )
    if found:
        names = [one.partition("=")[0] for one in found]
        return (
            f"{why}The probable cause are variables that describe another set of processes: {', '.join(found)}.",
            f"Unset {', '.join(names)} (%env lists them; %tpu_doctor knows what they should be), restart the kernel, "
            "and run the cell again.",
        )
    return (
        f"{why}The probable cause: the runtime took each worker for a run of its own, or for a part of a larger one.",
        "Run %tpu_doctor: it checks what describes the TPU to the runtime. With one worker (-n 1) the cell needs no "
        "ranks. If the doctor finds nothing, please report its output.",
    )


def without_result(rank: int, path: Path) -> TpuMagicsError:
    """In the notebook: all workers have ended well, and a rank's result is not there."""
    return TpuMagicsError(
        f"Rank {rank} wrote no result.",
        f"Its worker ended without an error, but {path.name} is not in the run folder: the file was removed, or no "
        f"worker had this rank. {base.UNCHANGED}",
        f"See the output of the ranks (%tpu_logs -r {rank}), and run the cell again. If other programs clean up "
        f"{path.parent.resolve().parent}, set TPU_MAGICS_RUNS to another folder.",
    )
