"""Rows of a benchmark as a table on the screen and as a section of docs/benchmarks.md, and the machine in words."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_magics import __version__
from tpu_magics.host.memory import cpu_count, host_memory
from tpu_magics.host.versions import installed
from tpu_magics.panel.table import Row, Table

NOT_AVAILABLE = "not available"
VERSIONS = ("ipython", "torch", "torch_xla", "accelerate", "transformers")


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


def machine() -> str:
    """Two sentences: the machine and the versions. A load above one: others were at work as well."""
    cores, memory, found = cpu_count(Path("/")), host_memory(Path("/")).total, installed()
    parts = [
        f"{cores} cores" if cores is not None else "cores not available",
        f"{memory / 1e9:.0f} GB of memory" if memory else "memory not available",
        f"{platform.system()} on {platform.machine()}",
    ]
    versions = [f"Python {platform.python_version()}", f"tpu_magics {__version__}"]
    versions += [f"{name} {found[name]}" for name in VERSIONS if found.get(name)]
    return f"Machine: {', '.join(parts)}; load {os.getloadavg()[0]:.1f} at the start. Versions: {', '.join(versions)}."


# -- the file ------------------------------------------------------------------------------------------------------


def replace_section(document: str, name: str, title: str, body: str) -> str:
    """The document with `body` between the markers of benchmark `name`; a section is added where there are none."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if found.search(document):
        return found.sub(lambda _: block, document, count=1)
    return f"{document.rstrip()}\n\n## {title}\n\n{block}\n"
