"""Explanations of failed runs: one function for each known cause, the most specific first."""

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
    *trainer.EXPLAINERS,  # before `device`: its error text is the cause of Trainer's
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
    """The first explanation that matches; every outcome has one."""
    found = (explainer(failure, outcome) for explainer in EXPLAINERS)
    return next((one for one in found if one), Explanation(f"Rank {outcome.rank} ended before it finished."))
