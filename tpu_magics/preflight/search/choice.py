"""Which size to try next, from the compiler's answers for the sizes before.

The search keeps a bracket: the largest size that fits, and the smallest size above it that does not (or with which the
function fails). HBM of a training step is close to a + b * size, so a line through two points names the next try. The
line is a guess only: layouts are padded to tiles, and near the limit the compiler recomputes values instead of keeping
them, so that more fits than the line says. Where lines do not help, the bracket is halved. For large sizes the bracket
need not close (Range.gap): a guess near one of its ends is moved away from it, so that the answer ends the search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tpu_magics.preflight.search.points import FitPoint, Range, bracket

__all__ = ["next_size"]

SLACK = 3  # tries that lines may take more than doubling and halving would
UP = 2 / 3  # of a bracket narrower than a doubling: a refusal costs seconds, a compile up to a minute
BENT = 1.02  # so many times what a line allows fits: the line is no guide
LEAST = 8  # the second try is at least an eighth away from the first: a shorter line says little
LEAP = 64  # no try is more than so many times the largest that fits: the batch is made on this host, too


def next_size(points: Sequence[FitPoint], sizes: Range) -> int | None:
    """The next size to try, given the points in the order in which they were tried (at least one). None: it is known
    which size is the largest that fits."""
    low, high = bracket(points, sizes)
    if low >= sizes.last or (high is not None and high - low <= sizes.gap(low)):
        return None
    above = _just_above(points, sizes, low)
    if above is not None and above < (high or sizes.last):
        return _near(above, low, high or sizes.last, sizes)
    if high is None:
        return _upwards(points, sizes, low)
    if _bent(_fits(points)) or _late(points, sizes):
        return _middle(low, high, sizes)
    guess = next((one for one in _guesses(points) if low <= one < high), None)
    return _middle(low, high, sizes) if guess is None else _near(_settling(guess, low, high, sizes), low, high, sizes)


# -- between a size that fits and one that does not -----------------------------------------------------------------


def _late(points: Sequence[FitPoint], sizes: Range) -> bool:
    """Whether halving from the start of the bracket on would have made it smaller by now."""
    widths = []
    for count in range(1, len(points) + 1):
        low, high = bracket(points[:count], sizes)
        if high is not None:
            widths.append(max(1, high - low))
    return len(widths) - 1 > SLACK + math.log2(widths[0] / widths[-1])


def _middle(low: int, high: int, sizes: Range) -> int:
    share = UP if high < 2 * low else 0.5
    return _near(_settling(low + int((high - low) * share), low, high, sizes), low, high, sizes)


def _settling(guess: int, low: int, high: int, sizes: Range) -> int:
    """The guess, or the size nearest to it whose answer ends the search one way or the other."""
    gap = sizes.gap(low)
    if gap <= sizes.step:
        return guess
    return max(min(guess, high - gap + min(sizes.unit, gap) - 1), low + gap)


def _near(guess: int, low: int, high: int, sizes: Range) -> int:
    """The size to try for a guess of the largest one that fits: a nice one first, the guess itself, the next one."""
    if (nice := guess // sizes.unit * sizes.unit) > low:
        return nice
    return min(max(sizes.down(guess), low + sizes.step), high - sizes.step)


# -- where all fit so far -------------------------------------------------------------------------------------------


def _just_above(points: Sequence[FitPoint], sizes: Range, low: int) -> int | None:
    """Where a line says that hardly more than this large size fits: the one whose refusal ends the search."""
    fits, gap = _fits(points), sizes.gap(low)
    if gap <= sizes.step or len(fits) < 2 or low - fits[-2].size <= gap:
        return None
    guess = _line(fits[-2], fits[-1])
    return low + gap if guess is not None and guess < low + gap else None


def _upwards(points: Sequence[FitPoint], sizes: Range, low: int) -> int:
    last = sizes.last
    fits = _fits(points)
    guess = _further(fits, low, sizes.step)
    if len(points) > SLACK + 2 + math.log2(low / fits[0].size):
        guess = max(guess, 2 * low)
    if (gap := sizes.gap(low)) > sizes.step:
        guess = max(guess, low + gap)
    return _near(min(guess, LEAP * low, last), low, last + sizes.step, sizes)


def _further(fits: Sequence[FitPoint], low: int, step: int) -> int:
    """A size above the largest that fits. Where more fits than the line said, the steps are doubled at least."""
    guess = next(_guesses(fits), None)
    if len(fits) == 1:
        return 2 * low if guess is None else max(guess, low + low // LEAST)
    if _bent(fits):
        return max(guess or 0, low + 2 * max(step, low - fits[-2].size))
    return 2 * low if guess is None else guess


# -- lines ----------------------------------------------------------------------------------------------------------


def _fits(points: Iterable[FitPoint]) -> list[FitPoint]:
    return sorted((point for point in points if point.status == "fits"), key=lambda point: point.size)


def _bent(fits: Sequence[FitPoint]) -> bool:
    """Whether the largest that fits lies beyond what lines through the first and another one allowed."""
    guesses = [_line(fits[0], one) for one in fits[1:-1]]
    return any(guess is not None and BENT * guess < fits[-1].size for guess in guesses)


def _guesses(points: Sequence[FitPoint]) -> Iterator[int]:
    """The largest size that fits, as lines through two points (of one: through nothing at 0) say it; the best first."""
    fits = _fits(points)
    large = sorted((point for point in points if point.status == "too-large"), key=lambda point: point.size)
    if fits:
        pairs = [*((one, fits[-1]) for one in reversed(fits[:-1])), *((fits[-1], one) for one in large[:1])]
    else:
        pairs = [(large[0], one) for one in large[1:]]
    found = [_line(one, other) for one, other in pairs]
    yield from (max(guess, 0) for guess in found if guess is not None)
    if len(points) == 1 and points[0].needed and points[0].available:
        yield points[0].size * points[0].available // points[0].needed


def _line(one: FitPoint, other: FitPoint) -> int | None:
    """Where the line through two points meets what is available. None: it does not rise, or is not known."""
    if one.needed is None or other.needed is None or other.available is None or other.needed <= one.needed:
        return None
    return one.size + (other.available - one.needed) * (other.size - one.size) // (other.needed - one.needed)
