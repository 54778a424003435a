"""Which files of a dump belong to one program.

libtpu names them `module_0001.jit_step.cl_799122805.after_optimizations.txt`; files of what it outlines are named
`module_0001.extracted...` and are no programs; those of other back ends have words before `after_optimizations`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = ".after_optimizations.txt"
_NAME = re.compile(r"^module_(\d+)\.(.*)$")


@dataclass(frozen=True)
class ProgramFiles:
    """The files of one program. `stem`: what their names begin with: "module_0001.jit_step.cl_799122805"."""

    folder: Path
    stem: str

    @property
    def optimised(self) -> Path:
        return self._file("after_optimizations.txt")

    @property
    def unoptimised(self) -> Path:
        """The program before optimisation."""
        return self._file("before_optimizations.txt")

    @property
    def memory(self) -> tuple[Path, ...]:
        """Buffer assignment and live ranges."""
        names = ("after_optimizations-buffer-assignment.txt", "after_optimizations-live-range.txt")
        return tuple(path for path in map(self._file, names) if path.is_file())

    def _file(self, ending: str) -> Path:
        return self.folder / f"{self.stem}.{ending}"


def find(folder: Path, module: str | None) -> list[ProgramFiles]:
    """The programs in a folder, the last one first; with `module` those of that name ("jit_step") or stem."""
    stems = sorted(_stems(folder), key=_number, reverse=True)
    return [ProgramFiles(folder, stem) for stem in stems if module is None or _called(stem, module)]


def _stems(folder: Path) -> Iterator[str]:
    for path in folder.glob(f"module_*{_PROGRAM}"):
        stem = path.name.removesuffix(_PROGRAM)
        found = _NAME.match(stem)
        if found and not found[2].startswith("extracted"):
            yield stem


def _number(stem: str) -> int:
    found = _NAME.match(stem)
    return int(found[1]) if found else -1


def _called(stem: str, module: str) -> bool:
    found = _NAME.match(stem)
    return stem == module or (found is not None and (found[2] == module or found[2].startswith(f"{module}.")))
