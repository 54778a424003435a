"""The verdict of a preflight: does the step suit a TPU?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpu_magics.panel import table as plain
from tpu_magics.panel.sections_words import AMBER, GREEN, RED, chip, say, small, table, title
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.verdict import Reason, TpuVerdict

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
