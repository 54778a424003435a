"""A function -> what the compilers of the TPUs say of it: the road of a preflight.

What lives here: the order of things: trace, compile, search. What does not: the things themselves (tracing.py,
compiling.py, probing.py, fit/), and how the result looks (panel/preflight.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import ALL_DEVICES, Options
from tpu_magics.launch.tracing import Asked
from tpu_magics.launch.train import Request, function_request
from tpu_magics.preflight import installed
from tpu_magics.preflight.compile_environment import torch_xla_flags
from tpu_magics.preflight.compiling import Progress, compile_graphs
from tpu_magics.preflight.facts import Compiled, Graph, Traced
from tpu_magics.preflight.fit import search
from tpu_magics.preflight.probing import Probing, Ranked, require_steps
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import Target, parse_all
from tpu_magics.preflight.tracing import trace
from tpu_magics.runs import preflights

__all__ = ["Telling", "Way", "note", "preflight", "trace_request"]


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


def preflight(
    function: Any,
    *args: Any,
    target: str | Sequence[str],
    kwargs: Mapping[str, Any] | None = None,
    fit: str | None = None,
    steps: int = STEPS,
    precision: str | None = None,
    processes: int | None = None,
    spmd: bool | None = None,
    force: bool = False,
    kept: bool = True,
    packages: Sequence[str] = (),
    telling: Telling | None = None,
) -> Preflight:
    """Compile `function(*args, **kwargs)` for TPUs that are not here; see `tpu_magics.preflight`."""
    targets = parse_all(target)
    options = Options(processes, precision, steps=steps, force=force, spmd=ALL_DEVICES if spmd else None)
    options.check()
    _require_ranks(targets, processes)
    installed.versions(packages)
    tell = telling or Telling()
    store = Store(default_folder()) if kept else None
    call = _Call(function, args, dict(kwargs or {}))
    whole = _is_spmd(spmd, processes)

    def way(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Way:
        one = replace(call, args=args, kwargs=kwargs)
        own = not _is_tensorflows(one)
        return Way(call.name, one.lowering(options, steps), whole, processes, store, packages, tell, own)

    first = way(call.args, call.kwargs)
    size = Size.of(fit, function, args, call.kwargs, session.current.notebook.namespace) if fit else None
    if size is not None:
        require_steps(f"{size.name} = {size.now}", first.traced(targets[0]), steps)
    results = tuple(first.result(one) for one in targets)
    note(call.name, results)
    if size is None:
        return Preflight(call.name, results)
    probing = Probing(size, args, call.kwargs, {one.name: one for one in results}, way, steps)
    ranked = [Ranked.of(one) for one in results]
    return Preflight(call.name, results, search(size.name, size.now, ranked, probing.probe, tell=tell.line))


def _require_ranks(targets: Sequence[Target], processes: int | None) -> None:
    """Raises TpuMagicsError where there are more ranks than a target has."""
    few = next((one for one in targets if processes is not None and processes > one.ranks), None)
    if few is not None:
        raise TpuMagicsError(
            f"-n {processes} is not possible on {few.name}.",
            f"A training has {few.ranks} {'rank' if few.ranks == 1 else 'ranks'} there, one for each device.",
            f"Leave -n away for {few.ranks}, or name a larger target.",
        )


def _is_spmd(asked: bool | None, processes: int | None) -> bool:
    """As a training here would be, where it is not said."""
    if asked is None:
        return processes is None and session.current.spmd is not None
    return asked


@dataclass(frozen=True)
class _Call:
    """What is to be lowered."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "") or type(self.function).__name__).strip("<>") or "function"

    def lowering(self, options: Options, steps: int) -> Callable[[int, int | None], Traced]:
        if _is_tensorflows(self):
            return lambda _world, _devices: _lower_tensorflow(self, options)
        request = function_request(self.function, self.args, self.kwargs)
        return lambda world, devices: trace_request(request, options, Asked(world, devices, steps))


def trace_request(request: Request, options: Options, asked: Asked) -> Traced:
    """The graphs of a request. Raises TpuMagicsError where they change at every step."""
    found = trace(request, options, asked)
    precision = options.precision or session.current.precision
    if found.changes and len(found.graphs) >= found.syncs:
        raise TpuMagicsError(
            f"The graph of {request.name} changes at every step: {found.syncs} steps gave {found.syncs} graphs.",
            "A program that is compiled for one of them says nothing of the next, and on a TPU each step would wait "
            "for a compile.",
            "Mend what is named below, then run the preflight again; %tpu_check finds such places without a run.",
            [f"{cause}: {text}" for cause, text in dict.fromkeys(found.changes)],
        )
    return replace(found, precision=precision)


def _is_tensorflows(call: _Call) -> bool:
    if not any(name in sys.modules for name in ("tensorflow", "keras")):
        return False
    from tpu_magics.backends import tensorflow

    return tensorflow.is_step(call.function, call.args, call.kwargs)


def _lower_tensorflow(call: _Call, options: Options) -> Traced:
    from tpu_magics.backends.tensorflow.lower import lower

    notebook = session.current.notebook
    precision = options.precision or session.current.precision
    return lower(call.function, call.args, call.kwargs, precision=precision, cell_names=notebook.cell_names())


# -- what is said of it ---------------------------------------------------------------------------------------------


def note(name: str, results: Sequence[TargetResult]) -> None:
    """For the checklist of %tpu_check --ready."""
    now = time.time()
    for one in results:
        memory = one.worst.memory
        preflights.note(
            preflights.Record(
                function=name,
                target=one.name,
                status=one.status,
                needed=memory.needed if memory is not None else None,
                available=memory.available if memory is not None else None,
                t=now,
            )
        )


def _ranks(world: int, devices: int | None) -> str:
    if devices is not None:
        return f"one process with {devices} devices"
    return "one rank" if world == 1 else f"{world} ranks"
