"""A preflight as one piece of HTML and as plain text.

GitHub removes styles and drawings from a notebook. So each figure is in a table cell with its label, states are words
with a symbol, and the sizes of a drawing are in a table as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.preflight_figures import figures
from tpu_magics.panel.preflight_fit import fit_html, fit_text, sizes_text
from tpu_magics.panel.preflight_problems import problems
from tpu_magics.panel.preflight_rows import rows_html
from tpu_magics.panel.preflight_topics import Topic, topics
from tpu_magics.panel.preflight_verdict import verdict_html, verdict_text
from tpu_magics.panel.sections_words import Fact, facts_table, say, short, small
from tpu_magics.panel.table import WIDTH, Row, Table
from tpu_magics.preflight.report import Preflight, TargetResult

_OUTER = "color:inherit;max-width:72em;line-height:1.45;overflow-wrap:break-word"
_SUMMARY = "cursor:pointer"
_INSIDE = "margin:.3em 0 .8em 1.1em"


# -- HTML ------------------------------------------------------------------------------------------------------------


def to_html(found: Preflight) -> str:
    """One `<div>`: a row for each target, the problems, the search, the folded topics, the verdict."""
    parts = [_title(found), rows_html(found.results), _problems_html(problems(found)), fit_html(found)]
    parts += [_topic_html(one) for one in topics(found)]
    return f'<div class="tpu-magics-preflight" style="{_OUTER}">{"".join(parts)}{verdict_html(found)}</div>'


def _title(found: Preflight) -> str:
    return f'<p style="margin:0 0 .4em 0"><b>{say(heading(found))}</b> {small(subject(found))}</p>'


def _problems_html(found: Sequence[Fact]) -> str:
    return f'<div style="margin:.6em 0">{facts_table(found)}</div>' if found else ""


def _topic_html(topic: Topic) -> str:
    summary = f'<summary style="{_SUMMARY}"><b>{say(topic.title)}</b> {small(topic.summary)}</summary>'
    return (
        f'<details style="margin:.3em 0">{summary}<div style="{_INSIDE}">{plain.to_html(topic.table)}</div></details>'
    )


# -- plain text ------------------------------------------------------------------------------------------------------


def to_text(found: Preflight, width: int = WIDTH, no_times: bool = False) -> str:
    """At most `width` columns where words allow. `no_times`: without what differs from run to run."""
    return "\n\n".join(_texts(found, width, no_times))


def _texts(found: Preflight, width: int, no_times: bool) -> Iterator[str]:
    head = plain.to_text(Table("", None, (), (f"{heading(found)}: {subject(found)}",)), width)
    yield f"{head.strip()}\n{plain.to_text(_looks(found, no_times), width)}"
    if wrong := problems(found):
        rows = tuple(
            Row((fact.label, "\n".join((f"{fact.marked}. {fact.lines[0]}", *fact.lines[1:])))) for fact in wrong
        )
        yield plain.to_text(Table("", None, rows), width)
    yield from fit_text(found, width, no_times)
    for topic in topics(found, no_times):
        yield plain.to_text(Table(topic.title, topic.table.columns, topic.table.rows, topic.table.notes), width)
    yield from verdict_text(found, width)


def _looks(found: Preflight, no_times: bool) -> Table:
    columns = ("target", *(figure.label for figure in figures(found.results[0], no_times)))
    rows = tuple(Row((_name(one), *(figure.text for figure in figures(one, no_times)))) for one in found.results)
    return Table("", columns, rows)


def _name(one: TargetResult) -> str:
    return f"{one.name}\n{words.STATES[one.status][0]}\n{words.target_text(one)}"


# -- words -----------------------------------------------------------------------------------------------------------


def heading(found: Preflight) -> str:
    """ "Preflight of train"."""
    return f"Preflight of {short(found.function, 60)}"


def subject(found: Preflight) -> str:
    """ "batch 32 on each rank, bf16; no step was executed"; after a search with the size that was searched."""
    traced = found.results[0].traced
    parts = [sizes] if (sizes := sizes_text(found)) else []
    if traced.batch is not None and not sizes:
        parts = [f"batch {traced.batch:,} {_shared(found.results)}"]
    parts += [traced.precision] if traced.precision else []
    return f"{', '.join(parts)}{'; ' if parts else ''}no step was executed"


def _shared(results: Sequence[TargetResult]) -> str:
    """Who has that batch."""
    if any(one.ranks is None for one in results):
        return "on one replica"
    if any(one.devices > 1 for one in results):
        return f"over {' or '.join(f'{many:,}' for many in sorted({one.devices for one in results}))} devices"
    return "on each rank" if any((one.ranks or 1) > 1 for one in results) else "on one rank"
