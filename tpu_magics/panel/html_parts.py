"""The pieces of HTML that all outputs share.

Colours are middle tones: white on them is readable in both themes, and a word always says what a colour means. Texts
from records are escaped by `say`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tpu_magics.panel.page import Fact
from tpu_magics.panel.table import printable

BLUE, VIOLET, GREEN, AMBER, RED, GREY = "#2f74d0", "#8250df", "#1a7f37", "#9a6700", "#cf222e", "#6e7781"
TONES = {"": GREY, "live": BLUE, "ok": GREEN, "info": BLUE, "warning": AMBER, "broken": RED}
WHOLE = 32  # characters of a text that stays on its line

SMALL = "font-size:.85em;opacity:.85"
CELL = "text-align:left;vertical-align:top;padding:.1em 1em .1em 0"
_CHIP = "color:#fff;border-radius:.6em;padding:0 .55em;font-weight:600;white-space:nowrap"
_SCROLL = "overflow-x:auto;max-width:100%"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;margin:0;border:0"
_HEAD = f"{CELL};border-bottom:1px solid currentColor"
_ROW = "background:transparent"


def say(text: object) -> str:
    """Anything as text of an HTML page."""
    return escape(printable(str(text)), quote=True)


def whole(text: str) -> str:
    """A short text that is not broken into lines."""
    return f'<span style="white-space:nowrap">{say(text)}</span>' if len(text) <= WHOLE else say(text)


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
    if fact.tone and lines:
        lines[0] = f"{chip(fact.marked, TONES[fact.tone])} {lines[0]}"
    if fact.code:
        lines.append(code(fact.code))
    return f'<span style="overflow-wrap:anywhere">{"<br>".join(lines)}</span>'
