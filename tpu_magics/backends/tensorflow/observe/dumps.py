"""Read XLA's dumps: one record per compiled module."""

# Read and seen in TensorFlow 2.21: each compile writes `module_NNNN.a_inference_NAME_UID__....before_optimizations.txt`
# (of the FunctionDef `__inference_NAME_UID`), the assignment of its buffers, and a hundred other files. The first is
# written when XLA begins, the last when it has finished. In a folder that the user's XLA_FLAGS had named before,
# nothing is removed; XLA overwrites files of an earlier process, which the folder's time does not show.

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.backends.observing import hlo
from tpu_magics.backends.observing.compiled import Told
from tpu_magics.backends.tensorflow.observe.dump_setup import NAMED

_MODULE = re.compile(r"module_(\d+)\.(.*)$")
_FORBIDDEN = re.compile(r"\W", re.ASCII)
_UID = re.compile(r"_\d+(?=__)")
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*):$", re.MULTILINE)


@dataclass(frozen=True)
class DumpedModule:
    """One compile. `name`: XLA's; `function`: name of its FunctionDef, "" if unknown."""

    name: str
    function: str
    told: Told

    def is_of(self, function: str) -> bool:
        """Whether it may be of this FunctionDef: XLA allows fewer characters in a name."""
        return self.name.startswith(f"a{_FORBIDDEN.sub('_', function[1:])}__")


class Dumps:
    """The dump folder of this process, or of the user (`theirs`); `known`: whether a FunctionDef of this name
    exists."""

    def __init__(self, folder: Path, known: Callable[[str], bool], theirs: bool = False) -> None:
        self.folder = folder
        self.known = known
        self.theirs = theirs
        self.seen = 0
        self._read: dict[Path, int] = {}  # texts seen at the last look, if they are not removed

    def changed(self) -> bool:
        """Whether anything was written since the last look. Takes about two microseconds in a folder of ours."""
        if self.folder.stat().st_mtime_ns != self.seen:
            return True
        return any(_written(path) != written for path, written in self._read.items())

    def read(self) -> list[DumpedModule]:
        """The compiles since the last look, in the order in which they began; their files are removed."""
        groups: dict[int, list[Path]] = {}
        for path in self.folder.iterdir():
            if match := _MODULE.match(path.name):
                groups.setdefault(int(match[1]), []).append(path)
        found = [self._module(groups[number]) for number in sorted(groups)]
        self.empty()
        return [one for one in found if one is not None]

    def empty(self) -> None:
        """Remove the files, or note that they were seen."""
        self.seen = self.folder.stat().st_mtime_ns
        if self.theirs:
            self._read = {path: _written(path) for path in self.folder.iterdir() if path.name.endswith(NAMED)}
            return
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                path.unlink()
        self.seen = self.folder.stat().st_mtime_ns

    def _module(self, paths: list[Path]) -> DumpedModule | None:
        text = next((path for path in paths if path.name.endswith(NAMED) and self._is_new(path)), None)
        if text is None:
            return None
        begun = _written(text)
        paths = [path for path in paths if _written(path) >= begun]
        times = [_written(path) for path in paths]
        graph = _graph(text)
        name = text.name.partition(".")[2]
        seconds = (max(times) - min(times)) / 1e9
        digest = hlo.fingerprint(graph)[:32] if graph is not None else ""
        return DumpedModule(name, self._function(name), Told(digest, _memory(paths), seconds, graph))

    def _is_new(self, text: Path) -> bool:
        return self._read.get(text) != _written(text)

    def _function(self, name: str) -> str:
        """XLA adds an "a" before a name and any suffix after it."""
        candidates = ("_" + name[1 : match.end()] for match in _UID.finditer(name))
        return next((one for one in candidates if self.known(one)), "")


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def _graph(path: Path) -> hlo.Graph | None:
    try:
        return hlo.parse(path.read_text("utf-8", "replace"))
    except (OSError, ValueError, LookupError):  # unknown to hlo.py: the compile is recorded without its graph
        return None


def _memory(paths: list[Path]) -> dict[str, int] | None:
    """Bytes by use, from the buffer assignment after optimisation: lines `allocation 0: size 512, parameter 2, shape
    |f32[8,16]| at ShapeIndex {}, maybe-live-out:`."""
    path = next((path for path in paths if path.name.endswith("buffer-assignment.txt")), None)
    try:
        found = _ALLOCATION.findall(path.read_text("utf-8", "replace")) if path else []
    except OSError:
        return None
    sizes = [(int(size), what) for size, what in found]
    if not sizes:
        return None
    out = [(size, what) for size, what in sizes if "maybe-live-out" in what]
    return {
        "arguments": sum(size for size, what in sizes if what.startswith("parameter ")),
        "outputs": sum(size for size, what in out),
        "aliased": sum(size for size, what in out if what.startswith("parameter ")),
        "temporaries": sum(size for size, what in sizes if "preallocated-temp" in what or "thread-local" in what),
    }
