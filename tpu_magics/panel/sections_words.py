"""The forms that all sections share: numbers, places and states in words, and words in HTML.

Colours are middle tones: white on them is readable in both themes, and a word always says what a colour means. Texts
from records are escaped by `say`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tpu_magics.panel.table import SYMBOLS, printable
from tpu_magics.runs.events import Compile, Input, Site

NOT_AVAILABLE = "n/a"
BLUE, VIOLET, GREEN, AMBER, RED, GREY = "#2f74d0", "#8250df", "#1a7f37", "#9a6700", "#cf222e", "#6e7781"
TONES = {"": GREY, "ok": GREEN, "warning": AMBER, "broken": RED}
WHOLE = 32  # characters of a text that stays on its line

SMALL = "font-size:.85em;opacity:.85"
CELL = "text-align:left;vertical-align:top;padding:.1em 1em .1em 0"
_CHIP = "color:#fff;border-radius:.6em;padding:0 .55em;font-weight:600;white-space:nowrap"
_SCROLL = "overflow-x:auto;max-width:100%"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;margin:0;border:0"
_HEAD = f"{CELL};border-bottom:1px solid currentColor"
_ROW = "background:transparent"
_PRE = "margin:0;padding:0;color:inherit;background:none;white-space:pre-wrap;overflow-wrap:anywhere"

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Fact:
    """A line of a two-column table: its label, one or more lines of text, and a line of code. `state`: "", "ok",
    "warning" or "broken", with `mark`, the word that says so."""

    label: str
    lines: tuple[str, ...]
    state: str = ""
    mark: str = ""
    code: str = ""

    @property
    def marked(self) -> str:
        """E.g. "! differs"; "" where there is no state."""
        return f"{SYMBOLS[self.state]} {self.mark}".strip() if self.state else ""


# -- words -----------------------------------------------------------------------------------------------------------


def not_available(reason: str) -> str:
    return f"{NOT_AVAILABLE} ({reason})"


def count(number: int, noun: str) -> str:
    """E.g. "1 step", "1,200 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | int | str) -> str:
    """A logged value, short."""
    if isinstance(value, str):
        return short(value, 80)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.6g}"
    return f"{value:.4g}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A short time: "850 µs", "41 ms", "1.93 s", "4 min 05 s"."""
    if not math.isfinite(value):
        return NOT_AVAILABLE
    if value >= 100:
        return clock(value)
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}" if value else "0 s"
    return ""


def clock(value: float) -> str:
    """How long something has been going on: "8 s", "4 min 05 s", "2 h 04 min"."""
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def size(value: float) -> str:
    """Bytes: "512 MiB", "1.4 GiB"."""
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.{1 if unit >= 3 else 0}f} {_UNITS[unit]}"


def percent(share: float) -> str:
    """A share in percent that reads neither 0 nor 100 where it is not."""
    text = f"{100 * share:.0f}"
    if text == "0" and share > 0:
        return "less than 1 %"
    return "more than 99 %" if text == "100" and share < 1 else f"{text} %"


def short(text: object, most: int) -> str:
    """One line of at most `most` characters."""
    line = " ".join(str(text)[: 4 * most + 100].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def cut(text: str, most: int) -> str:
    """At most `most` characters, its lines kept; what is left out is counted."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def place(site: Site) -> str:
    """E.g. "In [12], line 14"; of a file only its name."""
    name = site.path.rpartition("/")[2] or site.path
    return f"{short(name, 60)}, line {site.line}" if name else NOT_AVAILABLE


def full_place(site: Site) -> str:
    """The same with the whole path of a file."""
    return f"{short(site.path, 200)}, line {site.line}" if site.path else NOT_AVAILABLE


def label(graph: Compile) -> str:
    """Its number at its site: "#1"."""
    return f"#{graph.nth}"


def shape(one: Input) -> str:
    """E.g. "input_ids int64[32,129]"."""
    sizes = ",".join(short(each, 20) for each in one.shape[:16])
    return f"{short(one.name, 60)} {short(one.dtype, 20)}[{sizes}]"


def several(items: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are."""
    more = f", and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


# -- HTML ------------------------------------------------------------------------------------------------------------


def say(text: object) -> str:
    """Anything as text of an HTML page."""
    return escape(printable(str(text)), quote=True)


def whole(text: str) -> str:
    """A short text that is not broken into lines."""
    return f'<span style="white-space:nowrap">{say(text)}</span>' if len(text) <= WHOLE else say(text)


def lines_as_they_are(lines: Sequence[str]) -> str:
    """Lines of code or output, their blanks kept."""
    return f'<pre style="{_PRE}">{say(chr(10).join(lines))}</pre>'


def code(text: object) -> str:
    return f'<code style="color:inherit;background:none;overflow-wrap:anywhere;white-space:normal">{say(text)}</code>'


def chip(text: str, colour: str) -> str:
    """A word on a colour; bold where there is no colour."""
    return f'<b style="{_CHIP};background:{colour}">{say(text)}</b>'


def small(text: str) -> str:
    return f'<span style="{SMALL}">{say(text)}</span>'


def title(text: str) -> str:
    """A heading that no table of contents lists: a notebook's own headings stand there."""
    return f'<p role="heading" aria-level="4" style="margin:.8em 0 .2em 0"><b>{say(text)}</b></p>'


def paragraph(head: str, html: str) -> str:
    return f'<p style="margin:.2em 0;overflow-wrap:anywhere"><b>{say(head)}</b> {html}</p>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; it scrolls where it is wider than its place."""
    body = "".join(_row(cells) for cells in rows)
    head = "".join(f'<th scope="col" style="{_HEAD}">{say(column)}</th>' for column in columns)
    head = f'<thead><tr style="{_ROW}">{head}</tr></thead>' if columns else ""
    return f'<div style="{_SCROLL}"><table style="{_TABLE}">{head}<tbody>{body}</tbody></table></div>'


def _row(cells: Sequence[str]) -> str:
    return f'<tr style="{_ROW}">{"".join(f"""<td style="{CELL}">{cell}</td>""" for cell in cells)}</tr>'


def facts_table(facts: Iterable[Fact]) -> str:
    """Labels to the left, facts to the right."""
    return table((), ((f"<b>{whole(fact.label)}</b>", _fact(fact)) for fact in facts))


def _fact(fact: Fact) -> str:
    lines = [say(line) for line in fact.lines]
    if fact.state and lines:
        lines[0] = f"{chip(fact.marked, TONES[fact.state])} {lines[0]}"
    if fact.code:
        lines.append(code(fact.code))
    return f'<span style="overflow-wrap:anywhere">{"<br>".join(lines)}</span>'
