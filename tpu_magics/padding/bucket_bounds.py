"""The best bounds for K buckets, exact, by dynamic programming."""

# Samples go to the smallest bucket that holds them, and batches are made bucket by bucket from short to long; what does
# not fill a group of batches goes into the next bucket. So up to a bound b, with c samples at most b long,
# F(c) = floor(c / group) * group of them are in batches, and buckets b1 < ... < bK cost
# sum(b_i * (F(c_i) - F(c_(i-1)))) token slots. With f_k(i) the least cost of k buckets up to the i-th length,
#
#     f_k(i) = b_i F_i + min over j < i of (f_(k-1)(j) - F_j b_i)
#
# is the lowest of many lines at x = b_i. Their slopes -F_j fall with j and b_i grows with i, so one pass over a lower
# envelope finds all minima (the convex hull trick): O(D) for each bucket, D being the number of distinct lengths,
# instead of O(D^2). All numbers are integers: nothing is rounded.
# BucketBatches (sampler.py) makes the same number of batches per bucket.

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Line = tuple[int, int, int]  # slope, height at 0, and the j it belongs to


@dataclass(frozen=True)
class Buckets:
    """Bounds from short to long, and the token slots of an epoch's batches, with all samples in them."""

    bounds: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class _BoundsProblem:
    """`below` and `filled`: c and F of the comment above, for no length, the first, the second, ..."""

    lengths: list[int]
    below: list[int]
    filled: list[int]
    group: int
    ranks: int


def best_buckets(counts: Mapping[int, int], most: int, group: int = 1, ranks: int = 1) -> list[Buckets]:
    """The best bounds for at most 1, 2, ... `most` buckets; fewer results if more buckets save nothing, none if all
    samples together fill no group.

    Each bucket that makes batches has a sample of its own for each rank, and the longest bucket makes some: samples
    that fill no group are dropped, and must not be the same ones in every epoch.

    Args:
        counts: number of samples of each length.
        group: samples per step: batch size times ranks.
        ranks: number of ranks that take a step together.
    """
    problem = _bounds_problem(counts, group, ranks)
    costs: list[int | None] = [0, *([None] * len(problem.lengths))]
    came: list[list[int]] = []
    found: list[Buckets] = []
    for _ in range(most):
        costs, origin = _one_more(costs, problem)
        came.append(origin)
        slots = costs[-1]
        if slots is None or (found and slots >= found[-1].slots):
            break
        found.append(Buckets(_bounds(came, problem), slots))
    return found


def _bounds_problem(counts: Mapping[int, int], group: int, ranks: int) -> _BoundsProblem:
    lengths = sorted(counts)
    below = [0]
    for length in lengths:
        below.append(below[-1] + counts[length])
    filled = [samples // group * group for samples in below]
    filled[-1] = below[-1]  # samples that fill no group count as long as the longest
    return _BoundsProblem(lengths, below, filled, group, ranks)


def _one_more(before: Sequence[int | None], problem: _BoundsProblem) -> tuple[list[int | None], list[int]]:
    """The lowest costs with one more bucket, and where that bucket begins."""
    below, filled = problem.below, problem.filled
    costs: list[int | None] = [0, *([None] * (len(before) - 1))]
    origin = [0] * len(before)
    hull: deque[Line] = deque()
    ready = 0
    for end, bound in enumerate(problem.lengths[:-1], 1):
        while ready < end and below[end] - below[ready] >= problem.ranks:
            height = before[ready]
            if height is not None:
                _add(hull, (-filled[ready], height, ready))
            ready += 1
        while len(hull) > 1 and _at(hull[1], bound) <= _at(hull[0], bound):
            hull.popleft()
        if hull:
            costs[end] = _at(hull[0], bound) + bound * filled[end]
            origin[end] = hull[0][2]
    costs[-1], origin[-1] = _longest(before, problem)
    return costs, origin


def _longest(before: Sequence[int | None], problem: _BoundsProblem) -> tuple[int | None, int]:
    """The same for the longest bucket, over all its beginnings: it must fill a group."""
    bound, samples = problem.lengths[-1], problem.below[-1]
    ways = [
        (cost + bound * (samples - problem.filled[start]), start)
        for start, cost in enumerate(before[:-1])
        if cost is not None
        and samples - problem.below[start] >= problem.ranks
        and samples - problem.filled[start] >= problem.group
    ]
    return min(ways, default=(None, 0))


def _at(line: Line, x: int) -> int:
    return line[0] * x + line[1]


def _add(hull: deque[Line], line: Line) -> None:
    """Append a line, none of the others being steeper, and remove lines that are lowest nowhere."""
    if hull and hull[-1][0] == line[0]:
        if hull[-1][1] <= line[1]:
            return
        hull.pop()
    while len(hull) > 1 and _needless(hull[-2], hull[-1], line):
        hull.pop()
    hull.append(line)


def _needless(first: Line, middle: Line, last: Line) -> bool:
    """Whether the last line meets the first before the middle one does."""
    return (last[1] - first[1]) * (first[0] - middle[0]) <= (middle[1] - first[1]) * (first[0] - last[0])


def _bounds(came: Sequence[Sequence[int]], problem: _BoundsProblem) -> tuple[int, ...]:
    """The bounds, from the longest backwards, without those that make no batch."""
    bounds: list[int] = []
    end = len(problem.lengths)
    for origin in reversed(came):
        if end == 0:
            break
        start = origin[end]
        if problem.filled[end] > problem.filled[start]:
            bounds.append(problem.lengths[end - 1])
        end = start
    return tuple(reversed(bounds))
