"""The op name of an instruction and the user's source line that it comes from.

libtpu 0.0.21.1 writes one location into each instruction (`source_file="..." source_line=11`); 0.0.52 a number of the
table `StackFrames`, each with its parent. Paths stay as the framework has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tpu_magics.backends.hlo.text import HloModule, Instruction
from tpu_magics.preflight.compile_result import SourceLine

_OP = re.compile(r'[{ ]op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"[{ ]stack_frame_id=(\d+)")
_SOURCE = re.compile(r'[{ ]source_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_NUMBERED = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})\s*$')
_FIELD = re.compile(r"(\w+)=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
# Not the user's lines: installed packages, the standard library, code without a file (MLIR calls a module
# that it read from bytes "-").
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<(?:frozen .*|string|stdin|unknown)>$|^-$")
# The same, unless there is no other line: a package that is worked on in its own repository.
_NAMED = re.compile(r"(?:^|/)(?:torch|torch_xla|jax|jaxlib|tensorflow|keras|transformers|accelerate|tpu_magics)/")
_DEEPEST = 1000


def op_name(one: Instruction) -> str:
    """The name of the op that an instruction belongs to, as the framework gave it; "" where there is none."""
    found = _OP.search(one.tail, max(one.tail.find("metadata={"), 0)) if "metadata={" in one.tail else None
    return found[1].replace('\\"', '"') if found else ""


@dataclass
class FrameTables:
    """The tables of one program. `_files`: paths by number; `_lines`: (file, line) by number; `_frames`: (location,
    parent) by number."""

    _files: dict[int, str] = field(default_factory=dict)
    _lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    _frames: dict[int, tuple[int, int]] = field(default_factory=dict)
    _shift: int = 0

    def of(self, one: Instruction) -> SourceLine | None:
        """The innermost line of the user's code; None where the dump has none."""
        if "metadata={" not in one.tail:
            return None
        frame, source = _FRAME.search(one.tail), _SOURCE.search(one.tail)
        lines = self._stack(int(frame[1])) if frame else iter(())
        written = [(source[1], int(source[2] or 0))] if source else []
        own = [
            SourceLine(path, line) for path, line in (*lines, *written) if line and path and not _INSTALLED.search(path)
        ]
        return next((one for one in own if not _NAMED.search(one.path)), own[0] if own else None)

    def _stack(self, number: int) -> Iterator[tuple[str, int]]:
        """(path, line), the innermost first."""
        for _ in range(_DEEPEST):
            if number not in self._frames:
                return
            location, parent = self._frames[number]
            file, line = self._lines.get(location, (0, 0))
            yield self._files.get(file, ""), line
            number = parent - self._shift


def read_frame_tables(program: HloModule) -> FrameTables:
    """The tables that stand before the first computation."""
    places, table = FrameTables(), ""
    for line in program.tables:
        if line.strip() in _TABLES:
            table = line.strip()
        elif found := _NUMBERED.match(line):
            _enter(places, table, int(found[1]), found[2], dict(_FIELD.findall(found[3] or "")))
    places._shift = _shift(places._frames.values())
    return places


def _enter(places: FrameTables, table: str, number: int, text: str | None, fields: dict[str, str]) -> None:
    if table == "FileNames" and text is not None:
        places._files[number] = text
    elif table == "FileLocations":
        places._lines[number] = int(fields.get("file_name_id", 0)), int(fields.get("line", 0))
    elif table == "StackFrames":
        places._frames[number] = int(fields.get("file_location_id", 0)), int(fields.get("parent_frame_id", 0))


def _shift(frames: Iterable[tuple[int, int]]) -> int:
    """libtpu 0.0.52 writes the number of the parent plus 1, so that the outermost frames are their own parents; in the
    form that XLA documents (xla/service/hlo.proto, StackFrameIndex) their parent is 0."""
    return 0 if any(parent == 0 for _, parent in frames) else 1
