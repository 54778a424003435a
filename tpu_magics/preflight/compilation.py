"""Compile graphs with the TPU's compiler: cached results first, then one compile process after another."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tpu_magics.backends.lowered import EAGER, LoweredGraph, Operations, SourceLine
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.memory import host_memory
from tpu_magics.launch.process import interrupts_held
from tpu_magics.preflight import compile_process
from tpu_magics.preflight import compiler as events
from tpu_magics.preflight.compile_cache import Store, key
from tpu_magics.preflight.compile_process import CompileProcess, flags_left_out
from tpu_magics.preflight.compile_result import (
    CompileResult,
    HbmUsage,
    HeldMemory,
    Multiplications,
    OpCost,
    OpScope,
    from_json,
)
from tpu_magics.preflight.targets import Target

__all__ = ["CompileMonitor", "CompileProgress", "compile_graphs", "default_limit"]


GIB = 2**30
TICK = 0.2  # seconds between looks at the process's memory
REPORT_EVERY = 0.5  # seconds between calls of `on_progress` while nothing changes
Scoped = TypeVar("Scoped", OpCost, HeldMemory)
FORMS = {"hlo": "HLO", "stablehlo": "StableHLO"}


@dataclass
class CompileMonitor:
    """Monitors the compile of `graphs`, by number, in the order of the process; of `count` in all. `limit`: bytes of
    host memory; `on_progress`: called with graph, state, seconds in that state, and bytes of host memory held; `done`:
    called with each result; `clock`: seconds."""

    process: CompileProcess
    graphs: Mapping[int, LoweredGraph]
    target: Target
    versions: Mapping[str, str]
    limit: int | None
    count: int
    on_progress: Callable[[int, str, float, int], None]
    done: Callable[[int, CompileResult], None]
    clock: Callable[[], float] = time.monotonic
    _number: int = field(init=False)
    _state: str = "starting"
    _since: float = field(init=False)
    _reported: float = -math.inf
    _any_done: bool = False

    def __post_init__(self) -> None:
        self._number, self._since = next(iter(self.graphs)), self.clock()

    def run(self) -> None:
        """Until the process has ended or exceeds its limit. Raises TpuMagicsError where it cannot compile at all.

        At least one graph has a result then: if the process died, that is the result of the graph it was compiling.
        """
        while (received := self.process.events(TICK)) is not None:
            for event in received:
                self._take(event)
            resident = self.process.resident()
            if self.limit is not None and resident > self.limit:
                # The memory may be that of an earlier graph; then a new process tries this graph again.
                if not self._any_done:
                    self._failed(self._over_limit(resident, self.limit))
                return
            self._report(resident)
        self._after(self.process.ended())

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == events.NO_TOPOLOGY:
            raise self._no_topology(event["text"])
        if kind == events.UNUSABLE:
            raise self._unusable(event["text"])
        if kind == events.STARTED:
            self._number, self._state = event["graph"], "compiling"
            self._since, self._reported = self.clock(), -math.inf
        if kind == events.COMPILED:
            compiled = from_json(CompileResult, event["compiled"])
            self.done(self._number, compiled)
            self._state, self._any_done = "done", True
            memory = self.process.resident() or self.process.peak
            self.on_progress(self._number, "done", compiled.seconds or 0.0, memory)

    def _report(self, resident: int) -> None:
        now = self.clock()
        if self._state != "done" and now - self._reported >= REPORT_EVERY:
            self._reported = now
            self.on_progress(self._number, self._state, now - self._since, resident)

    def _after(self, code: int) -> None:
        """The process has ended. With an unfinished graph, it died."""
        if self._state == "starting":
            raise self._unusable(f"The process ended with {_ending(code)}.")
        if self._state == "compiling":
            text = f"The compile process ended with {_ending(code)}, {self._where()}."
            self._failed("\n".join((text, *self.process.last_lines())))

    def _failed(self, text: str) -> None:
        graph, peak = self.graphs[self._number], self.process.peak or None
        failed = CompileResult(self.target.name, graph.hash, "failed", error=text, versions=self.versions, peak=peak)
        self.done(self._number, failed)

    # -- sentences --------------------------------------------------------------------------------------------------

    def _over_limit(self, resident: int, limit: int) -> str:
        return (
            f"The compile process was stopped at its limit of {limit / GIB:.2f} GiB of host memory: it used "
            f"{resident / GIB:.2f} GiB, {self._where()}."
        )

    def _where(self) -> str:
        graph = self.graphs[self._number]
        size = f"{math.ceil(len(graph.module) / 1000):,} kB of {FORMS.get(graph.form, graph.form)}"
        return f"at graph {self._number + 1} of {self.count} ({size})"

    def _no_topology(self, text: str) -> TpuMagicsError:
        libtpu, target = self.versions["libtpu"], self.target
        return TpuMagicsError(
            f"libtpu {libtpu} does not support the topology {target.topology} of {target.name}.",
            text,
            "Choose another TPU, or install a newer libtpu: pip install -U 'tpu-magics[preflight]'",
        )

    def _unusable(self, text: str) -> TpuMagicsError:
        return TpuMagicsError(
            "The TPU compiler cannot be used here.",
            f"{text} Found: {compile_process.listed_versions(self.versions)}.",
            "Install compatible versions: pip install -U 'tpu-magics[preflight]'",
            details=self.process.last_lines(),
        )


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    killed = " (Linux sends it when memory runs out)" if -code == signal.SIGKILL else ""
    return f"signal {known.get(-code, -code)}{killed}"


# -- graphs of a target -----------------------------------------------------------------------------------------------

FLOOR = GIB // 2  # host memory; libtpu alone, with the smallest program, takes 0.2 to 0.3 GiB (measured)
RESERVE = 0.05  # of the host's memory, and at least 1 GiB of it: reserved for the notebook and other processes


@dataclass(frozen=True)
class CompileProgress:
    """The progress of the compiles for a TPU.

    `target`: its name; `graph`: number of the graph, from 0, of `count`; `state`: "kept" (cached from an earlier
    compile), "starting" (the process starts), "compiling" or "done"; `elapsed`: seconds in this state, of "done" those
    of the compile; `expected`: seconds that the compile may take by earlier ones of similar size, None where there were
    none; `resident`: bytes of host memory that the compile process holds, None where there is none.
    """

    target: str
    graph: int
    count: int
    state: str
    elapsed: float = 0.0
    expected: float | None = None
    resident: int | None = None


OnProgress = Callable[[CompileProgress], None]


def compile_graphs(
    graphs: Sequence[LoweredGraph],
    target: Target,
    *,
    store: Store | None,
    on_progress: OnProgress,
    memory_limit: int | None = None,
    packages: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> list[CompileResult]:
    """The compile result of each graph for that TPU, in their order.

    One process compiles them all; where it dies, its graph is "failed" and another process compiles the rest. Cached
    results need no process.

    Args:
        store: of cached results; None: all are compiled, and none is cached.
        on_progress: called at least once a second. An exception from it ends the compiles.
        memory_limit: bytes of host memory that the process may hold; None: `default_limit`.
        packages: folders searched for jaxlib and libtpu before those of this interpreter.
        flags: of libtpu's, as the framework sets them on that TPU (`compile_environment.torch_xla_flags`).

    Raises TpuMagicsError where jaxlib or libtpu is missing, too old or does not start, libtpu does not support the
    topology, or the host has too little memory for a compile; KeyboardInterrupt, when the process and all its
    files are gone.
    """
    work = _Work(graphs, target, store, on_progress, packages, flags, compile_process.compiler_versions(packages))
    work.take_cached()
    if work.missing():
        limit = _enough(default_limit() if memory_limit is None else memory_limit)
        while work.missing():
            work.run_process(limit)
    found = (_with_beside(work.results[number], graph) for number, graph in enumerate(graphs))
    return [_with_locations(one, graph) for one, graph in zip(found, graphs, strict=True)]


def default_limit() -> int | None:
    """Bytes of free host memory, minus a reserve; None where unknown."""
    memory = host_memory(Path("/"))
    if memory.available is None or memory.total is None:
        return None
    return max(0, memory.available - max(GIB, int(memory.total * RESERVE)))


def _enough(limit: int | None) -> int | None:
    if limit is None or limit >= FLOOR:
        return limit
    raise TpuMagicsError(
        f"There is too little free host memory for a compile: {limit / GIB:.2f} GiB.",
        f"The TPU compiler needs at least {FLOOR / GIB:g} GiB, besides a reserve for the notebook.",
        "Close other programs and notebooks on this machine, or run the preflight on one with more memory.",
    )


@dataclass
class _Work:
    """The compiles for one TPU. `results`: by the graphs' numbers."""

    graphs: Sequence[LoweredGraph]
    target: Target
    store: Store | None
    on_progress: OnProgress
    packages: Sequence[str]
    flags: Sequence[str]
    versions: Mapping[str, str]
    results: dict[int, CompileResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keys = [key(graph, self.target, self.versions, self.flags) for graph in self.graphs] if self.store else []
        self._expected = [self._expect(graph) for graph in self.graphs]

    def _expect(self, graph: LoweredGraph) -> float | None:
        return self.store.expected(self.target, len(graph.module)) if self.store else None

    def missing(self) -> dict[int, LoweredGraph]:
        return {number: graph for number, graph in enumerate(self.graphs) if number not in self.results}

    def take_cached(self) -> None:
        """Results that need no compile."""
        for number, graph in enumerate(self.graphs):
            if graph.operations is not None:
                self.results[number] = _of_operations(graph, graph.operations, self.target)
                continue
            found = self.store.get(self._keys[number]) if self.store else None
            if found is not None:
                self.results[number] = replace(found, graph=graph.hash, target=self.target.name)
                self.progress(number, "kept", 0.0, None)

    def run_process(self, limit: int | None) -> None:
        """Run one process to its end. At least one more graph has a result then, or this raises."""
        process: CompileProcess | None = None
        graphs = self.missing()
        try:
            with interrupts_held():
                process = compile_process.start(graphs, self.target, self.versions, self.packages, self.flags)
            watch = CompileMonitor(
                process,
                graphs,
                self.target,
                self.versions,
                limit,
                len(self.graphs),
                on_progress=self.progress,
                done=self.done,
            )
            watch.run()
        finally:
            if process is not None:
                with interrupts_held():  # a second interrupt does not cut the end short
                    process.stop()

    def progress(self, number: int, state: str, elapsed: float, resident: int | None) -> None:
        count, expected = len(self.graphs), self._expected[number]
        self.on_progress(CompileProgress(self.target.name, number, count, state, elapsed, expected, resident))

    def done(self, number: int, compiled: CompileResult) -> None:
        self.results[number] = compiled
        if self.store:
            self.store.put(self._keys[number], compiled)
            if compiled.status == "fits" and compiled.seconds is not None:
                self.store.timed(self.target, len(self.graphs[number].module), compiled.seconds)


# -- what is there besides a program ----------------------------------------------------------------------------------


def _of_operations(graph: LoweredGraph, found: Operations, target: Target) -> CompileResult:
    """What is known without a compiler of operations that run one by one."""
    available = target.chip.available
    return CompileResult(
        target.name,
        graph.hash,
        "fits",
        memory=HbmUsage(0, available),
        flops=sum(found.flops.values()),
        bytes_accessed=found.moved,
        hbm_bytes=found.moved,
        costs=(OpCost(f"{found.count} operations", EAGER, 1, flops=sum(found.flops.values()), bytes=found.moved),),
        multiplications=Multiplications(found.flops, dict.fromkeys(found.flops, 1)),
    )


def _with_beside(compiled: CompileResult, graph: LoweredGraph) -> CompileResult:
    """With the memory of the other tensors, which the compiler does not know."""
    memory = compiled.memory
    if memory is None or not graph.beside:
        return compiled
    needed = memory.needed + graph.beside
    fits = compiled.status != "fits" or memory.available is None or needed <= memory.available
    status = compiled.status if fits else "too-large"
    return replace(compiled, status=status, memory=replace(memory, needed=needed, beside=graph.beside))


# -- source lines -----------------------------------------------------------------------------------------------------


def _with_locations(compiled: CompileResult, graph: LoweredGraph) -> CompileResult:
    """With what is not cached: notes on the user's flags, and the source lines and scopes whose numbers are in the op
    names ("aten__mm.5#12" is "aten__mm.5" at `places[12]`)."""
    return replace(
        compiled,
        buffers=tuple(_placed(one, graph.places) for one in compiled.buffers),
        refused=tuple(_placed(one, graph.places) for one in compiled.refused),
        costs=tuple(_scoped(one, graph, one.ops) for one in compiled.costs),
        held=tuple(_scoped(one, graph, (one.op,)) for one in compiled.held),
        notes=(*compiled.notes, *flags_left_out(os.environ)),
    )


def _placed(one: Any, places: Mapping[int, SourceLine]) -> Any:
    op, number = _numbered(one.op)
    return replace(one, op=op, place=one.place or places.get(number))


_INPUT = "xla__device_data"


def _scoped(found: Scoped, graph: LoweredGraph, ops: Sequence[str]) -> Scoped:
    """By the likeliest of its names that belongs to something; a copy of an input belongs to what uses it."""
    names = [_numbered(one) for one in ops]
    known = [one for one in names if one[1] in graph.scopes or one[1] in graph.places]
    known.sort(key=lambda one: one[0] == _INPUT)
    op, number = next(iter(known or names), (found.op, -1))
    place = found.place or graph.places.get(number)
    return replace(found, op=op, place=place, scope=graph.scopes.get(number, OpScope()))


def _numbered(op: str) -> tuple[str, int]:
    """The name of an op and its number; -1 if it has none."""
    name, _, number = op.rpartition("#")
    return (name, int(number)) if name and number.isdecimal() else (op, -1)
