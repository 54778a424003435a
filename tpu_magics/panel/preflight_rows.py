"""The first rows of a preflight as HTML: one for each target, with a bar of its memory.

The cells of a row flow: all in one line where there is room, else four to a line. Without styles it is a plain table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight_figures import PreflightFigure, figures
from tpu_magics.panel.preflight_topics import kinds
from tpu_magics.panel.sections_words import BLUE, GREEN, GREY, NOT_AVAILABLE, RED, SMALL, VIOLET, chip, say, size
from tpu_magics.preflight.report import TargetResult

COLOURS = {"arguments": BLUE, "temporaries": VIOLET, "outputs": GREEN, "code": GREY}
_TRACK = "rgba(128,128,128,.22)"
_EXACT, _SEEN = 0.02, 0.03  # kinds add up to what is needed; a part that can be seen
_BAR = "position:relative;display:flex;height:.6em;border-radius:.3em;overflow:hidden;margin:.2em 0"
_ROW = "display:flex;flex-wrap:wrap;gap:.3em 1em;background:transparent;padding:.35em 0 .45em .7em;margin:0 0 .4em 0"
_CELL = "display:block;text-align:left;vertical-align:top;padding:0;border:0;min-width:0"
_UNITS = re.compile(r"(?<=\d) (?=[A-Za-zµ%]+)(?!of )")  # a number and its unit stay on one line
_ALL = 58  # em that all cells of a row need beside each other


def _cell(em: float) -> str:
    """A cell so wide at least; a fifth of the row where not all cells have room in one line."""
    return f"{_CELL};flex:{em:g} 1 max({em:g}em,min(({_ALL}em - 100%)*999,20%))"


def rows_html(results: Sequence[TargetResult]) -> str:
    rows = "".join(_row(one) for one in results)
    style = "display:block;border-collapse:collapse;border:0;margin:0;color:inherit;font-size:inherit;width:100%"
    return f'<table style="{style}"><tbody style="display:block">{rows}</tbody></table>'


def _row(one: TargetResult) -> str:
    word, colour = words.STATES[one.status]
    head = f'<div style="margin:0 0 .15em 0"><b style="font-size:1.15em">{say(one.name)}</b></div>{chip(word, colour)}'
    cells = [f'<td style="{_cell(8)}">{head}<div style="{SMALL}">{say(words.target_text(one))}</div></td>']
    memory, *others = figures(one)
    cells.append(f'<td style="{_cell(11)}">{_figure(memory, bar(one))}{_legend(one)}</td>')
    shown = list(_merged(others))
    whole = len(shown) == len(others)
    cells += [
        f'<td style="{_cell(8 if whole and not place else 6 if whole or place else 9)}">{_figure(figure)}</td>'
        for place, figure in enumerate(shown)
    ]
    return f'<tr style="{_ROW};border-left:4px solid {colour}">{"".join(cells)}</tr>'


def _merged(figures: Sequence[PreflightFigure]) -> Iterator[PreflightFigure]:
    """Unknown figures with the same reason share a cell."""
    missing = [one.label for one in figures if one.value == words.NOTHING]
    for one in figures:
        if one.value == NOT_AVAILABLE and missing:
            yield replace(one, label="Cost, bf16, padding")
        elif one.value != words.NOTHING:
            yield one


def _figure(figure: PreflightFigure, below: str = "") -> str:
    beside = "".join(f'<div style="{SMALL}">{say(line)}</div>' for line in figure.beside)
    together = _UNITS.sub("\xa0", say(figure.value))
    value = f'<div style="font-size:1.15em"><b>{together}</b></div>'
    return f'<div style="{SMALL}">{say(figure.label)}</div>{value}{below}{beside}'


# -- the bar ---------------------------------------------------------------------------------------------------------


def bar(one: TargetResult) -> str:
    """Needed memory against available memory, by kind; a line marks the limit where it is exceeded."""
    memory = one.worst.memory
    if memory is None or not memory.available:
        return ""
    whole = max(memory.needed, memory.available)
    colours = COLOURS if memory.needed <= memory.available else {"needed": RED}
    parts = "".join(_part(value / whole, colours.get(name, BLUE)) for name, value in _shares(one).items())
    text = f"{words.used(memory)} of HBM"
    style = f"{_BAR};background:{_TRACK}"
    return f'<div role="img" aria-label="{say(text)}" style="{style}">{parts}{_edge(memory.available / whole)}</div>'


def _shares(one: TargetResult) -> dict[str, int]:
    """Bytes by kind, where they are known and fit; else all that is needed."""
    memory, found = one.worst.memory, kinds(one.worst)
    if memory is None:
        return {}
    add_up = abs(sum(found.values()) - memory.needed) <= _EXACT * memory.needed
    return found if add_up and memory.needed <= (memory.available or 0) else {"needed": memory.needed}


def _legend(one: TargetResult) -> str:
    """What the colours of the bar are, of parts that can be seen."""
    found = _shares(one)
    seen = {name: value for name, value in found.items() if value > _SEEN * sum(found.values())}
    if len(found) < 2:
        return ""
    words_ = (
        f'<span style="white-space:nowrap"><span aria-hidden="true" style="color:{COLOURS[name]}">■</span> '
        f"{say(f'{name} {size(value)}')}</span>"
        for name, value in seen.items()
    )
    return f'<div style="{SMALL}">{" ".join(words_)}</div>'


def _part(share: float, colour: str) -> str:
    return f'<div style="width:{100 * share:.2f}%;background:{colour}"></div>'


def _edge(share: float) -> str:
    if share >= 1:
        return ""
    style = f"position:absolute;top:0;bottom:0;left:{100 * share:.2f}%;width:3px;background:currentColor"
    return f'<div style="{style}"></div>'
