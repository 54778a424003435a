"""Environment variables that the workers and the notebook need changed, and why. Nothing here writes to os.environ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.host.environments import Environment
from tpu_magics.host.problem import ENVIRONMENT, Problem, plural

if TYPE_CHECKING:
    from tpu_magics.host import Host

PJRT = "PJRT_DEVICE"


@dataclass(frozen=True)
class VariableChange:
    """A variable that the workers get with another `value` (None: unset), and the `reason`; `before`: its value in the
    notebook."""

    name: str
    value: str | None
    reason: str
    before: str


_KAGGLE_REASON = (
    "Kaggle's image sets it for one process. With one worker per chip, libtpu stops with "
    '"Expected {chips} worker addresses, got 1"'
)
_KAGGLE_UNSET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")


def worker_changes(environ: Mapping[str, str], place: Environment, chips: int) -> tuple[VariableChange, ...]:
    """The variables that differ between workers and notebook; none outside Kaggle's TPU machines."""
    if place.key != "kaggle" or not (chips or place.promise):
        return ()
    reason = _KAGGLE_REASON.format(chips=chips or "several")
    return tuple(VariableChange(name, None, reason, environ[name]) for name in _KAGGLE_UNSET if name in environ)


def notebook_environment(host: Host) -> dict[str, str]:
    """The variables that %tpu_init sets in the notebook: PJRT_DEVICE, where it is not set and torch_xla will read
    it."""
    return {} if host.pjrt_device or host.framework != "torch" else {PJRT: host.device}


def choose_device(pjrt_device: str, chips: int) -> str:
    """ "TPU" or "CPU", what cells train on. PJRT_DEVICE=CPU on a TPU host means a rehearsal there."""
    return "TPU" if chips and _family(pjrt_device) != "CPU" else "CPU"


def judge_pjrt(pjrt_device: str, chips: int, torch: bool = True) -> list[Problem]:
    """The problem of a PJRT_DEVICE that is wrong for this host. TensorFlow does not read it, but CPU on a TPU host
    means a rehearsal with TensorFlow (not `torch`) too."""
    fitting = "TPU" if chips else "CPU"
    if not pjrt_device or _family(pjrt_device) == fitting:
        return []
    rehearsal = bool(chips) and _family(pjrt_device) == "CPU"
    if not torch and not rehearsal:
        return []
    has = f"{plural(chips, 'TPU chip')}" if chips else "no TPU"
    effect = "Cells train on the CPU and do not use the TPU." if rehearsal else "The XLA runtime would fail to start."
    return [
        Problem(
            about=ENVIRONMENT,
            what=f"{PJRT}={pjrt_device} is wrong for this host, which has {has}. It was not changed.",
            why=f"It was set in this notebook or before the notebook started. {effect}",
            command=f"%env {PJRT}={fitting}",
            then="run %tpu_init again",
            state="warning" if rehearsal else "broken",
        )
    ]


def _family(pjrt_device: str) -> str:
    # As torch_xla reads it: "TPU_C_API" is a TPU.
    return pjrt_device.split("_")[0]
