"""What a step costs: FLOPs, bytes, and the least time that follows.

What lives here: these as a table. What does not: reckoning them (preflight/roofline.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight_topic import Topic, across, heads
from tpu_magics.panel.sections_words import NOT_AVAILABLE, not_available, percent, seconds
from tpu_magics.panel.table import Table
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.roofline import LOOPS, ONE_PASS, Roofline

LEAST = (
    "The time is an estimate, a lower bound: no chip is kept at its peak all the time, and transfers between chips and "
    "the work of the host are not in it."
)
FLOOR = "Bytes: each argument and output moved once. What else the program moves could not be read."
MOVED = "Bytes: what the optimised program reads from and writes to HBM, without copies within the chip."
_MOSTLY = 0.9  # bf16: what is left does not matter


def cost(found: Preflight) -> Iterator[Topic]:
    known = [one for one in found.results if one.roofline.seconds is not None]
    if not known:
        return
    lead = known[0].roofline
    shown = [words.flops(lead.flops)] if lead.flops is not None else []
    shown += [f"{words.traffic(lead.bytes)} of HBM"] if lead.bytes is not None else []
    rows = across(found, ((label, _told(tell)) for label, tell in _COST.items()))
    rows += across(found, _RATES.items())
    table = Table("", heads(found), rows, tuple(_cost_notes(known)))
    yield Topic("Cost of a step", f"{', '.join(shown)} on a device", table)


def _told(tell: Callable[[Roofline], str | None]) -> Callable[[TargetResult], str]:
    return lambda result: tell(result.roofline) or not_available(words.why_none(result.steady))


_COST: dict[str, Callable[[Roofline], str | None]] = {
    "FLOPs": lambda one: None if one.flops is None else words.flops(one.flops),
    "of them matmuls and convolutions": lambda one: None if one.matmul_share is None else percent(one.matmul_share),
    "bytes of HBM moved": lambda one: None if one.bytes is None else words.traffic(one.bytes),
    "FLOPs a byte": lambda one: None if one.intensity is None else _of(one.intensity, one.ridge),
    "time by FLOPs": lambda one: None if one.compute is None else f"≥ {seconds(one.compute)}",
    "time by bytes": lambda one: None if one.memory is None else f"≥ {seconds(one.memory)}",
}
_RATES: dict[str, Callable[[TargetResult], str]] = {
    "samples/s, each chip": lambda one: NOT_AVAILABLE if one.rate is None else f"≤ {words.most(one.rate.chip)}",
    "samples/s, in all": lambda one: _every(one),
}


def _of(intensity: float, ridge: float | None) -> str:
    return f"{intensity:.3g}" + (f" (memory binds below {ridge:.3g})" if ridge is not None else "")


def _every(one: TargetResult) -> str:
    if one.rate is None:
        return not_available("the batch is not known" if one.traced.batch is None else words.why_none(one.steady))
    return f"≤ {words.most(one.rate.every)} (batch {one.rate.batch:,})"


def _cost_notes(known: Sequence[TargetResult]) -> Iterator[str]:
    yield LEAST
    if any(one.bf16_share is not None and one.bf16_share < _MOSTLY for one in known):
        yield ONE_PASS
    floor = any(one.roofline.counted == "arguments" for one in known)
    accessed = known[0].steady.bytes_accessed
    own = "" if accessed is None else f" XLA's own count of bytes accessed has these: {words.traffic(accessed)}."
    yield f"{FLOOR if floor else MOVED}{own} {LOOPS}"
