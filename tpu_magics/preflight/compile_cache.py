"""Compile results that are cached on disk, and how long those compiles took.

A key is the hash of all that a result depends on: the graph's module as it goes to the compiler, its donors, replicas,
partitions and parameters, the TPU, the flags, the versions of jaxlib, libtpu and of this package, the sources of the
code that calls the compiler and reads its answers, and the file format. The modules have no source lines in them
(`Graph.places`), so a result outlives edits around the training function.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics import __version__
from tpu_magics.preflight.compile_result import CompileResult, LoweredGraph, from_json, to_json
from tpu_magics.preflight.targets import Target
from tpu_magics.runs.files import read_regular

__all__ = ["CACHED", "Store", "default_folder", "key"]

FORM = 1  # of the files: a larger number invalidates all older entries
CACHED = ("fits", "too-large", "refused")  # the compiler's answers; "failed" is none
RESULT, PACE = ".result.json", ".pace.json"
SIMILAR = 4  # times smaller or larger: beyond, one compile says nothing of how long another takes
PACES = 50  # compiles that a TPU's file remembers
_READERS = tuple(Path(__file__).with_name(name) for name in ("compiler", "analysis"))


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/tpu_magics/preflight`, or ~/.cache/... (https://specifications.freedesktop.org/basedir); for an
    account without a home, one of its own in the temporary folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "tpu_magics" / "preflight"
    try:
        return Path.home() / ".cache" / "tpu_magics" / "preflight"
    except RuntimeError:  # no $HOME, and no account has this number
        return Path(tempfile.gettempdir()) / f"tpu_magics-{os.getuid()}" / "preflight"


def key(graph: LoweredGraph, target: Target, versions: Mapping[str, str], flags: Sequence[str] = ()) -> str:
    """64 hexadecimal digits."""
    inputs = {
        "form": [FORM, __version__, readers()],
        "flags": flags,
        "graph": [graph.form, graph.donors, graph.replicas, graph.partitions, graph.parameters],
        "target": [target.topology, target.options, target.accelerator_type, target.chip.available],
        "versions": [versions.get(name, "") for name in ("jaxlib", "libtpu")],
    }
    text = json.dumps(inputs, sort_keys=True, default=list).encode()
    return hashlib.sha256(text + b"\0" + graph.module).hexdigest()


@functools.cache
def readers() -> str:
    """A hash of the source code that makes a result, read once per process."""
    found = hashlib.sha256()
    for path in sorted(path for folder in _READERS for path in folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


@dataclass(frozen=True)
class Store:
    """`folder`: created at the first write; `entries` and `size`: at most so many results and bytes; the oldest are
    removed.

    Read errors are misses and write errors are ignored: a preflight does not fail because of its cache.
    """

    folder: Path
    entries: int = 1000
    size: int = 100 * 2**20

    def get(self, name: str) -> CompileResult | None:
        """The cached result of that key."""
        data = _read(self.folder / f"{name}{RESULT}")
        try:
            found = from_json(CompileResult, {**data["compiled"], "kept": True})
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return found if data.get("key") == name and found.status in CACHED else None

    def put(self, name: str, compiled: CompileResult) -> None:
        """Cache it, if it is an answer of the compiler."""
        if compiled.status in CACHED:
            path = self.folder / f"{name}{RESULT}"
            _write(path, {"key": name, "compiled": to_json(compiled)})
            self._drop_oldest(path)

    def expected(self, target: Target, size: int) -> float | None:
        """Seconds that a compile of so many bytes may take, by the one nearest in size of those there were for this
        TPU; None where none is similar."""
        paces = [one for one in self._paces(target) if max(one[0], size) <= SIMILAR * min(one[0], size)]
        if not paces or not size:
            return None
        nearest = min(reversed(paces), key=lambda one: abs(math.log(one[0] / size)))
        return nearest[1] * size / nearest[0]

    def timed(self, target: Target, size: int, seconds: float) -> None:
        """Remember how long a compile took."""
        paces = [*self._paces(target), (size, seconds)][-PACES:]
        _write(self._pace_file(target), {"paces": paces})

    def _paces(self, target: Target) -> list[tuple[int, float]]:
        try:
            return [
                (int(size), float(seconds)) for size, seconds in _read(self._pace_file(target))["paces"] if size > 0
            ]
        except (KeyError, TypeError, ValueError):
            return []

    def _pace_file(self, target: Target) -> Path:
        return self.folder / f"{target.generation}{PACE}"

    def _drop_oldest(self, last: Path) -> None:
        """`last`: was just written, whatever its time says: the clock may have been set back."""
        try:
            found = [(one.stat(), one) for one in self.folder.glob(f"*{RESULT}")]
            newest = max((stat.st_mtime_ns for stat, path in found if path != last), default=0)
            if last.stat().st_mtime_ns <= newest:
                os.utime(last, ns=(newest + 1, newest + 1))
        except OSError:
            return  # another process drops them at the same time
        found.sort(key=lambda one: (one[1] == last, one[0].st_mtime_ns), reverse=True)
        total = 0
        for count, (stat, path) in enumerate(found):
            total += stat.st_size
            if count and (count >= self.entries or total > self.size):
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
