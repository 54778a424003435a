"""Rows of a benchmark as a table on the screen and as a section of docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_magics.panel.table import Row, Table

NOT_AVAILABLE = "not available"


def to_table(title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
    """The table of a benchmark's rows. Columns come in the order in which rows first name them."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = (Row(tuple(text(row[column]) if column in row else "" for column in columns)) for row in rows)
    return Table(title, tuple(columns), tuple(cells), tuple(notes))


def text(value: Any) -> str:
    """A cell: floats with the digits that a noisy measurement can have, None as not available."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def met(yes: bool) -> str:
    """How a target came out."""
    return "met" if yes else "MISSED"


def to_markdown(table: Table) -> str:
    """The table as Markdown, its notes as a list below it."""
    columns = table.columns or ()
    lines = [_line(columns), _line(["---"] * len(columns)), *(_line(row.cells) for row in table.rows)]
    return "\n".join([*lines, *([""] if table.notes else []), *(f"- {note}" for note in table.notes)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# -- the file ------------------------------------------------------------------------------------------------------


def replace_section(document: str, name: str, title: str, body: str) -> str:
    """The document with `body` between the markers of benchmark `name`; a section is added where there are none."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(document):
        return found.sub(lambda _: block, document, count=1)
    return f"{document.rstrip()}\n\n## {title}\n\n{block}\n"
