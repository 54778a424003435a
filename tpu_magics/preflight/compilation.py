"""Compile graphs with the TPU's compiler: cached results first, then one compile process after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import Graph, Place
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.memory import host_memory
from tpu_magics.launch.process import interrupts_held
from tpu_magics.preflight import compile_process, compiler_versions
from tpu_magics.preflight.compile_environment import flags_left_out
from tpu_magics.preflight.compile_monitor import CompileMonitor
from tpu_magics.preflight.compile_process import CompileProcess
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.store import Store, key
from tpu_magics.preflight.targets import Target

__all__ = ["Progress", "compile_graphs", "default_limit"]

GIB = 2**30
FLOOR = GIB // 2  # host memory; libtpu alone, with the smallest program, takes 0.2 to 0.3 GiB (measured)
RESERVE = 0.05  # of the host's memory, and at least 1 GiB of it: reserved for the notebook and other processes


@dataclass(frozen=True)
class Progress:
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


OnProgress = Callable[[Progress], None]


def compile_graphs(
    graphs: Sequence[Graph],
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
    work = _Work(graphs, target, store, on_progress, packages, flags, compiler_versions.versions(packages))
    work.take_cached()
    if work.missing():
        limit = _enough(default_limit() if memory_limit is None else memory_limit)
        while work.missing():
            work.run_process(limit)
    return [_with_locations(work.results[number], graph.places) for number, graph in enumerate(graphs)]


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

    graphs: Sequence[Graph]
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

    def _expect(self, graph: Graph) -> float | None:
        return self.store.expected(self.target, len(graph.module)) if self.store else None

    def missing(self) -> dict[int, Graph]:
        return {number: graph for number, graph in enumerate(self.graphs) if number not in self.results}

    def take_cached(self) -> None:
        for number, graph in enumerate(self.graphs):
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
        self.on_progress(Progress(self.target.name, number, count, state, elapsed, expected, resident))

    def done(self, number: int, compiled: CompileResult) -> None:
        self.results[number] = compiled
        if self.store:
            self.store.put(self._keys[number], compiled)
            if compiled.status == "fits" and compiled.seconds is not None:
                self.store.timed(self.target, len(self.graphs[number].module), compiled.seconds)


# -- source lines -----------------------------------------------------------------------------------------------------


def _with_locations(compiled: CompileResult, places: Mapping[int, Place]) -> CompileResult:
    """With what is not cached: notes on the user's flags, and the source lines whose numbers are in the op names
    ("aten__mm.5#12" is "aten__mm.5" at `places[12]`)."""
    return replace(
        compiled,
        buffers=tuple(_placed(one, places) for one in compiled.buffers),
        refused=tuple(_placed(one, places) for one in compiled.refused),
        notes=(*compiled.notes, *flags_left_out(os.environ)),
    )


def _placed(one: Any, places: Mapping[int, Place]) -> Any:
    op, _, number = one.op.rpartition("#")
    if not op or not number.isdecimal():
        return one
    return replace(one, op=op, place=one.place or places.get(int(number)))
