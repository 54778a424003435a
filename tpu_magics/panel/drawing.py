"""Inline SVG: its frame and words, and where to put the names of dots so that they cover nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tpu_magics.panel.sections_words import say

LINE = 14  # height of a name
_LETTER, _BOLD = 6.4, 7.2  # their widths
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
    """A text, and a hidden comma behind it: where a front end removes the drawing, its words read as a list."""
    shown = f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{say(text)}</text>'
    return f'{shown}<text visibility="hidden">, </text>'


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
        wide, gap = len(name) * (_BOLD if bold else _LETTER), _RING if bold else _GAP
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
