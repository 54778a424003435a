"""The input of a verdict, and one reason of it."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_magics.backends.lowered import Place, Traced
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.roofline import Roofline

SPEAKS, FIX, ELSEWHERE, SMALL, AS_WELL = "", "fix", "elsewhere", "small", "as well"


@dataclass(frozen=True)
class Reason:
    """One finding. `about`: "memory", "ops", "graphs", "matmul", "step", "busy", "batch", "bf16", "padding" or "reads";
    `good`: it speaks for a TPU (True), against it (False), or for neither (None); `text`: without a full stop, and
    without `number`, which is of one target; `todo`: what would change it; `decides`: ELSEWHERE (better on a GPU),
    FIX (this must be fixed first), SMALL (there is too little to do), AS_WELL (a GPU is as good) or SPEAKS (alone
    it decides nothing)."""

    about: str
    good: bool | None
    text: str
    number: str = ""
    todo: str = ""
    decides: str = SPEAKS

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.number}." if self.number else f"{self.text}."


@dataclass(frozen=True)
class Case:
    """The input of a verdict: a step, and its compile results for one target. `device`: "v5e chip"; `steady`: the graph
    of all later steps; `worst`: the one that does not fit or has no answer, else the one that needs most HBM;
    `devices`: that share one batch (SPMD)."""

    device: str
    traced: Traced
    steady: CompileResult
    worst: CompileResult
    roofline: Roofline
    devices: int = 1


# -- words -----------------------------------------------------------------------------------------------------------


def at(place: Place | None) -> str:
    """ " (In [3]:27)"; of a file only its name."""
    return f" ({place.path.rpartition('/')[2]}:{place.line})" if place else ""


def percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def time(seconds: float) -> str:
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((one for one in units if seconds * one[0] >= 1), units[-1])
    return f"{seconds * factor:.3g} {unit}"
