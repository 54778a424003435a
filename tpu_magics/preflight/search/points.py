"""The points of a search, the sizes that may be tried, and the bracket that points make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["EXACT_BELOW", "NICE", "TOLERANCE", "FitPoint", "Range", "bracket", "nice_sizes", "step_of", "stopped"]

NICE = 8  # rows of a tile, on each device
NICE_TRIES = 4  # multiples of NICE below the largest size that are looked at
EXACT_BELOW = 4096  # a smaller size is settled to N and N + 1: there each row counts, and few compiles are left
TOLERANCE = 0.01  # of the size, from EXACT_BELOW on: exact to one row would cost a dozen compiles more


@dataclass(frozen=True)
class FitPoint:
    """The compile result of one size. `status`: "fits", "too-large", "refused" (the compiler does not accept the
    program) or "failed" (no answer, or the function itself fails for this size); `needed`, `available`: bytes of HBM;
    `seconds`: of the compile; `graph`: the hash of the steady graph."""

    size: int
    status: str
    needed: int | None = None
    available: int | None = None
    seconds: float | None = None
    error: str = ""
    graph: str = ""


@dataclass(frozen=True)
class Range:
    """The sizes that may be tried: from `lowest` to `highest`, multiples of `step`, without those in `failed`, for
    which the function itself fails. `devices`: that share one size (SPMD). `tolerance`: the part of a size from
    EXACT_BELOW on to which it is settled."""

    lowest: int
    highest: int
    step: int = 1
    failed: frozenset[int] = frozenset()
    devices: int = 1
    tolerance: float = TOLERANCE

    @property
    def below(self) -> int:
        """The multiple of the step below all sizes."""
        return self.down(self.lowest - 1)

    @property
    def last(self) -> int:
        """The largest multiple of the step."""
        return self.down(self.highest)

    @property
    def unit(self) -> int:
        """What nice sizes are multiples of."""
        return math.lcm(NICE * self.devices, self.step)

    def gap(self, size: int) -> int:
        """How far above this size, which fits, the next one that does not may lie when the search ends."""
        return self.step if size < EXACT_BELOW else max(self.step, int(size * self.tolerance))

    def down(self, size: int) -> int:
        """The multiple of the step that is this size or the next one below."""
        return size // self.step * self.step

    def wall(self, size: int) -> int | None:
        """The first size above this one for which the function failed, of the multiples of the step."""
        return min((one for one in self.failed if one > size and one % self.step == 0), default=None)


def step_of(ran: Iterable[int], failed: Iterable[int]) -> int:
    """What the sizes that a function takes are multiples of, from those that it took and those for which it failed.

    The smallest step that all that ran are multiples of, and none that failed is. Where there is none, the function
    takes sizes up to a limit only: the smallest step for which all that failed are larger than all that ran, of these
    one that leaves a size to try between, if there is one. Else 1.
    """
    bad, good = sorted(failed), sorted(ran)
    if not bad or not good:
        return 1
    common = math.gcd(*good)
    steps = [step for step in range(1, common + 1) if common % step == 0]
    first = {step: next((size for size in bad if size % step == 0), None) for step in steps}
    free = [step for step, size in first.items() if size is None]
    limited = [step for step, size in first.items() if size is not None and size > good[-1]]
    open_ = [step for step in limited if (first[step] or 0) - good[-1] > step]
    return (free or open_ or limited or [1])[0]


def bracket(points: Iterable[FitPoint], sizes: Range) -> tuple[int, int | None]:
    """The largest size that fits (or the multiple of the step below all sizes), and the smallest one above it that is
    known not to fit or not to run."""
    found = list(points)
    low = max((point.size for point in found if point.status == "fits"), default=sizes.below)
    above = [point.size for point in found if point.status == "too-large" and point.size > low]
    wall = sizes.wall(low)
    return low, min([*above, *([] if wall is None else [wall])], default=None)


def stopped(points: Iterable[FitPoint], sizes: Range) -> FitPoint | None:
    """The compile that was refused or gave no answer: the search for this target ends."""
    ends = ("refused", "failed")
    return next((one for one in points if one.status in ends and one.size not in sizes.failed), None)


def nice_sizes(largest: int, sizes: Range) -> Sequence[int]:
    """The nice sizes to look at, from the largest one that fits downwards."""
    first = largest // sizes.unit * sizes.unit
    found = [size for size in range(first, sizes.lowest - 1, -sizes.unit) if size not in sizes.failed]
    return found[:NICE_TRIES]
