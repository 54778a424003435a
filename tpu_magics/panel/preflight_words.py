"""Sizes, states, rates and places of a preflight, in words."""

from __future__ import annotations

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.errors import plural
from tpu_magics.panel.formats import clock, not_available, percent, rate, seconds, short, size
from tpu_magics.panel.html_parts import AMBER, GREEN, RED
from tpu_magics.preflight.compile_result import CompileResult, HbmUsage
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.roofline import Roofline

STATES = {
    "fits": ("✓ fits", GREEN),
    "too-large": ("✗ too large", RED),
    "refused": ("✗ refused", RED),
    "failed": ("! no result", AMBER),
}
ONE_REPLICA = "the program of one replica"
NOTHING = "-"  # in the place of a figure whose reason stands beside it
_GIB = 2**30
_CLOSE = 0.02  # of the limit: sizes this close to it are shown exactly
_DECIMALS = (2, 3, 4, 6)
READ = (
    "No step is executed: a device-to-host read gives zero unless noted, and a branch on such a value takes the path "
    "for zero."
)
HASTY = "dispatching a step from Python takes longer"


# -- memory ----------------------------------------------------------------------------------------------------------


def limit(available: int) -> str:
    """The available memory, as tables of chips write it: "15.75 GiB", "95 GiB"."""
    return f"{available / _GIB:.2f}".rstrip("0").rstrip(".") + " GiB" if available >= _GIB else size(available)


def needed(memory: HbmUsage) -> str:
    """What a program needs: "184 GiB", "11.2 GiB", "431 MiB"; near the limit with as many decimals as tell it from
    that, if any do."""
    if not memory.available or abs(memory.needed / memory.available - 1) >= _CLOSE:
        return _gib(memory.needed)
    limit_ = round(memory.available / _GIB, 2)
    shown = (f"{memory.needed / _GIB:.{digits}f}" for digits in _DECIMALS)
    told = next((one for one in shown if float(one) != limit_), None)
    return f"{told} GiB" if told else limit(memory.available)


def _gib(value: int) -> str:
    """To three digits."""
    gib = value / _GIB
    return size(value) if gib < 1 else f"{gib:.3g} GiB" if gib < 1000 else f"{gib:,.0f} GiB"


def used(memory: HbmUsage) -> str:
    """ "11.2 of 15.75 GiB"."""
    if not memory.available:
        return needed(memory)
    one, all_ = needed(memory), limit(memory.available)
    return f"{one.removesuffix(' GiB')} of {all_}"


def headroom(memory: HbmUsage) -> str:
    """ "29 % free", "168 GiB too much"."""
    if not memory.available:
        return not_available("unknown HBM of this chip")
    free = memory.available - memory.needed
    return f"{percent(free / memory.available)} free" if free >= 0 else f"{_gib(-free)} too much"


def sync(result: TargetResult, one: CompileResult) -> str:
    """Which of the graphs that is."""
    return result.traced.graphs[result.compiled.index(one)].label


def why_none(one: CompileResult) -> str:
    """Why there is nothing known of a program."""
    reasons = {
        "refused": "the compiler refused it",
        "failed": "no result from the compiler",
        "too-large": "no program was compiled",
    }
    unknown = "not compiled" if one.seconds is None else "not reported by the compiler"
    return reasons.get(one.status, next(iter(one.notes), unknown))


# -- cost ------------------------------------------------------------------------------------------------------------


def no_cost(result: TargetResult) -> str:
    """Why there is no estimate."""
    return next(iter(result.roofline.reasons.values()), "") or why_none(result.steady)


def at_least(found: Roofline, value: str) -> str:
    """The value of an estimate that is a lower bound, if it is one."""
    return f"{'≥' if found.least else '≈'} {value}"


def at_most(found: Roofline, value: str) -> str:
    return f"{'≤' if found.least else '≈'} {value}"


def most(value: float) -> str:
    """A rate to three digits: an estimate has no more."""
    return rate(float(f"{value:.3g}"))


# -- targets and places ----------------------------------------------------------------------------------------------


def target_text(result: TargetResult) -> str:
    """ "8 chips, 8 ranks", "1 of 8 chips, 1 rank"; without ranks where the program is split over the devices, with the
    axes of the mesh: "8 chips, SPMD over 8 (data=4, model=2)"."""
    if result.ranks is None:
        return f"{plural(result.target.chips, 'chip')}; {ONE_REPLICA}"
    some = f"{result.chips:,} of " if result.chips < result.target.chips else ""
    chips = f"{some}{plural(result.target.chips, 'chip')}"
    if result.devices == 1:
        return f"{chips}, {plural(result.ranks, 'rank')}"
    axes = ", ".join(f"{name}={size}" for name, size in result.graph.mesh if name and size > 1)
    return f"{chips}, SPMD over {result.devices}{f' ({axes})' if axes else ''}"


def place_text(place: SourceLine | None) -> str:
    """ "In [3], line 14"; of a file only its name."""
    if place is None:
        return ""
    name = place.path.rpartition("/")[2] or place.path
    return f"{short(name, 40)}, line {place.line}"


def place_and_code(place: SourceLine | None) -> str:
    """A place with its code below."""
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
