"""The advice of `%tpu_pad` as HTML and as plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tpu_magics.padding.report import PaddingReport
from tpu_magics.padding.strategies import PaddingStrategy
from tpu_magics.panel import table as plain
from tpu_magics.panel.padding_chart import Dot, histogram, scatter
from tpu_magics.panel.sections_words import NOT_AVAILABLE, percent, say, seconds, short
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
    shapes = f"{chosen.shapes:,} shape{'s' if chosen.shapes > 1 else ''}"
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
    many = f"{samples:,} sample{'s' if samples > 1 else ''}"
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
