"""A page as one piece of HTML: for saved notebooks, and in pieces for the live panel.

Its styles stand in the tags and suit light and dark themes. GitHub removes styles, classes and drawings: what is left
are tables, `<details>` and bold words in the same order, and captions that repeat what the charts show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tpu_magics.panel.by_identity import by_identity
from tpu_magics.panel.charts import LARGE, SMALL, ChartSize, line_chart
from tpu_magics.panel.formats import place
from tpu_magics.panel.html_parts import GREEN, TONES, say
from tpu_magics.panel.page import Chart, Fact, FailureText, Figure, Item, Page, Problem, Progress, Section, SectionRow
from tpu_magics.panel.table import LONG_WORD, SYMBOLS
from tpu_magics.runs.events import Site

_OUTER = "color:inherit;max-width:64em;line-height:1.5;overflow-wrap:break-word"
RULE = "1px solid rgba(128,128,128,.3)"
SUMMARY = "cursor:pointer;padding:.45em 0"
_MUTED = "opacity:.78"
_SMALL = "font-size:.86em;opacity:.78"
_CODE = "color:inherit;background:none;font-size:.92em;padding:0;white-space:normal;overflow-wrap:break-word"
_PRE = (
    "margin:.4em 0;padding:.5em .7em;color:inherit;background:rgba(128,128,128,.1);border-radius:4px;font-size:.92em;"
    "line-height:1.45;white-space:pre-wrap;overflow-wrap:break-word"
)
_PLAIN = "border:0;border-collapse:collapse;color:inherit;font-size:inherit;margin:0;table-layout:auto"
_CELL = "display:block;text-align:left;vertical-align:top;white-space:normal;line-height:1.5;border:0"
# A row of a table that breaks into lines where it is narrow.
_LINE = "display:flex;flex-wrap:wrap;background:none;padding:0;border:0"
_BETWEEN = '<span style="display:none"> · </span>'  # seen only where styles are removed


def to_html(page: Page) -> str:
    """The whole page as one `<div>`."""
    parts = [
        title(page),
        progress(page.progress),
        failure(page.failure),
        first_chart(page),
        figures(page.figures),
        problems(page.problems),
        other_charts(page),
        *map(folded, page.sections),
        footer(page),
    ]
    return f'<div class="tpu-magics-run" style="{_OUTER}">{"".join(parts)}</div>'


# -- the head --------------------------------------------------------------------------------------------------------


def title(page: Page) -> str:
    """Name, state, where, how long; and why it is in this state."""
    name = f'<b role="heading" aria-level="3" style="font-size:1.25em;line-height:1.3">{flow(page.name)}</b>'
    state = pill(f"{page.symbol} {page.state}".strip(), page.tone)
    parts = [f'{name} <span role="status">{state}</span>']
    parts += [f'<span style="{_MUTED}">{flow(page.where)}</span>'] if page.where else []
    clock = "margin-left:auto;white-space:nowrap;font-variant-numeric:tabular-nums"
    parts += [f'<span style="{clock};{_MUTED}">{say(page.elapsed)}</span>'] if page.elapsed else []
    line = "display:flex;flex-wrap:wrap;align-items:baseline;gap:.2em .7em;margin:.3em 0"
    detail = f'<div style="{_MUTED};margin:.2em 0">{flow(page.detail)}</div>' if page.detail else ""
    return f'<div style="{line}">{f" {_BETWEEN}".join(parts)}</div>{detail}'


def pill(text: str, tone: str) -> str:
    """A word on a touch of its tone."""
    return (
        f'<b style="color:{ink(tone)};background:{TONES[tone]}24;border-radius:1em;padding:.1em .65em;font-size:.92em;'
        f'white-space:nowrap">{say(text)}</b>'
    )


def ink(tone: str) -> str:
    """A tone as the colour of letters: darker on light themes, lighter on dark ones."""
    return f"color-mix(in srgb,{TONES[tone]} 64%,currentColor)" if tone else "inherit"


def progress(found: Progress | None) -> str:
    """A bar and its text."""
    if found is None:
        return ""
    share = 100 * min(1.0, max(0.0, found.done / found.total)) if found.total > 0 else 0.0
    bar = "border-radius:2px;background:rgba(128,128,128,.25);margin:.5em 0 .25em 0;overflow:hidden"
    done = f'<div style="width:{share:.0f}%"><div style="height:4px;background:{TONES["live"]}"></div></div>'
    values = f'role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share:.0f}"'
    text = f'<div style="{_SMALL};font-variant-numeric:tabular-nums">{say(found.text)}</div>'
    return f'<div {values} aria-label="{say(found.text)}" style="{bar}">{done}</div>{text}'


# -- charts and figures ----------------------------------------------------------------------------------------------


def first_chart(page: Page, size: ChartSize = LARGE) -> str:
    """The chart of the head."""
    return figure(page.charts[0], page.compiled_at, size) if page.charts else ""


def other_charts(page: Page) -> str:
    """The charts of other values, folded to their names and numbers."""
    others = page.charts[1:]
    if not others:
        return ""
    head = f"{chart_names(others)} {captions(others)}"
    return fold(head, multiples(others, page.compiled_at))


def chart_names(shown: Iterable[Chart]) -> str:
    names = " · ".join(chart.title for chart in shown)
    return f'<b role="heading" aria-level="4">{flow(names)}</b>'


def captions(shown: Iterable[Chart]) -> str:
    return small(" · ".join(chart.caption for chart in shown))


def multiples(shown: Iterable[Chart], compiled_at: Sequence[int] = (), size: ChartSize = SMALL) -> str:
    """Small charts beside each other, as many as there is room for."""
    cells = "".join(f'<div style="flex:1 1 15em;min-width:0">{figure(one, compiled_at, size)}</div>' for one in shown)
    return f'<div style="display:flex;flex-wrap:wrap;gap:.4em 2em">{cells}</div>' if cells else ""


def figure(chart: Chart, compiled_at: Sequence[int] = (), size: ChartSize = LARGE) -> str:
    """A chart with its title, its numbers, and what is wrong with them."""
    warning = f' <b style="color:{ink("warning")}">{say(chart.warning)}</b>' if chart.warning else ""
    caption = f' <span style="{_SMALL};font-variant-numeric:tabular-nums">{flow(chart.caption)}</span>'
    marks = f' <span style="{_SMALL}">╷ compiled</span>' if chart.marked and compiled_at else ""
    marks += f' <span style="{_SMALL};color:{GREEN}">╷ saved</span>' if chart.saved else ""
    head = f"<b>{flow(chart.title)}</b>{caption if chart.caption else ''}{warning}{marks}"
    return f'<div style="margin:.7em 0 .3em 0">{head}</div>{line_chart(chart, compiled_at, size)}'


def figures(shown: Sequence[Figure]) -> str:
    """The numbers of the head in a row, or in several where it is narrow."""
    cells = "".join(map(_figure, shown))
    row = f"{_LINE};row-gap:.2em"
    body = f'<tbody role="presentation" style="display:block"><tr role="list" style="{row}">{cells}</tr></tbody>'
    table = f'<table role="presentation" style="{_PLAIN};width:100%;display:block">{body}</table>'
    return f'<div style="margin:.9em 0 .5em 0;padding:.5em 0;border-top:{RULE}">{table}</div>' if cells else ""


def _figure(one: Figure) -> str:
    cell = f"{_CELL};flex:1 1 6.5em;padding:.1em 1em .1em 0"
    number = "font-size:1.45em;font-weight:600;line-height:1.35;font-variant-numeric:tabular-nums;white-space:nowrap"
    colour = f";color:{ink(one.tone)}" if one.tone else ""
    hint = f' title="{say(one.hint)}"' if one.hint else ""
    mark = "! " if one.tone == "warning" else ""
    value = f'<span style="{number}{colour}">{mark}{say(one.value)}</span>'
    note = f'<br><span style="{_SMALL}">{flow(one.note)}</span>' if one.note else ""
    label = f'<span style="{_SMALL}">{say(one.label)}</span>'
    return f'<td role="listitem" style="{cell}"{hint}>{label}<br>{value}{note}</td>'


# -- what is wrong ---------------------------------------------------------------------------------------------------


def failure(found: FailureText | None) -> str:
    """What happened, why, what to do, and the lines that belong to it."""
    if found is None:
        return ""
    colour = f"color:{ink(found.tone)};font-weight:600"
    what = f'<div role="heading" aria-level="4" style="{colour}">{flow(found.what)}</div>'
    reasons = (("Why", found.why), ("What to do", found.todo))
    told = "".join(f'<div style="margin:.3em 0"><b>{head}:</b> {prose(text)}</div>' for head, text in reasons if text)
    return _beside(found.tone, f"{what}{told}{lines(found.lines)}")


def problems(found: Iterable[Problem]) -> str:
    """Each with its line, what happens and why, and what to do."""
    return "".join(map(problem, found))


def problem(one: Problem) -> str:
    """One that has no title is a text alone."""
    mark = f"{SYMBOLS[one.tone]} " if SYMBOLS.get(one.tone) else ""
    head = f'<b style="color:{ink(one.tone)}">{mark}{flow(one.title)}</b>' if mark or one.title else ""
    count = f' <span style="{_SMALL}">{say(one.count)}</span>' if one.count else ""
    parts = [f'<div role="heading" aria-level="4">{head}{count}</div>'] if one.title else []
    parts += [f"<div>{line_of(one.site)}</div>"] if one.site is not None else []
    parts += [f"<div>{'' if one.title else head}{prose(one.text)}</div>"] if one.text else []
    parts += [f"<div><b>Fix:</b> {prose(one.fix)}</div>"] if one.fix else []
    return _beside(one.tone, "".join(parts) + lines(one.differences))


def _beside(tone: str, html: str) -> str:
    """A block with its tone at its left."""
    return f'<div style="border-left:3px solid {TONES[tone]};padding:0 0 0 .9em;margin:.9em 0">{html}</div>'


def line_of(site: Site) -> str:
    """Where, and the line as it stands there."""
    where = f'<span style="{_MUTED}">{flow(place(site))}</span>'
    return f"{where} {code(site.code)}" if site.code else where


# -- the sections ----------------------------------------------------------------------------------------------------


def folded(section: Section) -> str:
    """A section behind its line."""
    return fold(f"{heading(section)} {small(section.summary)}", content(section))


def fold(head: str, inside: str) -> str:
    return f'<details style="border-top:{RULE}"><summary style="{SUMMARY}">{head}</summary>{inside}</details>'


def heading(section: Section) -> str:
    return f'<b role="heading" aria-level="4">{say(section.title)}</b>'


def small(text: str) -> str:
    return f'<span style="{_SMALL}">{flow(text)}</span>'


def content(section: Section, size: ChartSize = SMALL) -> str:
    """What unfolds."""
    notes = "".join(f'<div style="{_SMALL};margin:.4em 0">{prose(note)}</div>' for note in section.notes)
    parts = [facts(section.facts), multiples(section.charts, (), size), table(section.columns, section.rows)]
    parts += [*map(item, section.items), problems(section.problems)]
    return f'<div style="padding:0 0 1em 1.1em">{"".join(parts)}{notes}</div>'


def facts(shown: Sequence[Fact]) -> str:
    """Labels to the left, facts to the right; below each other where it is narrow."""
    if not shown:
        return ""
    rows = "".join(map(_fact, shown))
    return f'<table style="{_PLAIN};width:100%;display:block"><tbody style="display:block">{rows}</tbody></table>'


def _fact(one: Fact) -> str:
    label = f"{_CELL};flex:0 0 11em;padding:.2em 1em .2em 0;font-weight:600"
    cell = f"{_CELL};flex:1 1 14em;min-width:0;padding:.2em 0"
    name = f'<th scope="row" style="{label}">{flow(one.label)}</th>'
    return f'<tr style="{_LINE}">{name}<td style="{cell}">{_told(one)}</td></tr>'


def _told(one: Fact) -> str:
    said = [prose(line) for line in one.lines]
    if one.tone:
        said[:1] = [f'<b style="color:{ink(one.tone)}">{say(one.marked)}</b> {"".join(said[:1])}']
    return "<br>".join([*said, *([code(one.code)] if one.code else [])])


def table(columns: Sequence[str], rows: Sequence[SectionRow]) -> str:
    """A table; it scrolls where it is wider than its place."""
    if not rows:
        return ""
    head = "".join(map(_heading, columns))
    body = "".join(_row(row) for row in rows)
    head = f'<thead><tr style="background:none">{head}</tr></thead>' if head else ""
    name = say(", ".join(columns))
    where = f'role="region" tabindex="0" aria-label="{name}" style="overflow-x:auto;max-width:100%;margin:.4em 0"'
    return f'<div {where}><table style="{_PLAIN}">{head}<tbody>{body}</tbody></table></div>'


def _heading(name: str) -> str:
    style = f"{_cell('')};border-bottom:{RULE}"
    return f'<th scope="col" style="{style}">{say(name)}</th>' if name else f'<td style="{style}"></td>'


def _row(row: SectionRow) -> str:
    colour = f";color:{ink(row.tone)};font-weight:600" if row.tone else ""
    cells = (f'<td style="{_cell(cell)}{colour}">{prose(cell)}</td>' for cell in row.cells)
    return f'<tr style="background:none">{"".join(cells)}</tr>'


def _cell(text: str) -> str:
    style = "text-align:left;vertical-align:top;padding:.2em 1.2em .2em 0;border:0;font-variant-numeric:tabular-nums"
    kept = ";white-space:nowrap" if len(text) <= LONG_WORD else ";white-space:normal;min-width:14em"
    return style + kept


@by_identity
def item(one: Item) -> str:
    """A line that unfolds to facts."""
    first, *others = one.cells or ("",)
    colour = f' style="color:{ink(one.tone)}"' if one.tone else ""
    rest = f' <span style="{_MUTED}">{flow(" · ".join(cell for cell in others if cell))}</span>' if others else ""
    head = f'<summary style="cursor:pointer;padding:.2em 0"><b{colour}>{flow(first)}</b>{rest}</summary>'
    return f'<details>{head}<div style="padding:.1em 0 .6em 1.1em">{"".join(map(_brief, one.facts))}</div></details>'


def _brief(one: Fact) -> str:
    """A fact of one among many items: with few styles."""
    told = f'<b style="flex:0 0 10em">{flow(one.label)}</b><div style="flex:1 1 14em">{_told(one)}</div>'
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 1em;padding:.15em 0">{told}</div>'


def footer(page: Page) -> str:
    if not page.footer:
        return ""
    return f'<div style="{_SMALL};border-top:{RULE};padding:.5em 0 0 0">{flow(page.footer)}</div>'


# -- texts -----------------------------------------------------------------------------------------------------------

_LONG = re.compile(rf"\S{{{LONG_WORD + 1},}}")
_JOINT = re.compile(r"([/\\.,:;_=\-)\]])(?=[^\s/\\.,:;_=\-)\]])")


def flow(text: str) -> str:
    """Text as HTML. Long words, such as paths, may break at their joints, and no others do where there is room."""
    return "".join(_flowing(text))


def _flowing(text: str) -> Iterator[str]:
    at = 0
    for word in _LONG.finditer(text):
        yield say(text[at : word.start()])
        yield "<wbr>".join(map(say, _JOINT.sub("\\1\0", word[0]).split("\0")))
        at = word.end()
    yield say(text[at:])


def prose(text: str) -> str:
    """Text as HTML; what is between backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick has no other
        return flow(text)
    return "".join(code(part) if at % 2 and part else flow(part) for at, part in enumerate(parts))


def code(text: str) -> str:
    return f'<code style="{_CODE}">{flow(text)}</code>'


def lines(shown: Sequence[str]) -> str:
    """Lines of code or output, their blanks kept."""
    return f'<pre style="{_PRE}">{say(chr(10).join(shown))}</pre>' if shown else ""
