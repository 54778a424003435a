"""The largest size that fits, as tables and a drawing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.errors import plural
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.drawing import LETTER, Box, Field, PlotFrame, svg, word
from tpu_magics.panel.formats import NOT_AVAILABLE, not_available, short
from tpu_magics.panel.html_parts import AMBER, BLUE, GREEN, RED, VIOLET, small, title
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.compile_result import HbmUsage
from tpu_magics.preflight.fit import NICE as TILE
from tpu_magics.preflight.fit import FitPoint, FitResult
from tpu_magics.preflight.report import Preflight

NICE = f"largest multiple of {TILE}"
ON_EACH = f"{NICE} on each device"
LEGEND = "Dots and squares fit, crosses do not, triangles are above the drawn range; dashed: the limit."
_GIB = 2**30


def fit_html(found: Preflight) -> str:
    """The answer, the drawing, and all that was tried."""
    if not found.fit:
        return ""
    drawing = plot([_line(one) for one in found.fit], _name(found), "HBM of a device, GiB")
    shown = f'<div style="flex:1 1 24em;max-width:500px">{drawing}<div>{small(LEGEND)}</div></div>' if drawing else ""
    listed = f'<div style="flex:1 1 22em">{plain.to_html(tries(found))}</div>'
    return (
        f"{title(_heading(found))}{plain.to_html(_answer(found))}"
        f'<div style="display:flex;flex-wrap:wrap;gap:.8em 2em;margin:.8em 0">{shown}{listed}</div>'
    )


def fit_text(found: Preflight, width: int, no_times: bool = False) -> Iterator[str]:
    """The result of the search in words, without the drawing."""
    if found.fit:
        answer = _answer(found)
        yield plain.to_text(Table(_heading(found), answer.columns, answer.rows, answer.notes), width)
        yield plain.to_text(tries(found, no_times), width)


def sizes_text(found: Preflight) -> str:
    """The sizes that memory, cost and verdict are of: "batch = 104", "batch = 104 (v5litepod-8), 224 (v6e-8)". "" where
    none was searched."""
    of = {one.target: f"{size:,}" for one in found.fit if (size := _shown(one)) is not None}
    if not of:
        return ""
    same = len(set(of.values())) == 1 and len(of) == len(found.fit)
    told = next(iter(of.values())) if same else ", ".join(f"{size} ({target})" for target, size in of.items())
    return f"{_name(found)} = {told}"


def _shown(one: FitResult) -> int | None:
    """The size to take, or where none fits the one that the search started from."""
    return one.best if one.best is not None else one.points[0].size if one.points else None


def _name(found: Preflight) -> str:
    return short(found.fit[0].name, 40)


def _heading(found: Preflight) -> str:
    cut = " (search interrupted)" if any(one.interrupted for one in found.fit) else ""
    return f"The largest {_name(found)} that fits{cut}"


# -- the answer ------------------------------------------------------------------------------------------------------


def _answer(found: Preflight) -> Table:
    nice = ON_EACH if any(one.devices > 1 for one in found.fit) else NICE
    columns = ("target", "largest", nice, "per chip", "in total")
    notes = tuple(dict.fromkeys(_note(found, one, note) for one in found.fit for note in one.notes))
    rows = tuple(Row(tuple(_answers(found, one))) for one in found.fit)
    return Table("", columns, rows, (*notes, *_whose(found)))


def _whose(found: Preflight) -> Iterator[str]:
    """One size stands for all that were compiled, in everything but the search."""
    if sizes := sizes_text(found):
        yield f"Memory, cost and verdict are for {sizes}."


def _note(found: Preflight, one: FitResult, note: str) -> str:
    return note if len(found.fit) == 1 else f"{one.target}: {note}"


def _answers(found: Preflight, one: FitResult) -> Iterator[str]:
    yield one.target
    yield _largest(one)
    yield _told(one.nice, one)
    if one.best is None:
        return
    result = found.target(one.target)
    every, each = result.everywhere(one.best), result.on_chip(one.best)
    yield f"{each:,.0f}" if each == int(each) else f"{each:,.1f}"
    yield not_available(words.ONE_REPLICA) if every is None else f"{every:,} on {plural(result.chips, 'chip')}"


def _largest(one: FitResult) -> str:
    """Where it was settled to a tolerance, the sizes that it lies between."""
    if one.largest is None or one.beyond is None or one.exact or one.interrupted:
        return _told(one.largest, one)
    return f"{one.largest:,} to {one.beyond - 1:,}"


def _told(size: int | None, one: FitResult) -> str:
    """An interrupted search knows what fits, and not what else does."""
    if size is None:
        return NOT_AVAILABLE
    return f"at least {size:,}" if one.interrupted else f"{size:,}"


# -- all that was tried ----------------------------------------------------------------------------------------------


def tries(found: Preflight, no_times: bool = False) -> Table:
    """A row for each size, a column for each target."""
    sizes = sorted({point.size for one in found.fit for point in one.points})
    rows = tuple(Row((f"{size:,}", *(_cell(one, size) for one in found.fit))) for size in sizes)
    points = [point for one in found.fit for point in one.points]
    took = "" if no_times else f", {words.took(sum(point.seconds or 0.0 for point in points))}"
    return Table(
        f"Tried: {plural(len(points), 'compile')}{took}", (_name(found), *(_head(one) for one in found.fit)), rows
    )


def _head(one: FitResult) -> str:
    limit = next((point.available for point in one.points if point.available), None)
    return f"{one.target}, {words.limit(limit)}" if limit else one.target


def _cell(one: FitResult, size: int) -> str:
    point = next((point for point in one.points if point.size == size), None)
    if point is None:
        return words.NOTHING
    known = "" if one.exact else " known to fit"
    marks = [
        f"{mark}{known}"
        for mark, value in (("largest", one.largest), (ON_EACH if one.devices > 1 else NICE, one.nice))
        if value == size
    ]
    error = [short(point.error, 160)] if point.error and point.status not in ("fits", "too-large") else []
    return "\n".join((f"{words.STATES[point.status][0]}{_memory(point)}", *marks, *error))


def _memory(point: FitPoint) -> str:
    if point.needed is None:
        return ""
    memory = HbmUsage(point.needed, point.available)
    text = words.needed(memory)
    at_limit = memory.available and text == words.limit(memory.available)
    return f": {text}, {words.headroom(memory)}" if at_limit else f": {text}"


def _line(one: FitResult) -> PlotLine:
    """The numbers of a target's drawing: none where HBM was told for no size."""
    known = [point for point in one.points if point.needed is not None and point.available]
    limit = max((point.available or 0 for point in known), default=0) / _GIB
    marks = (
        Mark(point.size, (point.needed or 0) / _GIB, point.status == "fits", point.size == one.best) for point in known
    )
    return PlotLine(one.target, limit, tuple(sorted(marks, key=lambda mark: mark.size)))


# -- the plot -------------------------------------------------------------------------------------------------------


WIDE, HIGH = 560, 310
FRAME = PlotFrame(WIDE, HIGH, left=46, right=16, top=34, bottom=44)
COLOURS = (BLUE, VIOLET, GREEN, AMBER)
ABOVE = 1.5  # times the highest limit: the top of the axis; what needs more is drawn at the top
BEYOND = 1.6  # times the largest that fits anywhere: the end of the axis; what lies further is left out


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
        return FRAME.left + FRAME.across * size / self.most

    def y(self, gib: float) -> float:
        return FRAME.y(min(gib, self.top) / self.top)


def plot(lines: Sequence[PlotLine], across: str, up: str) -> str:
    """The tries of each target as dots on a line, limits dashed. "" where nothing was measured."""
    shown = [line for line in lines if line.marks and line.limit > 0]
    if not shown:
        return ""
    scale = _scale(shown)
    drawn = [_within(line, scale) for line in shown]
    parts = [FRAME.level(gib / scale.top, f"{gib:g}") for gib in _ticks(scale.top, 6)]
    sizes = ((size, f"{size:,.0f}" if size == int(size) else f"{size:g}") for size in _ticks(scale.most, 10))
    parts += [FRAME.tick(scale.x(size), text) for size, text in sizes]
    for index, line in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        parts += [_limit(line, scale, colour), _path(line, scale, colour)]
        order = sorted(line.marks, key=lambda mark: mark.fits)
        parts += [_dot(mark, scale, colour, round_=index % 2 == 0) for mark in order]
    parts += [*_names(drawn, scale), *FRAME.captions(across, up)]
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


def _ticks(top: float, about: int) -> list[float]:
    """0 and nice steps up to the top; batches and GiB go in powers of two."""
    step = 2.0 ** math.ceil(math.log2(top / about))
    return [step * index for index in range(int(top / step) + 1)]


def _limit(line: PlotLine, scale: _Scale, colour: str) -> str:
    across = f"M{FRAME.left} {scale.y(line.limit):.1f}H{WIDE - FRAME.right}"
    return f'<path d="{across}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="6 4"/>'


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
    field = Field(FRAME.left, WIDE, 2, FRAME.ground, dots)
    for line in lines:
        text, y = f"{line.name}: {line.limit:.4g} GiB", scale.y(line.limit)
        field.taken.append(Box(FRAME.left, y - 17, len(text) * LETTER, 18))
        yield word(text, FRAME.left + 4, y - 5, "start")
    for line in lines:
        for mark in sorted(line.marks, key=lambda mark: not mark.chosen):
            above = mark.needed > scale.top
            if mark.chosen or above:
                text = f"{mark.needed:.3g} GiB" if above else f"{mark.size:,}"
                box, _leader = field.put(text, scale.x(mark.size), scale.y(mark.needed), bold=mark.chosen)
                yield word(text, box.x, box.y + 11, "start", ' font-weight="600"' if mark.chosen else "")
