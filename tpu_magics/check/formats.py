"""Findings as text, JSON, GitHub annotations and SARIF. In a notebook the panel shows them."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpu_magics.check.finding import Finding
from tpu_magics.check.rule import Rule, as_markdown, as_text, rule_doc, rule_url
from tpu_magics.errors import plural

WIDTH = 110  # columns of a shown line of code
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_RED, _YELLOW, _CYAN, _BOLD, _PLAIN = "\033[31m", "\033[33m", "\033[36m", "\033[1m", "\033[0m"


@dataclass(frozen=True)
class CheckReport:
    """What a check found in `files` files. `file_lines` gives the line of the file on which a finding in a notebook
    stands, `fixed` how many findings were fixed before (or what `done` says), `advice` how many more are advice that
    was not asked for, `known` how many the baseline lists."""

    findings: Sequence[Finding]
    files: int
    fixed: int = 0
    rules: Sequence[Rule] = ()
    version: str = ""
    file_lines: Callable[[Finding], int] = field(default=lambda finding: finding.line)
    advice: int = 0
    known: int = 0
    done: str = "fixed"


# -- text -----------------------------------------------------------------------------------------------------------


def text(report: CheckReport, colour: bool = False) -> str:
    """For people: by file, each finding with its code, the reason and the fix."""
    parts = []
    urls = {rule.code: rule_url(rule) for rule in report.rules}
    for path, result in groupby(report.findings, key=lambda finding: finding.path):
        mine = list(result)
        parts.append(_painted(f"{_printable(path)}: {_counted(mine)}", _BOLD, colour))
        parts += [_block(finding, colour, urls) for finding in mine]
    return "\n".join([*parts, summary(report), ""])


def summary(report: CheckReport) -> str:
    """The last line: how many, and what `--fix` can do."""
    checked = plural(report.files, "file", "")
    done = f"{plural(report.fixed, 'finding', '')} {report.done}. " if report.fixed else ""
    hidden = f" {report.advice} advice not shown (`--advice`)." if report.advice else ""
    hidden += f" {report.known} more in the baseline." if report.known else ""
    if not report.findings:
        return (
            f"{done}No findings in {checked}.{hidden}" if report.files else f"{done}No Python files or notebooks found."
        )
    files = len({finding.path for finding in report.findings})
    unsafe = sum(finding.unsafe for finding in report.findings)
    fixable = sum(bool(finding.edits) for finding in report.findings) - unsafe
    rest = f" `--fix` can fix {fixable}." if fixable else ""
    rest += f" `--fix --unsafe-fixes` can fix {unsafe} more, which may change results." if unsafe else ""
    return f"{done}{_counted(report.findings)} in {files} of {checked}.{rest}{hidden}"


def statistics(report: CheckReport, as_json: bool = False) -> str:
    """How often each rule was broken, most often first; `[*]` where `--fix` can fix them all."""
    codes = Counter(finding.code for finding in report.findings)
    fixable = Counter(finding.code for finding in report.findings if finding.edits and not finding.unsafe)
    names = {rule.code: rule.name for rule in report.rules}
    rows = [(count, code, names.get(code, ""), fixable[code]) for code, count in codes.most_common()]
    if as_json:
        keys = ("count", "code", "name", "fixable")
        return json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2) + "\n"
    wide = len(str(max(codes.values(), default=0)))
    marks = {True: "[*]", False: "[ ]"}
    lines = [f"{count:>{wide}}  {code}  {marks[fixes == count]}  {name}" for count, code, name, fixes in rows]
    return "\n".join([*lines, summary(report), ""])


def _counted(findings: Iterable[Finding]) -> str:
    advice = [finding.advice for finding in findings]
    count, parts = len(advice) - sum(advice), []
    if count:
        parts.append(plural(count, "finding", ""))
    if any(advice):
        parts.append(f"{sum(advice)} advice")
    return ", ".join(parts)


def _block(finding: Finding, colour: bool, urls: Mapping[str, str]) -> str:
    code = _painted(finding.code, _YELLOW if finding.advice else _RED, colour)
    if colour and (url := urls.get(finding.code)):
        code = f"\033]8;;{url}\033\\{code}\033]8;;\033\\"  # a link, in terminals that know them
    label = " (advice)" if finding.advice else ""
    lines = [f"{_printable(finding.place)}: {code}{label} {_printable(finding.message)}"]
    if finding.source.strip():
        shown, caret = _with_caret(finding)
        lines += [f"    {shown}", "    " + _painted(caret, _RED, colour)]
    for name, parts in (("why", finding.why), ("fix", finding.fix)):
        if parts:
            lines.append(f"    {_painted(name + ':', _CYAN, colour)} {_printable(parts)}")
    return "\n".join([*lines, ""])


def _with_caret(finding: Finding) -> tuple[str, str]:
    """The line of code without its indentation, and carets under the finding; a long line is cut around it."""
    source = finding.source.rstrip()
    start = min(max(finding.column - 1, 0), len(source))
    end = min(finding.end_column - 1, len(source)) if finding.end_line == finding.line else len(source)
    first = len(source) - len(source.lstrip())
    if end - first > WIDTH:
        first = max(first, min(start, max(start - WIDTH // 4, end - WIDTH)))
    last = first + WIDTH
    before, marked = source[first : max(start, first)], source[max(start, first) : min(max(end, start + 1), last)]
    return _printable(source[first:last]), " " * _width(before) + "^" * max(1, _width(marked))


def _width(text: str) -> int:
    """Columns of a terminal."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in _printable(text))


def _printable(text: str) -> str:
    """Without control characters; a tab becomes a space."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else " " if one == "\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def _painted(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_PLAIN}" if colour else text


# -- json, github ---------------------------------------------------------------------------------------------------


def as_json(report: CheckReport) -> str:
    """A list of objects, one for each finding."""
    return json.dumps([finding.as_record() for finding in report.findings], indent=2) + "\n"


def github(report: CheckReport) -> str:
    """Workflow commands, which GitHub shows next to the line. For a notebook this is the line of the file, and the text
    names the cell."""
    return "".join(_annotation(finding, report) + "\n" for finding in report.findings)


def _annotation(finding: Finding, report: CheckReport) -> str:
    parts = [finding.message, finding.why, f"Fix: {finding.fix}" if finding.fix else ""]
    where: dict[str, Any] = {"file": finding.path}
    if finding.cell is None:
        where |= {"line": finding.line, "endLine": finding.end_line, "col": finding.column}
    else:
        where["line"] = report.file_lines(finding)
        parts.insert(0, f"Cell {finding.cell}, line {finding.line}:")
    where["title"] = finding.code
    level = "notice" if finding.advice else "error"
    properties = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in where.items())
    return f"::{level} {properties}::{_escaped(' '.join(part for part in parts if part))}"


def _escaped(text: str, more: str = "") -> str:
    for one in "%\r\n" + more:
        text = text.replace(one, f"%{ord(one):02X}")
    return text


# -- SARIF ----------------------------------------------------------------------------------------------------------


def sarif(report: CheckReport) -> str:
    """SARIF 2.1.0, for code scanning."""
    driver: dict[str, Any] = {"name": "tpu_magics", "rules": [_rule(rule) for rule in report.rules]}
    if report.version:
        driver["version"] = report.version
    index = {rule.code: number for number, rule in enumerate(report.rules)}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, report, index) for finding in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    result = rule_doc(rule)
    return {
        "id": result.code,
        "name": "".join(word.capitalize() for word in result.name.split("-")),
        "shortDescription": {"text": result.title},
        "fullDescription": {"text": result.section("What it does") or result.title},
        "help": {"text": as_text(rule), "markdown": as_markdown(rule)},
        **({"helpUri": url} if (url := rule_url(rule)) else {}),
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": [result.group]},
    }


def _result(finding: Finding, report: CheckReport, index: dict[str, int]) -> dict[str, Any]:
    parts = " ".join(part for part in (finding.message, finding.why, finding.fix) if part)
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": "note" if finding.advice else "error",
        "message": {"text": parts},
        "locations": [_location(finding, report)],
    }
    if finding.code in index:
        result["ruleIndex"] = index[finding.code]
    if finding.edits and finding.cell is None:
        result["fixes"] = [_sarif_fix(finding)]
    return result


def _location(finding: Finding, report: CheckReport) -> dict[str, Any]:
    """In a notebook the line of the file; the cell, and the line in it, are the logical location."""
    physical: dict[str, Any] = {"artifactLocation": _artifact(finding)}
    if finding.cell is None:
        physical["region"] = _region((finding.line, finding.column), (finding.end_line, finding.end_column))
        return {"physicalLocation": physical}
    physical["region"] = {"startLine": report.file_lines(finding)}
    name = f"cell {finding.cell}"
    logical = {"name": name, "fullyQualifiedName": f"{finding.path}, {name}, line {finding.line}", "kind": "module"}
    return {"physicalLocation": physical, "logicalLocations": [logical]}


def _artifact(finding: Finding) -> dict[str, str]:
    path = Path(finding.path)
    if path.is_absolute():
        return {"uri": "file://" + quote(path.as_posix(), errors="replace")}
    return {"uri": quote(path.as_posix(), errors="replace")}


def _region(start: tuple[int, int], end: tuple[int, int]) -> dict[str, int]:
    return {"startLine": start[0], "startColumn": start[1], "endLine": end[0], "endColumn": end[1]}


def _sarif_fix(finding: Finding) -> dict[str, Any]:
    replacements = [
        {
            "deletedRegion": _region((edit.start[0], edit.start[1] + 1), (edit.end[0], edit.end[1] + 1)),
            "insertedContent": {"text": edit.text},
        }
        for edit in finding.edits
    ]
    change = {"artifactLocation": _artifact(finding), "replacements": replacements}
    return {"description": {"text": finding.fix}, "artifactChanges": [change]}


FORMATS: dict[str, Callable[[CheckReport], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
