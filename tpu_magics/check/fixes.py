"""Applies the edits of findings and writes the result; all other bytes of the file stay as they are."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.check.cells import CodeCell, cell_of, decode, read_notebook, rewrite_notebook
from tpu_magics.check.finding import Edit, Finding, in_order
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import read_regular

ROUNDS = 10  # an edit can make room for another; with more rounds than this, edits undo each other

UNSAFE_ALONE = (
    "--unsafe-fixes changes nothing by itself.",
    "It says which fixes --fix and --diff may make.",
    "Write --fix or --diff beside it.",
)

Check = Callable[[Sequence[CodeCell]], Sequence[Finding]]

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True)
class FixResult:
    """The cells of a file after the fixes, and how many findings were fixed."""

    before: Sequence[CodeCell]
    cells: Sequence[CodeCell]
    count: int

    @property
    def changes(self) -> dict[int, str]:
        """The new text of the cells that changed, by their index."""
        pairs = enumerate(zip(self.before, self.cells, strict=True))
        return {index: new.text for index, (old, new) in pairs if old.text != new.text}


def fix(
    cells: Sequence[CodeCell], check: Check, findings: Sequence[Finding] | None = None, unsafe: bool = False
) -> FixResult:
    """Apply the edits of all findings, check again, and so on. `check` returns the findings that may be fixed;
    `findings` are those of a first check, if there was one. `unsafe`: also edits that may change results."""
    now, count = list(cells), 0
    for _ in range(ROUNDS):
        result = check(now) if findings is None else findings
        findings = None
        done = 0
        for index, cell in enumerate(now):
            fixable = [
                one
                for one in in_order(result)
                if one.edits and (unsafe or not one.unsafe) and (one.path, one.cell) == (cell.path, cell.number)
            ]
            now[index], done_here = _fix_cell(cell, fixable)
            done += done_here
        count += done
        if not done:
            break
    return FixResult(cells, now, count)


def with_texts(cells: Sequence[CodeCell], texts: Sequence[str]) -> FixResult:
    """The cells with new texts; a cell that would no longer parse keeps its own."""
    new = [cell_of(text, cell.path, cell.number) for cell, text in zip(cells, texts, strict=True)]
    kept = [one if one.tree is not None else cell for cell, one in zip(cells, new, strict=True)]
    changed = sum(one.text != cell.text for cell, one in zip(cells, kept, strict=True))
    return FixResult(cells, kept, changed)


def _fix_cell(cell: CodeCell, findings: Sequence[Finding]) -> tuple[CodeCell, int]:
    """The cell after the edits of as many findings as possible: without overlaps, and if the result parses."""
    chosen = _non_overlapping(findings)
    new = _with_edits(cell, chosen)
    if new is not None:
        return new, len(chosen)
    kept: list[Finding] = []
    for finding in chosen:
        if _with_edits(cell, [*kept, finding]) is not None:
            kept.append(finding)
    return _with_edits(cell, kept) or cell, len(kept)


def _non_overlapping(findings: Sequence[Finding]) -> list[Finding]:
    """Fixes whose edits do not overlap with earlier ones; two findings may share an edit."""
    edits: set[Edit] = set()
    chosen = []
    for finding in findings:
        new = set(finding.edits) - edits
        if all(_are_disjoint(one, other) for one in new for other in edits | new if one != other):
            edits |= new
            chosen.append(finding)
    return chosen


def _are_disjoint(one: Edit, other: Edit) -> bool:
    first, second = sorted((one, other), key=lambda edit: (edit.start, edit.end))
    return first.end <= second.start and first.start != second.start


def _with_edits(cell: CodeCell, findings: Iterable[Finding]) -> CodeCell | None:
    """The cell after the edits; None if nothing changes or where it no longer parses."""
    text = apply_edits(cell.text, {edit for finding in findings for edit in finding.edits})
    if text == cell.text:
        return None
    new = cell_of(text, cell.path, cell.number)
    return new if new.tree is not None else None


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        start, end = (min(starts[line - 1] + column, len(text)) for line, column in (edit.start, edit.end))
        text = text[:start] + edit.text + text[end:]
    return text


# -- diffs ----------------------------------------------------------------------------------------------------------


def diff(fixed: FixResult) -> str:
    """A unified diff of the changes; for a notebook one per cell."""
    return "".join(_diff(fixed.before[index], text) for index, text in fixed.changes.items())


def _diff(old: CodeCell, text: str) -> str:
    if old.number is None:  # plain paths, for `patch` and `git apply`
        before, after = old.path, old.path
    else:
        before, after = (f"{old.path}, cell {old.number} ({when})" for when in ("before", "after"))
    lines = difflib.unified_diff(_lines(old.text), _lines(text), before, after)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


# -- writing --------------------------------------------------------------------------------------------------------


def write(path: str, data: bytes, fixed: FixResult) -> None:
    """Writes the changed cells to the file whose bytes were `data`; on TpuMagicsError the file is unchanged."""
    new = new_bytes(path, data, fixed)
    if new != data:
        _write(Path(path).resolve(), data, new)


def new_bytes(path: str, data: bytes, fixed: FixResult) -> bytes:
    """The file with its changes; raises TpuMagicsError where its encoding lacks a character."""
    if path.lower().endswith(".ipynb"):
        mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        text = data.decode("utf-8-sig")
        sources = read_notebook(data).sources
        changes = {index + 1: _like(sources[index], code) for index, code in fixed.changes.items()}
        return mark + rewrite_notebook(text, changes).encode()
    text, encoding = decode(data)
    try:
        return _like(text, fixed.cells[0].text).encode(encoding)
    except UnicodeEncodeError as error:
        raise TpuMagicsError(
            f"{path} was not changed.", f"Its encoding {encoding} has no character {error.object[error.start]!r}."
        ) from None


def _like(old: str, new: str) -> str:
    """The new text with the line ends of the old one; `new` has line feeds only."""
    ends = _LINE_END.findall(old)
    kinds = set(ends)
    if kinds <= {"\n"}:
        return new
    usual = max(kinds, key=ends.count)
    if len(kinds) == 1:
        return new.replace("\n", usual)
    return _line_by_line(old, new, usual)


def _line_by_line(old: str, new: str, usual: str) -> str:
    """For a file with mixed line ends: unchanged lines keep theirs."""
    old_lines = _LINE_END.split(old)
    ends = [*_LINE_END.findall(old), ""]
    new_lines = new.split("\n")
    kept: dict[int, str] = {}
    for block in difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_matching_blocks():
        kept.update((block.b + step, ends[block.a + step] or usual) for step in range(block.size))
    last = len(new_lines) - 1
    return "".join(line + ("" if n == last else kept.get(n, usual)) for n, line in enumerate(new_lines))


def _write(path: Path, old: bytes, new: bytes) -> None:
    """Replaces the file atomically and keeps its mode; a file that changed meanwhile, or is read-only, stays
    unchanged."""
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        if read_regular(path) != old:
            raise TpuMagicsError(
                f"{path} was not changed.", "The file changed during the check.", "Run the check again."
            )
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise TpuMagicsError(f"{path} was not changed.", f"{error.strerror or error}.") from error
