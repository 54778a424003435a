"""The pipeline of a preflight: trace a function, then compile its graphs for a target."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import STEPS
from tpu_magics.backends.frameworks import FRAMEWORKS
from tpu_magics.backends.lowered import NUMBERED, TRACED
from tpu_magics.backends.tensorflow import is_step
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch import session
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import Request, function_request
from tpu_magics.launch.strategies import tracing
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.compilation import CompileProgress, compile_graphs
from tpu_magics.preflight.compile_cache import Store
from tpu_magics.preflight.compile_process import torch_xla_flags
from tpu_magics.preflight.compile_result import CompileResult, LoweredGraph, TraceResult, from_json
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.targets import Target
from tpu_magics.runs.events import Compile, Warned
from tpu_magics.runs.reader import Run

if TYPE_CHECKING:
    from tpu_magics.preflight.report import Preflight

__all__ = ["Callbacks", "PreflightPipeline", "TrainingCall", "trace_request"]


_FIRST = ("new-line", "A step ends here for the first time.")
_UNKNOWN = ("unknown", "The reason why this graph differs is unknown.")
_NO_HOST_MEMORY = re.compile(r"out of host memory|allocate .*host memory")
_READ_ZEROS = "It had read values, which are zero while it is traced: such a zero may be the cause."
_SKIP_READS = (
    "If it is, skip what reads the value for the preflight, such as a check of values or a matching on the host."
)
_LOGS = re.compile(r"(?<=[.!?]) [^.!?]*%tpu_logs.*$")  # a trace leaves no run folder


class HostTooSmall(TpuMagicsError):
    """This machine has too little memory for the trace; that says nothing about the TPU."""


def trace(request: Request, options: Options, asked: tracing.TracingOptions) -> TraceResult:
    """Trace a function in a forked worker.

    Raises:
        HostTooSmall: what it makes on the host does not fit in this machine's memory.
        TpuMagicsError: it cannot be forked, fails while it is traced, or never syncs.
        TrainingInterrupted: the user stopped it.
    """
    try:
        with tracing.traced(request, options, asked) as (folder, run):
            found = _read_trace(request.name, folder, run)
    except TrainingInterrupted:
        raise
    except TrainingFailed as error:
        raise _failed(request.name, error) from None
    _require_sync(request.name, found, asked.world)
    return found


def _failed(name: str, error: TrainingFailed) -> TpuMagicsError:
    if not _NO_HOST_MEMORY.search(error.what):
        what, why, todo = f"{name} failed during tracing: {error.what}", error.why, _LOGS.sub("", error.todo)
        if tracing.VALUES_READ in error.details:
            why, todo = f"{why} {_READ_ZEROS}", f"{todo} {_SKIP_READS}"
        return TpuMagicsError(what, why, todo, error.details)
    return HostTooSmall(
        f"This machine has too little memory to trace {name}: {error.what}",
        "Tracing executes no step, but the function still creates its data on the host, mainly the batches. This "
        f"machine's memory is too small, not the TPU's. {error.why}",
        "Create large batches on the device (torch.randn(..., device=device)), where they take no memory during "
        "tracing. Or trace with a smaller batch, or on a machine with more memory.",
        error.details,
    )


def _require_sync(name: str, found: TraceResult, world: int) -> None:
    if found.syncs:
        return
    if found.problem:
        raise TpuMagicsError(*(one.replace("NAME", name) for one in found.problem))
    pending = "Everything it did is one graph at its end" if found.graphs else "It did nothing on the XLA device"
    ranks = (
        f" It was traced as one of {world} ranks, and each gets 1/{world} of the data: with too little data, a "
        "loader gives no batch."
        if world > 1
        else ""
    )
    raise TpuMagicsError(
        f"{name} came to no sync, so it has no step to compile.",
        f"{pending}. A step ends with torch_xla.sync(), or when a loader from accelerator.prepare gives the next "
        f"batch; a loop over less data than one batch, with drop_last=True, makes none.{ranks}",
        "End each step with torch_xla.sync(); where the code does, give it data for at least three steps"
        + (" on each rank." if ranks else "."),
    )


def _read_trace(name: str, folder: Path, run: Run) -> TraceResult:
    try:
        return _read(folder, run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TpuMagicsError(
            f"The trace of {name} cannot be read.",
            f"{TRACED} or a file next to it is damaged or was removed: {type(error).__name__}: {error}",
            "Run the preflight again, and check that the folder for temporary files has free space.",
        ) from error


def _read(folder: Path, run: Run) -> TraceResult:
    """What the worker wrote."""
    path = folder / TRACED
    if not path.is_file():
        return TraceResult((), 0, False, notes=tuple(_warnings(run)))
    data = json.loads(path.read_text())
    graphs = tuple(_graph(folder, one) for one in data.pop("graphs"))
    found = from_json(TraceResult, {**data, "graphs": ()})
    compiles = [one for one in run.events("compile", rank=0) if isinstance(one, Compile)]
    return TraceResult(
        **{
            **vars(found),
            "graphs": graphs,
            "changes": () if found.settled else tuple(_changes(compiles, data.get("differences", ()))),
            "notes": (*found.notes, *_warnings(run)),
        }
    )


def _changes(compiles: Sequence[Compile], differences: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Cause and sentence of each graph from the third on: what the observer makes of it, and what is different."""
    for compile_, different in list(zip_longest(compiles, differences))[2:]:
        cause, text = _FIRST if compile_ is not None and compile_.nearest is None else _UNKNOWN
        if compile_ is not None and compile_.cause:
            cause, text = compile_.cause, compile_.text
        yield cause, " ".join(one for one in (text, different) if one)


def _warnings(run: Run) -> Sequence[str]:
    wanted = ("observing-stopped", "not-observed")
    return [one.text for one in run.events("warning", rank=0) if isinstance(one, Warned) and one.code in wanted]


def _graph(folder: Path, data: Mapping[str, Any]) -> LoweredGraph:
    module = (folder / data["file"]).read_bytes()
    rest = {name: value for name, value in data.items() if name not in ("file", *NUMBERED)}
    numbered: dict[str, Any] = {name: _numbered(kind, data[name]) for name, kind in NUMBERED.items()}
    return replace(from_json(LoweredGraph, {**rest, "module": module}), **numbered)


def _numbered(kind: type[Any], data: Mapping[str, Any]) -> dict[int, Any]:
    values = [from_json(kind, one) for one in data["values"]]
    return {int(number): values[place] for number, place in data["of"].items()}


# -- the pipeline -----------------------------------------------------------------------------------------------------

# Causes that a loop that is too short has as well.
_UNSPECIFIC = frozenset({"new-line", "unknown", "new-code", "new-part", "optimizer-state"})


@dataclass(frozen=True)
class Callbacks:
    """Called with the progress of each compile at least once a second, a `line` for each trace, and the result."""

    progress: Callable[[CompileProgress], None] = lambda _now: None
    line: Callable[[str], None] = lambda _line: None
    found: Callable[[Preflight], None] = lambda _found: None


@dataclass(frozen=True)
class PreflightPipeline:
    """Traces a function and compiles its graphs. `lower`: (ranks, devices of an SPMD worker) -> Traced; `framework`:
    the one that makes the graphs, "torch_xla", "torch_tpu" or "tensorflow"."""

    name: str
    lower: Callable[[int, int | None], TraceResult]
    spmd: bool
    processes: int | None
    store: Store | None
    packages: Sequence[str]
    callbacks: Callbacks
    framework: str
    traces: dict[tuple[int, int | None], TraceResult] = field(default_factory=dict)

    def traced(self, target: Target) -> TraceResult:
        """The trace for that target; targets with the same number of ranks share one."""
        key: tuple[int, int | None] = (self.processes or target.ranks, None)
        if FRAMEWORKS[self.framework].one_program:
            key = (1, None)  # TensorFlow's program is that of one replica
        elif self.spmd:
            key = (1, target.devices)
        if key not in self.traces:
            self.callbacks.line(f"{self.name}: tracing for {_ranks(*key)}")
            self.traces[key] = self.lower(*key)
        return self.traces[key]

    def result(self, target: Target, later: bool = False) -> TargetResult:
        """All graphs of the trace, compiled for that target. `later`: those of later steps alone."""
        traced = self.traced(target).later if later else self.traced(target)
        return TargetResult(target, traced, tuple(self.compiled(traced.graphs, target)))

    def compiled(self, graphs: Sequence[LoweredGraph], target: Target) -> list[CompileResult]:
        """What the compiler says of these graphs."""
        flags = torch_xla_flags(target) if FRAMEWORKS[self.framework].flags else ()
        return compile_graphs(
            graphs, target, store=self.store, on_progress=self.callbacks.progress, packages=self.packages, flags=flags
        )


@dataclass(frozen=True)
class TrainingCall:
    """The function to lower, with its arguments. `changes`: of it, as in TraceSpec."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", "") or type(self.function).__name__).strip("<>") or "function"

    @property
    def framework(self) -> str:
        """The name of the backend that makes the graphs, as in PreflightPipeline."""
        return (session.current.local if self.is_tensorflows else session.current.backend).name

    @property
    def can_change_models(self) -> bool:
        """Whether models can be changed, and sharded, while it is traced."""
        return FRAMEWORKS[self.framework].changes_models

    @property
    def is_tensorflows(self) -> bool:
        return is_step(self.function, self.args, self.kwargs)

    def lowering(self, options: Options) -> Callable[[int, int | None], TraceResult]:
        """(ranks, devices of an SPMD worker) -> the graphs of this call. Raises TpuMagicsError where the function does
        not take these arguments."""
        if self.is_tensorflows:
            return lambda _world, _devices: _lower_tensorflow(self, options)
        request = function_request(self.function, self.args, self.kwargs)
        return lambda world, devices: trace_request(
            request, options, TracingOptions(world, devices, options.steps or STEPS, self.changes)
        )


def trace_request(request: Request, options: Options, asked: TracingOptions) -> TraceResult:
    """The graphs of a request. Raises TpuMagicsError where they change at every step."""
    found = trace(request, options, asked)
    precision = options.precision or session.current.precision
    if found.changes and len(found.graphs) >= found.syncs:
        if found.ended:
            raise _too_short(request.name, found)
        raise TpuMagicsError(
            f"The graph of {request.name} changes at every step: {found.syncs} steps gave {found.syncs} graphs.",
            "A compile of one graph says nothing about the next one, and on a TPU each step would wait for a compile.",
            "Fix the causes below, then run the preflight again. %tpu_check finds such code without a run.",
            [f"{cause}: {text}" for cause, text in dict.fromkeys(found.changes)],
        )
    return replace(found, precision=precision)


def _too_short(name: str, found: TraceResult) -> TpuMagicsError:
    """The function ended before two successive steps had one graph; it may still be correct."""
    known = [f"{cause}: {text}" for cause, text in dict.fromkeys(found.changes) if cause not in _UNSPECIFIC]
    return TpuMagicsError(
        f"{name} made only {found.syncs} steps, and no two successive steps had the same graph.",
        "The first steps of a training differ from the later ones (the optimizer creates its state in the first), so "
        "such a short loop does not show the graph of later steps.",
        f"Let it make at least {found.syncs + 3} steps (more data, or a longer loop), and run the preflight again"
        + (". If the graphs still change, see the causes below." if known else "."),
        known,
    )


def _lower_tensorflow(call: TrainingCall, options: Options) -> TraceResult:
    from tpu_magics.backends.tensorflow.lower import lower

    notebook = session.current.notebook
    precision = options.precision or session.current.precision
    return lower(call.function, call.args, call.kwargs, precision=precision, cell_names=notebook.cell_names())


def _ranks(world: int, devices: int | None) -> str:
    if devices is not None:
        return f"one process with {devices} devices"
    return "one rank" if world == 1 else f"{world} ranks"
