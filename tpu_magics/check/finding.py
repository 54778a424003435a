"""A finding, and the edits that fix it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_CELL = re.compile(r"In \[(\d+)\]")


@dataclass(frozen=True)
class Edit:
    """Replaces the text between two positions of a cell or file by `text`.

    `start` and `end` are (line from 1, column from 0, in characters); `end` is exclusive. Equal ones insert.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True)
class Finding:
    """One broken rule at one place.

    `path` is the file, or `In [n]` for a cell of a running notebook; `cell` counts the code cells of a notebook file
    from 1 (None: not a notebook file). `line` and `column` count from 1, in the cell as the user sees it. `message`
    says what, `why` in one sentence why it is bad, `fix` what to write instead; `edits` are an automatic fix (all or
    none are applied), an `unsafe` one where it may change results. `advice` findings are shown but do not make a check
    fail. `statement`: the first and the last line of the statement that it is in, of `if`, `for` and `with` of its head
    alone.
    """

    code: str
    group: str
    path: str
    cell: int | None
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    why: str
    fix: str
    source: str = ""  # the line of code
    advice: bool = False
    edits: tuple[Edit, ...] = field(default=(), compare=False)
    unsafe: bool = False
    statement: tuple[int, int] = field(default=(0, 0), compare=False)

    @property
    def place(self) -> str:
        """For people: `train.py:12:5`, `notebook.ipynb, cell 3, line 12`, `In [3], line 12`."""
        if self.cell is not None:
            return f"{self.path}, cell {self.cell}, line {self.line}"
        if self.path.startswith("In ["):
            return f"{self.path}, line {self.line}"
        return f"{self.path}:{self.line}:{self.column}"

    def as_record(self) -> dict[str, Any]:
        """All fields but the edits and the statement, for JSON; `fixable` says whether there are edits."""
        record = asdict(self)
        del record["edits"], record["statement"]
        return {**record, "fixable": bool(self.edits), "unsafe": self.unsafe}


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sorted by file, cell, position and code, without duplicates."""
    return sorted(set(findings), key=_place)


def _place(one: Finding) -> tuple[str, int, int, int, int, str]:
    cell = _CELL.fullmatch(one.path)
    path, number = ("In [", int(cell[1])) if cell else (one.path, 0)
    return path, number, one.cell or 0, one.line, one.column, one.code
