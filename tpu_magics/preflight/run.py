"""Run a preflight: trace, compile, search; and the check before a training with `--preflight`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from tpu_magics.backends.base import REMAT, STEPS
from tpu_magics.backends.frameworks import FRAMEWORKS
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted, plural
from tpu_magics.launch import session
from tpu_magics.launch.options import NO_SPMD, Options, checked
from tpu_magics.launch.request import Request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.launch.watchdog import interruptible
from tpu_magics.preflight import compile_process
from tpu_magics.preflight.advice import advise as advise_step
from tpu_magics.preflight.compile_cache import Store, default_folder
from tpu_magics.preflight.compile_result import CompileResult, TraceResult
from tpu_magics.preflight.fit import FitPoint, FitResult, Size
from tpu_magics.preflight.options import PreflightOptions
from tpu_magics.preflight.pipeline import Callbacks, PreflightPipeline, TrainingCall, trace_request
from tpu_magics.preflight.report import AdviceResult, Preflight, TargetResult, Variant, VariantResult
from tpu_magics.preflight.roofline import SETTLES
from tpu_magics.preflight.search import APART, search
from tpu_magics.preflight.targets import Target, parse_all
from tpu_magics.preflight.variants import Axis, MeshAxes, first_mesh, on_mesh, parse_mesh, require_meshes, variants
from tpu_magics.preflight.variants import compare as compare_variants
from tpu_magics.runs import preflights

__all__ = [
    "Callbacks",
    "PreflightCheck",
    "PreflightPipeline",
    "SearchInterrupted",
    "SearchProbe",
    "SearchTarget",
    "note",
    "preflight",
    "preflight_check",
    "require_change",
    "require_steps",
    "trace_request",
    "trains_spmd",
]


LONGEST = 300  # characters of an error
_ANSWERS = ("fits", "failed", "refused", "too-large")  # what one graph proves decides, whatever is unknown of another


@dataclass(frozen=True)
class SearchTarget:
    """A target of a search: its ranks, and the devices that share the batch of one rank (1 without SPMD)."""

    name: str
    ranks: int
    devices: int = 1

    @classmethod
    def of(cls, found: TargetResult) -> SearchTarget:
        return cls(found.name, found.ranks or 1, found.devices)


@dataclass(frozen=True)
class SearchProbe:
    """Probes one size. `call`: the function with the current size; `start`: the result with it; `pipeline`: makes the
    pipeline of a call; `pipelines`: of other sizes; `compiled`: their compile results by size and target, then by the
    graph's number."""

    size: Size
    call: TrainingCall
    start: Preflight
    pipeline: Callable[[TrainingCall], PreflightPipeline]
    pipelines: dict[int, PreflightPipeline] = field(default_factory=dict)
    compiled: dict[tuple[int, str], dict[int, CompileResult]] = field(default_factory=dict)

    def probe(self, value: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        """The compile results of that size for these targets, of the graph that needs most alone. Raises TpuMagicsError
        where the function does not run with it, or makes too few steps."""
        if value == self.size.now:
            start = map(self.start.target, names)
            return {one.name: _point(value, one.traced, dict(enumerate(one.compiled))) for one in start}
        with self.size.at(value, self.call.args, self.call.kwargs) as (args, kwargs):
            self.pipelines.setdefault(value, self.pipeline(replace(self.call, args=args, kwargs=kwargs)))
            return {name: self._compile(value, self.start.target(name), 1) for name in names}

    def complete(self, value: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        """The points of these targets at this size, with all its graphs."""
        return {name: self._compile(value, self.start.target(name), None) for name in names}

    def _compile(self, value: int, start: TargetResult, most: int | None) -> FitPoint:
        """Compiles up to `most` graphs. If one is too large, the others need no compile."""
        pipeline, compiled = self.pipelines[value], self.compiled.setdefault((value, start.name), {})
        traced = pipeline.traced(start.target)
        require_steps(f"{self.size.name} = {value}", traced)
        for number in _largest_first(len(traced.graphs), start)[:most]:
            if number not in compiled:
                [compiled[number]] = pipeline.compiled([traced.graphs[number]], start.target)
            if compiled[number].status != "fits":
                break
        return _point(value, traced, compiled)

    def recommended(self, found: FitResult) -> TargetResult:
        """The result with the recommended size, or with the start value if none fits."""
        start = self.start.target(found.target)
        if found.best is None or found.best == self.size.now:
            return start
        compiled = self.compiled[found.best, found.target]
        traced = self.pipelines[found.best].traced(start.target)
        return TargetResult(start.target, traced, tuple(compiled[number] for number in sorted(compiled)))


def _largest_first(graphs: int, start: TargetResult) -> list[int]:
    first = min(start.compiled.index(start.worst), graphs - 1)
    return [first, *(number for number in range(graphs) if number != first)]


def _point(value: int, traced: TraceResult, compiled: Mapping[int, CompileResult]) -> FitPoint:
    results = compiled.values()
    worst = max(results, key=lambda one: (_ANSWERS.index(one.status), one.memory.needed if one.memory else 0))
    known = [one.seconds for one in results if one.seconds is not None]
    return FitPoint(
        size=value,
        status=worst.status,
        needed=worst.memory.needed if worst.memory is not None else None,
        available=worst.memory.available if worst.memory is not None else None,
        seconds=sum(known) if known else None,
        error=_first_line(worst.error),
        graph=traced.graphs[-1].hash,
        partial=worst.status == "fits" and len(compiled) < len(traced.graphs),
    )


def _first_line(text: str) -> str:
    """A compiler's refusal can have pages."""
    return next(iter(text.splitlines()), "")[:LONGEST]


# -- what a search needs ----------------------------------------------------------------------------------------------


def require_steps(what: str, traced: TraceResult, steps: int = SETTLES) -> None:
    """Raise TpuMagicsError with too few steps: the graph of the first step has no optimizer state among its
    arguments."""
    if steps < SETTLES:
        raise TpuMagicsError(
            f"--fit does not work with --steps {steps}.",
            "The first step of a training creates the optimizer state, the second is the first that has it, and the "
            "third shows whether later steps are alike.",
            f"Leave out --steps, or set it to {SETTLES} or more.",
        )
    if traced.settled or traced.syncs >= SETTLES:
        return
    raise TpuMagicsError(
        f"With {what} the function makes only {plural(traced.syncs, 'step')}, so the memory of later steps is unknown.",
        "The first steps of a training create the optimizer state, so their graphs need less memory than later ones.",
        "Let the function make at least three steps with the largest batch to try: give it more data (repeated or "
        "made-up batches are fine, because no step is executed).",
    )


def require_change(
    size: Size, call: TrainingCall, traced: TraceResult, trace: Callable[[TrainingCall], TraceResult]
) -> None:
    """Raise TpuMagicsError where a notebook variable does not change a TensorFlow step: its batch comes from its
    arguments, which were created before. `traced`: with the size that there is now."""
    if size.is_argument:
        return
    other = size.now // APART or size.now * APART
    with size.at(other, call.args, call.kwargs) as (args, kwargs):
        changed = trace(replace(call, args=args, kwargs=kwargs))
    if changed.graphs[-1].hash != traced.graphs[-1].hash:
        return
    rows = f", with {traced.batch:,} rows" if traced.batch is not None else ""
    raise TpuMagicsError(
        f"Changing {size.name} has no effect: {size.now} and {other} give the same graph.",
        f"{call.name} gets its batch from its arguments. They were created before{rows}, and another value of "
        f"{size.name} does not create new ones.",
        f"Create the batch inside a function: def step({size.name}), which creates tensors with {size.name} rows "
        "(tf.random.uniform; the compiler would remove work on zeros) and trains on them, as in "
        f"model.train_step((x, y)). Then preflight that function, with {size.name}={size.now} and --fit {size.name}.",
    )


# -- the preflight ----------------------------------------------------------------------------------------------------


class SearchInterrupted(TrainingInterrupted):
    """The user interrupted a search. `found`: the results so far."""

    def __init__(self, found: Preflight, kept: bool) -> None:
        again = "Run it again to continue: compiled results are cached." if kept else ""
        super().__init__(
            f"The search for the largest {found.fit[0].name} was interrupted.",
            " ".join(f"{one.target}: {_known(found, one.target)}." for one in found.fit),
            f"The results so far are shown. {again}".strip(),
        )
        self.found = found


def preflight(
    function: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
    callbacks: Callbacks | None = None,
    **given: Any,
) -> Preflight:
    """Compile `function(*args, **kwargs)` for TPUs that are not here; see `tpu_magics.preflight`. `given`: of
    PreflightOptions.

    Raises SearchInterrupted, with the results so far, where the user interrupts the search that `fit` asks for.
    """
    asked = PreflightOptions(**checked(PreflightOptions, "tpu_magics.preflight", given))
    targets = parse_all(asked.target)
    options, processes, fit = asked.of_trace(), asked.processes, asked.fit
    _require_ranks(targets, processes)
    require_compiler(packages)
    store = Store(default_folder()) if asked.kept else None
    settings = _Settings(options, _is_spmd(asked.spmd, processes), store, packages, callbacks or Callbacks())
    call = TrainingCall(function, args, dict(kwargs or {}))
    meshes = list(dict.fromkeys(map(parse_mesh, _words(asked.mesh))))
    require_meshes(meshes, targets)
    if meshes and processes is not None:
        raise TpuMagicsError(
            f"-n {processes} and --mesh do not go together.",
            "In a mesh, one process drives all devices of the target.",
            "Leave out -n.",
        )
    wanted = variants([Axis.of(one) for one in _words(asked.compare)], meshes) if asked.compare or asked.mesh else ()
    _check_variants(call, wanted, asked.advise, fit)
    parts = list(_on_meshes(call, targets, settings, meshes))
    if fit is not None and len(parts) > 1:
        raise TpuMagicsError(
            "--fit searches in one mesh.",
            "The targets have different numbers of devices, so they need several.",
            "Run it once for each target.",
        )
    with interruptible():
        found = _compiled(parts, targets) if fit is None else _searched(parts[0].call, targets, parts[0].settings, fit)
        known = {part.mesh: part.later(found) for part in parts} if fit is None else {}
        compared = tuple(_compared(call, wanted, targets, settings, known))
        advice = _advised(parts[0], found) if asked.advise else AdviceResult()
    return replace(found, profiled=asked.profile, compared=compared, advice=advice)


def _words(given: str | Sequence[str]) -> Sequence[str]:
    """One may be given without a list."""
    return [given] if isinstance(given, str) else given


@dataclass(frozen=True)
class _Settings:
    """What all sizes of a search share."""

    options: Options
    spmd: bool
    store: Store | None
    packages: Sequence[str]
    callbacks: Callbacks

    def variant_of(self, call: TrainingCall, options: Options) -> PreflightPipeline:
        """The pipeline of a call with other options."""
        return replace(self, options=options, spmd=self.spmd or options.spmd is not None).pipeline(call)

    def pipeline(self, call: TrainingCall) -> PreflightPipeline:
        lower = call.lowering(self.options)
        return PreflightPipeline(
            call.name,
            lower,
            self.spmd,
            self.options.processes,
            self.store,
            self.packages,
            self.callbacks,
            call.framework,
        )


@dataclass(frozen=True)
class _MeshTargets:
    """The call for some of the targets: `mesh` is the first that has the devices of each, or empty."""

    mesh: MeshAxes
    call: TrainingCall
    settings: _Settings
    targets: tuple[Target, ...]

    def later(self, found: Preflight) -> tuple[TargetResult, ...]:
        """Their results, of later steps alone."""
        return tuple(found.target(one.name).later for one in self.targets)


def _on_meshes(
    call: TrainingCall, targets: Sequence[Target], settings: _Settings, meshes: Sequence[MeshAxes]
) -> Iterator[_MeshTargets]:
    """That of the first target first."""
    for mesh in dict.fromkeys(first_mesh(meshes, target) or () for target in targets):
        changed, options = on_mesh(call, settings.options, mesh)
        suited = tuple(target for target in targets if (first_mesh(meshes, target) or ()) == mesh)
        yield _MeshTargets(mesh, changed, replace(settings, options=options, spmd=settings.spmd or bool(mesh)), suited)


def _compared(
    call: TrainingCall,
    wanted: Sequence[Variant],
    targets: Sequence[Target],
    settings: _Settings,
    known: Mapping[MeshAxes, tuple[TargetResult, ...]],
) -> Iterator[VariantResult]:
    """`known`: what needs no second trace, by the mesh."""
    namespace = session.current.notebook.namespace
    again = {one: VariantResult(one, known[one.mesh]) for one in wanted if one.is_mesh_alone and one.mesh in known}
    rest = [one for one in wanted if one not in again]
    made = compare_variants(call, settings.options, rest, targets, namespace, settings.variant_of)
    yield from (again.get(one) or next(made) for one in wanted)


def _advised(part: _MeshTargets, found: Preflight) -> AdviceResult:
    namespace, settings = session.current.notebook.namespace, part.settings
    return advise_step(part.call, found.results[0], settings.options, namespace, settings.variant_of)


def _check_variants(call: TrainingCall, wanted: Sequence[Variant], advise: bool, fit: str | None) -> None:
    """Raise TpuMagicsError for what is known before minutes of compiles."""
    if any(one.mesh for one in wanted):
        _require_torch_xla("--mesh", call)
    if any(one.changes for one in wanted):
        _require_torch_xla(f"--compare {REMAT}", call)
    for name in {name for variant in wanted for name, _ in variant.sizes}:
        Size.of(name, call.function, call.args, call.kwargs, session.current.notebook.namespace, "--compare")
    if advise and fit is not None:
        raise TpuMagicsError(
            "--fit and --advise do not go together.",
            "--fit finds another size, and --advise looks at the step with the size that there is.",
            f"Run --fit {fit} first, set {fit} to what it recommends, then run --advise.",
        )


def _require_torch_xla(option: str, call: TrainingCall) -> None:
    if not call.can_change_models:
        raise TpuMagicsError(
            f"{option} is for torch_xla: this is a function of {call.framework}.",
            "It changes models while they are traced, which other frameworks do otherwise.",
            f"Compare what you change yourself: give {call.name} an argument, and its values after --compare.",
        )


def _compiled(parts: Sequence[_MeshTargets], targets: Sequence[Target]) -> Preflight:
    pipelines = [(part.settings.pipeline(part.call), part.targets) for part in parts]
    results = {one.name: pipeline.result(one) for pipeline, those in pipelines for one in those}
    return _with_note(Preflight(parts[0].call.name, tuple(results[one.name] for one in targets)))


def _searched(call: TrainingCall, targets: Sequence[Target], settings: _Settings, name: str) -> Preflight:
    """The largest size for each target, and the compile results for the recommended one."""
    pipeline = settings.pipeline(call)
    size = Size.of(name, call.function, call.args, call.kwargs, session.current.notebook.namespace)
    first = pipeline.traced(targets[0])
    require_steps(f"{size.name} = {size.now}", first, settings.options.steps or STEPS)
    if FRAMEWORKS[pipeline.framework].one_program:
        require_change(size, call, first, lambda other: settings.pipeline(other).traced(targets[0]))
    start = _with_note(Preflight(call.name, tuple(pipeline.result(one) for one in targets)))
    probe = SearchProbe(size, call, start, settings.pipeline)
    ranked = [SearchTarget.of(one) for one in start.results]
    fit = search(size.name, size.now, ranked, probe.probe, complete=probe.complete, log=settings.callbacks.line)
    found = Preflight(call.name, tuple(probe.recommended(one) for one in fit), fit)
    if any(one.interrupted for one in fit):
        raise SearchInterrupted(found, kept=settings.store is not None)
    return found


def _known(found: Preflight, target: str) -> str:
    """ "104 fits, 128 does not"."""
    one = next(each for each in found.fit if each.target == target)
    fits = "no size is known to fit" if one.largest is None else f"{one.largest:,} fits"
    return f"{fits}, {one.beyond:,} does not" if one.beyond is not None else fits


def require_compiler(packages: Sequence[str] = ()) -> None:
    """Raise TpuMagicsError where the compiler is missing. `packages`: as in `compiler_versions`."""
    compile_process.compiler_versions(packages)


# -- checks of the request ------------------------------------------------------------------------------------------


def _require_ranks(targets: Sequence[Target], processes: int | None) -> None:
    """Raises TpuMagicsError where there are more ranks than a target has."""
    few = next((one for one in targets if processes is not None and processes > one.ranks), None)
    if few is not None:
        raise TpuMagicsError(
            f"-n {processes} is not possible on {few.name}.",
            f"A training there has {plural(few.ranks, 'rank', '')}, one for each device.",
            f"Leave out -n for {few.ranks}, or choose a larger target.",
        )


def _is_spmd(requested: bool | None, processes: int | None) -> bool:
    """The session's default where it is None."""
    if requested is None:
        return processes is None and session.current.spmd is not None
    return requested


# -- for %tpu_check --ready -----------------------------------------------------------------------------------------


def _with_note(found: Preflight) -> Preflight:
    note(found.function, found.results)
    return found


def note(name: str, results: Sequence[TargetResult]) -> None:
    """Record the results for the checklist of %tpu_check --ready, and for %tpu_runs."""
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
                least=_for_a_sync(one, one.least),
                estimate=_for_a_sync(one, one.profile.seconds),
            )
        )


def _for_a_sync(one: TargetResult, seconds: float | None) -> float | None:
    """A run counts syncs as steps."""
    return None if seconds is None else seconds / max(1, one.cost.syncs)


# -- before a training ----------------------------------------------------------------------------------------------


PreflightCheck = Callable[[Request, Options], None]
GIB = 2**30
HINT = 200  # characters of a compiler's text


def preflight_check(
    target: str | Sequence[str], callbacks: Callable[[], AbstractContextManager[Callbacks]]
) -> PreflightCheck:
    """A check that raises TpuMagicsError, before the training forks, where its program does not compile for one of
    these TPUs or does not fit. `callbacks`: makes a context manager for each check; they get the result before it
    raises.

    Raises TpuMagicsError at once where a target is unknown or the compiler is missing.
    """
    targets = parse_all(target)
    require_compiler()

    def ask(request: Request, options: Options) -> None:
        def lower(world: int, devices: int | None) -> TraceResult:
            if request.program is not None:
                return request.program
            return trace_request(request, replace(options, background=False), TracingOptions(world, devices))

        with callbacks() as calls, interruptible():
            alone = 1 if options.processes == 1 else None
            backend = session.current.backend if request.program is None else session.current.local
            pipeline = PreflightPipeline(
                request.name, lower, trains_spmd(options), alone, Store(default_folder()), (), calls, backend.name
            )
            found = Preflight(request.name, tuple(pipeline.result(one) for one in targets))
            note(request.name, found.results)
            calls.found(found)
        _require(found, is_function=callable(request.hoistable))

    return ask


def trains_spmd(options: Options) -> bool:
    """Whether a training with these options is one SPMD process; the session's default where they do not say."""
    if options.spmd is not None:
        return options.spmd != NO_SPMD
    return options.processes is None and session.current.spmd is not None


def _require(found: Preflight, is_function: bool) -> None:
    bad = next((one for one in found.results if not one.fits), None)
    if bad is None:
        return
    what = f"`{found.function}`" if is_function else "This"
    raise TpuMagicsError(
        f"{what} was not trained: {_reason(bad)}.",
        "--preflight starts a training only if its program compiles for that TPU and fits.",
        f"{_todo(found.function if is_function else 'FUNCTION', bad)} To train anyway, leave out --preflight.",
    )


def _todo(function: str, bad: TargetResult) -> str:
    if bad.status != "too-large":
        return "See the table above."
    search = f"%tpu_preflight {function} ... --target {bad.name} --fit NAME finds the largest batch"
    return f"Use a smaller batch, bf16 or gradient checkpointing; {search}."


def _reason(one: TargetResult) -> str:
    memory = one.worst.memory
    if one.status == "too-large" and memory is not None and memory.available:
        needed, available = memory.needed / GIB, memory.available / GIB
        return f"on {one.name} it needs {needed:,.2f} GiB of HBM, but only {available:,.2f} GiB are available"
    texts = {"too-large": "it does not fit into the HBM of", "refused": "the compiler refuses it for"}
    text = next(iter(one.worst.error.splitlines()), "")[:HINT]
    return f"{texts.get(one.status, 'it could not be compiled for')} {one.name}{': ' if text else ''}{text}"
