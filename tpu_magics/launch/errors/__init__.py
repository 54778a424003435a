"""Why a worker died: one small function for each known cause.

What lives here: the order in which they are asked, most specific first. What does not: the explanations, which stand in
one file per family, and the choice of the worker that is to blame (see ../diagnose.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_magics.launch.errors import (
    device,
    hangs,
    recompiles,
    rehearsal,
    results,
    signals,
    spmd,
    trainer,
    user_code,
    versions,
)
from tpu_magics.launch.errors.base import Explainer, Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

EXPLAINERS: tuple[Explainer, ...] = (
    *trainer.EXPLAINERS,  # before the device, whose text stands there as the cause
    *device.EXPLAINERS,
    *versions.EXPLAINERS,
    *recompiles.EXPLAINERS,
    *spmd.EXPLAINERS,
    *user_code.EXPLAINERS,
    *rehearsal.EXPLAINERS,
    *hangs.EXPLAINERS,
    *signals.EXPLAINERS,
    *results.EXPLAINERS,
    *user_code.LAST,
)


def explain(failure: Failure, outcome: WorkerOutcome) -> Explanation:
    """The first explanation that fits; every outcome has one."""
    found = (explainer(failure, outcome) for explainer in EXPLAINERS)
    return next((one for one in found if one), Explanation(f"Rank {outcome.rank} ended before its work was done."))
