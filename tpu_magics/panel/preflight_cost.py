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
GUESSED = (
    "The time is an estimate, and no bound: the program decides while it runs how much it does. Of branches the one "
    "that multiplies most is counted, a loop whose rounds it does not tell once."
)
MOVED = "Bytes: what the optimised program reads from and writes to HBM, without copies within the chip."
_MOSTLY = 0.9  # bf16: what is left does not matter


def cost(found: Preflight) -> Iterator[Topic]:
    known = [one for one in found.results if one.roofline.seconds is not None]
    if not known:
        return
    lead = known[0].roofline
    shown = [words.flops(lead.flops)] if lead.flops is not None else []
    shown += [f"{words.traffic(lead.bytes)} of HBM"] if lead.bytes is not None else []
    table = Table("", heads(found), across(found, _ROWS.items()), tuple(_cost_notes(known)))
    yield Topic("Cost of a step", f"{', '.join(shown)} on a device", table)


def _told(tell: Callable[[Roofline], str | None]) -> Callable[[TargetResult], str]:
    return lambda result: tell(result.roofline) or not_available(words.why_none(result.steady))


def _of(intensity: float, ridge: float | None) -> str:
    return f"{intensity:.3g}" + (f" (memory binds below {ridge:.3g})" if ridge is not None else "")


def _share(result: TargetResult) -> str:
    share, reasons = result.roofline.matmul_share, result.roofline.reasons
    if share is not None:
        return percent(share)
    program = result.steady.status == "fits"
    return not_available(reasons.get("matmul_share", "") if program else words.why_none(result.steady))


def _chip(one: TargetResult) -> str:
    return NOT_AVAILABLE if one.rate is None else words.at_most(one.roofline, words.most(one.rate.chip))


def _every(one: TargetResult) -> str:
    if one.rate is None:
        return not_available("the batch is not known" if one.traced.batch is None else words.why_none(one.steady))
    if one.rate.every is None or one.rate.batch is None:
        return not_available(words.ONE_REPLICA)
    return f"{words.at_most(one.roofline, words.most(one.rate.every))} (batch {one.rate.batch:,})"


_ROWS: dict[str, Callable[[TargetResult], str]] = {
    "FLOPs": _told(lambda one: None if one.flops is None else words.flops(one.flops)),
    "of them matmuls and convolutions": _share,
    "bytes of HBM moved": _told(lambda one: None if one.bytes is None else words.traffic(one.bytes)),
    "FLOPs a byte": _told(lambda one: None if one.intensity is None else _of(one.intensity, one.ridge)),
    "time by FLOPs": _told(lambda one: None if one.compute is None else words.at_least(one, seconds(one.compute))),
    "time by bytes": _told(lambda one: None if one.memory is None else words.at_least(one, seconds(one.memory))),
    "samples/s, each chip": _chip,
    "samples/s, in all": _every,
}


def _cost_notes(known: Sequence[TargetResult]) -> Iterator[str]:
    yield from dict.fromkeys(LEAST if one.roofline.least else GUESSED for one in known)
    if any(one.steady.loops for one in known):
        yield LOOPS
    if any(one.bf16_share is not None and one.bf16_share < _MOSTLY for one in known):
        yield ONE_PASS
    floor = any(one.roofline.counted == "arguments" for one in known)
    accessed = known[0].steady.bytes_accessed
    own = "" if accessed is None else f" XLA's own count, with copies within the chip: {words.traffic(accessed)}."
    yield f"{FLOOR if floor else MOVED}{own}"
