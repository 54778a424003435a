"""How a preflight puts its findings into words.

What lives here: sizes, states and the figures of one look, as text. What does not: tables and HTML (preflight*.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tpu_magics.backends.lowered import Place
from tpu_magics.panel.sections_words import (
    AMBER,
    GREEN,
    NOT_AVAILABLE,
    RED,
    clock,
    count,
    not_available,
    percent,
    rate,
    seconds,
    short,
    size,
)
from tpu_magics.preflight.facts import Compiled, Memory
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.roofline import COMPUTE, MEMORY, Roofline

STATES = {
    "fits": ("✓ fits", GREEN),
    "too-large": ("✗ too large", RED),
    "refused": ("✗ refused", RED),
    "failed": ("! no answer", AMBER),
}
BOUNDS = {COMPUTE: "compute", MEMORY: "memory"}
ONE_REPLICA = "the program is that of one replica"
NOTHING = "-"  # in the place of a figure whose reason stands beside it
_GIB = 2**30
_CLOSE = 0.02  # of the limit: sizes this near to it are told to two decimals


@dataclass(frozen=True)
class Figure:
    """A finding of one look: its label, the value, and what belongs to it."""

    label: str
    value: str
    beside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((self.value, *self.beside))


def figures(result: TargetResult, plain: bool = False) -> tuple[Figure, ...]:
    """What one looks at first, always the same ones. `plain`: without what differs from run to run."""
    found: tuple[Figure, ...] = (step(result), bound(result), bf16(result), padding(result))
    if none(result):
        found = (found[0], *(replace(one, value=NOTHING, beside=()) for one in found[1:]))
    return (hbm(result), *found, *(() if plain else (compile_time(result),)))


def none(result: TargetResult) -> bool:
    """Whether there is no program, and so nothing to tell of it: one reason is enough."""
    known = (result.roofline.seconds, result.bf16_share, result.padding_waste)
    return result.steady.status != "fits" and all(one is None for one in known)


# -- memory ----------------------------------------------------------------------------------------------------------


def limit(available: int) -> str:
    """What there is, as it is written in tables of chips: "15.75 GiB", "95 GiB"."""
    return f"{available / _GIB:.2f}".rstrip("0").rstrip(".") + " GiB" if available >= _GIB else size(available)


def needed(memory: Memory) -> str:
    """What a program needs: "184 GiB", "11.2 GiB", "431 MiB"; to two decimals near the limit."""
    if memory.available and abs(memory.needed / memory.available - 1) < _CLOSE:
        return f"{memory.needed / _GIB:.2f} GiB"
    return _gib(memory.needed)


def _gib(value: int) -> str:
    """To three digits."""
    gib = value / _GIB
    return size(value) if gib < 1 else f"{gib:.3g} GiB" if gib < 1000 else f"{gib:,.0f} GiB"


def used(memory: Memory) -> str:
    """ "11.2 of 15.75 GiB"."""
    if not memory.available:
        return needed(memory)
    one, all_ = needed(memory), limit(memory.available)
    return f"{one.removesuffix(' GiB')} of {all_}"


def headroom(memory: Memory) -> str:
    """ "29 % free", "168 GiB too much"."""
    if not memory.available:
        return not_available("this chip's HBM is not known")
    free = memory.available - memory.needed
    return f"{percent(free / memory.available)} free" if free >= 0 else f"{_gib(-free)} too much"


def hbm(result: TargetResult) -> Figure:
    memory = result.worst.memory
    if memory is None:
        return Figure("HBM", NOT_AVAILABLE, (why_none(result.worst),))
    other = () if result.worst is result.steady else (f"in the graph of {sync(result, result.worst)}",)
    return Figure("HBM", used(memory), (headroom(memory), *other))


def sync(result: TargetResult, one: Compiled) -> str:
    """Which of the graphs that is: "sync 1", by the sync of the function that ran it first."""
    return f"sync {result.traced.graphs[result.compiled.index(one)].nth + 1}"


def why_none(one: Compiled) -> str:
    """Why there is nothing known of a program."""
    reasons = {
        "refused": "the compiler refuses it",
        "failed": "the compiler gave no answer",
        "too-large": "no program was made",
    }
    return reasons.get(one.status, next(iter(one.notes), "the compiler did not tell"))


# -- cost ------------------------------------------------------------------------------------------------------------


def step(result: TargetResult) -> Figure:
    found = result.roofline
    if found.seconds is None or found.steps_per_second is None:
        return Figure("A step, estimate", NOT_AVAILABLE, (why_none(result.steady),))
    time, steps = at_least(found, seconds(found.seconds)), at_most(found, most(found.steps_per_second))
    return Figure("A step, estimate", time, (f"{steps} steps/s",))


def at_least(found: Roofline, value: str) -> str:
    """The value of an estimate that is a lower bound, if it is one."""
    return f"{'≥' if found.least else '≈'} {value}"


def at_most(found: Roofline, value: str) -> str:
    return f"{'≤' if found.least else '≈'} {value}"


def most(value: float) -> str:
    """A rate to three digits: an estimate has no more."""
    return rate(float(f"{value:.3g}"))


def bound(result: TargetResult) -> Figure:
    """What binds, with the time of the other one."""
    found = result.roofline
    if not found.bound or found.compute is None or found.memory is None:
        return Figure("Bound by", NOT_AVAILABLE, (next(iter(found.reasons.values()), why_none(result.steady)),))
    other = f"memory {seconds(found.memory)}" if found.bound == COMPUTE else f"compute {seconds(found.compute)}"
    return Figure("Bound by", BOUNDS[found.bound], (other,))


def bf16(result: TargetResult) -> Figure:
    share = result.bf16_share
    if share is None:
        found = result.steady.multiplications
        none = found is not None and not sum(found.flops.values())
        return Figure("bf16", "none" if none else NOT_AVAILABLE, ("no matmuls" if none else why_none(result.steady),))
    return Figure("bf16", brief(share), ("of matmul FLOPs",))


def brief(share: float) -> str:
    """A share in the room of a figure: "< 1 %"."""
    return percent(share).replace("less than", "<").replace("more than", ">")


def padding(result: TargetResult) -> Figure:
    lost, found = result.padding_waste, result.steady.padding
    if lost is None or found is None:
        return Figure("Padding", NOT_AVAILABLE, (why_none(result.steady),))
    return Figure("Padding", brief(lost), (size(found.padded - found.plain),))


def compile_time(result: TargetResult) -> Figure:
    """Of all graphs; "kept" where none was compiled now."""
    known = [one.seconds for one in result.compiled if one.seconds is not None]
    if not known:
        return Figure("Compile", NOT_AVAILABLE, (why_none(result.steady),))
    kept = sum(one.kept for one in result.compiled)
    graphs = count(len(result.compiled), "graph")
    beside = graphs if not kept else "kept" if kept == len(result.compiled) else f"{kept} of {graphs} kept"
    return Figure("Compile", seconds(sum(known)), (beside,))


# -- targets and places ----------------------------------------------------------------------------------------------


def target_text(result: TargetResult) -> str:
    """ "8 chips, 8 ranks", "1 of 8 chips, 1 rank"; without ranks where the program is split over the devices."""
    if result.ranks is None:
        return f"{count(result.target.chips, 'chip')}; {ONE_REPLICA}"
    some = f"{result.chips:,} of " if result.chips < result.target.chips else ""
    chips = f"{some}{count(result.target.chips, 'chip')}"
    return f"{chips}, SPMD over {result.devices}" if result.devices > 1 else f"{chips}, {count(result.ranks, 'rank')}"


def place_text(place: Place | None) -> str:
    """ "In [3], line 14"; of a file only its name."""
    if place is None:
        return ""
    name = place.path.rpartition("/")[2] or place.path
    return f"{short(name, 40)}, line {place.line}"


def place_and_code(place: Place | None) -> str:
    """The same with its code below."""
    return "\n".join(part for part in (place_text(place), short(place.code, 80) if place else "") if part)


def took(value: float) -> str:
    return clock(value) if value >= 60 else seconds(value)


def flops(value: float) -> str:
    """ "2.16 TFLOP"."""
    for factor, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:,.0f} FLOP"


def traffic(value: float) -> str:
    """Bytes a step: "41.3 GB", as bandwidths are told in powers of ten."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:,.0f} bytes"
