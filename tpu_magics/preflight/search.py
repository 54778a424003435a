"""The search for the largest batch that fits, for several targets at once.

A trace takes a second or two and a compile that fits up to minutes; a program that needs too much HBM is refused within
seconds. So sizes that several targets need are traced once, no target compiles a size twice, and the sizes are chosen
for few compiles that fit. Compiled results are cached, so an interrupted search continues quickly.

The search keeps a bracket: the largest size that fits, and the smallest size above it that does not (or with which the
function fails). HBM of a training step is close to a + b * size, so a line through two points names the next try. The
line is a guess only: layouts are padded to tiles, and near the limit the compiler recomputes values instead of keeping
them, so that more fits than the line says, and not evenly. So the first tries go far above the guess, for a refusal
that closes the bracket; and where lines do not halve the bracket, it is split near its upper end. For large sizes the
bracket need not close (Range.gap): a guess near one of its ends is moved away from it, so that the answer ends the
search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.fit import (
    TOLERANCE,
    FitPoint,
    FitResult,
    Range,
    bracket,
    nice_sizes,
    step_of,
    stopped,
    to_result,
    whole,
)

__all__ = ["APART", "HIGHEST", "TargetLike", "next_size", "search"]


ABOVE = 8  # the second try is so many times what the first one says: mostly refused, and the refusal has a figure
FURTHER = 2  # while all fit, the next try goes so many times as far as the line, or as the last step
LINES = 3  # tries that may leave more than half of the bracket, before it is split
SHARE = 0.8  # where it is split: high, as a refusal costs seconds
LEAP = 64  # no try is more than so many times the largest that fits: the batch is made on this host, too


def next_size(points: Sequence[FitPoint], sizes: Range) -> int | None:
    """The next size to try, given the points in the order in which they were tried (at least one). None: the
    largest size that fits is known."""
    low, high = bracket(points, sizes)
    gap = sizes.gap(low)
    if low >= sizes.last or (high is not None and high - low <= gap):
        return None
    if high is None:
        return _near(min(_upwards(points, low, gap), sizes.last), low, sizes.last + sizes.step, sizes)
    guess = None if _slow(points, sizes) else _guess(points, low)
    if guess is None:
        guess = low + int((high - low) * (SHARE if high < 4 * low else 0.5))
    else:
        guess = max(guess, low) + (gap + 1) // 2
    # Whatever the answer, the search ends if the guess is this near to an end of the bracket.
    guess = max(min(guess, high - gap + min(sizes.unit, gap) - 1), low + gap)
    return _near(guess, low, high, sizes)


def _upwards(points: Sequence[FitPoint], low: int, gap: int) -> int:
    """A size above the largest that fits, while all fit."""
    fits, guess = _fits(points), _guess(points, low)
    if len(fits) > 1:
        step = low - fits[-2].size
        guess = low + max(step, FURTHER * (step if guess is None else guess - low))
    else:
        guess = 2 * low if guess is None else ABOVE * guess
    return min(max(guess, low + gap), LEAP * low)


def _slow(points: Sequence[FitPoint], sizes: Range) -> bool:
    """Whether the last tries, LINES or more, left more than half of the bracket."""
    brackets = (bracket(points[:count], sizes) for count in range(1, len(points) + 1))
    widths = [high - low for low, high in brackets if high is not None]
    tries = sum(1 for _ in itertools.takewhile(lambda width: width < 2 * widths[-1], reversed(widths))) - 1
    return tries >= LINES


def _near(guess: int, low: int, high: int, sizes: Range) -> int:
    """The size to try for a guess of the largest one that fits: a nice one first, the guess itself, the next one."""
    if (nice := guess // sizes.unit * sizes.unit) > low:
        return nice
    return min(max(sizes.down(guess), low + sizes.step), high - sizes.step)


def _fits(points: Iterable[FitPoint]) -> list[FitPoint]:
    return sorted((point for point in points if point.status == "fits"), key=lambda point: point.size)


def _guess(points: Sequence[FitPoint], low: int) -> int | None:
    """The largest size that fits, as the best line says it: through two that fit, the largest one and the smallest that
    does not, or two that do not. Of one point: a line through nothing at 0."""
    fits = _fits(points)
    large = sorted((one for one in points if one.status == "too-large" and one.size > low), key=lambda one: one.size)
    pairs = (fits[-2:], [*fits[-1:], *large[:1]], [*large[:1], *large[-1:]])
    guesses = (_line(*pair) for pair in pairs if len(pair) > 1)
    found = next((guess for guess in guesses if guess is not None), None)
    one = (fits[-1:] or large)[0]
    if found is None and one.needed and one.available:
        return one.size * one.available // one.needed
    return found


def _line(one: FitPoint, other: FitPoint) -> int | None:
    """Where the line through two points meets the available memory. None: it does not rise, or is not known."""
    if one.needed is None or other.needed is None or other.available is None or other.needed <= one.needed:
        return None
    return one.size + (other.available - one.needed) * (other.size - one.size) // (other.needed - one.needed)


# -- the search -------------------------------------------------------------------------------------------------------

HIGHEST = 1 << 20  # the default limit
APART = 8  # if sizes that differ by this factor give one graph, the name has no effect

Probe = Callable[[int, Sequence[str]], Mapping[str, FitPoint]]


class TargetLike(Protocol):
    """A target: its name, the ranks of a training on it, and, where several devices share one size (SPMD),
    `devices`."""

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
    complete: Probe | None = None,
    lowest: int = 1,
    highest: int | None = None,
    log: Callable[[str], None] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[FitResult, ...]:
    """The largest value of `name` with which the step fits each target, one result for each in the order given.

    `probe(size, names of targets)` traces the step with that size once, compiles it for these targets, and gives a
    point for each. It is never called twice for one size and target. Where it compiles the graph that needs most alone
    (a point that is `partial`), `complete` compiles the others, once, for the sizes of the result. Sizes are whole
    numbers from `lowest` to `highest` (2**20 where it is None). `log` gets a line before each probe.

    Where the function itself fails for a size (probe raises TpuMagicsError), that size is left out: if the sizes that
    ran are multiples of some number and those that failed are not, only multiples of it are tried; else the search
    goes on below. A compile that is refused or gives no answer ends the search for its target only. KeyboardInterrupt
    ends it for all unfinished targets; their results so far are marked `interrupted`.

    Sizes below EXACT_BELOW are settled exactly: the largest fits, the next one does not. From there on it ends when the
    two are within `tolerance` (a part of the size). A nice size is always one that was compiled and fits.

    Raises TpuMagicsError: the start value is not from `lowest` to `highest`; the function fails for the start value
    (its own error); the graph is the same whatever the size. KeyboardInterrupt, where there is no result yet.
    """
    last = HIGHEST if highest is None else highest
    if not 1 <= lowest <= start <= last:
        raise TpuMagicsError(
            f"The search for the largest {name} cannot start at {start}.",
            f"It tries whole numbers from {lowest} to {last}.",
            f"Set {name} to a value between them.",
        )
    searches = [_Search(name, start, target, lowest, last, tolerance) for target in targets]
    prober = _Prober(name, probe, complete or probe, log or (lambda _line: None))
    undone: list[_Search] = []
    try:
        while wanted := _wanted(searches, prober):
            undone = [one for several in wanted.values() for one in several]
            # The size that most targets want, so that one trace serves them all; of these the smallest.
            size = min(wanted, key=lambda one: (-len(wanted[one]), one))
            prober.run(size, wanted[size])
    except KeyboardInterrupt:
        if not all(one.points for one in searches):
            raise
        return tuple(one.result(prober, interrupted=one in undone) for one in searches)
    return tuple(one.result(prober) for one in searches)


def _wanted(searches: Sequence[_Search], prober: _Prober) -> dict[int, list[_Search]]:
    wanted: dict[int, list[_Search]] = {}
    for one in searches:
        if (size := one.wants(prober)) is not None:
            wanted.setdefault(size, []).append(one)
    return wanted


class _Prober:
    """Runs probes, and remembers the sizes that the function ran with, which do not depend on the target."""

    def __init__(self, name: str, probe: Probe, complete: Probe, log: Callable[[str], None]) -> None:
        self.name, self.probe, self.complete, self.log = name, probe, complete, log
        self.ran: set[int] = set()
        self.failed: dict[int, str] = {}

    def run(self, size: int, searches: Sequence[_Search]) -> None:
        """A point of that size for each; of the searches that have one, the whole one."""
        begun = [one for one in searches if size in one.points]
        new = [one for one in searches if one not in begun]
        self.log(f"{self.name} = {size}: {', '.join(one.state() for one in searches)}")
        for several, ask in ((new, self._probed), (begun, self.complete)):
            found = ask(size, [one.target.name for one in several]) if several else {}
            for one in several:
                one.points[size] = found[one.target.name]
        for one in begun:
            one.trusts_partial &= one.points[size].status == "fits"

    def _probed(self, size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        try:
            found = self.probe(size, names)
        except KeyboardInterrupt:
            raise  # TrainingInterrupted is a TpuMagicsError, too
        except TpuMagicsError as error:
            if not self.ran:
                raise
            self.failed[size] = error.what
            return {one: FitPoint(size, "failed", error=error.what) for one in names}
        self.ran.add(size)
        return found


class _Search:
    """The search for one target."""

    def __init__(self, name: str, start: int, target: TargetLike, lowest: int, highest: int, tolerance: float) -> None:
        self.name, self.start, self.target = name, start, target
        self.lowest, self.highest, self.tolerance = lowest, highest, tolerance
        self.devices: int = getattr(target, "devices", 1)
        self.points: dict[int, FitPoint] = {}  # by size, in the order in which they were tried
        self.trusts_partial = True  # until another graph turns out to be too large

    def _sizes(self, prober: _Prober) -> Range:
        failed = frozenset(prober.failed)
        step = step_of(prober.ran, prober.failed)
        return Range(self.lowest, self.highest, step, failed, self.devices, self.tolerance)

    def result(self, prober: _Prober, interrupted: bool = False) -> FitResult:
        """The result so far."""
        name, ranks, sizes = self.target.name, self.target.ranks, self._sizes(prober)
        return to_result(name, self.name, ranks, self._tried(), sizes, prober.failed, interrupted)

    def _tried(self) -> Sequence[FitPoint]:
        return tuple(self.points.values())

    def state(self) -> str:
        """The target and its bracket: "v5e-8 (32 fits, 107 does not)"."""
        fits = max((point.size for point in self._tried() if point.status == "fits"), default=None)
        large = min((point.size for point in self._tried() if point.status == "too-large"), default=None)
        known = [f"{fits} fits"] * (fits is not None) + [f"{large} does not"] * (large is not None)
        return f"{self.target.name} ({', '.join(known)})" if known else self.target.name

    def wants(self, prober: _Prober) -> int | None:
        """The size to try next. None: this target is done."""
        if not self.points:
            return self.start
        sizes, tried = self._sizes(prober), self._tried()
        if stopped(tried, sizes):
            return None
        if _one_graph(tried):
            return self._far(sizes)
        known = tried if self.trusts_partial else whole(tried)
        found = next_size(known, sizes)
        return self._last(bracket(known, sizes)[0], sizes) if found is None else found

    def _far(self, sizes: Range) -> int:
        """A size further away from those that all gave one graph. Raises TpuMagicsError where there is none."""
        tried = sorted(point.size for point in self._tried() if point.graph)
        low, high = bracket(self._tried(), sizes)
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

    def _last(self, largest: int, sizes: Range) -> int | None:
        """The largest size, if it is not whole yet, then the nice one: a multiple of NICE (on each device) below it."""
        for size in (largest, *nice_sizes(largest, sizes)):
            point = self.points.get(size)
            if point is None or point.partial:
                return size if size > sizes.below else None
            if point.status == "fits" and size % sizes.unit == 0:
                return None
        return None


def _one_graph(points: Sequence[FitPoint]) -> bool:
    graphs = [point.graph for point in points if point.graph]
    return len(graphs) > 1 and len(set(graphs)) == 1
