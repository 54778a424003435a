"""A preflight as one piece of HTML and as plain text.

GitHub removes styles and drawings from a notebook. So each figure is in a table cell with its label, states are words
with a symbol, and the sizes of a drawing are in a table as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.formats import NOT_AVAILABLE, short, size
from tpu_magics.panel.html_parts import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    RED,
    SMALL,
    VIOLET,
    chip,
    facts_table,
    say,
    small,
    table,
    title,
)
from tpu_magics.panel.page import Fact
from tpu_magics.panel.preflight_compare import compare_html, compare_text
from tpu_magics.panel.preflight_figures import PreflightFigure, figures
from tpu_magics.panel.preflight_fit import fit_html, fit_text, sizes_text
from tpu_magics.panel.preflight_problems import problems
from tpu_magics.panel.preflight_profile import profile_html, profile_text
from tpu_magics.panel.preflight_topics import Topic, kinds, topics
from tpu_magics.panel.table import WIDTH, Row, Table
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.verdict import Reason, TpuVerdict

_OUTER = "color:inherit;max-width:72em;line-height:1.45;overflow-wrap:break-word"
_SUMMARY = "cursor:pointer"
_INSIDE = "margin:.3em 0 .8em 1.1em"


# -- HTML ------------------------------------------------------------------------------------------------------------


def to_html(found: Preflight) -> str:
    """One `<div>`: a row for each target, the problems, the search, the folded topics, the verdict."""
    parts = [_title(found), rows_html(found.results), _problems_html(problems(found)), fit_html(found)]
    parts += [profile_html(found)] if found.profiled else []
    parts += [compare_html(found)]
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
    if found.profiled:
        yield from profile_text(found, width)
    yield from compare_text(found, width)
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


# -- the row of a target, as HTML -----------------------------------------------------------------------------------


COLOURS = {"arguments": BLUE, "temporaries": VIOLET, "outputs": GREEN, "code": GREY, "other tensors": AMBER}
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
    """One row for each target, with a bar of its memory. The cells flow: all in one line where there is room, else four
    to a line. Without styles it is a plain table."""
    rows = "".join(_target_row(one) for one in results)
    style = "display:block;border-collapse:collapse;border:0;margin:0;color:inherit;font-size:inherit;width:100%"
    return f'<table style="{style}"><tbody style="display:block">{rows}</tbody></table>'


def _target_row(one: TargetResult) -> str:
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


# -- the verdict ----------------------------------------------------------------------------------------------------


HEAD = "Does this step suit a TPU?"
MARKS = {True: ("✓", GREEN), False: ("✗", RED), None: ("?", AMBER)}
SIDES = {True: "✓ for", False: "✗ against", None: "· neither"}


@dataclass(frozen=True)
class VerdictLine:
    """A reason of one or several targets. `side`: for, against or neither; `todo`: what would change it."""

    side: str
    text: str
    todo: str


def verdict_html(found: Preflight) -> str:
    parts = [title(HEAD)]
    for names, verdict, because in _verdicts(found):
        mark, colour = MARKS[verdict.suits]
        whose = f"<b>{say(names)}</b> " if names else ""
        shown = f"{chip(f'{mark} {verdict.word}', colour)} {say(because)}"
        parts.append(f'<p style="margin:.2em 0 .4em 0">{whose}{shown}</p>')
    parts.append(table((), map(_row, lines(found))))
    return "".join([*parts, f'<p style="margin:.4em 0 0 0">{small(not_told(found))}</p>'])


def verdict_text(found: Preflight, width: int) -> Iterator[str]:
    told = (
        f"{f'{names}: ' if names else ''}{MARKS[verdict.suits][0]} {verdict.word}. {because}"
        for names, verdict, because in _verdicts(found)
    )
    rows = tuple(Row((one.side, f"{one.text} {one.todo}".strip())) for one in lines(found))
    yield plain.to_text(Table(HEAD, None, (), tuple(told)), width)
    yield plain.to_text(Table("", None, rows), width)
    yield plain.to_text(Table("", None, (), (not_told(found),)), width)


def _row(one: VerdictLine) -> list[str]:
    more = f" {small(one.todo)}" if one.todo else ""
    return [f'<b style="white-space:nowrap">{say(one.side)}</b>', f"{say(one.text).replace(' %', '&nbsp;%')}{more}"]


def _verdicts(found: Preflight) -> Iterator[tuple[str, TpuVerdict, str]]:
    """Each different one with the names of its targets, without names where there is only one, and why: targets that
    differ only in a number share it."""
    groups: dict[tuple[str, str], list[TargetResult]] = {}
    for one in found.results:
        reason = one.verdict.deciding
        groups.setdefault((one.verdict.word, reason.text if reason else one.verdict.because), []).append(one)
    for same in groups.values():
        names = ", ".join(one.name for one in same) if len(groups) > 1 else ""
        yield names, same[0].verdict, _because(same)


def _because(same: Sequence[TargetResult]) -> str:
    numbers = {one.name: one.verdict.deciding.number for one in same if one.verdict.deciding}
    reason = same[0].verdict.deciding
    return replace(reason, number=_numbers(numbers)).sentence if reason else same[0].verdict.because


# -- reasons ---------------------------------------------------------------------------------------------------------


def lines(found: Preflight) -> Iterator[VerdictLine]:
    """What decides first, then against, neither, for. Targets that differ in a number share a line."""
    groups: dict[Reason, dict[str, str]] = {}
    for one in found.results:
        for reason in one.verdict.reasons:
            groups.setdefault(replace(reason, number=""), {})[one.name] = reason.number
    for reason, numbers in sorted(groups.items(), key=lambda item: _order(item[0])):
        whose = "" if len(numbers) == len(found.results) else f"{', '.join(numbers)}: "
        done = found.fit and (reason.good or "--fit" in reason.todo)
        text = replace(reason, number=_numbers(numbers)).sentence
        yield VerdictLine(SIDES[reason.good], f"{whose}{text}", "" if done else reason.todo)


def _numbers(numbers: Mapping[str, str]) -> str:
    """ "98 %"; "98 % (v5litepod-8), 97 % (v6e-8)" where they differ."""
    if len(set(numbers.values())) == 1:
        return next(iter(numbers.values()))
    return ", ".join(f"{number} ({name})" for name, number in numbers.items())


def _order(reason: Reason) -> int:
    return -1 if reason.decides else (False, None, True).index(reason.good)


def not_told(found: Preflight) -> str:
    """What a verdict does not cover."""
    return f"Not visible in the program: {'; '.join(found.results[0].verdict.unknown)}."
