"""Variants of a step side by side, and what `--advise` tried: tables, and a drawing of time against memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.drawing import Box, Field, PlotFrame, svg, word
from tpu_magics.panel.formats import NOT_AVAILABLE, percent, seconds, short
from tpu_magics.panel.html_parts import BLUE, GREY, RED, small, title
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.report import Preflight, TargetResult, TriedChange

COMPARED, ADVICE = "Variants", "What to change"
COMPARED_NOTE = (
    "The estimate is the TPU compiler's, with the bounds of what it does not estimate; it compares variants, and is no "
    "step time. The best has the least time for a sample of those that fit."
)
ADVICE_NOTE = (
    "Each change was tried: traced so, and compiled. Before and after are the compiler's estimate of the time for a "
    "sample, and the HBM that is needed. Nothing was measured on a TPU, and nothing says whether the training learns "
    "as well."
)
NOT_TRIED = "Nothing could be tried: {}."
NO_ADVICE = "No change that applies to this step gains {} % or more."


# -- variants ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A row of the table: a variant on a target."""

    label: str
    result: TargetResult | None
    error: str
    best: bool = False

    @property
    def needed(self) -> int | None:
        memory = self.result.worst.memory if self.result is not None else None
        return None if memory is None else memory.needed


def lines(found: Preflight) -> tuple[Line, ...]:
    """In the order of the variants; the best of each target is marked."""
    best = {id(one) for target in found.results for one in _best(found, target.name)}
    return tuple(
        Line(one.variant.label, result, one.error, id(result) in best)
        for one in found.compared
        for result in one.results or (None,)
    )


def _best(found: Preflight, target: str) -> Iterator[TargetResult]:
    every = [result for one in found.compared for result in one.results if result.name == target and result.fits]
    timed = [one for one in every if one.time_for_a_sample]
    if timed:
        yield min(timed, key=lambda one: one.time_for_a_sample or 0.0)


def compared_table(found: Preflight) -> Table:
    several = len(found.results) > 1
    sends = any(one.profile.sent for each in found.compared for one in each.results)
    columns = ("variant", *(("target",) if several else ()), "HBM", "at least", "estimate", "for a sample")
    rows = tuple(Row(tuple(_cells(one, several, sends))) for one in lines(found))
    return Table("", (*columns, *(("sent",) if sends else ()), ""), rows, (COMPARED_NOTE,))


def _cells(one: Line, several: bool, sends: bool) -> Iterator[str]:
    yield one.label
    result = one.result
    if result is None:
        yield from ((NOT_AVAILABLE,) if several else ())
        yield f"{NOT_AVAILABLE}: {short(one.error, 120)}"
        return
    yield from ((result.name,) if several else ())
    memory, least = result.worst.memory, result.least
    yield f"{words.STATES[result.status][0]} {words.used(memory)}" if memory else words.STATES[result.status][0]
    yield NOT_AVAILABLE if least is None else words.at_least(result.roofline, seconds(least))
    yield NOT_AVAILABLE if result.profile.seconds is None else seconds(result.profile.seconds)
    yield NOT_AVAILABLE if result.time_for_a_sample is None or not result.samples else seconds(result.time_for_a_sample)
    yield from ((words.traffic(result.profile.sent),) if sends else ())
    yield "best" if one.best else ""


# -- advice -----------------------------------------------------------------------------------------------------------


def advice_table(found: Preflight) -> Table:
    rows = tuple(Row(_advice(one)) for one in found.advice.tried if one.worth)
    tried = [one for one in found.advice.tried if not one.worth]
    notes = (f"Tried, and not worth it: {'; '.join(map(_tried, tried))}.",) if tried else ()
    missing = found.advice.missing
    none = () if rows else (NOT_TRIED.format(missing) if missing else NO_ADVICE.format(3),)
    heads = ("change", "time for a sample", "HBM", "what to write", "line")
    return Table("", heads if rows else None, rows, (*none, *notes, *((ADVICE_NOTE,) if rows else ())))


def _advice(one: TriedChange) -> tuple[str, ...]:
    return one.what, _time(one), _memory(one), one.todo, words.place_and_code(one.place)


def _time(one: TriedChange) -> str:
    before, after = one.before.time_for_a_sample, one.after.time_for_a_sample if one.after is not None else None
    if before is None or after is None or one.time_gain is None:
        return NOT_AVAILABLE
    return f"{seconds(before)} → {seconds(after)}\n{_change(-one.time_gain)}"


def _memory(one: TriedChange) -> str:
    before, after = one.before.worst.memory, one.after.worst.memory if one.after is not None else None
    if before is None or after is None or one.memory_gain is None:
        return NOT_AVAILABLE
    fits = "\nfits now" if one.after is not None and one.after.fits and not one.before.fits else ""
    return f"{words.needed(before)} → {words.needed(after)}\n{_change(-one.memory_gain)}{fits}"


def _change(share: float) -> str:
    text, sign = percent(abs(share)), "+" if share > 0 else "-" if share < 0 else ""
    return f"{sign}{text}" if text[0].isdigit() else text  # "less than 1 %"


def _tried(one: TriedChange) -> str:
    if one.after is None:
        return f"{one.what} ({short(one.error, 110)})"
    return f"{one.what} ({_change(-one.time_gain) if one.time_gain is not None else NOT_AVAILABLE})"


# -- plain text and HTML ----------------------------------------------------------------------------------------------


def compare_text(found: Preflight, width: int) -> Iterator[str]:
    for name, made in _tables(found):
        yield plain.to_text(Table(name, made.columns, made.rows, made.notes), width)


def _tables(found: Preflight) -> Iterator[tuple[str, Table]]:
    if found.compared:
        yield COMPARED, compared_table(found)
    if found.advice.asked:
        whose = f" for {found.results[0].name}" if len(found.results) > 1 else ""
        yield f"{ADVICE}{whose}", advice_table(found)


def compare_html(found: Preflight) -> str:
    parts = []
    for name, made in _tables(found):
        drawing = plot(lines(found)) if name == COMPARED else ""
        shown = f'<div style="flex:0 1 30em">{drawing}<div>{small(LEGEND)}</div></div>' if drawing else ""
        inside = f'<div style="flex:1 1 30em">{plain.to_html(made)}</div>{shown}'
        parts.append(f'{title(name)}<div style="display:flex;flex-wrap:wrap;gap:.8em 2em">{inside}</div>')
    return "".join(parts)


# -- time against memory ----------------------------------------------------------------------------------------------

WIDE, HIGH = 460, 280
FRAME = PlotFrame(WIDE, HIGH, left=58, right=24, top=30, bottom=44)
LEGEND = "Dots fit, crosses do not. On the line: no other variant needs less of both."
_GIB, _MIB = 2**30, 2**20


def plot(found: Sequence[Line]) -> str:
    """Each variant by its memory and its time for a sample, with the line of those that no other one beats."""
    marks = [
        (float(one.needed), one.result.time_for_a_sample, one)
        for one in found
        if one.result is not None and one.needed and one.result.time_for_a_sample
    ]
    if len(marks) < 2:
        return ""
    unit, size = ("GiB", _GIB) if max(x for x, _, _ in marks) >= _GIB else ("MiB", _MIB)
    marks = [(x / size, y, one) for x, y, one in marks]
    most, top = max(x for x, _, _ in marks) * 1.15, max(y for _, y, _ in marks) * 1.15
    at = [(FRAME.left + FRAME.across * x / most, FRAME.y(y / top), one) for x, y, one in marks]
    parts = [FRAME.level(share, seconds(share * top)) for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [FRAME.tick(FRAME.left + FRAME.across * share, f"{share * most:.3g}") for share in (0, 0.25, 0.5, 0.75, 1)]
    front = sorted(_front([(x, y) for x, y, one in at if one.result is not None and one.result.fits]))
    if len(front) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in front)
        parts.append(f'<path d="M{path}" fill="none" stroke="{GREY}" stroke-dasharray="4 3"/>')
    field = Field(FRAME.left, WIDE - 16, 2, FRAME.ground, [Box(x - 6, y - 7, 12) for x, y, _ in at])
    parts += [_mark(x, y, one, field) for x, y, one in at]
    parts += FRAME.captions(f"HBM of a device, {unit}", "time for a sample (estimate)")
    return svg(parts, "time for a sample against memory", WIDE, HIGH)


def _front(marks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both; on the drawing less time is lower, with a larger y."""

    def beats(other: tuple[float, float], one: tuple[float, float]) -> bool:
        return other != one and other[0] <= one[0] and other[1] >= one[1]

    return [one for one in marks if not any(beats(other, one) for other in marks)]


def _mark(x: float, y: float, one: Line, field: Field) -> str:
    text = short(one.label, 30)
    box, _ = field.put(text, x, y, bold=True)
    label = word(text, box.x, box.y + 11, "start", ' font-weight="600"' if one.best else "")
    if one.result is None or not one.result.fits:
        cross = f'd="M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7" fill="none" stroke="{RED}" stroke-width="2"'
        return f"<path {cross}/>{label}"
    where = f'cx="{x:.1f}" cy="{y:.1f}"'
    ring = f'<circle {where} r="8" fill="none" stroke="{BLUE}" stroke-width="2"/>' if one.best else ""
    return f'<circle {where} r="4.5" fill="{BLUE}"/>{ring}{label}'
