"""Comments that suppress findings: `# noqa`, `# noqa: TPU101, E501` and `# tpu_magics: skip-file`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tpu_magics.check.cells import CodeCell
from tpu_magics.check.finding import Finding

_NOQA = re.compile(r"#\s*noqa\b(?!-)(?:\s*:\s*(?P<codes>[a-z]+\d+(?:[\s,]+[a-z]+\d+)*))?", re.IGNORECASE)
_SKIP = re.compile(r"#\s*tpu[_-]magics\s*:\s*skip-file\b", re.IGNORECASE)
_HINT = re.compile("noqa|skip-file", re.IGNORECASE)
# Strings and comments of Python; a prefix does not change where a string ends.
_PARTS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|' + r"'''(?:\\.|[^\\])*?(?:'''|\Z)|"
    r'"(?:\\.|[^"\\\n])*"?|'
    + r"'(?:\\.|[^'\\\n])*'?|(?P<comment>#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<end>\n)",
    re.DOTALL,
)

ALL: frozenset[str] = frozenset()  # a noqa without codes suppresses every rule


def without_suppressed(findings: Iterable[Finding], cells: Iterable[CodeCell]) -> list[Finding]:
    """The findings of one file that no comment suppresses."""
    comments: dict[tuple[str, int | None], Noqa] = {}
    for cell in cells:
        if _HINT.search(cell.text):
            result = comments[cell.path, cell.number] = Noqa(cell.text)
            if result.skip_file:
                return []
    if not comments:
        return list(findings)
    return [one for one in findings if not _is_suppressed(one, comments.get((one.path, one.cell)))]


def _is_suppressed(finding: Finding, comments: Noqa | None) -> bool:
    return comments is not None and comments.suppresses(finding)


class Noqa:
    """What the comments of one cell or file suppress."""

    def __init__(self, text: str) -> None:
        self.lines: Mapping[int, frozenset[str]] = {}
        self.skip_file = False
        self._text = text
        self._ends: Mapping[int, int] = {}
        result = {}
        for line, comment in _comments(text):
            self.skip_file = self.skip_file or bool(_SKIP.search(comment))
            noqa = _NOQA.search(comment)
            if noqa:
                result[line] = frozenset(re.split(r"[\s,]+", noqa["codes"].upper())) if noqa["codes"] else ALL
        if result:
            self.lines, self._ends = result, _logical_ends(text)

    def suppresses(self, finding: Finding) -> bool:
        """By a comment on the finding's line, on the last line of its expression, or on that of its statement (of a
        compound statement, of the line that heads it)."""
        end = self._ends.get(finding.line, finding.line)
        return any(self._at(line, finding.code) for line in {finding.line, min(finding.end_line, end), end})

    def _at(self, line: int, code: str) -> bool:
        codes = self.lines.get(line)
        return codes is not None and (codes is ALL or code in codes)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of the comments that may concern us."""
    line, counted = 1, 0
    for result in _PARTS.finditer(text):
        if result.lastgroup == "comment" and _HINT.search(result.group()):
            line += text.count("\n", counted, result.start())
            counted = result.start()
            yield line, result.group()


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
