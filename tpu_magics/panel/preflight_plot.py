"""The drawing of a search as inline SVG: HBM against the tried size.

It uses the colour of the surrounding text. Hidden commas between its words make a readable list where a front end
removes the drawing and leaves the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.panel.drawing import Box, Field, svg, word
from tpu_magics.panel.sections_words import AMBER, BLUE, GREEN, RED, VIOLET

WIDE, HIGH = 560, 310
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 34, 44  # around the field of a drawing
COLOURS = (BLUE, VIOLET, GREEN, AMBER)
ABOVE = 1.5  # times the highest limit: the top of the axis; what needs more is drawn at the top
BEYOND = 1.6  # times the largest that fits anywhere: the end of the axis; what lies further is left out
_LETTER = 6.4  # its width
_GIB = 2**30


@dataclass(frozen=True)
class Mark:
    """One try: `needed` GiB, `fits` or not, `chosen`: the largest that does."""

    size: int
    needed: float
    fits: bool
    chosen: bool = False


@dataclass(frozen=True)
class PlotLine:
    """The tries of one target, and its limit in GiB."""

    name: str
    limit: float
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class _Scale:
    most: float
    top: float

    def x(self, size: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * size / self.most

    def y(self, gib: float) -> float:
        return HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * min(gib, self.top) / self.top


def plot(lines: Sequence[PlotLine], across: str, up: str) -> str:
    """The tries of each target as dots on a line, limits dashed. "" where nothing was measured."""
    shown = [line for line in lines if line.marks and line.limit > 0]
    if not shown:
        return ""
    scale = _scale(shown)
    drawn = [_within(line, scale) for line in shown]
    parts = [*_levels(scale), *_sizes(scale)]
    for index, line in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        parts += [_limit(line, scale, colour), _path(line, scale, colour)]
        order = sorted(line.marks, key=lambda mark: mark.fits)
        parts += [_dot(mark, scale, colour, round_=index % 2 == 0) for mark in order]
    parts += [*_names(drawn, scale), word(up, LEFT, 14, "start", ' opacity="0.8"')]
    parts.append(word(across, WIDE - RIGHT, HIGH - 6, "end", ' opacity="0.8"'))
    return svg(parts, f"{up} against {across}", WIDE, HIGH)


def _scale(lines: Sequence[PlotLine]) -> _Scale:
    limit = max(line.limit for line in lines)
    highest = max(mark.needed for line in lines for mark in line.marks)
    sizes = [mark.size for line in lines for mark in line.marks]
    fits = max((mark.size for line in lines for mark in line.marks if mark.fits), default=min(sizes))
    return _Scale(min(max(sizes), BEYOND * fits) * 1.04, min(max(highest, limit) * 1.08, ABOVE * limit))


def _within(line: PlotLine, scale: _Scale) -> PlotLine:
    return PlotLine(line.name, line.limit, tuple(mark for mark in line.marks if mark.size <= scale.most))


# -- axes ------------------------------------------------------------------------------------------------------------


def _levels(scale: _Scale) -> Iterator[str]:
    for gib in _ticks(scale.top, 6):
        y = scale.y(gib)
        opacity = 0.12 if gib else 0.5
        yield f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="currentColor" stroke-opacity="{opacity}"/>'
        yield word(f"{gib:g}", LEFT - 6, y + 4, "end")


def _sizes(scale: _Scale) -> Iterator[str]:
    for size in _ticks(scale.most, 10):
        x = scale.x(size)
        yield f'<path d="M{x:.1f} {HIGH - BOTTOM}v4" stroke="currentColor" stroke-opacity="0.5"/>'
        yield word(f"{size:,.0f}" if size == int(size) else f"{size:g}", x, HIGH - BOTTOM + 17, "middle")


def _ticks(top: float, about: int) -> list[float]:
    """0 and nice steps up to the top; batches and GiB go in powers of two."""
    step = 2.0 ** math.ceil(math.log2(top / about))
    return [step * index for index in range(int(top / step) + 1)]


def _limit(line: PlotLine, scale: _Scale, colour: str) -> str:
    y = scale.y(line.limit)
    return f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="6 4"/>'


# -- tries -----------------------------------------------------------------------------------------------------------


def _path(line: PlotLine, scale: _Scale, colour: str) -> str:
    """Through all that are not cut off at the top."""
    inside = sorted((mark for mark in line.marks if mark.needed <= scale.top), key=lambda mark: mark.size)
    places = "L".join(f"{scale.x(mark.size):.1f} {scale.y(mark.needed):.1f}" for mark in inside)
    return f'<path d="M{places}" fill="none" stroke="{colour}" stroke-opacity="0.7"/>' if len(inside) > 1 else ""


def _dot(mark: Mark, scale: _Scale, colour: str, round_: bool) -> str:
    """A disc or a square fits, a cross does not, a triangle needs more than is drawn; the chosen one has a ring."""
    x, y = scale.x(mark.size), scale.y(mark.needed)
    if mark.needed > scale.top:
        return f'<path d="M{x:.1f} {y - 6:.1f}l5 9h-10z" fill="{RED}"/>'
    if not mark.fits:
        return f'<path d="M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7" fill="none" stroke="{RED}" stroke-width="2"/>'
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8.5" fill="none" stroke="{colour}" stroke-width="2"/>'
    disc = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    square = f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
    return f"{disc if round_ else square}{ring if mark.chosen else ''}"


def _names(lines: Sequence[PlotLine], scale: _Scale) -> Iterator[str]:
    """Limits by their targets, the chosen sizes, and what is above the drawing."""
    dots = [Box(scale.x(mark.size) - 6, scale.y(mark.needed) - 7, 12) for line in lines for mark in line.marks]
    field = Field(LEFT, WIDE, 2, HIGH - BOTTOM, dots)
    for line in lines:
        text, y = f"{line.name}: {line.limit:.4g} GiB", scale.y(line.limit)
        field.taken.append(Box(LEFT, y - 17, len(text) * _LETTER, 18))
        yield word(text, LEFT + 4, y - 5, "start")
    for line in lines:
        for mark in sorted(line.marks, key=lambda mark: not mark.chosen):
            above = mark.needed > scale.top
            if mark.chosen or above:
                text = f"{mark.needed:.3g} GiB" if above else f"{mark.size:,}"
                box, _leader = field.put(text, scale.x(mark.size), scale.y(mark.needed), bold=mark.chosen)
                yield word(text, box.x, box.y + 11, "start", ' font-weight="600"' if mark.chosen else "")
