"""A run as one piece of HTML and as plain text, for a saved notebook.

GitHub removes scripts, styles, classes and drawings, nbviewer scripts and style sheets. So the page uses tables,
`<details>` and bold words that are readable without styles, and repeats curves as text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from tpu_magics.panel import table as plain
from tpu_magics.panel.findings import headline, recorded_finding
from tpu_magics.panel.model_view import RunView
from tpu_magics.panel.sections import compile_rows, sections
from tpu_magics.panel.sections_compiles import (
    CAUSE_COLUMNS,
    cause_cells,
    compile_seconds,
    compiles_summary,
    read_cells,
    runtime_facts,
    short_difference,
)
from tpu_magics.panel.sections_header import (
    cause_name,
    facts,
    failure_facts,
    failure_lines,
    figures,
    state_text,
    title_notes,
)
from tpu_magics.panel.sections_parts import (
    VALUE_COLUMNS,
    chart_caption,
    charted,
    notice_text,
    notice_word,
    notices_left,
    notices_title,
    other_values,
    rank_cells,
    rank_columns,
    rank_notes,
    shape_of,
    shown_notices,
    shown_ranks,
    value_cells,
)
from tpu_magics.panel.sections_rehearsal import likeness, likeness_facts, straggler_note
from tpu_magics.panel.sections_words import Fact, label, place, say, short
from tpu_magics.panel.table import Row, Table, printable
from tpu_magics.runs.events import Read, Transfer

ROWS, TEXT_ROWS, OPEN_ROWS = 50, 20, 8
RULES_SHOWN = 12
ROWS_SIZE = 150_000  # characters of all rows: they stay in the notebook for good
_OUTER = "color:inherit;max-width:70em;line-height:1.45;overflow-wrap:break-word"


# -- HTML ------------------------------------------------------------------------------------------------------------


def to_html(view: RunView) -> str:
    """The whole panel as one `<div>`."""
    parts = sections(view)
    parts["compiles"] += _rows(view)
    return f'<div class="tpu-magics-run" style="{_OUTER}">{"".join(parts.values())}{_footer(view)}</div>'


def _rows(view: RunView) -> str:
    rows = list(_as_many_as_fit(html for _key, html in compile_rows(view, ROWS)))
    if not rows:
        return ""
    every = max(len(view.compile_log), view.compiles or 0)
    shown = f"{len(rows)}" if len(rows) == every else f"the newest {len(rows)} of {every:,}"
    unfolded = " open" if len(rows) <= OPEN_ROWS else ""
    summary = f'<summary style="cursor:pointer">{say(f"Each compile, newest first ({shown})")}</summary>'
    body = f'<div style="margin:.3em 0 0 .6em">{"".join(rows)}</div>'
    return f'<details{unfolded} style="margin:.4em 0">{summary}{body}</details>'


def _as_many_as_fit(rows: Iterable[str]) -> Iterator[str]:
    """At least the first."""
    room = ROWS_SIZE
    for html in rows:
        if room <= 0:
            return
        room -= len(html)
        yield html


def footer_text(view: RunView) -> str:
    """Which run it is, and whose counts are shown."""
    return f"Run {short(view.id, 200)}. Counts, times and curves are those of rank {view.lead}."


def _footer(view: RunView) -> str:
    style = "font-size:.85em;opacity:.85;margin:.8em 0 0 0;overflow-wrap:anywhere"
    return f'<p style="{style}">{say(footer_text(view))}</p>'


# -- plain text ------------------------------------------------------------------------------------------------------


def to_text(view: RunView) -> str:
    """The same in aligned plain text, at most 100 columns wide."""
    head, *others = (plain.to_text(each) for each in _tables(view))
    return "\n\n".join([head, *_failure(view), *others]) + "\n"


def _tables(view: RunView) -> Iterator[Table]:
    title = f"{short(view.name, 100)}: {state_text(view)}"
    yield Table(title, None, tuple(_head(view)), tuple(filter(None, [title_notes(view)])))
    if view.notices:
        rows = (Row((notice_word(each), notice_text(each, view))) for each in shown_notices(view))
        yield Table(notices_title(view), None, tuple(rows), tuple(filter(None, [notices_left(view)])))
    yield from _rules(view)
    yield from _compiles(view)
    yield from _reads(view)
    yield from _values(view)
    rows = (Row(rank_cells(view, rank)) for rank in shown_ranks(view))
    notes = (*(f"! {slow}" for slow in [straggler_note(view)] if slow), *rank_notes(view))
    yield Table("Ranks", rank_columns(view) if view.ranks else None, tuple(rows), notes)
    if (like := likeness(view)) is not None:
        yield Table("Rehearsal on CPU", None, tuple(map(_row, likeness_facts(view))), (like.short,))


def _rules(view: RunView) -> Iterator[Table]:
    """What the rules said of the code before the run, the first of them."""
    found = [recorded_finding(one) for one in view.findings]
    if not found:
        return
    rows = tuple(Row((one.code, one.where, one.message)) for one in found[:RULES_SHOWN])
    left = f"{len(found) - RULES_SHOWN:,} more. " if len(found) > RULES_SHOWN else ""
    yield Table(f"Rules: {headline(found)}", None, rows, (f"{left}%tpu_check shows them with reasons and fixes.",))


def _failure(view: RunView) -> Iterator[str]:
    """What happened, and the lines that belong to it with their blanks, which a table would take away."""
    if view.failure is None:
        return
    text = plain.to_text(Table("Failure", None, tuple(map(_row, failure_facts(view.failure, view.state)))))
    lines = [part for line in failure_lines(view.failure) for part in printable(line).splitlines()]
    yield "\n".join([text, *(part for line in lines for part in textwrap.wrap(line, plain.WIDTH) or [""])])


def _head(view: RunView) -> Iterator[Row]:
    for figure in figures(view):
        mark = "! " if figure.amber else ""
        yield Row((figure.label, f"{mark}{figure.value}{f' ({figure.beside})' if figure.beside else ''}"))
    yield from map(_row, facts(view))


def _row(fact: Fact) -> Row:
    mark = f"{fact.marked}: " if fact.state else ""
    lines = [*fact.lines, *([fact.code] if fact.code else [])]
    return Row((fact.label, mark + "\n".join(lines)))


def _compiles(view: RunView) -> Iterator[Table]:
    causes = tuple(Row(cause_cells(each)) for each in view.causes[:TEXT_ROWS])
    yield Table("Compiles", CAUSE_COLUMNS if causes else None, causes, (compiles_summary(view),))
    shown = view.compile_log[:TEXT_ROWS]
    if not shown:
        return
    rows = (
        (label(one), place(one.site), compile_seconds(one), cause_name(one), short_difference(one))
        for one in (entry.compile for entry in shown)
    )
    left = max(len(view.compile_log), view.compiles or 0) - len(shown)
    notes = (f"{left:,} older ones are not shown.",) if left else ()
    columns = ("compile", "line", "took", "cause", "difference")
    yield Table("Each compile, newest first", columns, tuple(map(Row, rows)), notes)


def _reads(view: RunView) -> Iterator[Table]:
    found: list[Transfer | Read] = [*view.transfers, *view.reads]
    shown = found[:TEXT_ROWS]
    if shown:
        rows = tuple(Row(read_cells(one)) for one in shown)
        yield Table("Device-to-host reads", ("reads", "line", "code", "", "fix"), rows)
    runtime = tuple(map(_row, runtime_facts(view)))
    if runtime:
        yield Table("Runtime", None, runtime)


def _values(view: RunView) -> Iterator[Table]:
    curves = tuple(Row((short(each.name, 40), shape_of(each, 24), chart_caption(each))) for each in charted(view))
    if curves:
        yield Table("Curves", None, curves)
    others = tuple(Row(value_cells(each)) for each in other_values(view))
    if others:
        yield Table("Values", VALUE_COLUMNS, others)
