"""Curves as inline SVG with axes, and as a line of text.

A chart is as wide as its place: its curve is stretched, its words are not. GitHub removes drawings and leaves their
words, so a page repeats the numbers that matter in a chart's caption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, pairwise

from tpu_magics.panel.drawing import LETTER, decades, nice_step
from tpu_magics.panel.formats import seconds
from tpu_magics.panel.html_parts import AMBER, BLUE, GREEN, RED, VIOLET, say
from tpu_magics.panel.page import Axis, Chart

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"


# -- as text ---------------------------------------------------------------------------------------------------------


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


# -- as a drawing ----------------------------------------------------------------------------------------------------

WIDE = 1000  # units across the stretched part; there are two of them in a pixel of its height
DECADES = 100.0  # between the lowest and the highest value, from which on the scale is logarithmic
OUTLIER, KEPT = 3.0, 1.5  # times the 90th percentile: a higher value is cut off; and then the top of the axis
MARK = 14  # height of a mark at a compile
GUTTERS = (42, 60, 78, 120)  # pixels to the left of the field: few, so that charts stand below each other
_MOST = 1.7e308  # of a level
# Styles, not attributes: a live panel sends a class in the place of each.
_OUTER = "display:block;overflow:visible;width:100%;fill:currentColor;font:11px system-ui,sans-serif"
_STROKE = "fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round"
_RANGE = f"fill:{BLUE};fill-opacity:.18"
CURVES = (BLUE, AMBER, GREEN, VIOLET)  # of curves over each other
_FAINT = "opacity:.7;text-anchor:"


@dataclass(frozen=True)
class ChartSize:
    """`high`: pixels of the field; `points`: of a curve, at most; `levels`, `ticks`: about so many."""

    high: int
    points: int
    levels: int
    ticks: int


LARGE, SMALL = ChartSize(170, 200, 5, 5), ChartSize(80, 100, 2, 3)


@dataclass(frozen=True)
class _ChartPoint:
    x: float
    value: float
    low: float
    high: float


def line_chart(chart: Chart, compiled_at: Sequence[int] = (), size: ChartSize = LARGE) -> str:
    """The curve with the range behind it, and marks at compiles; "" for less than two points."""
    points = _points(chart, size)
    if not _drawable(points):
        return ""
    scale = _scale(points, chart.axis, size.levels)
    field = _ChartField(float(chart.points[0][0]), points[-1].x, scale, 2 * size.high)
    return _with_axes(field, _curve(field, points, chart, compiled_at), [chart], size)


def overlaid(charts: Sequence[Chart], size: ChartSize = LARGE) -> str:
    """Curves over each other, in the colours of CURVES; "" where none has two points."""
    curves = [_points(chart, size) for chart in charts]
    if not any(map(_drawable, curves)):
        return ""
    points = [point for curve in curves for point in curve]
    steps = [point.x for point in points]
    field = _ChartField(min(steps), max(steps), _scale(points, charts[0].axis, size.levels), 2 * size.high)
    lines = [_stroke(_line(field, curve), colour, 1.6) for curve, colour in zip(curves, cycle(CURVES), strict=False)]
    return _with_axes(field, _stretched(field, [_grid(field), *lines]), charts, size)


def _points(chart: Chart, size: ChartSize) -> list[_ChartPoint]:
    return list(_fewer([_ChartPoint(*map(float, each)) for each in chart.points], size.points))


def _drawable(points: Sequence[_ChartPoint]) -> bool:
    return sum(math.isfinite(point.value) for point in points) >= 2


def _with_axes(field: _ChartField, curves: str, charts: Sequence[Chart], size: ChartSize) -> str:
    """The drawing with the words of its axes around it."""
    scale, x = field.scale, charts[0].x
    labels = [scale.text(level) for level in scale.levels]
    widest = LETTER * max(map(len, [*labels, x])) + 10
    gutter = next((each for each in GUTTERS if each >= widest), GUTTERS[-1])
    label = "; ".join(f"{chart.title}: {chart.caption}" if chart.caption else chart.title for chart in charts)
    return (
        f'<div style="padding:6px 18px 0 {gutter}px"><svg role="img" aria-label="{say(label)}" '
        f'style="{_OUTER};height:{size.high + 20}px">{curves}'
        f"{_level_words(scale, labels, size.high)}{_tick_words(x, field, size)}</svg></div>"
    )


def _fewer(points: Sequence[_ChartPoint], most: int) -> Iterator[_ChartPoint]:
    """Fewer points: as many stretches as there is room for, each with its last finite value and its whole range."""
    count = min(len(points), most)
    for index in range(count):
        part = points[index * len(points) // count : (index + 1) * len(points) // count]
        last = next((each for each in reversed(part) if math.isfinite(each.value)), part[-1])
        ranges = [each for each in part if math.isfinite(each.low) and math.isfinite(each.high)]
        low, high = (min(each.low for each in ranges), max(each.high for each in ranges)) if ranges else (math.nan,) * 2
        yield _ChartPoint(last.x, last.value, low, high)


# -- scales ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChartScale:
    """From `low` to `high`. `levels`: its lines, in `unit`s of `factor`; `cut`: the highest value, where it is higher
    than the scale."""

    low: float
    high: float
    levels: tuple[float, ...]
    unit: str = ""
    factor: float = 1.0
    log: bool = False
    cut: float = 0.0

    def share(self, value: float) -> float:
        if self.log:
            return _share(math.log(max(value, self.low)), math.log(self.low), math.log(self.high))
        return _share(value, self.low, self.high)

    def text(self, value: float) -> str:
        return f"{value / self.factor:,.6g}{self.unit}"


_UNITS: dict[Axis, tuple[tuple[float, str], ...]] = {
    "number": ((1.0, ""),),
    "rate": ((1.0, "/s"),),
    "seconds": ((1e-6, " µs"), (1e-3, " ms"), (1.0, " s"), (60.0, " min")),
    "bytes": ((1.0, " B"), (2.0**10, " KiB"), (2.0**20, " MiB"), (2.0**30, " GiB"), (2.0**40, " TiB")),
}


def _scale(points: Sequence[_ChartPoint], axis: Axis, about: int) -> _ChartScale:
    known = [each for point in points for each in (point.low, point.high, point.value) if math.isfinite(each)]
    low, high = min(known), max(known)
    if axis == "number" and low > 0 and high / low >= DECADES:
        return _log_scale(low, high, about)
    top = min(high, _usual(points)) if axis == "seconds" else high
    largest = max(top, -low) * 0.9
    factor, unit = max((each for each in _UNITS[axis] if each[0] <= largest), default=_UNITS[axis][0])
    bottom = low if axis == "number" else min(0.0, low)
    scale = _linear(bottom / factor, top / factor, about)
    levels = tuple(max(-_MOST, min(level * factor, _MOST)) for level in scale)
    return _ChartScale(levels[0], levels[-1], levels, unit, factor, cut=high if high > levels[-1] else 0.0)


def _usual(points: Sequence[_ChartPoint]) -> float:
    """The top of a scale that a few outliers, such as steps that compiled, do not flatten."""
    values = sorted(point.value for point in points if math.isfinite(point.value))
    most = values[(len(values) - 1) * 9 // 10]
    return KEPT * most if most > 0 and values[-1] > OUTLIER * most else math.inf


def _linear(low: float, high: float, about: int) -> list[float]:
    """Nice levels around both; they are the ends of the scale. A single value has them to both sides."""
    step = nice_step(high / 2 - low / 2, about / 2)
    if low == high:
        below, above = sorted((low * 0.9, min(max(low * 1.1, -_MOST), _MOST)))
        return _linear(below, above, about) if below < above else [min(0.0, low), max(1.0, low)]
    if not 0 < step < math.inf or high + step == high:
        return [low, high]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [min(max(at * step, -_MOST), _MOST) for at in range(first, last + 1)]


def _log_scale(low: float, high: float, about: int) -> _ChartScale:
    """From a 1, 2 or 5 to another; lines at powers of ten, where there are enough of them."""
    ends = list(decades(low / 10, high * 10)) if low > 1e-300 and high < 1e300 else []
    bottom = max((tick for tick in ends if tick <= low), default=low)
    top = min((tick for tick in ends if tick >= high), default=high)
    levels = list(decades(bottom, top, (1,)))
    every = -(-len(levels) // (about + 1))
    return _ChartScale(bottom, top, tuple(levels[::every]), log=True)


# -- the curve -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChartField:
    first: float
    last: float
    scale: _ChartScale
    high: int

    def x(self, x: float) -> int:
        return round(_share(x, self.first, self.last) * WIDE)

    def y(self, value: float) -> int:
        return round((1 - self.scale.share(value)) * self.high)


def _curve(field: _ChartField, points: Sequence[_ChartPoint], chart: Chart, compiled_at: Sequence[int]) -> str:
    """What is stretched: lines of the grid, the range, the curve, marks."""
    parts = [_grid(field)]
    if area := _band(field, points):
        parts.append(f'<path d="{area}" style="{_RANGE}"/>')
    parts.append(_stroke(_line(field, points), BLUE, 1.6))
    broken = (point.x for point in points if not math.isfinite(point.value))
    parts.append(_marks(field, broken, f"0v{field.high}", RED, 1))
    above = (point.x for point in points if point.high > field.scale.high)
    parts.append(_marks(field, above, "0v9", "currentColor", 3))
    for steps, colour in ((compiled_at if chart.marked else (), "currentColor"), (chart.saved, GREEN)):
        inside = (step for step in steps if field.first <= step <= field.last)
        parts.append(_marks(field, inside, f"{field.high}v-{MARK}", colour, 2))
    return _stretched(field, parts)


def _grid(field: _ChartField) -> str:
    lines = "".join(f"M0 {field.y(level)}h{WIDE}" for level in field.scale.levels)
    return _stroke(lines, "currentColor;stroke-opacity:.14", 1)


def _line(field: _ChartField, points: Sequence[_ChartPoint]) -> str:
    """Broken where a value is no finite number."""
    runs = (list(run) for finite, run in groupby(points, lambda point: math.isfinite(point.value)) if finite)
    return "".join(_way([(field.x(point.x), field.y(point.value)) for point in run]) for run in runs)


def _stretched(field: _ChartField, parts: Iterable[str]) -> str:
    box = f'height="{field.high // 2}" viewBox="0 0 {WIDE} {field.high}" preserveAspectRatio="none"'
    return f'<svg width="100%" {box}>{"".join(parts)}</svg>'


def _stroke(d: str, colour: str, wide: float) -> str:
    return f'<path d="{d}" style="stroke:{colour};stroke-width:{wide};{_STROKE}"/>' if d else ""


def _marks(field: _ChartField, places: Iterable[float], line: str, colour: str, wide: float) -> str:
    """A line at each place; those that are nearly on one another are one."""
    across = sorted({field.x(x) // 5 * 5 for x in places})
    return _stroke("".join(f"M{x} {line}" for x in across), colour, wide)


def _band(field: _ChartField, points: Sequence[_ChartPoint]) -> str:
    """The range as an area; "" where there is none."""
    known = [point for point in points if math.isfinite(point.low) and math.isfinite(point.high)]
    tops = [(field.x(point.x), field.y(point.high)) for point in known]
    bottoms = [(field.x(point.x), field.y(point.low)) for point in known]
    return "" if tops == bottoms else _way([*tops, *reversed(bottoms)]) + "z"


def _way(places: Sequence[tuple[int, int]]) -> str:
    """A path through the places, short: each but the first is relative to the one before."""
    moves = " ".join(str(move) for (x, y), (to_x, to_y) in pairwise(places) for move in (to_x - x, to_y - y))
    (x, y), *_others = places
    return f"M{x} {y}l{moves.replace(' -', '-') or '0 0'}"


# -- words -----------------------------------------------------------------------------------------------------------


def _level_words(scale: _ChartScale, labels: Sequence[str], high: int) -> str:
    """Values of the lines; the highest of all where it is cut off."""
    levels = zip(scale.levels, labels, strict=True)
    places = ((round((1 - scale.share(level)) * high) + 4, text) for level, text in levels)
    words = [f'<text x="-7" y="{y}">{text}</text>' for y, text in places]
    if scale.cut:
        words.append(f'<text x="100%" y="-1">↑ {seconds(scale.cut)}</text>')
    return f'<g style="{_FAINT}end">{", ".join(words)}, </g>'


def _tick_words(name: str, field: _ChartField, size: ChartSize) -> str:
    """Steps below the curve; samples over time have none."""
    step = max(1.0, nice_step(field.last - field.first, size.ticks))
    if not name or field.last <= field.first:
        return ""
    at = range(math.ceil(field.first / step), math.floor(field.last / step) + 1)
    places = ((_share(number * step, field.first, field.last), number * step) for number in at)
    y = size.high + 16
    words = ", ".join(f'<text x="{100 * share:.4g}%" y="{y}">{tick:,.0f}</text>' for share, tick in places)
    first = f'<text x="-7" y="{y}" text-anchor="end">{say(name)}</text> '
    return f'<g style="{_FAINT}middle">{first}{words}</g>'
