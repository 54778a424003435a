"""The one road of a run: look, plan, fork, watch, bring home.

What lives here: the order of things. What does not: the things themselves; each has its own file beside this one. A
framework that does not survive the fork takes another road (local.py).
"""

from __future__ import annotations

import ast
import inspect
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import (
    alone,
    checking,
    framework,
    guards,
    hoist,
    onlook,
    partial,
    plan,
    process,
    reach,
    results,
    session,
    supervise,
    worker,
)
from tpu_magics.launch import failure as failures
from tpu_magics.launch.explain import base
from tpu_magics.launch.plan import Options, Plan
from tpu_magics.launch.relay import Relay, Screen
from tpu_magics.launch.state.restore import unchanged_text
from tpu_magics.launch.state.snapshot import StateSnapshot, take_snapshot
from tpu_magics.launch.work import FunctionWork, Work
from tpu_magics.runs.folder import RunFolder, check_name
from tpu_magics.runs.private import make_scratch
from tpu_magics.runs.reader import Run

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import Traced

BUSY_PATIENCE = 30.0  # seconds: a device stays busy for so long after its holder was killed
BUSY_PAUSE = 2.0  # seconds between attempts
LONGEST_READ = 500_000  # characters of code that is read for models and for rules: a longer one holds data


@dataclass(frozen=True)
class Request:
    """What is to be run, before it is known how. `make(models, hoists)` gives the work; `items`: what it can reach;
    `hoistable`: the function or tree that hoisting reads (None: nothing to read); `script`: the file that is run;
    `packages`: those that its code names; `launcher`: the launching call that it was taken from, "" for none;
    `program`: of its step, where the framework has lowered it in this process (None: it is traced in a worker)."""

    name: str
    make: Callable[[dict[str, Any], hoist.HoistPlan | None], Work]
    items: Sequence[tuple[str, Any]] = ()
    hoistable: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    cell: str = ""
    script: Path | None = None
    packages: Collection[str] = ()
    launcher: str = ""
    program: Traced | None = None

    @property
    def folder_name(self) -> str:
        """Its name as a run's folder can have it."""
        return "".join(char if char.isalnum() or char in "-_." else "-" for char in self.name).lstrip(".")[:40] or "run"


def function_request(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    index_first: bool = False,
    labels: Sequence[str] = (),
    launcher: str = "",
) -> Request:
    """A request to train a function. `labels`: the ARGs as they were written; `launcher`: the call that has it."""
    kwargs = dict(kwargs or {})
    arguments = guards.check_function(function, args, kwargs, index_first)
    named = {**_labelled(labels, args), **kwargs}
    names = _names_of_args(labels, list(arguments)[int(index_first) :], len(args))

    def make(models: dict[str, Any], hoists: hoist.HoistPlan | None) -> Work:
        return FunctionWork(function, tuple(args), kwargs, models, hoists, index_first, names)

    return Request(
        name=_name_of(function),
        make=make,
        items=tuple(reach.reachable(function, {**named, **arguments})),
        hoistable=function,
        arguments=arguments,
        source=_source(function),
        packages=framework.packages_of_function(function),
        launcher=launcher,
    )


def _labelled(labels: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    """Arguments under the names the person knows: the ARG's own text where it is a name, else the parameter's."""
    return {label: arg for label, arg in zip(labels, args, strict=False) if label.isidentifier()}


def _names_of_args(labels: Sequence[str], parameters: Sequence[str], count: int) -> tuple[str, ...]:
    """What the person calls each argument: the ARG's own text where it is a name, else the parameter."""
    written = dict(enumerate(label for label in labels))
    known = dict(enumerate(parameters))
    return tuple(
        written[i] if written.get(i, "").isidentifier() else known.get(i, f"argument {i}") for i in range(count)
    )


def _name_of(function: Any) -> str:
    name = str(getattr(function, "__name__", "") or type(function).__name__)
    return name.strip("<>") or "function"


def _source(function: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def train(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    processes: int | None = None,
    precision: str | None = None,
    hoist: str = "auto",
    background: bool = False,
    steps: int | None = None,
    timeout: float | None = None,
    force: bool = False,
    run_name: str | None = None,
    plain: bool = False,
    max_recompiles: int | None = None,
    spmd: int | bool | None = None,
    collective_timeout: float | None = None,
    strict: bool = False,
    gate: Callable[[Request, Options], None] | None = None,
    jit: str = "auto",
    keep_partial: bool = False,
) -> results.TrainResult:
    """Train `function(*args, **kwargs)` on every rank, as `%%tpu_train` does.

    Args:
        function: the training function; models among its arguments and globals come home trained.
        args: its arguments, evaluated here and inherited by the workers.
        kwargs: its keyword arguments.
        processes: number of ranks (default: one for each TPU device; one on XLA:CPU, where more are a rehearsal).
        precision: "fp32", "bf16" or "bf16-downcast" (default: the session's).
        hoist: "auto" builds models of the function once, here; "off" leaves the function alone.
        background: return at once; results come home with `.wait()`.
        steps: stop cleanly after so many steps, with the models here unchanged.
        timeout: stop after so many seconds.
        force: run also where the forecast says that memory or disk will not do.
        run_name: name of the run folder (default: the function's).
        plain: end with a summary that has no times, ids or sizes.
        max_recompiles: stop the run at the first recompile above this number, with the table of causes.
        spmd: one worker that drives so many devices as a mesh (True: all, or the session's number; False: not so,
            whatever the session has).
        collective_timeout: seconds that a rank of a rehearsal waits in a collective for the others (default: 60).
        strict: refuse to start where the code breaks a rule of XLA or of launching (see `%tpu_check`), and fail
            where no step ran on the XLA device.
        gate: asked before anything is forked; what it raises ends it.
        jit: for TensorFlow, "auto" compiles with XLA at home and leaves that to the strategy on a TPU; "keep" leaves
            the models' own jit_compile alone.
        keep_partial: keep what was learned until a failure, an interrupt or the time limit: the weights and the state
            of rank 0's last step.

    A TensorFlow function is trained in this process, inside `strategy.scope()`.

    Raises:
        TpuMagicsError: before anything is forked, where the run cannot work.
        TrainingFailed: a worker failed; the models here are unchanged.
    """
    __tracebackhide__ = True
    options = Options(processes, precision, hoist, background, steps, timeout, force, run_name, plain, max_recompiles)
    options = replace(options, spmd=plan.spmd_option(spmd), collective_timeout=collective_timeout)
    options = replace(options, strict=strict, gate=gate, jit=jit, keep_partial=keep_partial)
    return start(function_request(function, args, kwargs), options)


def start(request: Request, options: Options, workers: int | None = None) -> results.TrainResult:
    """Run a request: in forked workers, or here, where its framework does not survive a fork. `workers` overrides the
    number of processes (the launcher itself takes any)."""
    from tpu_magics.launch import local, local_checks

    __tracebackhide__ = True
    options.check()
    if options.run_name is not None:
        check_name(options.run_name)
    session.current.refuse_second()
    process.require_main_thread()
    if session.current.is_local(request.items, request.packages, bool(request.launcher)):
        _refuse_hosts()
        return local.start_here(request, options)
    local_checks.refuse_local_options(options)
    found = checking.look(request.hoistable, request.script, options.strict)
    if options.gate is not None:
        options.gate(request, replace(options, gate=None))
    going = _prepare(request, options, workers) if session.current.pod is None else _on_pod(request, options)
    session.current.going = going
    session.current.last = going.result
    checking.record(going.folder, found)
    try:
        going.open_panel()
        going.fork()
        if not options.background:
            going.watch_until_end()
            going.come_home()
        else:
            going.watch_in_thread()
    except BaseException as error:
        going.abandon(error)
        raise
    return going.result


def _refuse_hosts() -> None:
    if session.current.pod is not None:
        raise TpuMagicsError(
            "TensorFlow is not trained on the hosts of a Ray cluster.",
            "Its strategy trains from the notebook's own process, and reaches the devices of other hosts itself.",
            "Train here with %tpu_init --hosts off, or name the TPU: %tpu_init --tpu NAME",
        )


def _on_pod(request: Request, options: Options) -> Going:
    from tpu_magics.launch.pods import ray_run

    assert session.current.pod is not None
    return ray_run.prepare(session.current.pod, request, options)


def _prepare(request: Request, options: Options, workers: int | None) -> Going:
    """Everything that can be refused, refused before the fork."""
    current = session.current
    host = session.known_host()
    backend = current.backend
    options = _with_session(options, host)
    count = plan.count_workers(host, options.processes, options.spmd) if workers is None else workers
    precision = options.precision or current.precision
    made = plan.make_plan(host, options, precision, count, current.cache, current.collective_timeout)
    alone.require_alone()
    backend.prepare()
    if made.rehearsed:
        guards.require_rehearsal(backend, made.ranks)
    _say_where(host)
    models = reach.models_of(iter(request.items), backend.is_model)
    guards.check(guards.Situation(backend, host, current.marks, request.items, models, request.source))
    hoists = hoisted(request, options, made)
    if hoists is not None:
        taken = set(models)
        models = {**models, **{free_name(name, taken): model for name, model in hoists.models.items()}}
    size = sum(backend.model_bytes(model) for model in models.values())
    plan.require_memory(made, size, options.force)
    folder = RunFolder.create(options.run_name or request.folder_name)
    try:
        plan.require_disk(folder.path, size, options.force)
    except TpuMagicsError as refused:
        record_refused(folder, refused)
        raise
    if folder.warning:
        current.notebook.say(folder.warning)
    work = request.make(models, hoists)
    return Going(request, options, made, host, folder, work, models, size, hoists)


def record_refused(folder: RunFolder, refused: TpuMagicsError) -> None:
    """In a run's folder: why it was never started."""
    folder.update(status="refused", ended=time.time(), failure=_told(refused))


def _told(error: TpuMagicsError) -> dict[str, Any]:
    return {"what": error.what, "why": error.why, "todo": error.todo, "details": list(error.details)}


def _with_session(options: Options, host: Host) -> Options:
    """The options with the session's ranks or devices where the cell has neither."""
    current = session.current
    if options.spmd == plan.NO_SPMD:
        return replace(options, spmd=None, processes=options.processes or current.processes)
    if options.processes is None and options.spmd is None:
        options = replace(options, processes=current.processes, spmd=current.spmd)
    return replace(options, spmd=plan.spmd_devices(host, options.spmd, current.spmd))


def free_name(name: str, taken: set[str]) -> str:
    return name if name not in taken else f"{name} (hoisted)"


def _say_where(host: Host) -> None:
    """On a notebook service without a TPU: where one is chosen, said once."""
    if host.device == "CPU" and host.place.menu and not session.current.told_menu:
        session.current.told_menu = True
        session.current.notebook.say(
            f"No TPU in this {host.place.name} runtime: training on XLA:CPU. A TPU is chosen in {host.place.menu}."
        )


def hoisted(request: Request, options: Options, made: Plan) -> hoist.HoistPlan | None:
    if options.hoist == "off" or request.hoistable is None:
        return None
    current = session.current
    if len(request.source) > LONGEST_READ:
        size = len(request.source) / 1e6
        current.notebook.say(f"Models that the code builds are not looked for in it: it is {size:.1f} MB long.")
        return None
    hoists = hoist.plan_hoists(
        request.hoistable,
        arguments=request.arguments,
        namespace=current.notebook.namespace,
        backend=current.backend,
        source=request.source if isinstance(request.hoistable, ast.Module) else None,
    )
    if current.backend.runtime_initialized():
        raise TpuMagicsError(
            "Looking for models to build once has started the XLA runtime in this notebook.",
            "A forked worker cannot use a runtime that its parent has started. This is an error of tpu_magics.",
            "Restart the kernel and train with --hoist off; please report the cell.",
        )
    for line in (*hoists.describe(made.ranks), *hoists.warnings()):
        current.notebook.say(line)
    return hoists


@dataclass
class Going:
    """A run from its fork until its results are home."""

    request: Request
    options: Options
    plan: Plan
    host: Host
    folder: RunFolder
    work: Work
    models: Mapping[str, Any]
    models_bytes: int
    hoists: hoist.HoistPlan | None
    watch: supervise.Watch | None = None
    thread: threading.Thread | None = None
    unwatched: threading.Event = field(default_factory=threading.Event)
    onlooker: onlook.Onlooker = field(default_factory=onlook.Nobody)
    settled: bool = False
    snapshot: StateSnapshot | None = None
    result: results.TrainResult = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        wait = self.come_home if self.options.background else None
        self.result = results.TrainResult(Run(self.folder.path), self.models, wait)
        self.cell_names = dict(session.current.notebook.cell_names())
        self.available = host_memory(Path("/")).available or 0
        self.oom_kills = failures.oom_kills()
        self.deadline = time.monotonic() + BUSY_PATIENCE

    @property
    def busy(self) -> bool:
        """Whether workers are alive, or results wait to come home."""
        return not self.settled

    @property
    def ended(self) -> bool:
        """Whether no worker is left."""
        return self.watch is not None and (self.thread is None or self.unwatched.is_set())

    # -- forking --------------------------------------------------------------------------------------------------
    def fork(self) -> None:
        """Fork the workers; on an error none is left."""
        current = session.current
        cells = (self.cell_names, dict(current.notebook.cell_ids()))
        if self.snapshot is None:
            self.snapshot = self.take_snapshot()
        task = worker.Task(current.backend, self.work, self.folder, *cells, self.snapshot)
        children: list[supervise.Watched] = []
        screen = self._screen()
        process.flush_everything()
        with process.interrupts_held():
            try:
                scratch = make_scratch(self.folder)
                for index in range(self.plan.workers):
                    children.append(self._fork_one(task, index, scratch))
            finally:
                relay = Relay(self.folder, screen)
                self.watch = supervise.Watch(
                    self.folder, children, relay, self.plan.timeout, self.onlooker, keep=self.plan.keep_partial
                )
                if len(children) < self.plan.workers:
                    self.watch.stop("worker")
                    self.watch.run()
            self.folder.update(
                status="running",
                plan={**self.plan.record(), "background": self.options.background},
                workers=self.watch.table(),
                host=failures.host_record(self.host),
                versions=dict(self.host.versions),
            )

    def take_snapshot(self) -> StateSnapshot:
        """The objects that the work reaches, before anything is forked."""
        current = session.current
        found = take_snapshot(self.work.roots(), current.backend.object_state(), self.models)
        for name in (name for name in found.unseen if name not in current.told_unseen):
            current.told_unseen.add(name)
            current.notebook.say(f"`{name}` holds too much to be compared: not all that changes in it comes home.")
        return found

    def _fork_one(self, task: worker.Task, index: int, scratch: Path) -> supervise.Watched:
        spec = self.plan.spec(index, scratch)
        pid = process.fork_worker(lambda: worker.main(task, spec), self.folder.stacks_path(index))
        return supervise.Watched(index, pid, index)

    def _screen(self) -> Screen:
        notebook = session.current.notebook
        return notebook.background_screen(self.folder.name) if self.options.background else notebook.screen()

    # -- watching -------------------------------------------------------------------------------------------------
    def open_panel(self) -> None:
        """Show the run while it goes on, where the notebook can."""
        notebook, background = session.current.notebook, self.options.background

        def panel() -> onlook.Onlooker | None:
            return None if self.options.plain else notebook.panel(self.folder, self.ask_to_stop, background)

        def follow() -> onlook.Onlooker | None:
            return notebook.follow(self.folder, self.ask_to_stop, onlook.FREE if background else onlook.WAITS)

        with process.interrupts_held():
            self.be_seen_by(onlook.opened(panel, notebook.say, follow))

    def be_seen_by(self, onlooker: onlook.Onlooker) -> None:
        """Let somebody look on; a watch that goes on in a thread has them from its next look."""
        self.onlooker = onlooker
        if self.watch is not None:
            self.watch.onlooker = onlooker

    def ask_to_stop(self) -> None:
        """From any thread: end the run as an interrupt would. Returns at once."""
        if self.watch is not None:
            self.watch.stop("interrupt")

    def watch_until_end(self) -> None:
        """Watch in this thread; a device that is still busy is tried again."""
        assert self.watch is not None
        self.watch.run()
        while failures.device_was_busy(self.watch) and time.monotonic() < self.deadline:
            session.current.notebook.say("The TPU is still busy (its last holder may have just ended): trying again.")
            time.sleep(BUSY_PAUSE)
            self._clear_attempt()
            self.fork()
            self.watch.run()

    def _clear_attempt(self) -> None:
        """Take away what the failed attempt wrote: it would be read as the next one's."""
        for path in self.folder.path.glob("rank-*"):
            path.unlink(missing_ok=True)

    def watch_in_thread(self) -> None:
        name = f"tpu_magics-watch-{self.folder.name}"
        self.thread = threading.Thread(target=self._watch_then_tell, name=name, daemon=True)
        self.thread.start()
        session.current.notebook.say(
            f"Training {self.folder.name!r} in the background: _tpu.wait() brings its results home, %tpu_stop stops it."
        )

    def _watch_then_tell(self) -> None:
        assert self.watch is not None
        try:
            self.watch.run()
        finally:
            try:
                self.onlooker.settle()
            finally:
                self.unwatched.set()

    def _wait_unwatched(self) -> None:
        """Wait until nothing is watched any more. Not by Thread.join(): one that is interrupted marks the thread as
        stopped while it runs (seen in CPython 3.11)."""
        while self.thread is not None and not self.unwatched.wait(0.1):
            pass

    def stop(self) -> None:
        """Stop a background run; its models stay as they are."""
        if self.watch is not None and self.thread is not None:
            self.ask_to_stop()
            self._wait_unwatched()

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind after an error or an interrupt between two steps of the road."""
        if self.settled:
            return
        with process.interrupts_held():
            try:
                if self.watch is not None:
                    self.watch.end()
            finally:
                self.settled, self.snapshot = True, None
                session.current.going = None
                self.result.failure = error
                told = {"failure": _told(error)} if isinstance(error, TpuMagicsError) else {}
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", **told)
                self.onlooker.settle()

    # -- the end --------------------------------------------------------------------------------------------------
    def come_home(self) -> None:
        """Once: load the results, or raise what went wrong. Waits for a background run; an interrupt ends the
        waiting."""
        if self.settled:
            return
        self._wait_unwatched()
        assert self.watch is not None
        # An interrupt that comes now is raised when all is home: half of it would be worse.
        with process.interrupts_held():
            self.settled = True
            session.current.going = None
            try:
                home = self._settle(self.watch)
            except BaseException as error:
                self.result.failure = error
                if not isinstance(error, TrainingFailed):
                    self._close("failed")
                raise
            finally:
                self.snapshot = None
                self.onlooker.settle()
            self._tell(home)

    def _settle(self, watch: supervise.Watch) -> results.Home:
        if watch.reason != "done" or not all(w.good for w in watch.workers):
            self._fail(self._keep_partial(watch, self.explained(watch)))
        self.folder.update(status="collecting", workers=watch.table())
        limited = any(w.end is not None and w.end.status == "limit" for w in watch.workers)
        try:
            home = results.Home() if limited else self._load()
        except TpuMagicsError as error:
            self._fail(
                TrainingFailed(error.what, error.why, error.todo, error.details, rank=0, run=str(self.folder.path))
            )
        except OSError as error:
            self._fail(failures.cannot_read_results(error, self.folder))
        self._record_warnings(home)
        self._close("stopped" if limited else "done", models=[] if limited else list(self.models))
        self.result.settle(home)
        return home

    def explained(self, watch: supervise.Watch) -> TrainingFailed:
        """Why it did not end well."""
        return failures.explain(self, watch)

    def _keep_partial(self, watch: supervise.Watch, error: TrainingFailed) -> TrainingFailed:
        """Bring home what rank 0 had learned, where that is wanted, and say so in the error."""
        if not self.plan.keep_partial:
            return error
        step = partial.step_of(self.folder)
        try:
            if step is None:
                raise TpuMagicsError(partial.why_not(self.folder, watch.workers))
            home = self._load(ranks=1)
            self._record_warnings(home)
            self._tell(home)
        except (TpuMagicsError, OSError) as failed:
            reason = failed.what if isinstance(failed, TpuMagicsError) else str(failed)
            return partial.told(error, f"Nothing was kept (--keep-partial): {reason.rstrip('.')}. {base.UNCHANGED}")
        self.folder.update(kept=partial.kept(step), models=list(self.models))
        return partial.told(error, f"Kept in the notebook: {partial.kept(step)} (--keep-partial).")

    def _load(self, ranks: int | None = None) -> results.Home:
        backend, background = session.current.backend, self.options.background
        ranks = ranks or self.plan.ranks
        return results.bring_home(self.folder, ranks, self.models, backend, self.snapshot, background)

    def _record_warnings(self, home: results.Home) -> None:
        if home.warnings:
            self.folder.update(warnings=[*Run(self.folder.path).info.get("warnings", ()), *home.warnings])

    def _tell(self, home: results.Home) -> None:
        session.current.notebook.namespace.update(home.names)
        if home.left:
            names = ", ".join(f"`{name}`" for name in home.left)
            session.current.notebook.say(f"stayed in the worker, as they cannot be pickled: {names} (why: _tpu.left)")
        if home.unchanged:
            session.current.notebook.say(f"changed in the worker, unchanged here: {unchanged_text(home.unchanged)}")
        for lost in (value for value in home.values[:1] if isinstance(value, results.Lost)):
            session.current.notebook.say(lost.reason)
        for note in (*home.notes, *home.warnings):
            session.current.notebook.say(note)

    def _fail(self, error: TrainingFailed) -> None:
        status = {"interrupt": "interrupted", "timeout": "timeout"}.get(
            self.watch.reason if self.watch else "", "failed"
        )
        self._close(status, failure=_told(error))
        raise error

    def _close(self, status: str, **fields: Any) -> None:
        ended = self._ended_at()
        seconds = ended - (self.watch.started if self.watch else ended)
        workers = self.watch.table() if self.watch else []
        self.folder.update(status=status, ended=ended, seconds=seconds, workers=workers, **fields)

    def _ended_at(self) -> float:
        """When the last worker ended: a background run may be fetched long after."""
        ends = [one.ended for one in self.watch.workers if one.ended is not None] if self.watch else []
        return max(ends, default=time.time())
