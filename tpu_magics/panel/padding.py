"""The advice of `%tpu_pad` as HTML with its drawings, and as plain text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpu_magics.errors import plural
from tpu_magics.padding.report import PaddingReport
from tpu_magics.padding.strategies import PaddingStrategy
from tpu_magics.panel import table as plain
from tpu_magics.panel.drawing import LETTER, Box, Field, PlotFrame, decades, path, svg, word
from tpu_magics.panel.formats import NOT_AVAILABLE, percent, seconds, short
from tpu_magics.panel.html_parts import BLUE, GREY, say
from tpu_magics.panel.table import Row, Table

CHOICE = "✓"
SHAPES, PADDED = "distinct shapes (= compiles)", "padded tokens"
PREDICTED, COMPILES = "predicted seconds", "compile time"
_LISTED = 8  # lengths that are listed one by one
_CODE = (
    "margin:.3em 0 .8em 0;padding:.4em .6em;color:inherit;background:none;border:1px solid currentColor;"
    "border-radius:.3em;white-space:pre-wrap;overflow-wrap:anywhere"
)
_DRAWINGS = "display:flex;flex-wrap:wrap;gap:1em;margin:.6em 0"
_NOTE = "margin:.3em 0 0 0;opacity:.8"
_OUTER = "color:inherit;max-width:70em;line-height:1.45;overflow-wrap:break-word"


def to_text(report: PaddingReport) -> str:
    """At most 100 columns wide, but for the line of code, which stays one line."""
    choice = plain.to_text(Table("", None, (), (choice_text(report),)))
    return "\n".join([plain.to_text(_table(report)), "", choice, "", f"    {report.choice.code}", "", _below(report)])


def _below(report: PaddingReport) -> str:
    return plain.to_text(Table("", None, (), tuple(notes(report))))


def to_html(report: PaddingReport) -> str:
    """One `<div>`: table, choice, code, drawings, notes."""
    parts = [
        plain.to_html(_table(report)),
        f'<p style="margin:.8em 0 0 0">{say(choice_text(report))}</p>',
        f'<pre style="{_CODE}">{say(report.choice.code)}</pre>',
        _drawings(report),
        *(f'<p style="{_NOTE}">{say(note)}</p>' for note in notes(report)),
    ]
    return f'<div class="tpu-magics-padding" style="{_OUTER}">{"".join(parts)}</div>'


# -- words ---------------------------------------------------------------------------------------------------------


def choice_text(report: PaddingReport) -> str:
    """E.g. "Choice: best 4 buckets (4 shapes, 17 % padded tokens), because ...: "."""
    chosen = report.choice
    shapes = plural(chosen.shapes, "shape")
    return f"Choice: {chosen.name} ({shapes}, {percent(chosen.padded)} padded tokens): {report.because}. Code:"


def notes(report: PaddingReport) -> Iterator[str]:
    yield from report.notes
    reasons: dict[str, list[str]] = {}
    for way in report.ways:
        if way.barred:
            reasons.setdefault(way.barred, []).append(way.name)
    for reason, names in reasons.items():
        yield f"Excluded: {', '.join(names)} ({reason})."


def _table(report: PaddingReport) -> Table:
    clocks = _seconds_columns(report)
    rows = tuple(
        Row((*_cells(way, way is report.choice), *(cell(way) for cell in clocks.values()), _lengths(way.lengths)))
        for way in report.ways
    )
    return Table(_title(report), ("choice", "padding", "shapes", PADDED, *clocks, "padded to"), rows)


def _title(report: PaddingReport) -> str:
    samples, lengths = sum(report.counts.values()), sorted(report.counts)
    many = plural(samples, "sample")
    tokens = f"{lengths[0]:,} to {lengths[-1]:,} tokens" if len(lengths) > 1 else f"{lengths[0]:,} tokens each"
    different = f", {len(lengths):,} different lengths" if len(lengths) > 1 else ""
    return f"Padding of {short(report.what, 60)}: {many}, {tokens}{different}"


def _cells(way: PaddingStrategy, chosen: bool) -> Iterator[str]:
    yield CHOICE if chosen else ""
    yield way.name
    yield f"{way.shapes:,}"
    yield percent(way.padded)


def _seconds_columns(report: PaddingReport) -> dict[str, Callable[[PaddingStrategy], str]]:
    """The columns of seconds: of what is known. None in a text that is the same in every run."""
    one, token = report.seconds.compile, report.seconds.token
    if one is None and token is None:
        return {PREDICTED: lambda way: _clock(way.seconds)} if report.seconds.compile_text else {}
    if one is None:
        return {"predicted step seconds": lambda way: _clock(way.training)}
    if token is None:
        return {"predicted compile seconds": lambda way: _clock(way.compiling)}
    return {PREDICTED: lambda way: _clock(way.seconds), COMPILES: lambda way: _clock(way.compiling)}


def _clock(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else seconds(value)


def _lengths(lengths: Sequence[int]) -> str:
    if len(lengths) <= _LISTED:
        return ", ".join(map(str, lengths))
    return f"{len(lengths):,} lengths, {lengths[0]} to {lengths[-1]}"


def _drawings(report: PaddingReport) -> str:
    """Nothing where all samples have one length: then all choices are the same."""
    if len(report.counts) < 2:
        return ""
    lengths = histogram(report.counts, report.choice.lengths, "tokens of a sample", "samples")
    return f'<div style="{_DRAWINGS}">{_scatter(report)}{lengths}</div>'


def _scatter(report: PaddingReport) -> str:
    dots = [
        Dot(way.name, way.shapes, way.padded, "chosen" if way is report.choice else "barred" if way.barred else "")
        for way in report.ways
    ]
    return scatter(dots, SHAPES, PADDED)


# -- the drawings ---------------------------------------------------------------------------------------------------


WIDE, HIGH = 440, 290
FRAME = PlotFrame(WIDE, HIGH, left=46, right=14, top=32, bottom=44)
INSET = 14  # of dots and bars
BINS = 56
SKEWED = 8  # times the median: where the longest is more, lengths are drawn by their logarithm


@dataclass(frozen=True)
class Dot:
    """One way of padding: `across` distinct shapes, `up` 0 to 1. `state`: "chosen", "barred" or ""."""

    name: str
    across: int
    up: float
    state: str = ""


# -- padded tokens against shapes ----------------------------------------------------------------------------------


def scatter(dots: Sequence[Dot], across: str, up: str) -> str:
    """A dot for each way, by its name; shapes by their logarithm. `across` and `up`: what the axes are."""
    most = max(max(dot.across for dot in dots), 2)
    top = _ceiling(max(dot.up for dot in dots))
    merged = list(_merged(dots))
    places = [(_log_x(dot.across, most), FRAME.y(dot.up / top)) for dot in merged]
    levels = (FRAME.level(quarter / 4, f"{100 * top * quarter / 4:g} %") for quarter in range(5))
    parts = [*levels, *_counts(most), *FRAME.captions(across, up)]
    parts += [_dot(dot, *place) for dot, place in zip(merged, places, strict=True)]
    parts += _names(merged, places)
    return svg(parts, f"{up} against {across}", WIDE, HIGH)


def _ceiling(share: float) -> float:
    """The top of the axis: a whole number of quarters of a nice step."""
    return next((top for top in (0.04, 0.1, 0.2, 0.4, 0.6, 0.8) if share <= top * 0.9), 1.0)


def _merged(dots: Sequence[Dot]) -> Iterator[Dot]:
    """Dots that lie on one another become one, with all their names."""
    found: dict[tuple[int, int], list[Dot]] = {}
    for dot in dots:
        found.setdefault((dot.across, round(dot.up * 200)), []).append(dot)
    for same in found.values():
        states = {dot.state for dot in same}
        state = "chosen" if "chosen" in states else "" if "" in states else "barred"
        names = sorted(same, key=lambda dot: dot.state != "chosen")
        yield Dot(_joined([dot.name for dot in names]), same[0].across, same[0].up, state)


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 2 else f" = {names[1]}" if len(names) == 2 else ""
    return names[0] + more


def _log_x(number: float, most: float, least: float = 1) -> float:
    span = math.log(most / least) or 1.0
    return _x(math.log(max(number, least) / least) / span)


def _x(share: float) -> float:
    return FRAME.left + INSET + (FRAME.across - 2 * INSET) * share


def _counts(most: int) -> Iterator[str]:
    """Ticks at 1, 2, 5, 10, 20, ..., as far as they go."""
    last = -math.inf
    for tick in decades(1, most):
        x, text = _log_x(tick, most), f"{tick:,.0f}"
        if x - last >= LETTER * (len(text) + 1):
            last = x
            yield FRAME.tick(x, text)


def _dot(dot: Dot, x: float, y: float) -> str:
    place = f'cx="{x:.1f}" cy="{y:.1f}"'
    if dot.state == "chosen":
        ring = f'<circle {place} r="9" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        return f'{ring}<circle {place} r="5" fill="{BLUE}"/>'
    inside = "none" if dot.state == "barred" else GREY
    return f'<circle {place} r="4.5" fill="{inside}" stroke="{GREY}" stroke-width="1.5"/>'


def _names(dots: Sequence[Dot], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Each name beside its dot, the chosen one's first, with a thin line where it does not stand right beside it."""
    left = FRAME.left
    field = Field(left, WIDE, 2, FRAME.ground, [Box(left, 5, 90), *(Box(x - 5, y - 7, 10) for x, y in places)])
    for at in sorted(range(len(dots)), key=lambda at: dots[at].state != "chosen"):
        chosen = dots[at].state == "chosen"
        box, leader = field.put(dots[at].name, *places[at], bold=chosen)
        if leader is not None:
            (x, y), (to_x, to_y) = places[at], leader
            yield path(f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}", 0.4)
        yield word(dots[at].name, box.x, box.y + 11, "start", ' font-weight="600"' if chosen else "")


# -- lengths -------------------------------------------------------------------------------------------------------


def histogram(counts: Mapping[int, int], bounds: Sequence[int], across: str, up: str) -> str:
    """How many samples have which length, with the bounds that the chosen way pads to as lines."""
    least, most = min(counts), max(*counts, *bounds)
    log = most > SKEWED * _median(counts)

    def place(length: float) -> float:
        if log:
            return _log_x(length, most, least) if most > least else WIDE / 2
        return _x(length / most)

    bins: dict[int, int] = {}
    width = FRAME.across / BINS
    for length, samples in counts.items():
        at = min(BINS - 1, int((place(length) - FRAME.left) / width))
        bins[at] = bins.get(at, 0) + samples
    high = max(bins.values())
    parts = [_bar(FRAME.left + at * width, width, samples / high) for at, samples in bins.items()]
    ends = (FRAME.tick(place(length), f"{length:,}", mark=False) for length in sorted({least, most}))
    parts += [FRAME.level(0), *_lines(bounds, place), *ends]
    parts += FRAME.captions(f"{across}, logarithmic" if log else across, up)
    return svg(parts, f"{up} against {across}", WIDE, HIGH)


def _median(counts: Mapping[int, int]) -> int:
    half, seen = sum(counts.values()) / 2, 0
    for length in sorted(counts):
        seen += counts[length]
        if seen >= half:
            return length
    return 0


def _bar(x: float, width: float, share: float) -> str:
    high = max(1.0, (FRAME.up - 20) * share)
    return (
        f'<rect x="{x:.1f}" y="{FRAME.ground - high:.1f}" width="{width - 1:.1f}" height="{high:.1f}" '
        f'fill="{GREY}" fill-opacity="0.7"/>'
    )


def _lines(bounds: Sequence[int], place: Callable[[float], float]) -> Iterator[str]:
    last = -math.inf
    for bound in bounds:
        x = place(bound)
        line = f'd="M{x:.1f} {FRAME.top + 16}V{FRAME.ground}" stroke-width="1.5" stroke-dasharray="4 3"'
        yield f'<path {line} stroke="{BLUE}"/>'
        if x - last > len(f"{bound:,}") * LETTER + 4:
            yield word(f"{bound:,}", x, FRAME.top + 11, "middle")
            last = x
