"""Curves as text and as inline SVG.

Where GitHub removes the drawing, the text remains; so the SVG contains no words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tpu_magics.panel.model_view import Point

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"
WIDE, HIGH = 600, 100  # units of a drawing; it is stretched to the place it has
POINTS = 100  # of a line: more cannot be told apart
_EDGE = 4


def sparkline(numbers: Sequence[float], width: int = 24) -> str:
    """The shape of a curve in at most `width` characters; "!" stands for what is not finite, "" for no number."""
    parts = list(_parts(numbers, width))
    finite = [number for number in parts if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(number, low, high) for number in parts)


def _parts(numbers: Sequence[float], width: int) -> Iterator[float]:
    """The means of as many stretches as there is room for; a stretch with something not finite is not finite."""
    count = min(len(numbers), max(width, 1))
    for index in range(count):
        part = numbers[index * len(numbers) // count : (index + 1) * len(numbers) // count]
        yield sum(number / len(part) for number in part) if all(map(math.isfinite, part)) else math.nan


def _bar(number: float, low: float, high: float) -> str:
    if not math.isfinite(number):
        return NOT_FINITE
    return BARS[round(_share(number, low, high) * (len(BARS) - 1))]


def _share(number: float, low: float, high: float) -> float:
    """Where a number lies between two, 0 to 1; in the middle where they are the same. Halved first: the distance
    between two numbers may be more than a float can hold."""
    span = high / 2 - low / 2
    return min(1.0, max(0.0, (number / 2 - low / 2) / span)) if span > 0 else 0.5


def svg(points: Sequence[Point], colour: str) -> str:
    """A line through the values, their range behind it where they have one; "" where there are less than two."""
    finite = [each for each in points if math.isfinite(each.low) and math.isfinite(each.high)]
    if len(finite) < 2:
        return ""
    finite = list(_fewer(finite, POINTS))
    low, high = min(each.low for each in finite), max(each.high for each in finite)
    first, last = finite[0].step, finite[-1].step

    def place(index: int, value: float) -> str:
        across = (finite[index].step - first) / (last - first) if last > first else index / (len(finite) - 1)
        down = 1 - _share(value, low, high)
        return f"{min(1.0, max(0.0, across)) * WIDE:.0f},{_EDGE + down * (HIGH - 2 * _EDGE):.0f}"

    line = " ".join(place(at, each.value) for at, each in enumerate(finite) if math.isfinite(each.value))
    tops = [place(at, each.high) for at, each in enumerate(finite)]
    bottoms = [place(at, each.low) for at, each in enumerate(finite)]
    area = f'<polygon points="{" ".join([*tops, *reversed(bottoms)])}" fill="{colour}" fill-opacity="0.18"/>'
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" width="100%" height="{HIGH}" aria-hidden="true" '
        f'style="display:block;border-bottom:1px solid {colour}">{area if tops != bottoms else ""}'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round" '
        f'vector-effect="non-scaling-stroke"/></svg>'
    )


def _fewer(points: Sequence[Point], most: int) -> Iterator[Point]:
    """As many stretches as there is room for, each with its last value and its whole range."""
    count = min(len(points), most)
    for index in range(count):
        part = points[index * len(points) // count : (index + 1) * len(points) // count]
        last = next((each for each in reversed(part) if math.isfinite(each.value)), part[-1])
        yield Point(last.step, last.value, min(each.low for each in part), max(each.high for each in part))
