"""Monitors one compile process: progress, memory limit, unexpected end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.lowered import Graph
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight import compiler_versions
from tpu_magics.preflight.compile_process import CompileProcess
from tpu_magics.preflight.compile_result import CompileResult, from_json
from tpu_magics.preflight.compiler import job as events
from tpu_magics.preflight.targets import Target

__all__ = ["CompileMonitor"]

GIB = 2**30
TICK = 0.2  # seconds between looks at the process's memory
REPORT_EVERY = 0.5  # seconds between calls of `on_progress` while nothing changes
FORMS = {"hlo": "HLO", "stablehlo": "StableHLO"}


@dataclass
class CompileMonitor:
    """Monitors the compile of `graphs`, by number, in the order of the process; of `count` in all. `limit`: bytes of
    host memory; `on_progress`: called with graph, state, seconds in that state, and bytes of host memory held; `done`:
    called with each result; `clock`: seconds."""

    process: CompileProcess
    graphs: Mapping[int, Graph]
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
        """The process has ended. With a graph begun and not done, it died."""
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
            f"{text} Found: {compiler_versions.listed(self.versions)}.",
            "Install compatible versions: pip install -U 'tpu-magics[preflight]'",
            details=self.process.last_lines(),
        )


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    killed = " (Linux sends it when memory runs out)" if -code == signal.SIGKILL else ""
    return f"signal {known.get(-code, -code)}{killed}"
