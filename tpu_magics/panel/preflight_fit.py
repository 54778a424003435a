"""The largest size that fits, as tables and a drawing."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.preflight_plot import Mark, PlotLine, plot
from tpu_magics.panel.sections_words import NOT_AVAILABLE, count, not_available, short, small, title
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.compile_result import HbmUsage
from tpu_magics.preflight.report import Preflight
from tpu_magics.preflight.search import NICE as TILE
from tpu_magics.preflight.search import FitPoint, FitResult

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
    """The same without the drawing."""
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
    yield not_available(words.ONE_REPLICA) if every is None else f"{every:,} on {count(result.chips, 'chip')}"


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
        f"Tried: {count(len(points), 'compile')}{took}", (_name(found), *(_head(one) for one in found.fit)), rows
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
