"""Graphs that alternate: gradient accumulation, two optimizers, a small graph between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_magics.backends.lowered import TraceResult
from tpu_magics.preflight.roofline import Roofline


@dataclass(frozen=True)
class Cost:
    """The cost of one full turn on one device. `syncs`: number of syncs; `seconds`: the sum of the least times of their
    graphs (None: one of them is unknown); `least`: whether each of these is a lower bound."""

    syncs: int
    seconds: float | None
    least: bool

    @classmethod
    def of(cls, found: Sequence[Roofline]) -> Cost:
        known = [one.seconds for one in found if one.seconds is not None]
        whole = sum(known) if found and len(known) == len(found) else None
        return cls(len(found), whole, all(one.least for one in found))


def turn(traced: TraceResult) -> tuple[int, ...]:
    """The indices in `traced.graphs` of the graphs that later steps repeat, in the order of their syncs: for
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
