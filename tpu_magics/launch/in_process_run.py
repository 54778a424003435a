"""A run in the notebook's own process, for a framework that does not work after a fork (backends/base.py,
LocalBackend): check, save the state, train in the strategy's scope, then keep the result or restore the state."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import (
    LocalBackend,
    ObserverConfig,
    Placement,
    SavedState,
    StepLimit,
    TrainingProblem,
    Watcher,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import free_disk
from tpu_magics.launch import frames, preconditions, process, results, rollback, rule_check, run_observer, session, tee
from tpu_magics.launch.errors import failure
from tpu_magics.launch.plan import Plan, mb
from tpu_magics.launch.watchdog import TIMEOUT, Watchdog
from tpu_magics.runs import events
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult
    from tpu_magics.launch.plan import Options
    from tpu_magics.launch.request import Request


def start(request: Request, options: Options) -> results.TrainResult:
    """Run a request in this process, with the session's LocalBackend.

    Raises:
        TpuMagicsError: the run cannot start.
        TrainingFailed: an error that can be explained; the models are restored.
        Exception: what the user code raised; the models are restored.
    """
    __tracebackhide__ = True
    current = session.current
    preconditions.check_options(options, request.launcher)
    found = rule_check.check_code(request.hoistable, request.script, options.strict)
    placed = current.place()
    check_request(request, current.local, current.notebook.say)
    folder = create_folder(options.run_name or request.folder_name, request, options, current.local)
    run = InProcessRun(request, options, current.local, placed, folder)
    current.active_run, current.last = run, run.result
    rule_check.record_findings(folder, found)
    try:
        run.run()
    finally:
        current.active_run = None
        run.over.set()
    return run.result


@contextmanager
def _restored_argv(script: Path | None) -> Iterator[None]:
    """Restore sys.argv and sys.path after a script, which has its own."""
    argv, path = sys.argv, list(sys.path)
    try:
        yield
    finally:
        if script is not None:
            sys.argv, sys.path[:] = argv, path


@dataclass
class InProcessRun:
    """A run in this process. While it runs, it is the session's `active_run`."""

    request: Request
    options: Options
    backend: LocalBackend
    placed: Placement
    folder: RunFolder
    kept: SavedState | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        notebook = session.current.notebook
        self.result = results.TrainResult(Run(self.folder.path), {})
        self.cell_names, self.cell_ids = dict(notebook.cell_names()), dict(notebook.cell_ids())
        self.names = dict(notebook.namespace)
        self.records = InProcessRecords(self.folder)
        self.watchdog = Watchdog(self.records.meter, self.options.timeout)
        self.work = self.request.make({}, None)

    @property
    def observer(self) -> run_observer.RunObserver:
        return self.watchdog.observer

    def set_observer(self, observer: run_observer.RunObserver) -> None:
        """Set who observes the run, from the watchdog's next tick on."""
        self.watchdog.observer = observer

    def request_stop(self) -> None:
        """Stop the run as an interrupt would. May be called from any thread; returns at once."""
        self.watchdog.stop()

    stop = request_stop

    @property
    def busy(self) -> bool:
        return not self.over.is_set()

    @property
    def ended(self) -> bool:
        return self.over.is_set()

    def finish(self) -> None:
        """In another thread: wait until the run has ended. Raises the error of a failed run."""
        self.over.wait()
        self.result.wait()

    # -- the run -------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """The whole run. Interrupts are held, except while the state is saved and while user code runs."""
        __tracebackhide__ = True
        with process.interrupts_held() as late, ExitStack() as open_:
            open_.callback(self.records.close)
            open_.enter_context(self.watchdog.looking())
            open_.callback(lambda: self.observer.settle())
            try:
                self._write_start()
                value = self._train()
            except BaseException as error:
                try:
                    self._rollback(error)
                finally:
                    late.clear()  # the cell ends with an error in any case
            else:
                self._succeed(value)

    def _write_start(self) -> None:
        host = session.current.host
        self.records.update(
            "running",
            plan=plan_record(self.options, self.placed, session.current.precision),
            host=failure.host_record(host) if host is not None else {},
            versions=dict(host.versions) if host is not None else {},
        )
        self.records.write(events.Start, pid=os.getpid(), device=self.placed.device, world_size=1)
        notebook = session.current.notebook

        def panel() -> run_observer.RunObserver | None:
            return None if self.options.plain else notebook.local_panel(self.folder, self.request_stop)

        def follow() -> run_observer.RunObserver | None:
            return notebook.follow(self.folder, self.request_stop, run_observer.TRAINS)

        self.set_observer(run_observer.open_observer(panel, notebook.say, follow))

    def _train(self) -> Any:
        """Save the state, then train. Returns the return value."""
        __tracebackhide__ = True
        with self.watchdog.interruptible():
            self.records.write(events.Phase, name="starting")
            self.kept = save_state(self.backend, self.request.items, self.folder.path / rollback.STATE)
        self.result.models = models = dict(self.kept.models)
        for line in self.backend.precision_notes(models, self.options.precision or session.current.precision):
            self.records.note("precision", line)
        self.records.write(events.Phase, name="training")
        backend, items, cells = self.backend, self.request.items, self.cell_names
        with ExitStack() as around:
            around.enter_context(tee.record(self.records.log))
            around.enter_context(backend.watching_data(self._note_data_problem, items, cells))
            if self.options.precision:  # else a policy set by the cell itself would be undone
                around.enter_context(backend.precision(self.options.precision))
            changed = around.enter_context(backend.jit(self.options.jit, cells))
            watcher = around.enter_context(backend.observing(self.records.writer, self._watching()))
            self.watchdog.give_up = around.enter_context(backend.cancelling())
            step_found = around.enter_context(with_gate(self.request, self.options, backend, cells))
            value = self._run_work(watcher, changed)
            if not step_found():
                self.records.note("no-preflight", NO_STEP)
            return value

    def _run_work(self, watcher: Watcher, changed: Callable[[], Sequence[str]]) -> Any:
        __tracebackhide__ = True
        good = False
        try:
            with _restored_argv(self.request.script), self.watchdog.interruptible(limited=True), self.backend.scope():
                self.work.install(self.records.note, 1)
                value = self.work.run(0, 0)
            if self.watchdog.reason == TIMEOUT:
                raise KeyboardInterrupt  # user code caught the one that was sent
            good = True
            return value
        finally:
            steps, compiles, recompiles = watcher.total_steps, watcher.compiles, watcher.recompiles
            self.records.totals = {"steps": steps, "compiles": compiles, "recompiles": recompiles}
            watcher.ended()
            watcher.close(read=good)
            for line in changed():
                self.records.note("jit", line)

    def _watching(self) -> ObserverConfig:
        precision = self.options.precision or session.current.precision
        limits = {"max_steps": self.options.steps, "max_recompiles": self.options.max_recompiles}
        cells = {"cell_names": self.cell_names, "cell_ids": self.cell_ids}
        return ObserverConfig(self.placed.device, 1, precision, **limits, **cells)  # type: ignore[arg-type]

    # -- the end --------------------------------------------------------------------------------------------------
    def _succeed(self, value: Any) -> None:
        """The run succeeded: the models in the notebook are the trained ones."""
        namespace = session.current.notebook.namespace
        models = rollback.trained_models(self.backend, self.result.models, self.names, namespace)
        self.result.models = dict(models)
        self.result.settle(results.RunResults(values=[value]))
        self.records.end("done")
        self._delete_saved_state()
        self.records.update("done", 0, models=list(models))

    def _rollback(self, error: BaseException) -> None:
        """The run failed: restore the state unless --keep-partial, and raise the error."""
        __tracebackhide__ = True
        keep = self.options.keep_partial and not isinstance(error, StepLimit)
        lost = [] if keep else rollback.restore(self.kept, self.names, session.current.notebook.namespace)
        if isinstance(error, StepLimit):
            self.result.settle(results.RunResults())
            self.records.end("limit")
            self._delete_saved_state()
            self.records.update("stopped", 0)
            return
        shown = rollback.explain_failure(self, error, keep, lost)
        self.result.failure = shown
        self.records.end_failed(error, self.cell_names)
        if not lost:
            self._delete_saved_state()
        self._close_failed(shown)
        if shown is error:
            raise error.with_traceback(rollback.user_frames(error.__traceback__))
        raise shown from None

    def _close_failed(self, shown: BaseException) -> None:
        status = rollback.status_of(self.watchdog.reason)
        try:
            self.records.update(status, 1, failure=rollback.failure_record(shown))
        except TpuMagicsError as error:  # e.g. a full disk: the run's own error matters more
            self.say(error.what)

    def _delete_saved_state(self) -> None:
        """Delete the saved state."""
        if self.kept is not None:
            self.kept.drop()
        shutil.rmtree(self.folder.path / rollback.STATE, ignore_errors=True)

    # -- messages -------------------------------------------------------------------------------------------------
    def say(self, line: str) -> None:
        """Show a message."""
        self.records.say(line)

    def _note_data_problem(self, problem: TrainingProblem) -> None:
        self.records.note("data", problem_text(problem))


# -- before the run ----------------------------------------------------------------------------------------------------


def check_request(request: Request, backend: LocalBackend, say: Callable[[str], None]) -> None:
    """Check for models outside of the scope, data that the device cannot read, and paths that cannot be written."""
    notebook = session.current.notebook
    report(backend.placement_problems(request.items), say)
    report(backend.data_problems(request.items, notebook.cell_names()), say)
    names = {**notebook.namespace, **dict(request.items), **request.arguments}
    report(backend.saving_problems(_tree(request), names), say)


def _tree(request: Request) -> ast.AST:
    """The code of the run, if it can be parsed."""
    if isinstance(request.hoistable, ast.AST):
        return request.hoistable
    try:
        return ast.parse(textwrap.dedent(request.source))
    except SyntaxError:  # a lambda within a call, or no source
        return ast.Module([], [])


def report(problems: Sequence[TrainingProblem], say: Callable[[str], None]) -> None:
    """Raise the first problem that prevents the run; show the others."""
    for problem in sorted(problems, key=lambda one: not one.refuses):
        if problem.refuses:
            raise TpuMagicsError(problem.what, problem.why, problem.todo)
        say(problem_text(problem))


def problem_text(problem: TrainingProblem) -> str:
    """A problem as one line."""
    return " ".join(filter(None, (problem.what, problem.why, problem.todo)))


NO_STEP = (
    "--preflight found no training step in this run: it checks the first model.fit, and tf.functions that assign "
    "variables. Pass the step to %tpu_preflight instead."
)


@contextmanager
def with_gate(
    request: Request, options: Options, backend: LocalBackend, cells: Mapping[str, str]
) -> Iterator[Callable[[], bool]]:
    """Call the gate of --preflight when the first step is known, before it is executed. Yields a function that returns
    whether there was such a step."""
    gate = options.gate
    if gate is None:
        yield lambda: True
        return

    def ask(program: TraceResult) -> None:
        gate(replace(request, program=program), replace(options, gate=None))

    with backend.before_first_step(ask, options.precision or session.current.precision, cells) as step_found:
        yield step_found


# -- disk -------------------------------------------------------------------------------------------------------------


def create_folder(name: str, request: Request, options: Options, backend: LocalBackend) -> RunFolder:
    """Create the run folder. Raises TpuMagicsError if its disk has no space for the state before the run."""
    folder = RunFolder.create(name)
    try:
        _require_disk(folder.path, backend.state_bytes(request.items), options.force)
    except TpuMagicsError as refused:
        failure.record_refused(folder, refused)
        raise
    if folder.warning:
        session.current.notebook.say(folder.warning)
    return folder


def _require_disk(folder: Path, size: int, force: bool) -> None:
    free = free_disk(folder)
    if force or free is None or size <= free:
        return
    raise TpuMagicsError(
        f"Not enough disk space to save the current weights: they take {mb(size)}, but {mb(free)} are free.",
        f"They are saved in the run folder, {folder}, before the training, and restored if it fails.",
        "Free disk space, set TPU_MAGICS_RUNS to a folder on another disk, or skip this check with --force.",
    )


def save_state(backend: LocalBackend, items: Sequence[tuple[str, Any]], folder: Path) -> SavedState:
    """Save the state before the run. Raises TpuMagicsError if it cannot be written; nothing is left on the disk
    then."""
    try:
        return backend.kept(items, folder)
    except OSError as error:
        raise TpuMagicsError(
            "The current weights could not be saved in the run folder.",
            f"{folder}: {error.strerror or error}. They are saved there to be restored if the training fails.",
            "Free disk space, or set TPU_MAGICS_RUNS to a folder on another disk, and run the cell again.",
        ) from error


def plan_record(options: Options, placed: Placement, precision: str) -> dict[str, Any]:
    """The plan, for run.json."""
    made = Plan(
        device=placed.device,
        workers=1,
        replicas=placed.replicas,
        precision=options.precision or precision,
        environment={},
        steps=options.steps,
        timeout=options.timeout,
        max_recompiles=options.max_recompiles,
    )
    own = {"framework": "tensorflow", "topology": placed.topology, "jit": options.jit}
    return {**made.record(), **own}


# -- its files ---------------------------------------------------------------------------------------------------------


class InProcessRecords:
    """The files of a run in this process: records and log of rank 0, and run.json. `totals`: steps, compiles and
    recompiles, for the last event."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.started = time.time()
        self.totals: dict[str, int | None] = {"steps": 0, "compiles": None, "recompiles": None}
        self.log = tee.Log(folder.log_path(0))
        self.writer = _AnnouncingWriter(folder.events_path(0), self.say)
        self._supervisor = EventWriter(folder.supervisor_path, 0)
        self.meter = MemoryMeter(self._supervisor, 0)

    def say(self, line: str) -> None:
        """Show a message; it is not logged as output of the user code."""
        with self.log.paused():
            session.current.notebook.say(line)

    def write(self, kind: type[events.Event], **fields: Any) -> None:
        """Write an event of this kind."""
        self.writer.write(kind(t=time.time(), rank=0, **fields))

    def note(self, code: str, text: str) -> None:
        """Write a warning, and show it."""
        self.write(events.Warned, code=code, text=text)

    def update(self, status: str, code: int | None = None, **fields: Any) -> None:
        """Update run.json. `code`: 0 if the run succeeded, else 1 (None: still running)."""
        peak = {"peak_rss": self.meter.peak_rss, "peak_pss": self.meter.peak_pss}
        ended_well = 0 if code == 0 else None  # the notebook's process continues in any case
        worker = {"rank": 0, "pid": os.getpid(), "exit": ended_well, "signal": None, **peak}
        if code is not None:
            ended = time.time()
            fields = {"ended": ended, "seconds": ended - self.started, **fields}
        self.folder.update(status=status, workers=[worker], **fields)

    def end(self, status: str, **fields: Any) -> None:
        """The last event."""
        seconds = time.time() - self.started
        self.write(events.End, status=status, seconds=seconds, log_end=self.log.size, **self.totals, **fields)

    def end_failed(self, error: BaseException, cell_names: Mapping[str, str]) -> None:
        """The last event of a failed run; the traceback follows the output in the log."""
        error_type, error_text = frames.describe(error)
        stack = frames.from_exception(error, cell_names)
        self.end("failed", error_type=error_type, error_text=error_text, frames=stack)
        self.log.write(frames.traceback_text(error))

    def close(self) -> None:
        """Close all files."""
        self.writer.close()
        self._supervisor.close()
        self.log.close()


class _AnnouncingWriter(EventWriter):
    """An event writer that also shows warnings, as the relay does for forked workers."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        super().__init__(path, 0)
        self._say = say

    def write(self, event: events.Event) -> int:
        if isinstance(event, events.Warned):
            self._say(event.text)
        return super().write(event)
