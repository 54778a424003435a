"""What torch_xla and XLA write about each compile, as one report per compile; in a rehearsal one for the pieces of a
graph.

Two sources (2.9.0), both written only when something compiles. (1) `PT_XLA_DEBUG_LEVEL=1` with `PT_XLA_DEBUG_FILE`
(debug_util.cpp): graph hash, number of inputs and outputs, Python frames (innermost first), sizes of the compiled
program in GiB with six decimals. The process whose PJRT_LOCAL_PROCESS_RANK is 0 at its first compile writes it; `run`
sets that. In a rehearsal, level 2 adds each execution, so that pieces found in the cache have hashes too. (2)
`XLA_FLAGS=--xla_dump_to=DIR --xla_dump_hlo_as_text`: the graph before optimization, among many files that are removed
at once. torch_xla leaves these flags out of the key of its persistent cache (env_hash.cpp).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import CompileReport
from tpu_magics.backends.torch_xla.observe import counters

_DEBUG = ("PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL", "PT_XLA_DEBUG_FILE")
_OURS = (*_DEBUG, "PT_XLA_DEBUG_MAX_FRAME", "XLA_FLAGS")
_RANK = "PJRT_LOCAL_PROCESS_RANK"
_MODULE = re.compile(r"module_(\d+)\..*before_optimizations\.txt$")
_FRAME = re.compile(r"^Compilation Analysis:   (.*) \((.*):(\d+)\)$")
_SIZES = {
    "Graph input size": "arguments",
    "Graph output size": "outputs",
    "Aliased Input size": "aliased",
    "Intermediate tensor size": "temporaries",
    "Compiled program size": "code",
}
_FIELD = re.compile(r"^(?:Post )?Compilation Analysis:\s+([A-Za-z ]+): ([^:]+)$")
_EXECUTED = re.compile(
    r"^Execution Analysis: Execution Cause\n((?:Execution Analysis:   .*\n)+)Execution Analysis: Graph Info: ?\n"
    r"(?:Execution Analysis:   Graph Name: .*\n)?Execution Analysis:   Graph Hash: (\w+)$",
    re.MULTILINE,
)
_DYNAMO = "dynamo"  # its graphs are compiled before, and change no counter
_LARGE = 1 << 20  # bytes
GIB = 1 << 30


@dataclass(frozen=True)
class XlaCompileReport(CompileReport):
    """What the runtime reports of one compile. `frames`: (function, path, line), innermost first."""

    inputs: int | None = None
    outputs: int | None = None
    frames: tuple[tuple[str, str, int], ...] = ()


@dataclass
class XlaDumps:
    """The files of one worker (`folder` None: none). `rank`: of a rehearsal, which also reports graphs found in the
    cache; otherwise None. `notes`: what is not reported, and why."""

    folder: Path | None
    rank: int | None = None
    offset: int = 0
    debugging: bool = False
    dumping: bool = False
    notes: list[str] = field(default_factory=list)
    _set: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    @property
    def debug_file(self) -> Path:
        return (self.folder or Path()) / "compiles.txt"

    @property
    def graphs(self) -> Path:
        return (self.folder or Path()) / "graphs"

    def arrange(self, environment: MutableMapping[str, str]) -> None:
        """Set the variables, before the runtime reads them. The user's settings are kept."""
        try:
            self.graphs.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self.notes.append(
                f"graphs, hashes and sizes are n/a, because {self.graphs} cannot be made: {error.strerror or error}"
            )
            return
        before = {name: environment.get(name) for name in _OURS}
        if any(environment.get(name) for name in _DEBUG):
            self.notes.append("graph hashes and sizes are n/a, because you set PT_XLA_DEBUG")
        else:
            level = "1" if self.rank is None else "2"
            if self.rank is not None:  # the first compile may not go through `run`; rehearse/join.py sets the rank
                self._set[_RANK] = (environment.get(_RANK, str(self.rank)), "0")
                environment[_RANK] = "0"
            names = {"PT_XLA_DEBUG_LEVEL": level, "PT_XLA_DEBUG_FILE": str(self.debug_file)}
            environment.update(names, PT_XLA_DEBUG_MAX_FRAME="60")
            self.debugging = True
        flags = environment.get("XLA_FLAGS", "")
        if "xla_dump_to" in flags:
            self.notes.append("graphs are not compared, because your XLA_FLAGS set xla_dump_to")
        else:
            environment["XLA_FLAGS"] = f'{flags} --xla_dump_to="{self.graphs}" --xla_dump_hlo_as_text'.strip()
            self.dumping = True
        self._set |= {name: (old, environment[name]) for name, old in before.items() if environment.get(name) != old}

    def put_back(self, environment: MutableMapping[str, str]) -> None:
        """Restore the variables after they were read: programs that the user's code starts must not inherit them. Both
        libraries read them at their first compile, and never again."""
        for name, (before, ours) in self._set.items():
            if environment.get(name) == ours:
                environment.pop(name)
                environment.update({name: before} if before is not None else {})
        self._set = {}

    # -- reading ----------------------------------------------------------------------------------------------------
    def read(self, count: int) -> list[XlaCompileReport]:
        """The last `count` compiles, oldest first."""
        return self._compiles(count, self._new_text())

    def read_executions(self, count: int, compiled: int) -> tuple[list[str], list[XlaCompileReport]]:
        """The hashes of the last `count` graphs that ran, oldest first ("": not reported), and the `compiled` compiles
        among them."""
        text = self._new_text()
        reports = self._compiles(compiled, text) if compiled else []
        hashes = [found for cause, found in _EXECUTED.findall(text) if _DYNAMO not in cause]
        return (hashes if len(hashes) == count else [""] * count), reports

    def drop(self) -> None:
        """Keep the file small when nothing reads it any more."""
        with contextlib.suppress(OSError):
            os.truncate(self.debug_file, 0)
            self.offset = 0

    def skip(self) -> None:
        """Ignore what was compiled since the last read."""
        self.put_back(os.environ)
        self.drop()
        self.empty()

    def _compiles(self, count: int, text: str) -> list[XlaCompileReport]:
        self.put_back(os.environ)
        found = list(blocks(text))
        reports = found if len(found) == count else [XlaCompileReport() for _ in range(count)]
        seconds = counters.newest_seconds("CompileTime", count)
        graphs = self._dumped(count)
        return [replace(one, seconds=s, graph=g) for one, s, g in zip(reports, seconds, graphs, strict=True)]

    def _new_text(self) -> str:
        """The text since the last read; the file is emptied when it is large, because it is only appended to."""
        if not self.debugging:
            return ""
        try:
            with self.debug_file.open("rb") as file:
                file.seek(self.offset)
                text = file.read()
        except OSError:
            return ""
        self.offset += len(text)
        if self.offset > _LARGE:
            os.truncate(self.debug_file, 0)
            self.offset = 0
        return text.decode("utf-8", "replace")

    def _dumped(self, count: int) -> list[hlo.Graph | None]:
        if not self.dumping:
            return [None] * count
        written = sorted((int(match[1]), path) for path in self._written() if (match := _MODULE.match(path.name)))
        graphs: list[hlo.Graph | None] = [None] * count
        if len(written) == count:
            graphs = [hlo.read(path) for _number, path in written]
        self.empty()
        return graphs

    def _written(self) -> list[Path]:
        try:
            return list(self.graphs.iterdir())
        except OSError:
            return []

    def empty(self) -> None:
        """Remove what XLA wrote: hundreds of files for each compile."""
        for path in self._written():
            with contextlib.suppress(OSError):
                path.unlink()

    def remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def blocks(text: str) -> Iterator[XlaCompileReport]:
    """The compiles of a debug file: first the cause, then "Computation hash", then the sizes."""
    parts = re.split(r"^Computation hash: .*$", text, flags=re.MULTILINE)
    for before, after in pairwise(parts):
        own = "\n".join(line for line in before.splitlines() if line.startswith("Compilation"))
        yield replace(_report(own), memory=_memory(after))


def _report(text: str) -> XlaCompileReport:
    fields = _fields(text)
    frames = [match.groups() for line in text.splitlines() if (match := _FRAME.match(line))]
    return XlaCompileReport(
        hash=fields.get("Graph Hash", ""),
        inputs=_number(fields.get("Number of Graph Inputs")),
        outputs=_number(fields.get("Number of Graph Outputs")),
        frames=tuple((function, path, int(line)) for function, path, line in frames),
    )


def _memory(text: str) -> dict[str, int] | None:
    fields = _fields(text)
    sizes = {_SIZES[name]: round(float(fields[name].split()[0]) * GIB) for name in _SIZES if name in fields}
    return sizes or None


def _fields(text: str) -> dict[str, str]:
    return {match[1].strip(): match[2].strip() for line in text.splitlines() if (match := _FIELD.match(line))}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call something that may compile. The rank is read once, at the first compile: until then it is set to 0."""
    if settled or _compiled_or_first():
        return original(*args, **kwargs)
    rank = os.environ[_RANK]
    os.environ[_RANK] = "0"
    try:
        return original(*args, **kwargs)
    finally:
        os.environ[_RANK] = rank


settled: list[bool] = []  # not empty after the first compile: `run` is not needed any more


def _compiled_or_first() -> bool:
    compiled = bool(counters.compiles())
    if compiled:
        settled.append(True)
    return compiled or os.environ.get(_RANK) in (None, "0")


# -- pieces of a rehearsal --------------------------------------------------------------------------------------------


# On a TPU the pieces between two syncs are one graph, so they count as one here, identified by the tuple of their
# hashes. It is compiled if the tuple is new, even if each piece was compiled before in another combination. A value
# that is read in the middle of a step has its own graph, as it has without a split.

KEPT = 512  # pieces whose graphs are kept for comparison
LONGEST = 4096  # pieces of a step
COMPARED = 64  # pieces that are compared one by one
_READ = "read at "
_RESULT = "made by a collective"


@dataclass
class GraphPieces:
    """The pieces of the current step, and all logical graphs so far."""

    files: XlaDumps
    current: list[str] = field(default_factory=list)
    _read: set[int] = field(default_factory=set)
    _fresh: dict[str, XlaCompileReport] = field(default_factory=dict)
    _known: set[tuple[str, ...]] = field(default_factory=set)
    _reports: dict[str, XlaCompileReport] = field(default_factory=dict)
    _unnamed: int = 0

    def cut(self, executed: int, compiled: int) -> None:
        """A collective ran the pending operations: a piece of the step's graph."""
        self.current += self._names(executed, compiled)
        if len(self.current) > LONGEST:  # no sync for very long
            self.current = list(dict.fromkeys(self.current))

    def add_result(self) -> None:
        """A collective returned a tensor. Without the host it would be part of the graph, even if nothing else is."""
        self.current.append(_RESULT)

    def end_step(self, executed: int, compiled: int) -> list[XlaCompileReport]:
        """The step's graph has run to its end, in `executed` last pieces (0: the collective was its end). Returns the
        new logical graphs."""
        current = self.current
        if executed:
            reports = self._new([(*current, name) for name in self._names(executed, compiled)])
            reports = reports if compiled else _elsewhere(reports)
        else:
            reports = _elsewhere(self._new([tuple(current)] if current else []))
        self.current = []
        self._fresh.clear()
        self._read.clear()
        return reports

    def run(self, executed: int, compiled: int, grows: bool = False) -> list[XlaCompileReport]:
        """Something else ran a part of the step, which continues: without the splits it would have been one graph with
        everything that leads to it, and the step's graph would still be whole. `grows`: what is read depends on
        everything before it without a sync (weights that were updated); otherwise a loop of reads repeats."""
        before = self._before(grows)
        reports = self._new([(*before, name) for name in self._names(executed, compiled)])
        return reports if compiled else _elsewhere(reports)

    def _before(self, grows: bool) -> tuple[str, ...]:
        return tuple(self.current if grows else dict.fromkeys(self.current))

    def read(self, tensor: int, site: int, grows: bool = False) -> list[XlaCompileReport]:
        """A tensor of this step was read, and a split had already run what leads to it. Without the split, this read
        would have run a graph, once for each tensor."""
        if not self.current or tensor in self._read:
            return []
        self._read.add(tensor)
        reports = _elsewhere(self._new([(*self._before(grows), f"{_READ}{site}")]))
        if all(name == _RESULT for name in self.current):
            self.current = []  # the read has run everything
        return reports

    def _new(self, keys: Sequence[tuple[str, ...]]) -> list[XlaCompileReport]:
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        self._known.update(new)
        reports = [self._joined([name for name in key if not name.startswith((_READ, _RESULT))]) for key in new]
        self._fresh = {name: one for name, one in self._fresh.items() if name in self.current}
        return reports

    def _joined(self, names: Sequence[str]) -> XlaCompileReport:
        names = names if len(names) <= COMPARED else list(dict.fromkeys(names))
        return joined(names, [self._reports.get(name, XlaCompileReport(name)) for name in names], self._fresh)

    def _names(self, executed: int, compiled: int) -> list[str]:
        hashes, reports = self.files.read_executions(executed, compiled)
        reports = [one if one.hash else replace(one, hash=self._name(one)) for one in reports]
        for one in reports:
            self._keep(one)
        if all(hashes):
            return hashes
        return [one.hash for one in reports]  # a graph from the cache without a hash is not new

    def _keep(self, report: XlaCompileReport) -> None:
        self._fresh[report.hash] = report
        self._reports[report.hash] = report
        if len(self._reports) > KEPT:
            self._reports.pop(next(iter(self._reports)))

    def _name(self, report: XlaCompileReport) -> str:
        """A name for a graph without a reported hash: that of its text, else a number."""
        if report.graph is not None:
            return report.graph.digest[:32]
        self._unnamed += 1
        return f"not-reported-{self._unnamed}"


def _elsewhere(reports: list[XlaCompileReport]) -> list[XlaCompileReport]:
    """Reports of pieces that were compiled earlier, or by a collective, without frames: others ran the whole."""
    return [replace(one, frames=()) for one in reports]


def joined(
    key: Sequence[str], parts: Sequence[XlaCompileReport], fresh: dict[str, XlaCompileReport]
) -> XlaCompileReport:
    """The pieces of a logical graph as one report; `fresh`: those that were compiled now, whose seconds count (0 if all
    had been compiled before)."""
    if not parts:
        return XlaCompileReport(hash=hashlib.sha256(_RESULT.encode()).hexdigest()[:32], seconds=0.0, pieces=0)
    if len(parts) == 1:
        return parts[0] if key[0] in fresh else replace(parts[0], seconds=0.0)
    now = [fresh[name] for name in key if name in fresh]
    seconds = [one.seconds for one in now if one.seconds is not None]
    graphs = [one.graph for one in parts if one.graph is not None]
    return XlaCompileReport(
        hash=hashlib.sha256(" ".join(key).encode()).hexdigest()[:32],
        inputs=_sum([one.inputs for one in parts]),
        outputs=_sum([one.outputs for one in parts]),
        frames=parts[-1].frames,
        memory=_largest([one.memory for one in parts if one.memory]),
        seconds=sum(seconds) if seconds or not now else None,
        graph=hlo.join(graphs) if len(graphs) == len(parts) else None,
        pieces=len(parts),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _largest(memories: Sequence[dict[str, int]]) -> dict[str, int] | None:
    """The maximum of each use over the pieces: they do not run at the same time."""
    uses = {use for memory in memories for use in memory}
    return {use: max(memory.get(use, 0) for memory in memories) for use in sorted(uses)} or None
