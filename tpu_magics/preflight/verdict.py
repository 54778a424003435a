"""The verdict: does this training step suit a TPU?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_magics.preflight.verdict_case import AS_WELL, ELSEWHERE, FIX, SMALL, SPEAKS, Case, Reason
from tpu_magics.preflight.verdict_reasons import REASONS

__all__ = ["AS_WELL", "ELSEWHERE", "FIX", "SMALL", "SPEAKS", "UNKNOWN", "Case", "Reason", "TpuVerdict", "judge"]

UNKNOWN = (
    "how long you train (a TPU is worth it for long trainings, where minutes of compiling do not matter)",
    "whether the host is fast enough (reading data, tracing and starting each step are not in the program)",
    "what an hour of either costs",
)
_NAMES = {
    "busy": "few FLOPs per byte",
    "batch": "the batch",
    "padding": "padding",
    "reads": "device-to-host reads",
}
_WORDS = {
    ELSEWHERE: "better on a GPU",
    FIX: "needs changes",
    SMALL: "too little work",
    AS_WELL: "a GPU is as good",
}
_ORDER = {name: place for place, name in enumerate((*_WORDS, SPEAKS))}
_WORTH = {False: 0, None: 1, True: 2}


@dataclass(frozen=True)
class TpuVerdict:
    """`suits`: True, False, or None where too little is known. `word`: "suits a TPU", "needs changes", "too little
    work", "better on a GPU", ...; `because`: a sentence or two; `reasons`: all of them, what decides first, then
    against, neither, for; `unknown`: what a program does not show."""

    suits: bool | None
    word: str
    because: str
    reasons: tuple[Reason, ...]
    unknown: tuple[str, ...] = UNKNOWN

    @property
    def deciding(self) -> Reason | None:
        """The reason that alone decides, if one does."""
        return next((one for one in self.reasons if one.decides != SPEAKS), None)

    @property
    def text(self) -> str:
        return f"{self.word[0].upper()}{self.word[1:]}. {self.because}"


def judge(case: Case) -> TpuVerdict:
    """The verdict for one target."""
    found = [reason for find in REASONS for reason in find(case)]
    reasons = tuple(sorted(found, key=lambda one: (_ORDER[one.decides], _WORTH[one.good])))
    return TpuVerdict(*_conclusion(reasons), reasons)


def _conclusion(reasons: Sequence[Reason]) -> tuple[bool | None, str, str]:
    """The first reason that decides; the others stand below."""
    if reasons[0].decides != SPEAKS:
        return False, _WORDS[reasons[0].decides], reasons[0].sentence
    if not any(one.about == "matmul" and one.good for one in reasons):
        open_ = [one for one in reasons if one.good is None]
        missing = next((one for one in open_ if one.about in ("memory", "matmul")), open_[0])
        return None, "unknown", f"{missing.text}."
    against = dict.fromkeys(_NAMES[one.about] for one in reasons if one.good is False)
    but = f" To improve: {', '.join(against)}." if against else ""
    return True, "suits a TPU", f"Most of its work is matrix multiplication.{but}"
