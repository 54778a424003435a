"""The figures of a preflight's first row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tpu_magics.errors import plural
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.formats import NOT_AVAILABLE, percent, seconds, size
from tpu_magics.panel.preflight_words import HASTY, NOTHING, at_least, at_most, most, no_cost, sync, why_none
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.roofline import COMPUTE, MEMORY

BOUNDS = {COMPUTE: "compute", MEMORY: "memory"}


@dataclass(frozen=True)
class PreflightFigure:
    """A figure of the first row: label, value, and notes."""

    label: str
    value: str
    beside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((self.value, *self.beside))


def figures(result: TargetResult, plain: bool = False) -> tuple[PreflightFigure, ...]:
    """The figures of the first row, always the same ones. `plain`: without what differs from run to run."""
    found: tuple[PreflightFigure, ...] = (step(result), bound(result), bf16(result), padding(result))
    if none(result):
        found = (found[0], *(replace(one, value=NOTHING, beside=()) for one in found[1:]))
    return (hbm(result), *found, *(() if plain else (compile_time(result),)))


def none(result: TargetResult) -> bool:
    """Whether there is no program; then one reason is enough for all figures."""
    known = (result.roofline.seconds, result.bf16_share, result.padding_waste)
    return result.steady.status != "fits" and all(one is None for one in known)


def hbm(result: TargetResult) -> PreflightFigure:
    memory = result.worst.memory
    if memory is None:
        return PreflightFigure("HBM", NOT_AVAILABLE, (why_none(result.worst),))
    other = () if result.worst is result.steady else (f"in the graph of {sync(result, result.worst)}",)
    return PreflightFigure("HBM", words.used(memory), (words.headroom(memory), *other))


def step(result: TargetResult) -> PreflightFigure:
    """The time of one step; where graphs take turns, of a full turn, with the graph that ends it."""
    found, cost, label = result.roofline, result.cost, "Step time (estimate)"
    if found.seconds is None or found.steps_per_second is None:
        return PreflightFigure(label, NOT_AVAILABLE, (no_cost(result),))
    slow = (*_estimate(result), *((HASTY,) if found.hasty else ()))
    if len(result.turn) < 2:
        steps = f"{at_most(found, most(found.steps_per_second))} steps/s"
        return PreflightFigure(label, at_least(found, seconds(found.seconds)), (steps, *slow))
    several = f"for {cost.syncs} syncs of {len(set(result.turn))} alternating graphs"
    if result.graph.name:
        several = f"for the {cost.syncs} graphs of a step"
    if cost.seconds is None:
        return PreflightFigure(label, NOT_AVAILABLE, (several, "one of them has no estimate"))
    last = f"{result.graph.name or 'the last one'} {at_least(found, seconds(found.seconds))}"
    whole = f"{'≥' if cost.least else '≈'} {seconds(cost.seconds)}"
    return PreflightFigure(label, whole, (several, last, *slow))


def _estimate(result: TargetResult) -> tuple[str, ...]:
    found = result.profile.seconds
    return () if found is None else (f"compiler's estimate {seconds(found)}",)


def bound(result: TargetResult) -> PreflightFigure:
    """What binds, with the time of the other one."""
    found = result.roofline
    if not found.bound or found.compute is None or found.memory is None:
        return PreflightFigure("Bound by", NOT_AVAILABLE, (no_cost(result),))
    other = f"memory {seconds(found.memory)}" if found.bound == COMPUTE else f"compute {seconds(found.compute)}"
    return PreflightFigure("Bound by", BOUNDS[found.bound], (other,))


def bf16(result: TargetResult) -> PreflightFigure:
    share = result.bf16_share
    if share is None:
        found = result.steady.multiplications
        none = found is not None and not sum(found.flops.values())
        return PreflightFigure(
            "bf16", "none" if none else NOT_AVAILABLE, ("no matmuls" if none else why_none(result.steady),)
        )
    return PreflightFigure("bf16", brief(share), ("of matmul FLOPs",))


def brief(share: float) -> str:
    """A share in the room of a figure: "< 1 %"."""
    return percent(share).replace("less than", "<").replace("more than", ">")


def padding(result: TargetResult) -> PreflightFigure:
    lost, found = result.padding_waste, result.steady.padding
    if lost is None or found is None:
        return PreflightFigure("Padding", NOT_AVAILABLE, (why_none(result.steady),))
    return PreflightFigure("Padding", brief(lost), (f"{size(found.padded - found.plain)} of the memory in use",))


def compile_time(result: TargetResult) -> PreflightFigure:
    """The compile time of all graphs; "cached" where none was compiled now."""
    known = [one.seconds for one in result.compiled if one.seconds is not None]
    if not known:
        return PreflightFigure("Compile", NOT_AVAILABLE, (why_none(result.steady),))
    kept = sum(one.kept for one in result.compiled)
    graphs = plural(len(result.compiled), "graph")
    beside = graphs if not kept else "cached" if kept == len(result.compiled) else f"{kept} of {graphs} cached"
    return PreflightFigure("Compile", seconds(sum(known)), (beside,))
