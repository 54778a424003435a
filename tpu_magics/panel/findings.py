"""The findings of the rules as text and HTML, with their lines of code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tpu_magics.check import rule_name, rule_text
from tpu_magics.check.finding import Finding
from tpu_magics.check.formats import CheckReport, text
from tpu_magics.errors import plural
from tpu_magics.panel.formats import rule_title, short
from tpu_magics.panel.html_parts import AMBER, GREY, chip, code, paragraph, say, small, title
from tpu_magics.runs.events import RuleFinding

MOST = 100  # findings shown in a notebook
_CODE = (
    "margin:.15em 0;padding:.2em .6em;border-left:3px solid {colour};color:inherit;background:none;"
    "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace"
)
_MARK = "color:inherit;background:none;text-decoration:underline wavy {colour};text-underline-offset:.2em"
_BLOCK = "margin:.7em 0"
_LINE = "margin:.15em 0;overflow-wrap:anywhere"


@dataclass(frozen=True)
class FindingView:
    """A finding as it is shown. `rule`: its code and name in words; `start` and `end`: its columns in `source`, from
    0."""

    code: str
    rule: str
    where: str
    source: str
    start: int
    end: int
    message: str
    why: str
    fix: str
    advice: bool


def finding_view(one: Finding) -> FindingView:
    """A finding of a check."""
    end = one.end_column - 1 if one.end_line == one.line else len(one.source)
    return FindingView(
        one.code, rule_title(one.code, rule_name(one.code)), _where(one.path, one.cell, one.line),
        one.source, one.column - 1, end, one.message, one.why, one.fix, one.advice,
    )  # fmt: skip


def recorded_finding(one: RuleFinding) -> FindingView:
    """A finding in the records of a run; what it is about on its line is not recorded."""
    where = _where(one.site.path, None, one.site.line)
    rule = rule_title(one.code, one.name)
    return FindingView(one.code, rule, where, one.site.code, 0, 0, one.message, one.why, one.fix, one.advice)


def _where(path: str, cell: int | None, line: int) -> str:
    inside = "" if cell is None else f", cell {cell}"
    return f"{short(path, 120)}{inside}, line {line}"


# -- words ---------------------------------------------------------------------------------------------------------


def headline(found: Sequence[FindingView]) -> str:
    """E.g. "3 broken rules and 1 advice"; "Nothing found"."""
    broken = sum(not one.advice for one in found)
    advice = len(found) - broken
    said = [plural(broken, "broken rule", "")] if broken else []
    said += [f"{advice} advice"] if advice else []
    return " and ".join(said) or "No broken rule"


def codes(found: Iterable[FindingView]) -> str:
    """E.g. "TPU101, TPU301 (2)": which rules, and how often."""
    grouped = ((code, len(list(some))) for code, some in groupby(sorted(one.code for one in found)))
    return ", ".join(code if number == 1 else f"{code} ({number})" for code, number in grouped)


def findings_text(findings: Sequence[Finding], looked_at: str) -> str:
    """All findings in plain text. `looked_at`: what was checked, e.g. "5 cells"."""
    shown = findings[:MOST]
    lines = text(CheckReport(shown, 1)).rstrip().rpartition("\n\n")[0] if shown else ""
    head = f"{headline([finding_view(one) for one in findings])} in {looked_at}."
    more = f"{len(findings) - MOST:,} more are not shown." if len(findings) > MOST else ""
    return "\n\n".join(part for part in (head, lines, more) if part)


# -- HTML ----------------------------------------------------------------------------------------------------------


def findings_html(findings: Sequence[Finding], looked_at: str) -> str:
    """The findings as one `<div>`."""
    shown = [finding_view(one) for one in findings]
    head = f"{headline(shown)} in {looked_at}."
    if not shown:
        return f'<div class="tpu-magics-check">{chip("✓ ok", "#1a7f37")} {say(head)}</div>'
    more = small(f"{len(shown) - MOST:,} more are not shown.") if len(shown) > MOST else ""
    body = f"{title(head)}{blocks(shown[:MOST])}{more}{rules(shown[:MOST])}"
    return f'<div class="tpu-magics-check" style="color:inherit;max-width:70em">{body}</div>'


def blocks(found: Iterable[FindingView]) -> str:
    return "".join(_block(one) for one in found)


def rules(found: Iterable[FindingView]) -> str:
    """What each rule says, with an example and what to write instead: folded, and read without a network."""
    titles = {one.code: one.rule for one in found}
    return "".join(
        f'<details style="{_LINE}"><summary style="cursor:pointer">About {say(title)}</summary>'
        f'<div style="{_CODE.format(colour=GREY)}">{_worded(text)}</div></details>'
        for code, title in titles.items()
        if (text := rule_text(code))
    )


def _block(one: FindingView) -> str:
    colour = GREY if one.advice else AMBER
    word = f"advice {one.rule}" if one.advice else f"! {one.rule}"
    head = f'<p style="{_LINE}">{chip(word, colour)} <b>{say(one.where)}</b> {_worded(one.message)}</p>'
    return f'<div style="{_BLOCK}">{head}{_shown(one, colour)}{"".join(_reasons(one))}</div>'


def _reasons(one: FindingView) -> Iterator[str]:
    if one.why:
        yield paragraph("Why:", _worded(one.why))
    if one.fix:
        yield paragraph("Fix:", _worded(one.fix))


def _worded(text: str) -> str:
    """Text between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return say(text)
    return "".join(code(part) if number % 2 else say(part) for number, part in enumerate(parts))


def _shown(one: FindingView, colour: str) -> str:
    source = one.source.rstrip()
    if not source.strip():
        return ""
    indent = len(source) - len(source.lstrip())
    start, end = max(one.start, indent), min(max(one.end, one.start), len(source))
    if start >= end:
        body = say(source[indent:])
    else:
        marked = f'<span style="{_MARK.format(colour=colour)}">{say(source[start:end])}</span>'
        body = f"{say(source[indent:start])}{marked}{say(source[end:])}"
    return f'<div style="{_CODE.format(colour=colour)}">{body}</div>'
