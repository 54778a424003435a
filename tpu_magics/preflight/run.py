"""A function -> what the compilers of the TPUs say of it: the road of a preflight.

What lives here: the order of things: trace, compile, search. What does not: the things themselves (tracing.py,
compiling.py, fit/), and how the result looks (panel/preflight.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import Options
from tpu_magics.launch.tracing import Asked
from tpu_magics.launch.train import Request, function_request
from tpu_magics.preflight import installed
from tpu_magics.preflight.compiling import Progress, compile_graphs
from tpu_magics.preflight.facts import Compiled, Traced
from tpu_magics.preflight.fit import FitPoint, FitResult, search
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import Target, parse_all
from tpu_magics.preflight.tracing import trace
from tpu_magics.runs import preflights

__all__ = ["STEPS", "Telling", "Way", "note", "preflight", "trace_request"]

STEPS = 5
_WORST = ("fits", "too-large", "refused", "failed")


@dataclass(frozen=True)
class Telling:
    """Who hears how it goes. `progress`: of each compile, at least once a second; `line`: of each trace."""

    progress: Callable[[Progress], None] = lambda _now: None
    line: Callable[[str], None] = lambda _line: None


@dataclass(frozen=True)
class Way:
    """How this preflight traces and compiles. `lower`: (ranks, devices of an SPMD worker) -> Traced."""

    name: str
    lower: Callable[[int, int | None], Traced]
    spmd: bool
    processes: int | None
    store: Store | None
    packages: Sequence[str]
    tell: Telling
    traces: dict[tuple[int, int | None], Traced] = field(default_factory=dict)

    def traced(self, target: Target) -> Traced:
        """The trace for that target; targets with as many ranks have one in common."""
        key = (1, target.devices) if self.spmd else (self.processes or target.ranks, None)
        if key not in self.traces:
            self.tell.line(f"{self.name}: tracing, for {_ranks(*key)}")
            self.traces[key] = self.lower(*key)
        return self.traces[key]

    def result(self, target: Target) -> TargetResult:
        traced = self.traced(target)
        compiled = compile_graphs(
            traced.graphs, target, store=self.store, tell=self.tell.progress, packages=self.packages
        )
        return TargetResult(target, traced, tuple(compiled))


def preflight(
    function: Any,
    *args: Any,
    target: str | Sequence[str],
    kwargs: Mapping[str, Any] | None = None,
    fit: str | None = None,
    steps: int = STEPS,
    precision: str | None = None,
    processes: int | None = None,
    spmd: bool = False,
    force: bool = False,
    kept: bool = True,
    packages: Sequence[str] = (),
    telling: Telling | None = None,
) -> Preflight:
    """Compile `function(*args, **kwargs)` for TPUs that are not here; see `tpu_magics.preflight`."""
    targets = parse_all(target)
    options = Options(processes=processes, precision=precision, steps=steps, force=force)
    options.check()
    installed.versions(packages)
    call = _Call(function, args, dict(kwargs or {}))
    tell = telling or Telling()
    store = Store(default_folder()) if kept else None

    def way(one: _Call) -> Way:
        return Way(one.name, one.lowering(options, steps), spmd, processes, store, packages, tell)

    size = Size.of(fit, function, args, call.kwargs, session.current.notebook.namespace) if fit else None
    first = way(call)
    results = tuple(first.result(one) for one in targets)
    found: tuple[FitResult, ...] = ()
    if size is not None:
        found = _search(size, call, results, way, tell)
    note(call.name, results)
    return Preflight(call.name, results, found)


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


# -- the search -----------------------------------------------------------------------------------------------------


def _search(
    size: Size, call: _Call, results: Sequence[TargetResult], way: Callable[[_Call], Way], tell: Telling
) -> tuple[FitResult, ...]:
    """The largest size for each target. What was compiled for the size that there is now is its first point."""
    by_name = {one.name: one for one in results}

    def probe(value: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        if value == size.now:
            return {name: _point(value, by_name[name]) for name in names}
        with size.at(value, call.args, call.kwargs) as (args, kwargs):
            going = way(_Call(call.function, args, kwargs))
            return {name: _point(value, going.result(by_name[name].target)) for name in names}

    ranked = [_Ranked(one.name, 1 if one.graph.partitions > 1 else one.target.ranks) for one in results]
    return search(size.name, size.now, ranked, probe, tell=tell.line)


@dataclass(frozen=True)
class _Ranked:
    """A target as the search knows it."""

    name: str
    ranks: int


def _point(value: int, found: TargetResult) -> FitPoint:
    worst = found.worst
    memory = worst.memory
    return FitPoint(
        size=value,
        status=worst.status,
        needed=memory.needed if memory is not None else None,
        available=memory.available if memory is not None else None,
        seconds=_seconds(found.compiled),
        error=worst.error,
        graph=found.graph.hash,
    )


def _seconds(compiled: Sequence[Compiled]) -> float | None:
    known = [one.seconds for one in compiled if one.seconds is not None]
    return sum(known) if known else None


def note(name: str, results: Sequence[TargetResult]) -> None:
    """For the checklist of %tpu_check --ready."""
    for one in results:
        memory = one.worst.memory
        preflights.note(
            preflights.Record(
                function=name,
                target=one.name,
                status=one.status,
                needed=memory.needed if memory is not None else None,
                available=memory.available if memory is not None else None,
            )
        )


def _ranks(world: int, devices: int | None) -> str:
    if devices is not None:
        return f"one process with {devices} devices"
    return "one rank" if world == 1 else f"{world} ranks"
