"""Graphs that alternate: gradient accumulation, two optimizers, a small graph between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_magics.backends.lowered import Traced
from tpu_magics.preflight.roofline import Roofline


@dataclass(frozen=True)
class Cost:
    """Of one full turn on one device. `syncs`: in it; `seconds`: the sum of the least times of their graphs (None: of
    one of them it is not known); `least`: whether each of these is a lower bound."""

    syncs: int
    seconds: float | None
    least: bool

    @classmethod
    def of(cls, found: Sequence[Roofline]) -> Cost:
        known = [one.seconds for one in found if one.seconds is not None]
        whole = sum(known) if found and len(known) == len(found) else None
        return cls(len(found), whole, all(one.least for one in found))


def turn(traced: Traced) -> tuple[int, ...]:
    """The places in `traced.graphs` of the graphs that later steps run over and over, in the order of their syncs: of
    an accumulation of four e.g. (0, 1, 1, 3). Empty where that is not known, or no step was like the one before it."""
    steady = {place for place, one in enumerate(traced.graphs) if one.steady}
    if not traced.settled:
        return ()
    if not traced.sequence:
        return tuple(steady) if len(steady) == 1 else ()
    newest = traced.sequence[-1]
    before = [place for place, one in enumerate(traced.sequence[:-1]) if one == newest]
    found = traced.sequence[before[-1] + 1 :] if before else ()
    return found if steady <= set(found) else ()
