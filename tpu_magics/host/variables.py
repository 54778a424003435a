"""What is changed in the environment, and why: in the workers, and in the notebook itself.

What lives here: the repairs that are known to be needed, and PJRT_DEVICE. What does not: making them. Nothing here
writes to os.environ; whoever starts workers, and %tpu_init, apply what is returned.
"""

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
    """One variable that the workers get: `value` (None: they do not get it at all), and the `reason`; `before`: what it
    is in the notebook."""

    name: str
    value: str | None
    reason: str
    before: str


_KAGGLE_REASON = (
    "Kaggle's image sets it for one process; with one worker per chip libtpu stops with "
    '"Expected {chips} worker addresses, got 1"'
)
_KAGGLE_UNSET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")


def worker_changes(environ: Mapping[str, str], place: Environment, chips: int) -> tuple[VariableChange, ...]:
    """What the workers' environment needs that differs from the notebook's; nothing outside Kaggle's TPU machines."""
    if place.key != "kaggle" or not (chips or place.promise):
        return ()
    reason = _KAGGLE_REASON.format(chips=chips or "several")
    return tuple(VariableChange(name, None, reason, environ[name]) for name in _KAGGLE_UNSET if name in environ)


def notebook_environment(host: Host) -> dict[str, str]:
    """What %tpu_init sets in the notebook: PJRT_DEVICE where it is not set, and torch_xla will read it. What a person
    has set is kept."""
    return {} if host.pjrt_device or host.framework != "torch" else {PJRT: host.device}


def choose_device(pjrt_device: str, chips: int) -> str:
    """What cells train on: "TPU" or "CPU". A person who has set PJRT_DEVICE=CPU on a TPU host rehearses there."""
    return "TPU" if chips and _family(pjrt_device) != "CPU" else "CPU"


def judge_pjrt(pjrt_device: str, chips: int, torch: bool = True) -> list[Problem]:
    """A PJRT_DEVICE that does not fit what the host has. TensorFlow does not read it; where it is CPU on a TPU host, we
    follow it there (not `torch`) too."""
    fitting = "TPU" if chips else "CPU"
    if not pjrt_device or _family(pjrt_device) == fitting:
        return []
    rehearsal = bool(chips) and _family(pjrt_device) == "CPU"
    if not torch and not rehearsal:
        return []
    has = f"{plural(chips, 'TPU chip')}" if chips else "no TPU"
    effect = "Cells train on the CPU and leave the TPU alone." if rehearsal else "The XLA runtime would fail to start."
    return [
        Problem(
            about=ENVIRONMENT,
            what=f"{PJRT}={pjrt_device} does not fit this host, which has {has}. It was kept.",
            why=f"Somebody has set it, in this notebook or before it was started. {effect}",
            command=f"%env {PJRT}={fitting}",
            then="run %tpu_init again",
            state="warning" if rehearsal else "broken",
        )
    ]


def _family(pjrt_device: str) -> str:
    # As torch_xla reads it: "TPU_C_API" is a TPU.
    return pjrt_device.split("_")[0]
