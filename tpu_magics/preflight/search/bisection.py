"""The search for the largest batch that fits, for several targets at once.

A trace takes a second or two, a compile up to a minute; a program that needs far too much HBM is refused within
seconds. So sizes that several targets need are traced once, no target compiles a size twice, and the sizes are chosen
for few compiles. Compiled results are cached, so an interrupted search continues quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.search.choice import next_size
from tpu_magics.preflight.search.points import TOLERANCE, FitPoint, Range, bracket, nice_sizes, step_of, stopped
from tpu_magics.preflight.search.result import FitResult, to_result

__all__ = ["APART", "HIGHEST", "TargetLike", "search"]

HIGHEST = 1 << 20  # nothing larger is tried where nobody says how far
APART = 8  # sizes that are so many times apart and give one graph: the name changes nothing

Probe = Callable[[int, Sequence[str]], Mapping[str, FitPoint]]


class TargetLike(Protocol):
    """What the search knows of a target: its name, how many ranks a training on it has, and, where several devices
    share one size (SPMD), how many: `devices`."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...


def search(
    name: str,
    start: int,
    targets: Sequence[TargetLike],
    probe: Probe,
    *,
    lowest: int = 1,
    highest: int | None = None,
    tell: Callable[[str], None] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[FitResult, ...]:
    """The largest value of `name` with which the step fits each target, one result for each in the order given.

    `probe(size, names of targets)` traces the step with that size once, compiles it for these targets, and gives a
    point for each. It is never asked twice for one size and target. Sizes are whole numbers from `lowest` to `highest`
    (2**20 where it is None). `tell` gets a line before each probe.

    Where the function itself fails for a size (probe raises TpuMagicsError), that size is left out: if the sizes that
    ran are multiples of some number and those that failed are not, only multiples of it are tried; else the search
    goes on below. A compile that is refused or gives no answer ends the search for its target only. KeyboardInterrupt
    ends it for all that are not done; what is known by then is their result, marked `interrupted`.

    Sizes below EXACT_BELOW are settled exactly: the largest fits, the next one does not. From there on it ends when the
    two are within `tolerance` (a part of the size). A nice size is always one that was compiled and fits.

    Raises TpuMagicsError: the start value is not from `lowest` to `highest`; the function fails for the start value
    (its own error); the graph is the same whatever the size. KeyboardInterrupt, where nothing is known yet.
    """
    last = HIGHEST if highest is None else highest
    if not 1 <= lowest <= start <= last:
        raise TpuMagicsError(
            f"The search for the largest {name} cannot start at {start}.",
            f"It tries whole numbers from {lowest} to {last}.",
            f"Set {name} to a value between them.",
        )
    searches = [_Search(name, start, target, lowest, last, tolerance) for target in targets]
    asking = _Asking(name, probe, tell or (lambda _line: None))
    undone: list[_Search] = []
    try:
        while wanted := _wanted(searches, asking):
            undone = [one for several in wanted.values() for one in several]
            # The size that most targets want, so that one trace serves them all; of these the smallest.
            size = min(wanted, key=lambda one: (-len(wanted[one]), one))
            asking.ask(size, wanted[size])
    except KeyboardInterrupt:
        if not all(one.points for one in searches):
            raise
        return tuple(one.result(asking, interrupted=one in undone) for one in searches)
    return tuple(one.result(asking) for one in searches)


def _wanted(searches: Sequence[_Search], asking: _Asking) -> dict[int, list[_Search]]:
    wanted: dict[int, list[_Search]] = {}
    for one in searches:
        if (size := one.wants(asking)) is not None:
            wanted.setdefault(size, []).append(one)
    return wanted


class _Asking:
    """Probes, and which sizes the function took: that does not depend on the target."""

    def __init__(self, name: str, probe: Probe, tell: Callable[[str], None]) -> None:
        self.name, self.probe, self.tell = name, probe, tell
        self.ran: set[int] = set()
        self.failed: dict[int, str] = {}

    def ask(self, size: int, searches: Sequence[_Search]) -> None:
        names = [one.target.name for one in searches]
        self.tell(f"{self.name} = {size}: {', '.join(one.state() for one in searches)}")
        try:
            found = self.probe(size, names)
        except KeyboardInterrupt:
            raise  # TrainingInterrupted is a TpuMagicsError, too
        except TpuMagicsError as error:
            if not self.ran:
                raise
            self.failed[size] = error.what
            found = {one: FitPoint(size, "failed", error=error.what) for one in names}
        else:
            self.ran.add(size)
        for one in searches:
            one.points.append(found[one.target.name])


class _Search:
    """One target's."""

    def __init__(self, name: str, start: int, target: TargetLike, lowest: int, highest: int, tolerance: float) -> None:
        self.name, self.start, self.target = name, start, target
        self.lowest, self.highest, self.tolerance = lowest, highest, tolerance
        self.devices: int = getattr(target, "devices", 1)
        self.points: list[FitPoint] = []

    def _sizes(self, asking: _Asking) -> Range:
        failed = frozenset(asking.failed)
        step = step_of(asking.ran, asking.failed)
        return Range(self.lowest, self.highest, step, failed, self.devices, self.tolerance)

    def result(self, asking: _Asking, interrupted: bool = False) -> FitResult:
        """What was found."""
        name, ranks, sizes = self.target.name, self.target.ranks, self._sizes(asking)
        return to_result(name, self.name, ranks, self.points, sizes, asking.failed, interrupted)

    def state(self) -> str:
        """The target and its bracket: "v5e-8 (32 fits, 107 does not)"."""
        fits = max((point.size for point in self.points if point.status == "fits"), default=None)
        large = min((point.size for point in self.points if point.status == "too-large"), default=None)
        known = [f"{fits} fits"] * (fits is not None) + [f"{large} does not"] * (large is not None)
        return f"{self.target.name} ({', '.join(known)})" if known else self.target.name

    def wants(self, asking: _Asking) -> int | None:
        """The size to try next. None: this target is done."""
        if not self.points:
            return self.start
        sizes = self._sizes(asking)
        if stopped(self.points, sizes):
            return None
        if _one_graph(self.points):
            return self._far(sizes)
        found = next_size(self.points, sizes)
        return self._nice(sizes) if found is None else found

    def _far(self, sizes: Range) -> int:
        """A size further away from those that all gave one graph. Raises TpuMagicsError where there is none."""
        tried = sorted(point.size for point in self.points if point.graph)
        low, high = bracket(self.points, sizes)
        if tried[-1] < APART * tried[0]:
            if high is None and low < sizes.last:
                return min(2 * low, sizes.last)
            if sizes.below < sizes.down(tried[0] // 2):
                return sizes.down(tried[0] // 2)
        raise TpuMagicsError(
            f"Changing {self.name} has no effect: {' and '.join(map(str, (tried[0], tried[-1])))} give the same graph.",
            f"The data were created in an earlier cell, with the value that {self.name} had there; or the function "
            f"does not use {self.name}.",
            f"Create the batch inside the function, from {self.name} or from an argument, and search again.",
        )

    def _nice(self, sizes: Range) -> int | None:
        """A multiple of NICE (on each device) below the largest size, where none is known to fit so far."""
        low, _high = bracket(self.points, sizes)
        known = {point.size: point.status for point in self.points}
        for size in nice_sizes(low, sizes):
            if known.get(size, "fits") == "fits":
                return None if size in known else size
        return None


def _one_graph(points: Sequence[FitPoint]) -> bool:
    graphs = [point.graph for point in points if point.graph]
    return len(graphs) > 1 and len(set(graphs)) == 1
