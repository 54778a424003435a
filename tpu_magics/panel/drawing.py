"""Inline SVG: its frame and words, axes with their ticks, and where to put the names of dots so that they cover
nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tpu_magics.panel.html_parts import say

LINE = 14  # height of a name
LETTER = 6.4  # width of a letter
_BOLD = 7.2
_GAP, _RING = 8, 13  # between a dot and its name; the chosen dot, whose name is bold, has a ring
_LIFTS = 8  # lines that a name may stand off its dot


def svg(parts: Sequence[str], label: str, wide: int, high: int) -> str:
    """A drawing in the colour of the text around it."""
    return (
        f'<svg viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img" aria-label="{say(label)}" '
        'fill="currentColor" font-family="system-ui,sans-serif" font-size="12" '
        f'style="max-width:100%;height:auto;color:inherit">{"".join(parts)}</svg>'
    )


def word(text: str, x: float, y: float, anchor: str, more: str = "") -> str:
    """A text, and a comma behind it that no browser draws: where a front end removes the drawing, its words read as a
    list."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{say(text)}</text>, '


def path(d: str, opacity: float, more: str = "") -> str:
    return f'<path d="{d}" stroke="currentColor" stroke-opacity="{opacity}"{more}/>'


# -- axes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlotFrame:
    """The size of a drawing, and the room around its field."""

    wide: int
    high: int
    left: int
    right: int
    top: int
    bottom: int

    @property
    def across(self) -> int:
        return self.wide - self.left - self.right

    @property
    def up(self) -> int:
        return self.high - self.top - self.bottom

    @property
    def ground(self) -> int:
        """Where the field ends."""
        return self.high - self.bottom

    def y(self, share: float) -> float:
        return self.ground - self.up * share

    def level(self, share: float, text: str = "") -> str:
        """A line across, and its value; the lowest one is the axis."""
        line = path(f"M{self.left} {self.y(share):.1f}H{self.wide - self.right}", 0.15 if share else 0.5)
        return line + (word(text, self.left - 6, self.y(share) + 4, "end") if text else "")

    def tick(self, x: float, text: str, mark: bool = True) -> str:
        """A value below the axis."""
        return (path(f"M{x:.1f} {self.ground}v4", 0.5) if mark else "") + word(text, x, self.ground + 17, "middle")

    def captions(self, across: str, up: str) -> Iterator[str]:
        """What the axes are."""
        yield word(up, self.left, self.top / 2, "start", ' opacity="0.8"')
        yield word(across, self.wide - self.right, self.high - 7, "end", ' opacity="0.8"')


def nice_step(span: float, about: float) -> float:
    """The step that divides a span into about so many; 0 where there is none."""
    raw = span / about
    if not 0 < raw < math.inf:
        return 0.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)


def decades(low: float, high: float, factors: Sequence[int] = (1, 2, 5)) -> Iterator[float]:
    """1, 2, 5, 10, 20, 50 ... from `low`, which is positive, to `high`."""
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (tick for factor in factors if low <= (tick := float(f"{factor}e{power}")) <= high)


# -- names -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A piece of a drawing: `x`, `y` is its upper left corner."""

    x: float
    y: float
    wide: float
    high: float = LINE

    def meets(self, other: Box) -> bool:
        apart = self.x + self.wide < other.x or other.x + other.wide < self.x
        return not (apart or self.y + self.high <= other.y or other.y + other.high <= self.y)


@dataclass
class Field:
    """The part of a drawing that names may stand in. `taken`: by dots and names; `lines`: from dots to their names."""

    left: float
    right: float
    top: float
    bottom: float
    taken: list[Box]
    lines: list[Box] = field(default_factory=list)

    def put(self, name: str, x: float, y: float, bold: bool) -> tuple[Box, tuple[float, float] | None]:
        """A place for the name of the dot at `x`, `y`; and where a line from the dot to it ends, None where it stands
        right beside it."""
        wide, gap = len(name) * (_BOLD if bold else LETTER), _RING if bold else _GAP
        dot = Box(x - 5, y - LINE / 2, 10)
        others = [box for box in self.taken if box != dot]
        box = self._free(wide, gap, x, y, others)
        beside = abs(box.y + LINE / 2 - y) < 1
        self.taken.append(box)
        self.lines += [] if beside else [_leader(box, x, y)]
        return box, None if beside else _end(box, x, y)

    def _free(self, wide: float, gap: float, x: float, y: float, others: list[Box]) -> Box:
        """The nearest place that is free, with a line to it that crosses nothing; else free; else on others."""
        free = [box for box in _around(wide, gap, x, y) if self._holds(box) and not _meets_any(box, others)]
        clear = (
            box
            for box in free
            if not _meets_any(box, self.lines) and not _meets_any(_leader(box, x, y), [*others, *self.lines])
        )
        crowded = Box(max(0, min(x + gap, self.right - wide)), y - LINE / 2, wide)
        return next(clear, free[0] if free else crowded)

    def _holds(self, box: Box) -> bool:
        across = self.left <= box.x and box.x + box.wide <= self.right
        return across and self.top <= box.y and box.y + box.high <= self.bottom


def _around(wide: float, gap: float, x: float, y: float) -> Iterator[Box]:
    """Right, left, above and below of a dot, then further off."""
    for lift in range(0, _LIFTS * LINE, LINE):
        up, down, middle = y - LINE / 2 - lift, y - LINE / 2 + lift, x - wide / 2
        places = [(x + gap, up), (x - gap - wide, up), (x + gap, down)]
        places += [(middle, up - LINE - 1), (middle, down + LINE + 2), (x - gap - wide, down)]
        yield from (Box(*place, wide) for place in places)


def _meets_any(box: Box, others: list[Box]) -> bool:
    return any(box.meets(other) for other in others)


def _end(box: Box, x: float, y: float) -> tuple[float, float]:
    """The nearest point of a name's edge."""
    return min(max(x, box.x), box.x + box.wide), box.y + (box.high if box.y < y else 0)


def _leader(box: Box, x: float, y: float) -> Box:
    """The room of the line from a dot to its name."""
    to_x, to_y = _end(box, x, y)
    return Box(min(x, to_x), min(y, to_y), abs(to_x - x), abs(to_y - y))
