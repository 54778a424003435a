"""How a preflight traces a function, and compiles what it traced.

What lives here: a call and its ways to graphs and to what the compilers say of them. What does not: the order of things
(run.py), tracing and compiling themselves (tracing.py, compiling.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import Request, function_request
from tpu_magics.launch.tracing import TracingOptions
from tpu_magics.preflight.compile_environment import torch_xla_flags
from tpu_magics.preflight.compiling import Progress, compile_graphs
from tpu_magics.preflight.facts import Compiled, Graph, Traced
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.store import Store
from tpu_magics.preflight.targets import Target
from tpu_magics.preflight.tracing import trace
from tpu_magics.runs.events import EXPECTED_CAUSES

if TYPE_CHECKING:
    from tpu_magics.preflight.report import Preflight

# Causes that a loop that is too short has as well.
_SAYING_NOTHING = frozenset({"new-line", "unknown", "new-code", *EXPECTED_CAUSES})

__all__ = ["Call", "Telling", "Way", "trace_request"]


@dataclass(frozen=True)
class Telling:
    """Who hears how it goes. `progress`: of each compile, at least once a second; `line`: of each trace; `found`: of
    the result."""

    progress: Callable[[Progress], None] = lambda _now: None
    line: Callable[[str], None] = lambda _line: None
    found: Callable[[Preflight], None] = lambda _found: None


@dataclass(frozen=True)
class Way:
    """How this preflight traces and compiles. `lower`: (ranks, devices of an SPMD worker) -> Traced; `torch_xla`: its
    graphs are torch_xla's."""

    name: str
    lower: Callable[[int, int | None], Traced]
    spmd: bool
    processes: int | None
    store: Store | None
    packages: Sequence[str]
    tell: Telling
    torch_xla: bool = True
    traces: dict[tuple[int, int | None], Traced] = field(default_factory=dict)

    def traced(self, target: Target) -> Traced:
        """The trace for that target; targets with as many ranks have one in common."""
        key: tuple[int, int | None] = (self.processes or target.ranks, None)
        if not self.torch_xla:
            key = (1, None)  # TensorFlow's program is that of one replica
        elif self.spmd:
            key = (1, target.devices)
        if key not in self.traces:
            self.tell.line(f"{self.name}: tracing, for {_ranks(*key)}")
            self.traces[key] = self.lower(*key)
        return self.traces[key]

    def result(self, target: Target) -> TargetResult:
        """All graphs of the trace, compiled for that target."""
        traced = self.traced(target)
        return TargetResult(target, traced, tuple(self.compiled(traced.graphs, target)))

    def compiled(self, graphs: Sequence[Graph], target: Target) -> list[Compiled]:
        """What the compiler says of these graphs."""
        flags = torch_xla_flags(target) if self.torch_xla else ()
        return compile_graphs(
            graphs, target, store=self.store, tell=self.tell.progress, packages=self.packages, flags=flags
        )


@dataclass(frozen=True)
class Call:
    """What is to be lowered."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "") or type(self.function).__name__).strip("<>") or "function"

    @property
    def is_tensorflows(self) -> bool:
        if not any(name in sys.modules for name in ("tensorflow", "keras")):
            return False
        from tpu_magics.backends import tensorflow

        return tensorflow.is_step(self.function, self.args, self.kwargs)

    def lowering(self, options: Options) -> Callable[[int, int | None], Traced]:
        """(ranks, devices of an SPMD worker) -> the graphs of this call. Raises TpuMagicsError where the function does
        not take these arguments."""
        if self.is_tensorflows:
            return lambda _world, _devices: _lower_tensorflow(self, options)
        request = function_request(self.function, self.args, self.kwargs)
        return lambda world, devices: trace_request(
            request, options, TracingOptions(world, devices, options.steps or STEPS)
        )


def trace_request(request: Request, options: Options, asked: TracingOptions) -> Traced:
    """The graphs of a request. Raises TpuMagicsError where they change at every step."""
    found = trace(request, options, asked)
    precision = options.precision or session.current.precision
    if found.changes and len(found.graphs) >= found.syncs:
        if found.ended:
            raise _too_short(request.name, found)
        raise TpuMagicsError(
            f"The graph of {request.name} changes at every step: {found.syncs} steps gave {found.syncs} graphs.",
            "A program that is compiled for one of them says nothing of the next, and on a TPU each step would wait "
            "for a compile.",
            "Mend what is named below, then run the preflight again; %tpu_check finds such places without a run.",
            [f"{cause}: {text}" for cause, text in dict.fromkeys(found.changes)],
        )
    return replace(found, precision=precision)


def _too_short(name: str, found: Traced) -> TpuMagicsError:
    """The function ended before two successive steps had one graph: nothing need be wrong with it."""
    known = [f"{cause}: {text}" for cause, text in dict.fromkeys(found.changes) if cause not in _SAYING_NOTHING]
    return TpuMagicsError(
        f"{name} made only {found.syncs} steps, no two successive ones of which had the same graph.",
        "The first steps of a training differ from the later ones (the optimizer makes its state in the first), so a "
        "loop this short does not show the graph that later steps run.",
        f"Let it make at least {found.syncs + 3} steps (more data, or a longer loop), and run the preflight again"
        + (". If the graphs still change, look at what is named below." if known else "."),
        known,
    )


def _lower_tensorflow(call: Call, options: Options) -> Traced:
    from tpu_magics.backends.tensorflow.lower import lower

    notebook = session.current.notebook
    precision = options.precision or session.current.precision
    return lower(call.function, call.args, call.kwargs, precision=precision, cell_names=notebook.cell_names())


def _ranks(world: int, devices: int | None) -> str:
    if devices is not None:
        return f"one process with {devices} devices"
    return "one rank" if world == 1 else f"{world} ranks"
