"""The result of a run in a notebook: what its page begins with, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.errors import plural
from tpu_magics.panel.charts import SMALL, line_chart
from tpu_magics.panel.html_parts import code, say
from tpu_magics.panel.page import Figure, Page
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.run_state import SharedView
from tpu_magics.runs.files import RunFiles

CAPTIONS = 6  # logged values that are named


def result_html(run: RunFiles) -> str:
    """A run's result, from its records as they are now."""
    lines = _lines(page(SharedView(run).anew(), compiles=0), run.id)
    return f"<div>{''.join(f'<div>{line}</div>' for line in lines if line)}</div>"


def _figure(figure: Figure) -> str:
    note = f" ({figure.note})" if figure.note else ""
    return f"{say(figure.label)} <b>{say(figure.value)}</b>{say(note)}"


def _lines(found: Page, run: str) -> Iterator[str]:
    head = (f"{found.symbol} {found.state}", found.elapsed, found.where, found.detail)
    yield " · ".join([f"<b>{say(found.name)}</b>", *(say(part) for part in head if part.strip())])
    if found.failure is not None:
        yield say(found.failure.what)
    yield " · ".join(map(_figure, found.figures))
    yield " · ".join(f"{say(chart.title)} <b>{say(chart.caption)}</b>" for chart in found.charts[:CAPTIONS])
    yield from (line_chart(chart, found.compiled_at, SMALL) for chart in found.charts[:1])
    if found.problems:
        yield f"{plural(len(found.problems), 'thing')} to look at: {say(found.problems[0].title)}"
    more = (("panel", f"%tpu_panel {run}"), ("return value", ".value"), ("DataFrames", ".to_pandas()"))
    yield "<small>" + " · ".join(f"{label}: {code(text)}" for label, text in more) + "</small>"
