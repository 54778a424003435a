"""The cost of a step as a table: FLOPs, bytes, and the least time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight_figures import step
from tpu_magics.panel.preflight_topic import Topic, across, heads
from tpu_magics.panel.sections_words import NOT_AVAILABLE, not_available, percent, seconds
from tpu_magics.panel.table import Table
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.roofline import LOOPS, ONE_PASS, Roofline

LEAST = (
    "The time is an estimate, a lower bound: no chip runs at its peak all the time, and transfers between chips and "
    "the work of the host are not included."
)
FLOOR = "Bytes: each argument and output moved once. Other traffic of the program could not be read."
GUESSED = (
    "The time is an estimate, not a bound: the amount of work depends on values at run time. Of branches, the one with "
    "the most matmul work is counted; a loop with an unknown trip count is counted once."
)
MOVED = "Bytes: what the optimized program reads from and writes to HBM, without copies within the chip."
TURN = "time of a full cycle"
TURNS = "Where graphs alternate, FLOPs, bytes and their times are those of the last one; Graphs lists each."
ACCESSED = "XLA's own count of bytes includes copies within the chip, some several times: it gives no bound."
HASTE = (
    "The time does not include dispatching a step from Python. Measured without a TPU, torch_xla 2.9 took 1.2 ms of "
    "one core for a step of 2 linear layers with SGD, and more for larger ones; on a TPU host it was not measured."
)
_MOSTLY = 0.9  # bf16: what is left does not matter


def cost(found: Preflight) -> Iterator[Topic]:
    known = [one for one in found.results if one.roofline.seconds is not None]
    if not known:
        return
    lead = known[0].roofline
    whose = f" ({known[0].name})" if len(found.results) > 1 else ""
    shown = [words.flops(lead.flops)] if lead.flops is not None else []
    shown += [f"{words.traffic(lead.bytes)} of HBM"] if lead.bytes is not None else []
    turns = any(len(one.turn) > 1 for one in found.results)
    rows = [(label, tell) for label, tell in _ROWS.items() if turns or label != TURN]
    table = Table("", heads(found), across(found, rows), tuple(_cost_notes(known)))
    yield Topic("Cost of a step", f"{', '.join(shown)} on a device{whose}", table)


def _told(name: str, tell: Callable[[Roofline], str | None]) -> Callable[[TargetResult], str]:
    """`name`: of the field whose reason says why it is not known."""

    def told(result: TargetResult) -> str:
        return tell(result.roofline) or not_available(result.roofline.reasons.get(name, "") or words.no_cost(result))

    return told


def _of(intensity: float, ridge: float | None) -> str:
    return f"{intensity:.3g}" + (f" (memory-bound below {ridge:.3g})" if ridge is not None else "")


def _share(one: Roofline) -> str | None:
    return None if one.matmul_share is None else percent(one.matmul_share)


def _accessed(result: TargetResult) -> str:
    value = result.steady.bytes_accessed
    return NOT_AVAILABLE if value is None else words.traffic(value)


def _chip(one: TargetResult) -> str:
    return not_available(one.no_rate) if one.rate is None else _samples(one, one.rate.chip)


def _every(one: TargetResult) -> str:
    if one.rate is None:
        return not_available(one.no_rate)
    if one.rate.every is None or one.rate.batch is None:
        return not_available(words.ONE_REPLICA)
    return f"{_samples(one, one.rate.every)} ({'batch' if len(one.turn) == 1 else 'in a cycle'} {one.rate.batch:,})"


def _samples(one: TargetResult, value: float) -> str:
    slower = ", without the dispatch of steps" if one.roofline.hasty else ""
    return f"{words.at_most(one.roofline, words.most(value))}{slower}"


def _turn(one: TargetResult) -> str:
    """Of the graphs that take turns, all together."""
    if len(one.turn) < 2:
        return words.NOTHING
    return step(one).value + f" ({one.cost.syncs} syncs)"


_ROWS: dict[str, Callable[[TargetResult], str]] = {
    "FLOPs, as compiled": _told("flops", lambda one: None if one.flops is None else words.flops(one.flops)),
    "of which matmuls and convolutions": _told("matmul_share", _share),
    "bytes of HBM moved": _told("bytes", lambda one: None if one.bytes is None else words.traffic(one.bytes)),
    "bytes by XLA's own count": _accessed,
    "FLOPs per byte": _told("memory", lambda one: None if one.intensity is None else _of(one.intensity, one.ridge)),
    "time by FLOPs": _told(
        "compute", lambda one: None if one.compute is None else words.at_least(one, seconds(one.compute))
    ),
    "time by bytes": _told(
        "memory", lambda one: None if one.memory is None else words.at_least(one, seconds(one.memory))
    ),
    TURN: _turn,
    "samples/s per chip": _chip,
    "samples/s in total": _every,
}


def _cost_notes(known: Sequence[TargetResult]) -> Iterator[str]:
    yield from dict.fromkeys(LEAST if one.roofline.least else GUESSED for one in known)
    if any(one.steady.loops for one in known):
        yield LOOPS
    if any(one.bf16_share is not None and one.bf16_share < _MOSTLY for one in known):
        yield ONE_PASS
    floor = any(one.roofline.counted == "arguments" for one in known)
    if any(len(one.turn) > 1 for one in known):
        yield TURNS
    yield FLOOR if floor else MOVED
    if any(one.steady.bytes_accessed is not None for one in known):
        yield ACCESSED
    if any(one.roofline.hasty for one in known):
        yield HASTE
