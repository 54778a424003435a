"""Runs compared: what differs first, what is equal after it, and the curves of their losses over each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from tpu_magics.errors import plural
from tpu_magics.panel.charts import CURVES, overlaid, sparkline
from tpu_magics.panel.formats import NOT_AVAILABLE, cut, number, short
from tpu_magics.panel.html import flow
from tpu_magics.panel.html_parts import SMALL, title
from tpu_magics.panel.messages import ComparedRow, Comparison
from tpu_magics.panel.model_info import as_object
from tpu_magics.panel.model_series import Curve
from tpu_magics.panel.page import Chart
from tpu_magics.panel.page_charts import POINTS, value_chart
from tpu_magics.panel.runs import FACTS, failure_text, recompile_causes, when
from tpu_magics.panel.table import Row, Table
from tpu_magics.runs.events import Value, only
from tpu_magics.runs.reader import Run
from tpu_magics.runs.summary import RunSummary, loss_name

VALUES = 1e-3  # share of a logged value by which it may differ
_MAX_TEXT, _MAX_FAILURE = 60, 300
_VERSIONS = 20
_CURVE = 24
_NOT_LOGGED = "not logged"
_NOTE = (
    "Equal are values within 0.1 %, memory within 5 %, times within 10 %, counts and texts that are the same. "
    "Steps, compiles and values are those of rank 0."
)


@dataclass(frozen=True)
class _Line:
    """`numbers`: of each run, where they are compared as numbers."""

    label: str
    cells: Sequence[str]
    numbers: Sequence[Sequence[float | None]] = ()
    within: float = 0.0
    least: float = 0.0


def compare(runs: Sequence[Run]) -> Comparison:
    """The runs side by side."""
    events = [run.lead_events() for run in runs]
    summaries = [run.summary_of(found) for run, found in zip(runs, events, strict=True)]
    headings = _headings(summaries)
    lines = list(_lines(summaries, [run.info for run in runs]))
    different = [not _equal(line) for line in lines]
    rows = [ComparedRow(line.label, tuple(line.cells)) for line in lines]
    name = _charted_name(summaries)
    logged = [[value for value in only(found, Value) if value.rank == 0] for found in events]
    return Comparison(
        title="Runs side by side" if any(different) else "Runs side by side: nothing differs",
        runs=headings,
        different=tuple(row for row, differs in zip(rows, different, strict=True) if differs),
        equal=tuple(row for row, differs in zip(rows, different, strict=True) if not differs),
        charts=tuple(
            _chart(at, name or loss_name(summary.values), values)
            for at, (summary, values) in enumerate(zip(summaries, logged, strict=True))
        ),
        notes=(_NOTE,),
    )


def _headings(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """Names; where runs have the same one, with their times, and where these are the same too, ids."""
    names = [short(summary.name, _MAX_TEXT) for summary in summaries]
    timed = [f"{name} {when(summary.created)}" for name, summary in zip(names, summaries, strict=True)]
    ids = [summary.id for summary in summaries]
    return next((tuple(each) for each in (names, timed) if len(set(each)) == len(each)), tuple(ids))


# -- the rows -----------------------------------------------------------------------------------------------------


def _lines(summaries: Sequence[RunSummary], infos: Sequence[Mapping[str, object]]) -> Iterator[_Line]:
    names = list(dict.fromkeys(name for summary in summaries for name in summary.values))
    status, *facts = [
        _Line(fact.label, list(map(fact.text, summaries)), list(map(fact.numbers, summaries)), fact.within, fact.least)
        for fact in FACTS
    ]
    yield status
    for name in sorted(names, key=lambda name: name != loss_name(names)):
        yield _values_line(name, [summary.values.get(name) for summary in summaries])
    yield from facts
    yield from (_Line(label, counts) for label, counts in recompile_causes(*summaries))
    yield from _settings(infos)
    yield _Line("updated in the notebook", [_models(summary) for summary in summaries])
    if any(summary.failure for summary in summaries):
        yield _Line("failure", [cut(failure_text(one, "what"), _MAX_FAILURE) or "none" for one in summaries])


def _values_line(name: str, values: Sequence[float | int | str | None]) -> _Line:
    cells = [_NOT_LOGGED if value is None else number(value) for value in values]
    within = 0.0 if all(isinstance(value, int) for value in values) else VALUES
    return _Line(f"last {short(name, _MAX_TEXT)}", cells, [(_finite(value),) for value in values], within)


def _finite(value: float | int | str | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _models(summary: RunSummary) -> str:
    return short(", ".join(summary.models), _MAX_FAILURE) or "none"


def _settings(infos: Sequence[Mapping[str, object]]) -> Iterator[_Line]:
    """Where and with what the runs were made."""
    plans = [as_object(info.get("plan")) for info in infos]
    for label, key in (("device", "device"), ("--precision", "precision")):
        yield _Line(label, [short(plan.get(key) or "default", _MAX_TEXT) for plan in plans])
    versions = [as_object(info.get("versions")) for info in infos]
    packages = list(dict.fromkeys(name for each in versions for name in each))
    for name in packages[:_VERSIONS]:
        cells = [short(each.get(name, NOT_AVAILABLE), _MAX_TEXT) for each in versions]
        yield _Line(f"version of {short(name, _MAX_TEXT)}", cells)


def _equal(line: _Line) -> bool:
    """By the texts, or by the numbers where all runs have them."""
    columns = list(zip(*line.numbers, strict=True))
    known = [[each for each in column if each is not None] for column in columns]
    if not columns or any(len(column) < len(line.cells) for column in known):
        return len(set(line.cells)) == 1
    return all(_near(min(column), max(column), line) for column in known)


def _near(low: float, high: float, line: _Line) -> bool:
    return high - low <= max(line.within * max(abs(low), abs(high)), line.least)


# -- the curves ---------------------------------------------------------------------------------------------------


def _charted_name(summaries: Sequence[RunSummary]) -> str:
    """A loss that all of them logged, else ""."""
    first, *others = summaries
    return loss_name(name for name in first.values if all(name in other.values for other in others))


def _chart(at: int, name: str, logged: Sequence[Value]) -> Chart:
    """What one run logged under a name."""
    curve = Curve(POINTS)
    for value in logged:
        if value.name == name:
            curve.add(value)
    chart = value_chart(curve.series(), POINTS)
    caption = chart.caption if name and curve.n else _NOT_LOGGED
    return replace(chart, key=f"run {at}", title=short(name, _MAX_TEXT) or "loss", caption=caption, marked=False)


# -- shown --------------------------------------------------------------------------------------------------------


def compared_text(found: Comparison) -> Table:
    """The comparison as one table: a line for each row."""
    curves = [sparkline([value for _step, value, _low, _high in chart.points], _CURVE) for chart in found.charts]
    shapes = [Row(("curve of the loss", *curves))] if any(curves) else []
    rows = [*shapes, *(Row((row.label, *row.cells)) for row in found.different)]
    equal = [Row(("Equal",), heading=True), *(Row((row.label, *row.cells)) for row in found.equal)]
    return Table(found.title, ("", *found.runs), (*rows, *(equal if found.equal else [])), found.notes)


def compared_html(found: Comparison) -> str:
    """The curves, the rows that differ, and the equal ones folded."""
    equal = plural(len(found.equal), "equal row")
    folded = f"<details><summary>{equal}</summary>{_table(found.runs, found.equal)}</details>" if found.equal else ""
    different = _table(found.runs, found.different) if found.different else ""
    notes = "".join(f'<p style="{SMALL};margin:.4em 0">{flow(note)}</p>' for note in found.notes)
    return f'<div style="{_OUTER}">{title(found.title)}{_curves(found)}{different}{folded}{notes}</div>'


def _curves(found: Comparison) -> str:
    """The losses over each other, and which colour is whose."""
    charts = [
        replace(chart, title=run, caption=f"{chart.title} {chart.caption}")
        for run, chart in zip(found.runs, found.charts, strict=True)
    ]
    drawing = overlaid(charts)
    texts = ((colour, flow(f"{chart.title}: {chart.caption}")) for chart, colour in zip(charts, cycle(CURVES)))
    keys = "".join(f'<div><b style="color:{colour}">━</b> {text}</div>' for colour, text in texts)
    return f"{drawing}{keys}" if drawing else ""


# In a narrow place, such as a side panel, the label of a row stands above its cells: where the row has less than its
# width, the label asks for a thousand times what is missing, and so gets a line of its own. Elements of a table:
# GitHub removes styles.
_OUTER = "color:inherit;max-width:70em;overflow-x:auto"
_ROWS = "display:block;border:0;margin:.4em 0;width:100%;color:inherit;font-size:inherit"
_ROW = "display:flex;flex-wrap:wrap;gap:0 .8em;padding:.25em 0;background:none;border-top:1px solid #80808040"
_CELL = "padding:0;border:0;text-align:left;white-space:pre-line;min-width:min-content"
_LABEL = f"flex:1 1 calc(({{width}}em - 100%) * 999);max-width:100%;font-weight:400;opacity:.8;{_CELL};min-width:13em"
_VALUE = f"flex:1 1 7em;{_CELL}"


def _table(runs: Sequence[str], rows: Sequence[ComparedRow]) -> str:
    head = _row("", [f"<b>{flow(run)}</b>" for run in runs])
    body = "".join(_row(flow(row.label), list(map(flow, row.cells))) for row in rows)
    return f'<table role="table" style="{_ROWS}"><tbody style="display:block">{head}{body}</tbody></table>'


def _row(label: str, cells: Sequence[str]) -> str:
    style = _LABEL.format(width=14 + 8 * len(cells))
    head = f'<th role="rowheader" scope="row" style="{style}">{label}</th>'
    values = (f'<td role="cell" style="{_VALUE}">{cell}</td>' for cell in cells)
    return f'<tr role="row" style="{_ROW}">{head}{"".join(values)}</tr>'
