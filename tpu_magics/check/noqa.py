"""Comments that suppress findings: `# noqa`, `# noqa: TPU101, E501` and `# tpu_magics: skip-file`; those that suppress
nothing, and new ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.rule import Rule

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell


class UnusedNoqa(Rule):
    """A comment that suppresses nothing.

    What it does
        Reports, as advice, the codes of this checker in a `# noqa: TPU101` where no such finding is suppressed. A
        `# noqa` without codes, and the codes of other checkers, are not judged.
    Why this is bad
        The comment says that there is a problem where there is none, and would hide the next one.
    Example
        loss = loss.detach()  # noqa: TPU102
    Use instead
        loss = loss.detach()
    Limitations
        `--fix` removes it. Where other rules are selected on the command line, all rules still count.
    """

    code = "TPU002"
    name = "unused-noqa"
    group = "syntax"
    why = "It suppresses nothing now, and would hide the next problem of this kind on its line."


UNUSED_NOQA = UnusedNoqa()

_NOQA = re.compile(r"#\s*noqa\b(?!-)(?:\s*:\s*(?P<codes>[a-z]+\d+(?:[\s,]+[a-z]+\d+)*))?", re.IGNORECASE)
_SKIP = re.compile(r"#\s*tpu[_-]magics\s*:\s*skip-file\b", re.IGNORECASE)
_HINT = re.compile("noqa|skip-file", re.IGNORECASE)
_OURS = re.compile(r"TPU\d+")
# Strings and comments of Python; a prefix does not change where a string ends.
_PARTS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|' + r"'''(?:\\.|[^\\])*?(?:'''|\Z)|"
    r'"(?:\\.|[^"\\\n])*"?|'
    + r"'(?:\\.|[^'\\\n])*'?|(?P<comment>#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<end>\n)",
    re.DOTALL,
)


@dataclass
class NoqaComment:
    """One `# noqa`: its column, its text up to the end of its codes, these (none: every rule), and which were used."""

    column: int
    text: str
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)

    def suppresses(self, code: str) -> bool:
        if self.codes and code not in self.codes:
            return False
        self.used.add(code)
        return True


class Noqa:
    """What the comments of one cell or file suppress."""

    def __init__(self, text: str) -> None:
        self.comments: Mapping[int, NoqaComment] = {}
        self.skip_file = False
        result = {}
        for line, column, comment in _comments(text):
            self.skip_file = self.skip_file or bool(_SKIP.search(comment))
            noqa = _NOQA.search(comment)
            if noqa:
                codes = tuple(re.split(r"[\s,]+", noqa["codes"].upper())) if noqa["codes"] else ()
                result[line] = NoqaComment(column + noqa.start(), noqa.group(), codes)
        if result:
            self.comments, self._ends = result, _logical_ends(text)

    def suppresses(self, finding: Finding) -> bool:
        """By a comment on the finding's line, on the last line of its expression, or on that of its statement (of a
        compound statement, of the line that heads it)."""
        if not self.comments:
            return False
        end = self._ends.get(finding.line, finding.line)
        lines = {finding.line, min(finding.end_line, end), end}
        found = [one for line in lines if (one := self.comments.get(line)) is not None]
        return sum(one.suppresses(finding.code) for one in found) > 0  # each of them is used


def _noqas(cells: Iterable[CodeCell]) -> dict[tuple[str, int | None], Noqa]:
    """The `noqa` comments of cells that have any."""
    return {(cell.path, cell.number): Noqa(cell.text) for cell in cells if _HINT.search(cell.text)}


def without_suppressed(findings: Iterable[Finding], cells: Iterable[CodeCell]) -> list[Finding]:
    """The findings of one file that no comment suppresses."""
    comments = _noqas(cells)
    if any(one.skip_file for one in comments.values()):
        return []
    return [one for one in findings if not _is_suppressed(one, comments)]


def _is_suppressed(finding: Finding, comments: Mapping[tuple[str, int | None], Noqa]) -> bool:
    here = comments.get((finding.path, finding.cell))
    return here is not None and here.suppresses(finding)


# -- comments that suppress nothing, and new ones ---------------------------------------------------------------------


def unused_noqa(
    findings: Sequence[Finding], cells: Iterable[CodeCell], unasked: Collection[str] = ()
) -> Iterator[Finding]:
    """TPU002 for each comment with a code of ours that suppresses none of these findings. `unasked`: codes of rules
    that were not used."""
    cells = [cell for cell in cells if _HINT.search(cell.text)]
    comments = _noqas(cells)
    if any(one.skip_file for one in comments.values()):
        return
    for finding in findings:
        _is_suppressed(finding, comments)
    for cell in cells:
        for line, comment in comments[cell.path, cell.number].comments.items():
            known = {*comment.used, *unasked}
            unused = [code for code in comment.codes if _OURS.fullmatch(code) and code not in known]
            if unused:
                yield _unused(cell, line, comment, unused)


def _unused(cell: CodeCell, line: int, comment: NoqaComment, unused: Sequence[str]) -> Finding:
    source = cell.lines[line - 1]
    kept = [code for code in comment.codes if code not in unused]
    end = comment.column + len(comment.text)
    start = comment.column if kept else len(source[: comment.column].rstrip())
    edit = Edit((line, start), (line, end), f"# noqa: {', '.join(kept)}" if kept else "")
    return Finding(
        code=UNUSED_NOQA.code, group=UNUSED_NOQA.group, path=cell.path, cell=cell.number, line=line,
        column=comment.column + 1, end_line=line, end_column=end + 1,
        message=f"No finding of {', '.join(unused)} is suppressed here.", why=UNUSED_NOQA.why,
        fix=f"Write `# noqa: {', '.join(kept)}`." if kept else "Remove the comment.",
        source=source.rstrip(), advice=True, edits=(edit,),
    )  # fmt: skip


def with_noqa(cell: CodeCell, findings: Iterable[Finding]) -> str:
    """The text of a cell with a comment for each of its findings, at the end of the statement's line; a magic has none,
    it would take it for its own words."""
    ends, lines = _logical_ends(cell.text), list(cell.lines)
    magics = {one.line for one in cell.line_magics}
    magics |= {number for number, line in enumerate(lines, 1) if cell.magic and line.startswith("%%")}
    codes: dict[int, list[str]] = {}
    for one in findings:
        line = ends.get(one.line, one.line)
        if (one.path, one.cell) == (cell.path, cell.number) and not one.advice and line not in magics:
            known = codes.setdefault(line, [])
            known += [one.code] if one.code not in known else []
    comments = Noqa(cell.text).comments
    for line, new in codes.items():
        text, old = lines[line - 1], comments.get(line)
        if old is None:
            lines[line - 1] = f"{text.rstrip()}  # noqa: {', '.join(new)}"
        else:
            merged = f"# noqa: {', '.join([*old.codes, *new])}"
            lines[line - 1] = text[: old.column] + merged + text[old.column + len(old.text) :]
    return "\n".join(lines)


# -- where comments and statements are --------------------------------------------------------------------------------


def _comments(text: str) -> Iterator[tuple[int, int, str]]:
    """Line, column (from 0) and text of the comments that may concern us."""
    line, counted = 1, 0
    for result in _PARTS.finditer(text):
        if result.lastgroup == "comment" and _HINT.search(result.group()):
            line += text.count("\n", counted, result.start())
            counted = result.start()
            yield line, result.start() - text.rfind("\n", 0, result.start()) - 1, result.group()


def _logical_ends(text: str) -> dict[int, int]:
    """First and inner lines of each statement of several lines -> its last line."""
    ends: dict[int, int] = {}
    line = first = 1
    depth = 0
    for result in _PARTS.finditer(text):
        if result.lastgroup == "open":
            depth += 1
        elif result.lastgroup == "close":
            depth = max(0, depth - 1)
        elif result.lastgroup == "end":
            continued = depth > 0 or text[result.start() - 1 : result.start()] == "\\"
            if not continued:
                ends.update((inner, line) for inner in range(first, line))
                first = line + 1
            line += 1
        elif result.lastgroup is None:
            line += result.group().count("\n")
    ends.update((inner, line) for inner in range(first, line))
    return ends
