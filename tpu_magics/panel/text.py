"""A page as plain text, for a terminal, nbclient and front ends that show no HTML.

At most `HEALTHY` lines, and `FAILED` where something is wrong, the reason first; `to_text(page, everything=True)` has
all that the page has.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tpu_magics.panel.charts import sparkline
from tpu_magics.panel.formats import short
from tpu_magics.panel.page import Chart, Fact, FailureText, Figure, Page, Problem, Section
from tpu_magics.panel.page_problems import where_text
from tpu_magics.panel.table import SYMBOLS, WIDTH, Row, Table, printable
from tpu_magics.panel.table import to_text as table_text

HEALTHY, FAILED = 15, 25
CHARTS = 3
FAILURE_LINES = 8  # of code or output
PROBLEMS = 3
# The sections that a short text has, with their one line.
BRIEF = ("memory", "ranks", "rehearsal")
ROWS = 20


def to_text(page: Page, everything: bool = False) -> str:
    """The page in lines of at most 100 columns."""
    head, rest = list(_head(page)), _last(page)
    if everything:
        problems = [line for one in page.problems for line in _problem(one)]
        blocks = [head, problems, *(_section(one) for one in page.sections)]
        return "\n\n".join("\n".join(block) for block in blocks if block) + f"\n\n{page.footer}\n"
    most = FAILED if page.failure is not None or page.problems else HEALTHY
    lines = [*head, *_problems(page.problems, most - len(head) - 2)]
    brief = [line for one in page.sections if one.key in BRIEF for line in _brief(one)]
    lines += brief[: max(0, most - len(lines) - 1)]
    return "\n".join([*lines, rest]) + "\n"


def _last(page: Page) -> str:
    return f"%tpu_panel {page.id} --all shows everything."


def _head(page: Page) -> Iterator[str]:
    """Name and state, why it failed, the figures, the curves."""
    parts = (f"{page.name}: {page.symbol} {page.state}", page.elapsed, page.where, page.detail)
    yield from _wrapped(" · ".join(part for part in parts if part), most=2)
    if page.failure is not None:
        yield from _failure(page.failure)
    if page.progress is not None:
        yield page.progress.text
    yield from _packed(list(map(_figure, page.figures)))
    yield from map(_chart, page.charts[:CHARTS])


def _failure(failure: FailureText) -> Iterator[str]:
    """The reason, the advice, and the lines nearest to the fault."""
    yield from _wrapped(failure.what, most=3)
    yield from _wrapped(f"Why: {failure.why}" if failure.why else "", most=3)
    yield from _wrapped(f"What to do: {failure.todo}" if failure.todo else "", most=3)
    lines = [part for line in failure.lines for part in printable(line).splitlines()]
    yield from (f"    {short_line(line)}" for line in lines[-FAILURE_LINES:])


def _figure(figure: Figure) -> str:
    mark = "! " if figure.tone == "warning" else ""
    note = f" ({figure.note})" if figure.note else ""
    return f"{mark}{figure.label} {figure.value}{note}"


def _chart(chart: Chart) -> str:
    shape = sparkline([value for _x, value, _low, _high in chart.points], 24)
    note = f"  ! {chart.warning}" if chart.warning else ""
    return short_line(f"{short(chart.title, 24)}  {shape}  {chart.caption}{note}")


# -- problems --------------------------------------------------------------------------------------------------------


def _problems(found: Sequence[Problem], room: int) -> list[str]:
    """The first problems that there is room for, and how many more there are."""
    lines: list[str] = []
    for at, one in enumerate(found):
        block = list(_problem(one, 2))
        if at and (at >= PROBLEMS or len(lines) + len(block) >= room):
            return [*lines, f"… and {len(found) - at} more."]
        lines += block
    return lines


def _problem(one: Problem, most: int = 4) -> Iterator[str]:
    where = where_text(one)
    head = ", ".join(part for part in (where, one.count) if part)
    title = " · ".join(part for part in (one.title or one.text, head) if part)
    yield from _wrapped(f"{SYMBOLS.get(one.tone, '')} {title}".strip(), most=most)
    if one.title:
        yield from _wrapped(one.text, "  ", most)
    if one.fix:
        yield from _wrapped(f"Fix: {one.fix}", "  ", most)


# -- sections --------------------------------------------------------------------------------------------------------


def _brief(section: Section) -> list[str]:
    return _wrapped(f"{section.title}: {section.summary}", most=1)


def _section(section: Section) -> list[str]:
    """All of it."""
    lines = _wrapped(f"{section.title}: {section.summary}")
    rows = [Row((fact.label, _fact(fact))) for fact in section.facts]
    lines += table_text(Table("", None, tuple(rows))).splitlines() if rows else []
    lines += map(_chart, section.charts)
    if section.columns:
        cells = [*(one.cells for one in section.rows), *(one.cells for one in section.items)]
        shown = tuple(Row(each) for each in cells[:ROWS])
        lines += table_text(Table("", section.columns, shown)).splitlines()
        lines += [f"… and {len(cells) - ROWS:,} more."] if len(cells) > ROWS else []
    lines += [line for one in section.problems for line in _problem(one)]
    return [*lines, *(line for note in section.notes for line in _wrapped(note))]


def _fact(fact: Fact) -> str:
    mark = f"{fact.marked}: " if fact.tone else ""
    return mark + "\n".join([*fact.lines, *([fact.code] if fact.code else [])])


# -- lines -----------------------------------------------------------------------------------------------------------


def _packed(parts: Sequence[str]) -> list[str]:
    """The parts one after another, as many as fit into each line."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= WIDTH:
            lines[-1] += f" · {part}"
        else:
            lines.append(short_line(part))
    return lines


def _wrapped(text: str, indent: str = "", most: int | None = None) -> list[str]:
    """The text in lines, at most so many; none where it is empty."""
    lines = textwrap.wrap(printable(" ".join(text.split())), WIDTH, initial_indent=indent, subsequent_indent=indent)
    if most is not None and len(lines) > most:
        return [*lines[: most - 1], short_line(f"{lines[most - 1][: WIDTH - 2]} …")]
    return lines


def short_line(line: str) -> str:
    """One line of at most 100 columns, its blanks kept."""
    line = printable(line).replace("\n", " ")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
