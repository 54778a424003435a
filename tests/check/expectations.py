"""Reads the expected findings of sample files: `# TPU101: part of the message` and `# ok: TPU101` at line ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.check.cells import CodeCell, read_file

FOLDER = Path(__file__).parent / "samples"
_FOUND = re.compile(r"# (TPU\d{3}): ([^#]*)")
_OK = re.compile(r"# ok: (TPU\d{3}(?:, TPU\d{3})*)")


@dataclass(frozen=True)
class Expected:
    """A line that must be found, and what its message must contain."""

    cell: int | None
    line: int
    code: str
    part: str


def files() -> list[Path]:
    """All samples."""
    return sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb"))


def expected(cells: list[CodeCell]) -> Iterator[Expected]:
    """What must be found in these cells."""
    for cell in cells:
        for number, line in enumerate(cell.lines, 1):
            for code, part in _FOUND.findall(line):
                yield Expected(cell.number, number, code, part.strip())


def silent(cells: list[CodeCell]) -> Iterator[tuple[int | None, int, str]]:
    """(cell, line, code) of lines that look alike and must not be found."""
    for cell in cells:
        for number, line in enumerate(cell.lines, 1):
            for codes in _OK.findall(line):
                yield from ((cell.number, number, code) for code in codes.split(", "))


def cells_of(path: Path) -> list[CodeCell]:
    return list(read_file(path))
