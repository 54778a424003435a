"""The notebook's own process, for a framework that does not work after a fork (LocalBackend of
backends/protocols.py): save the state, train in the strategy's scope, then keep the result or restore the state."""

from __future__ import annotations

import ast
import linecache
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import (
    ObserverConfig,
    Placement,
    StepLimit,
    StopRequested,
    TrainingProblem,
)
from tpu_magics.backends.frameworks import LOCAL
from tpu_magics.backends.protocols import LocalBackend, SavedState, Watcher
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, free_disk
from tpu_magics.launch import preconditions, process, results, session, stacks, tee
from tpu_magics.launch.errors import base
from tpu_magics.launch.hoist.functions import unwrap_function
from tpu_magics.launch.notebook import RunObserver
from tpu_magics.launch.options import Options
from tpu_magics.launch.plan import Plan, mb
from tpu_magics.launch.request import Request
from tpu_magics.launch.resume import saving
from tpu_magics.launch.resume.training import RunRecords, TrainingCheckpoints, records_before
from tpu_magics.launch.run import Strategy, TrainingRun
from tpu_magics.launch.strategies import rollback
from tpu_magics.launch.watchdog import TIMEOUT, Watchdog
from tpu_magics.runs import events
from tpu_magics.runs.events import Frame
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.origin import is_library, is_user_function, package_of
from tpu_magics.runs.temporary_folders import make_scratch, remove_scratch
from tpu_magics.runs.writer import EventWriter

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult


class InProcessStrategy(Strategy):
    """Trains in the main thread. Interrupts are held, except while the state is saved and while user code runs.
    `placed`: where; `names`: the notebook's, before the run; `saved`: its state before the run."""

    hoists = False
    in_process = True
    forks = False
    placed: Placement
    records: InProcessRecords
    watchdog: Watchdog

    def __init__(self) -> None:
        self.backend = session.current.local
        self.saved: SavedState | None = None
        self.names: dict[str, Any] = {}
        self._value: Any = None
        self._limited = False  # --steps ended the run
        self._over = threading.Event()

    # -- before the run -------------------------------------------------------------------------------------------
    def check_options(self, request: Request, options: Options) -> None:
        if session.current.pod is not None:
            raise TpuMagicsError(
                "TensorFlow cannot train on the hosts of a Ray cluster.",
                "Its strategy runs in the notebook's process and uses the devices of this host.",
                "Train on this host with %tpu_init --hosts off",
            )
        preconditions.refuse_forked_options(options, request.launcher)

    def plan(self, options: Options) -> tuple[Host | None, Plan]:
        current = session.current
        self.placed = current.place()
        device, replicas = self.placed.device, self.placed.replicas
        planned = Plan.from_options(
            options, current.precision, device=device, workers=1, replicas=replicas, environment={}
        )
        return current.host, planned

    def check(self, request: Request, host: Host | None, planned: Plan) -> dict[str, Any]:  # noqa: ARG002
        """The models are found as the state is saved."""
        check_request(request, self.backend, session.current.notebook.say)
        return {}

    def require_memory(self, planned: Plan, models_bytes: int, force: bool) -> None:
        """It is unknown what the framework needs."""

    def require_disk(self, folder: Path, request: Request, models_bytes: int, force: bool) -> None:  # noqa: ARG002
        _require_disk(folder, self.backend.state_bytes(request.items), force)

    def attach(self, run: TrainingRun) -> None:
        self.names = dict(session.current.notebook.namespace)
        self.records = InProcessRecords(run.folder)
        self.watchdog = Watchdog(self.records.meter, run.options.timeout)
        self.watchdog.tell_stuck = lambda frame: self.records.note("stuck", stuck_text(frame, run.cell_names))

    # -- the run --------------------------------------------------------------------------------------------------
    @contextmanager
    def context(self) -> Iterator[None]:
        try:
            with process.interrupts_held() as late, ExitStack() as open_:
                open_.callback(self.records.close)
                open_.enter_context(self.watchdog.running())
                try:
                    yield
                except BaseException:
                    late.clear()  # the cell ends with an error in any case
                    raise
                if self._limited:
                    late.clear()
        finally:
            self._over.set()

    def start(self, run: TrainingRun) -> None:
        own = {"framework": session.current.local.name, "topology": self.placed.topology, "jit": run.options.jit}
        self.records.update("running", **run.start_record(**own))
        self.records.write(events.Start, pid=os.getpid(), device=self.placed.device, world_size=1)
        run.open_panel()

    def supervise(self, run: TrainingRun) -> None:
        """Save the state, then train."""
        __tracebackhide__ = True
        with self.watchdog.interruptible():
            self.records.write(events.Phase, name="starting")
            self.saved = save_state(self.backend, run.request.items, run.folder.path / rollback.STATE)
        run.result.models = models = dict(self.saved.models)
        for line in self.backend.precision_notes(models, run.plan.precision):
            self.records.note("precision", line)
        self.records.write(events.Phase, name="training")
        try:
            self._value = self._train(run)
        except StepLimit:
            self._limited = True

    def _train(self, run: TrainingRun) -> Any:
        __tracebackhide__ = True
        backend, options, cells = self.backend, run.options, run.cell_names

        def note_problem(problem: TrainingProblem) -> None:
            self.records.note("data", problem_text(problem))

        with ExitStack() as around:
            around.enter_context(tee.record(self.records.log))
            around.enter_context(backend.watching_data(note_problem, run.request.items))
            if options.precision:  # else a policy set by the cell itself would be undone
                around.enter_context(backend.precision(options.precision))
            changed = around.enter_context(backend.jit(options.jit, cells))
            watcher = around.enter_context(backend.observing(self.records.writer, _observer_config(run)))
            self.watchdog.give_up = around.enter_context(backend.cancelling())
            step_found = around.enter_context(with_gate(run.request, options, backend, cells))
            value = self._run_work(run, watcher, changed)
            if not step_found():
                self.records.note("no-preflight", NO_STEP)
            return value

    def _run_work(self, run: TrainingRun, watcher: Watcher, changed: Callable[[], Sequence[str]]) -> Any:
        __tracebackhide__ = True
        good = False
        try:
            with (
                _restored_argv(run.request.script),
                self._resumable(run, watcher),
                self.watchdog.interruptible(limited=True),
                self.backend.scope(),
            ):
                run.work.install(self.records.note, 1)
                with process.forks_end_here():
                    value = run.work.run(0, 0)
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

    @contextmanager
    def _resumable(self, run: TrainingRun, watcher: Watcher) -> Iterator[None]:
        """Within it, the run saves its state, and goes on from a checkpoint."""
        plan = run.plan.checkpoints
        if plan is None:
            yield
            return
        found = (*(one for _, one in run.request.items), unwrap_function(run.request.hoistable)[0])
        functions = [one for one in found if isinstance(one, FunctionType) and is_user_function(one)]
        code = run.work.resumable(functions)
        scratch = make_scratch(run.folder)
        for event in records_before(plan, 0):
            self.records.writer.write(event)
        try:
            checkpoints = TrainingCheckpoints(
                plan,
                code,
                functions,
                self.backend,
                run.work.roots(),
                (0, 1),
                scratch,
                RunRecords(self.records.writer, watcher),
                self.records.note,
            )
            self.watchdog.save_first = lambda: _asked_to_save(checkpoints)
            with self.backend.following_libraries(checkpoints.loops), checkpoints.running():
                yield
        except StopRequested:
            raise KeyboardInterrupt from None
        finally:
            code.restore()
            remove_scratch(run.folder)

    def wait(self, run: TrainingRun) -> None:
        """In another thread."""
        self._over.wait()
        run.result.wait()

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def set_observer(self, observer: RunObserver) -> None:
        self.watchdog.observer = observer

    def request_stop(self) -> None:
        self.watchdog.stop()

    # -- the end --------------------------------------------------------------------------------------------------
    def collect(self, run: TrainingRun) -> results.RunResults:
        """The models in the notebook are the trained ones, unless --steps ended the run."""
        if self._limited:
            self._restore()
            self.records.end("limit")
            self._delete_saved_state(run)
            self.records.update("stopped", 0)
            return results.RunResults()
        namespace = session.current.notebook.namespace
        models = rollback.trained_models(self.backend, run.result.models, self.names, namespace)
        run.result.models = dict(models)
        warnings = results.not_finite_warning(run.folder, self.backend.not_finite(models))
        for text in warnings:
            self.records.write(events.Warned, code=results.NOT_FINITE, text=text)
        self.records.end("done")
        self._delete_saved_state(run)
        self.records.update("done", 0, models=list(models))
        return results.RunResults(values=[self._value], notes=warnings)

    def abort(self, run: TrainingRun, error: BaseException) -> BaseException:
        """Restore the state, unless --keep-partial."""
        __tracebackhide__ = True
        keep = run.options.keep_partial
        lost = [] if keep else self._restore()
        shown = rollback.explain_failure(run, self, error, keep, lost)
        self.records.end_failed(error, run.cell_names)
        if not lost:
            self._delete_saved_state(run)
        if keep:
            self.records.update("running", kept=results.partial_text(self.records.totals["steps"] or 0))
        if shown is error:
            error.__traceback__ = rollback.user_frames(error.__traceback__)
        return shown

    def close_failed(self, run: TrainingRun, error: BaseException) -> None:  # noqa: ARG002
        status = rollback.status_of(self.watchdog.reason)
        try:
            self.records.update(status, 1, failure=rollback.failure_record(error))
        except TpuMagicsError as problem:  # e.g. a full disk: the run's own error matters more
            self.records.say(problem.what)

    def _restore(self) -> list[str]:
        return rollback.restore(self.saved, self.names, session.current.notebook.namespace)

    def _delete_saved_state(self, run: TrainingRun) -> None:
        if self.saved is not None:
            self.saved.drop()
        shutil.rmtree(run.folder.path / rollback.STATE, ignore_errors=True)


def _observer_config(run: TrainingRun) -> ObserverConfig:
    before = sum(one.synced for one in events.only(records_before(run.plan.checkpoints, 0), events.Resumed))
    return ObserverConfig(
        run.plan.device,
        1,
        run.plan.precision,
        cell_names=run.cell_names,
        cell_ids=run.cell_ids,
        steps_before=before,
        **run.plan.options(),
    )


@contextmanager
def _restored_argv(script: Path | None) -> Iterator[None]:
    """Restore sys.argv and sys.path after a script, which has its own."""
    argv, path = sys.argv, list(sys.path)
    try:
        yield
    finally:
        if script is not None:
            sys.argv, sys.path[:] = argv, path


# -- before the run ----------------------------------------------------------------------------------------------------


def check_request(request: Request, backend: LocalBackend, say: Callable[[str], None]) -> None:
    """Check for models outside of the scope, short last batches, and paths that cannot be written."""
    report(backend.placement_problems(request.items), say)
    report(backend.data_problems(request.items), say)
    names = {**session.current.notebook.namespace, **dict(request.items), **request.arguments}
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

    def call_gate(program: TraceResult) -> None:
        gate(replace(request, program=program), replace(options, gate=None))

    with backend.before_first_step(call_gate, options.precision or session.current.precision, cells) as step_found:
        yield step_found


def stuck_text(frame: FrameType | None, cell_names: Mapping[str, str]) -> str:
    """What the main thread is in that no interrupt ends: a program compiled by XLA is one op for TensorFlow, which can
    be cancelled between ops only; or it waits for Python code of the input, which runs in another thread."""
    within = f"The run cannot stop yet: TensorFlow is within one call{_user_line(frame, cell_names)}"
    then = "The run stops, and the models are restored, as soon as"
    waiting = next(_input_lines(cell_names), "")
    if waiting:
        return (
            f"{within}, which waits for the input{waiting}. {then} that line returns; only a restart of the kernel "
            "ends it now. Give it a time limit, e.g. queue.get(timeout=10)."
        )
    return (
        f"{within}, and did not cancel it. A loop inside a tf.function with jit_compile=True is one program, which "
        f"cannot be left. {then} the call returns; only a restart of the kernel ends it now. Without jit_compile=True, "
        "or with the loop in Python around the tf.function, it stops within a step."
    )


def _user_line(frame: FrameType | None, cell_names: Mapping[str, str]) -> str:
    while frame is not None and is_library(frame.f_code.co_filename, frame.f_code.co_name):
        frame = frame.f_back
    if frame is None:
        return ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(path, line).strip()
    return base.at_line(Frame(cell_names.get(path, path), line, frame.f_code.co_name, code))


def _input_lines(cell_names: Mapping[str, str]) -> Iterator[str]:
    """The lines of the user's that other threads run for TensorFlow or Keras: generators, datasets of Python."""
    for ident, innermost in sys._current_frames().items():
        callers, frame = set[str](), innermost.f_back
        while frame is not None:
            callers.add(package_of(frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        of_library = ident != threading.main_thread().ident and callers & LOCAL.used
        if of_library and (line := _user_line(innermost, cell_names)):
            yield line


# -- disk -------------------------------------------------------------------------------------------------------------


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
        return backend.save_state(items, folder)
    except OSError as error:
        raise TpuMagicsError(
            "The current weights could not be saved in the run folder.",
            f"{folder}: {error.strerror or error}. They are saved there to be restored if the training fails.",
            "Free disk space, or set TPU_MAGICS_RUNS to a folder on another disk, and run the cell again.",
        ) from error


# -- its files ---------------------------------------------------------------------------------------------------------


class InProcessRecords:
    """The files of a run in this process: records and log of rank 0, and run.json. `totals`: steps, compiles and
    recompiles, for the last event."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.started, self._began = time.time(), time.monotonic()
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
            fields = {"ended": time.time(), "seconds": time.monotonic() - self._began, **fields}
        self.folder.update(status=status, workers=[worker], **fields)

    def end(self, status: str, **fields: Any) -> None:
        """The last event."""
        seconds = time.monotonic() - self._began
        self.write(events.End, status=status, seconds=seconds, log_end=self.log.size, **self.totals, **fields)

    def end_failed(self, error: BaseException, cell_names: Mapping[str, str]) -> None:
        """The last event of a failed run; the traceback follows the output in the log."""
        error_type, error_text = stacks.describe(error)
        stack = stacks.from_exception(error, cell_names)
        self.end("failed", error_type=error_type, error_text=error_text, frames=stack)
        self.log.write(stacks.traceback_text(error))

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


def _asked_to_save(checkpoints: TrainingCheckpoints) -> bool:
    """In a signal's handler: whether the training saves now, and ends then."""
    asked = checkpoints.save_and_stop()
    if asked:
        with suppress(RuntimeError):  # the handler came in the middle of a print
            session.current.notebook.say(saving.LAST_SAVE)
    return asked
