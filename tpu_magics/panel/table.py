"""A table as plain text and as HTML.

The HTML has no script, no external file and no colours of its own, so that it fits light and dark themes and saved
notebooks. Cells are escaped.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# A state has a symbol and a word, never a colour alone.
SYMBOLS = {
    "": "",
    "ok": "✓",
    "warning": "!",
    "broken": "✗",
    "passed": "✓",
    "failed": "✗",
    "unknown": "?",
    "not available": "-",
}

WORDS = {"not available": "n/a"}  # other states are shown as they are
WIDTH = 100
GAP = "  "
LONG_WORD = 24


@dataclass(frozen=True)
class Row:
    """Cells from left to right (a newline in a cell breaks its line) and a state, one of SYMBOLS. A `heading` has one
    cell, which stands above the rows of its group."""

    cells: tuple[str, ...]
    state: str = ""
    heading: bool = False

    def __post_init__(self) -> None:
        if self.state not in SYMBOLS:
            raise ValueError(f"A row's state is one of {', '.join(map(repr, SYMBOLS))}, not {self.state!r}.")


@dataclass(frozen=True)
class Table:
    """`columns`: their headings (None: none are shown); `notes`: sentences below the table. Short rows are filled."""

    title: str
    columns: tuple[str, ...] | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def state_text(state: str) -> str:
    """A state as symbol and word: "✗ broken"; "" for none."""
    return f"{SYMBOLS[state]} {WORDS.get(state, state)}".strip()


# -- plain text ---------------------------------------------------------------------------------------------------


def to_text(table: Table, width: int = WIDTH) -> str:
    """The table in aligned plain text, at most `width` columns wide where its words allow."""
    grid = [[printable(cell) for cell in line] for line in _grid(table)]
    columns = list(zip(*grid, strict=True))
    widths = _fit([_natural(column) for column in columns], [_words(column) for column in columns], width)
    lines = [printable(table.title)] if table.title else []
    headings = _headings(table)
    for number, cells in enumerate(grid):
        lines += ["", printable(headings[number])] if number in headings else _text_row(cells, widths)
        if number == 0 and table.columns:
            lines.append(GAP.join("─" * each for each in widths))
    for note in table.notes:
        lines += _wrap(printable(note), width)
    return "\n".join(lines)


def _grid(table: Table) -> list[list[str]]:
    """All cells, headings first where there are any; the state is the first column where any row has one."""
    stated = any(row.state for row in table.rows)
    lines = [[*([""] if stated else []), *table.columns]] if table.columns else []
    lines += [[] if row.heading else [*([state_text(row.state)] if stated else []), *row.cells] for row in table.rows]
    count = max(map(len, lines), default=0)
    return [line + [""] * (count - len(line)) for line in lines]


def _headings(table: Table) -> dict[int, str]:
    """The lines of the grid that are headings."""
    first = 1 if table.columns else 0
    return {first + number: row.cells[0] for number, row in enumerate(table.rows) if row.heading}


def printable(text: str) -> str:
    """Without control characters: a command line or a run's name could carry a terminal's escape codes."""
    if text.isprintable():
        return text
    return "".join(ch if ch == "\n" or ch.isprintable() else " " if ch == "\t" else "�" for ch in text)


def _text_row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, columns), default=0)
    padded = [column + [""] * (height - len(column)) for column in columns]
    lines = zip(*padded, strict=True)
    return [GAP.join(_pad(part, width) for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _natural(column: Sequence[str]) -> int:
    return max(_columns(line) for cell in column for line in cell.split("\n"))


def _words(column: Sequence[str]) -> int:
    """The width in which none of its words is cut, but for long ones (paths, commands)."""
    words = (_columns(word) for cell in column for word in cell.split())
    return max((each for each in words if each <= LONG_WORD), default=0)


def _fit(widths: list[int], words: list[int], width: int) -> list[int]:
    """Take from the widest column until all fit: leave each its words first, and where that is not enough, 8."""
    room = width - len(GAP) * (len(widths) - 1)
    fitted = list(widths)
    for least in (words, [0] * len(widths)):
        while sum(fitted) > room:
            spare = [number for number, each in enumerate(fitted) if each > max(least[number], 8)]
            if not spare:
                break
            fitted[max(spare, key=fitted.__getitem__)] -= 1
    return fitted


def _wrap(text: str, width: int) -> list[str]:
    return [line for paragraph in text.split("\n") for line in _wrap_line(paragraph, max(width, 1))]


def _wrap_line(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _columns(joined) <= width:
            lines[-1] = joined
            continue
        pieces = _chop(word, width)
        lines[-1:] = [*([lines[-1]] if lines[-1] else []), *pieces]
    return lines


def _chop(word: str, width: int) -> list[str]:
    pieces = [""]
    for ch in word:
        if pieces[-1] and _columns(pieces[-1] + ch) > width:
            pieces.append("")
        pieces[-1] += ch
    return pieces


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _columns(text: str) -> int:
    """Columns that a terminal gives the text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return len(text) + sum(_more(ch) for ch in text if ch > "\x7f")


@functools.cache
def _more(ch: str) -> int:
    """Columns that a character takes beyond one."""
    return -1 if unicodedata.combining(ch) else 1 if unicodedata.east_asian_width(ch) in "WF" else 0


# -- HTML ---------------------------------------------------------------------------------------------------------

# What notebooks' own style sheets would set otherwise (cells to the right, lines not broken) is set on each cell.
_OUTER = "color:inherit;max-width:70em;overflow-x:auto"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;margin:0"
_CELL = "text-align:left;vertical-align:top;padding:.2em .8em .2em 0;white-space:pre-line"
_BREAKABLE = _CELL + ";overflow-wrap:anywhere"
_KEPT = _CELL.replace("pre-line", "nowrap")
_HEAD = "text-align:left;padding:.2em .8em .2em 0;font-weight:600;border-bottom:1px solid currentColor"
_GROUP = "text-align:left;padding:.6em .8em .2em 0;font-weight:600"
_STATE = "text-align:left;vertical-align:top;padding:.2em .8em .2em 0;white-space:nowrap;font-weight:600"
_TITLE = "font-weight:600;margin-bottom:.3em"
_NOTE = "margin:.3em 0 0 0;opacity:.8"
_FIGURE = re.compile(r"(?:[≥≤<>] )?[\d.,]+ \S{1,4}")


def to_html(table: Table) -> str:
    """The table as one `<div>` with inline styles."""
    grid = _grid(table)
    stated = any(row.state for row in table.rows)
    head, body = (grid[:1], grid[1:]) if table.columns else ([], grid)
    parts = [f'<div class="tpu-magics-table" style="{_OUTER}">']
    if table.title:
        parts.append(f'<div style="{_TITLE}">{_escape(table.title)}</div>')
    parts.append(f'<table style="{_TABLE}">')
    parts += [f"<thead>{_html_row(line, 'th', [_HEAD] * len(line))}</thead>" for line in head]
    headings = _headings(table)
    rows = (
        _html_heading(headings[number], len(line))
        if number in headings
        else _html_row(line, "td", _styles(line, stated))
        for number, line in enumerate(body, len(head))
    )
    parts.append(f"<tbody>{''.join(rows)}</tbody></table>")
    parts += [f'<p style="{_NOTE}">{_escape(note)}</p>' for note in table.notes]
    return "".join([*parts, "</div>"])


def _styles(line: Sequence[str], stated: bool) -> list[str]:
    return [_STATE if stated and number == 0 else _style(cell) for number, cell in enumerate(line)]


def _style(cell: str) -> str:
    # Only long words (paths, commands) may break anywhere: a browser would else break a short label to give room. A
    # figure stays beside its unit.
    if _FIGURE.fullmatch(cell):
        return _KEPT
    return _BREAKABLE if any(_columns(word) > LONG_WORD for word in cell.split()) else _CELL


def _html_row(line: Sequence[str], tag: str, styles: Sequence[str]) -> str:
    cells = (f'<{tag} style="{style}">{_escape(cell)}</{tag}>' for cell, style in zip(line, styles, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _html_heading(text: str, columns: int) -> str:
    return f'<tr style="background:none"><th colspan="{columns}" style="{_GROUP}">{_escape(text)}</th></tr>'


def _escape(text: str) -> str:
    return escape(printable(text), quote=True)
