"""What is judged, and what a reason is.

What lives here: two dataclasses. What does not: the reasons (judge_reasons.py), and what they come to (judge.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tpu_magics.backends.lowered import Traced
from tpu_magics.preflight.facts import Compiled
from tpu_magics.preflight.roofline import Roofline

SPEAKS, MEND, ELSEWHERE = "", "mend", "elsewhere"


@dataclass(frozen=True)
class Reason:
    """One finding. `about`: "memory", "ops", "graphs", "matmul", "step", "busy", "batch", "bf16", "padding" or "reads";
    `good`: it speaks for a TPU (True), against it (False), or for neither (None); `text`: without a full stop, and
    without `number`, which is of one target; `todo`: what would change it; `decides`: ELSEWHERE (a GPU serves better),
    MEND (this must be mended first) or SPEAKS (alone it decides nothing)."""

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
    """What is judged: a step, and what the compiler of one target said of it. `device`: "v5e chip"; `steady`: the graph
    of all later steps; `worst`: the one that does not fit or has no answer, else the one that needs most HBM;
    `devices`: that share one batch (SPMD)."""

    device: str
    traced: Traced
    steady: Compiled
    worst: Compiled
    roofline: Roofline
    devices: int = 1
