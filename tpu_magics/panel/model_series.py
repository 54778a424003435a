"""Curves of bounded length: points are merged as more come in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpu_magics.panel.run_view import Point, ValueSeries
from tpu_magics.runs.events import Value, as_number

LIMIT = 200  # points of a curve

P = TypeVar("P")


class Downsampled(Generic[P]):
    """At most `limit` points: neighbours are merged, the same number into each."""

    def __init__(self, merge: Callable[[P, P], P], limit: int = LIMIT) -> None:
        self.points: list[P] = []
        self._merge = merge
        self._limit = limit
        self._each = 1  # values merged into a point
        self._in_last = 0

    def add(self, point: P) -> None:
        """Take the next one."""
        if self.points and self._in_last < self._each:
            self.points[-1] = self._merge(self.points[-1], point)
            self._in_last += 1
            return
        if len(self.points) >= self._limit:
            self._halve()
        self.points.append(point)
        self._in_last = 1

    def _halve(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=False)
        rest = self.points[len(self.points) // 2 * 2 :]
        self.points = [self._merge(left, right) for left, right in pairs] + rest
        self._each *= 2


@dataclass(frozen=True)
class StepTimes:
    """Steps that compiled nothing and the seconds that they took, up to the step `until`."""

    n: int
    seconds: float
    until: int

    @property
    def each(self) -> float:
        """Seconds of one of them."""
        return self.seconds / self.n


def merge_times(left: StepTimes, right: StepTimes) -> StepTimes:
    return StepTimes(left.n + right.n, left.seconds + right.seconds, right.until)


def merge_points(left: Point, right: Point) -> Point:
    """The later value with the range of both."""
    return Point(right.step, right.value, _least(left.low, right.low), _most(left.high, right.high))


class Curve:
    """The values of one name as they come. `limit`: points that are kept."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.n = 0
        self.last: Value = Value(0.0, 0)
        self.first: float | None = None
        self.not_finite_at: int | None = None
        self.kept: Downsampled[Point] = Downsampled(merge_points, limit)

    def add(self, event: Value) -> None:
        """Take one record, which may stand for several values."""
        self.n += max(1, event.n)
        self.last = event
        value = as_number(event.value)
        if value is None:
            return
        low, high = _range(event, value)
        finite = [number for number in (low, high, value) if math.isfinite(number)]
        if self.first is None and math.isfinite(value):
            self.first = value
        if self.not_finite_at is None and not all(map(math.isfinite, (low, high, value))):
            self.not_finite_at = event.step
        self.kept.add(Point(event.step, value, min(finite, default=math.nan), max(finite, default=math.nan)))

    def series(self) -> ValueSeries:
        """The curve so far."""
        return ValueSeries(
            name=self.last.name,
            last=self.last.value,
            step=self.last.step,
            first=self.first,
            not_finite_at=self.not_finite_at,
            points=tuple(self.kept.points),
        )


def _range(event: Value, value: float) -> tuple[float, float]:
    low, high = as_number(event.low), as_number(event.high)
    return (value if low is None else low), (value if high is None else high)


def _least(left: float, right: float) -> float:
    return right if math.isnan(left) else left if math.isnan(right) else min(left, right)


def _most(left: float, right: float) -> float:
    return right if math.isnan(left) else left if math.isnan(right) else max(left, right)
