"""The lifecycle of a run: preconditions, plan, hoist, start, supervision, results. What depends on where the work
happens is in strategies/."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import CheckpointPlan
from tpu_magics.checkpoints.lock import PlaceLock
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.host import Host
from tpu_magics.launch import hoist, process, results, session
from tpu_magics.launch.errors import failure as failures
from tpu_magics.launch.notebook import FREE, TRAINS, WAITS, NullObserver, ObserverGroup, RunObserver, open_observer
from tpu_magics.launch.options import Options
from tpu_magics.launch.plan import Plan
from tpu_magics.launch.request import LONGEST_READ, Request
from tpu_magics.launch.resume import saving
from tpu_magics.launch.resume.ending import EndWatch
from tpu_magics.launch.resume.notebook import checkpoint_plan, forget_files, with_checkpoint
from tpu_magics.launch.state.changes import unchanged_text
from tpu_magics.launch.work import Work
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run
from tpu_magics.runs.temporary_folders import scratch_of


class Strategy(ABC):
    """Where the work of one run happens; a new object for each run. The methods are in the order in which they are
    called. `hoists`: models are built once, in the notebook; `saves`: there are checkpoints; `in_process`: the main
    thread trains; `forks`: workers are forks of this process."""

    hoists = True
    saves = True
    in_process = False
    forks = True

    # -- before the run -------------------------------------------------------------------------------------------
    @abstractmethod
    def check_options(self, request: Request, options: Options) -> None:
        """Raise TpuMagicsError for options that are not available here."""

    @abstractmethod
    def plan(self, options: Options) -> tuple[Host | None, Plan]:
        """The host and the plan."""

    @abstractmethod
    def check(self, request: Request, host: Host | None, planned: Plan) -> dict[str, Any]:
        """Raise TpuMagicsError for the first problem that would break the run. Returns the models that it can reach,
        by name."""

    @abstractmethod
    def require_memory(self, planned: Plan, models_bytes: int, force: bool) -> None:
        """Raise TpuMagicsError if the run does not fit in host memory."""

    def create_folder(self, name: str) -> RunFolder:
        return RunFolder.create(name)

    @abstractmethod
    def require_disk(self, folder: Path, request: Request, models_bytes: int, force: bool) -> None:
        """Raise TpuMagicsError if the disk of the run folder is too small."""

    @abstractmethod
    def attach(self, run: TrainingRun) -> None:
        """All checks are done: prepare what the start of this run needs."""

    # -- the run --------------------------------------------------------------------------------------------------
    def context(self) -> AbstractContextManager[Any]:
        """Around everything that follows, except for the end of a background run."""
        return nullcontext()

    @abstractmethod
    def start(self, run: TrainingRun) -> None:
        """Open the panel and start the work. After an error nothing is left running."""

    @abstractmethod
    def supervise(self, run: TrainingRun) -> None:
        """Until the work has ended; in the background, return at once."""

    @abstractmethod
    def wait(self, run: TrainingRun) -> None:
        """Wait for the work from outside of `supervise`. An interrupt ends the wait."""

    @abstractmethod
    def collect(self, run: TrainingRun) -> results.RunResults:
        """Load the results of the work that has ended, and close its records. Raises the error of a failed run."""

    @abstractmethod
    def abort(self, run: TrainingRun, error: BaseException) -> BaseException:
        """Stop after an error outside of `collect`; nothing is left running. Returns the error to raise."""

    @abstractmethod
    def close_failed(self, run: TrainingRun, error: BaseException) -> None:
        """Close the records of a failed run."""

    # -- at any time, from any thread -----------------------------------------------------------------------------
    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the work has ended."""

    @abstractmethod
    def set_observer(self, observer: RunObserver) -> None:
        """Use this observer from the next tick on."""

    @abstractmethod
    def request_stop(self) -> None:
        """Stop the work as an interrupt would; return at once."""

    def request_save(self, run: TrainingRun) -> None:
        """Have the ranks save a checkpoint at their next item; return at once."""
        saving.ask(scratch_of(run.folder), saving.NOW)


@dataclass
class TrainingRun:
    """A run, until its results are loaded. `models`: those that are updated, by name; `models_bytes`: their size;
    `more`: the observer besides the panel (`Options.observe`); `lock`: on its place of checkpoints."""

    request: Request
    options: Options
    plan: Plan
    host: Host | None
    folder: RunFolder
    work: Work
    models: Mapping[str, Any]
    models_bytes: int
    hoists: hoist.HoistPlan | None
    strategy: Strategy
    observer: RunObserver = field(default_factory=NullObserver)
    more: RunObserver = field(default_factory=NullObserver)
    lock: PlaceLock | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        notebook = session.current.notebook
        wait = self.finish if self.options.background else None
        self.result = results.TrainResult(Run(self.folder.path), self.models, wait)
        say = notebook.say
        self.ending = EndWatch(self.host, self.save, self.request_stop, lambda: self.ended, say)
        self.cell_names, self.cell_ids = dict(notebook.cell_names()), dict(notebook.cell_ids())

    @property
    def busy(self) -> bool:
        """Whether the work has not ended, or its results are not loaded yet."""
        return not self.finished

    @property
    def ended(self) -> bool:
        """Whether the work has ended."""
        return self.strategy.ended

    def execute(self) -> None:
        """Start, supervise and finish the run; in the background, only start it."""
        __tracebackhide__ = True
        session.current.active_run = self
        if self.plan.checkpoints is not None:
            self.ending.start(self.options.background)
        with self.strategy.context():
            try:
                if self.lock is not None and not self.strategy.forks:
                    self.lock.keep()
                self.strategy.start(self)
                if self.lock is not None and self.strategy.forks:  # no thread writes meanwhile
                    self.lock.keep()
                self.strategy.supervise(self)
                if not self.options.background:
                    self._finish()
            except BaseException as error:
                shown = self._abort(error)
                if shown is not error:
                    raise shown from None
                raise error  # with the traceback that the strategy left

    def save(self) -> None:
        """Save a checkpoint at the next item of the training loops; return at once."""
        self.strategy.request_save(self)

    def finish(self) -> None:
        """Load the results, once, or raise the error of a failed run. Waits for a background run; an interrupt ends the
        wait."""
        if self.finished:
            return
        self.strategy.wait(self)
        if not self.finished:
            self._finish()

    def _finish(self) -> None:
        __tracebackhide__ = True
        # An interrupt is raised after all results are loaded, so that they are not loaded in part.
        with process.interrupts_held() as late:
            self._set_finished()
            try:
                loaded = self.strategy.collect(self)
                self.result.settle(loaded)
            except BaseException as error:
                self._close_failed(error)
                self.ending.stop()
                raise
            finally:
                self.observer.settle()
                self.folder.release()
            show_results(loaded, self.options.output)
            self.ending.stop()
            interrupted = bool(late)
            late.clear()
        if interrupted:
            raise TrainingInterrupted(
                "The interrupt came when the run was done.",
                "Its results were being loaded: they are in the notebook, all of them.",
                "Go on with the next cell.",
                run=str(self.folder.path),
            )

    def _abort(self, error: BaseException) -> BaseException:
        """Clean up after an error or an interrupt outside of `_finish`."""
        __tracebackhide__ = True
        if self.finished:
            return error
        with process.interrupts_held():
            shown = error
            try:
                shown = self.strategy.abort(self, error)
            finally:
                self._set_finished()
                try:
                    self._close_failed(shown)
                finally:
                    self.observer.settle()
                    self.ending.stop()
                    self.folder.release()
        return shown

    def _set_finished(self) -> None:
        self.finished = True
        if self.plan.checkpoints is not None:
            forget_files(self.folder)
        if self.lock is not None:
            self.lock.release()
        session.current.active_run = None

    def _close_failed(self, error: BaseException) -> None:
        if self.plan.checkpoints is not None:
            with_checkpoint(error, self.folder)
        self.result.failure = error
        self.strategy.close_failed(self, error)

    # -- records --------------------------------------------------------------------------------------------------
    def start_record(self, **plan: Any) -> dict[str, Any]:
        """For run.json. `plan`: what the strategy adds to the plan."""
        return {
            "plan": {**self.plan.record(), **plan},
            "host": failures.host_record(self.host) if self.host is not None else {},
            "versions": dict(self.host.versions) if self.host is not None else {},
        }

    # -- the panel ------------------------------------------------------------------------------------------------
    def open_panel(self) -> None:
        """Show the panel of the run, if the notebook can."""
        notebook, background = session.current.notebook, self.options.background
        in_process = self.strategy.in_process

        def panel() -> RunObserver | None:
            if self.options.plain:
                return None
            if in_process:
                return notebook.local_panel(self.folder, self.request_stop)
            return notebook.panel(self.folder, self.request_stop, background)

        def follow() -> RunObserver | None:
            main = FREE if background else WAITS
            return notebook.follow(self.folder, self.request_stop, TRAINS if in_process else main)

        observe = self.options.observe
        with process.interrupts_held():
            if observe is not None:
                name = "Writing for TensorBoard"
                self.more = open_observer(lambda: observe(self.folder), notebook.say, name=name)
            self.set_observer(open_observer(panel, notebook.say, follow))

    def set_observer(self, observer: RunObserver) -> None:
        """Set who shows the run, from the next tick on."""
        self.observer = ObserverGroup(observer, self.more)
        self.strategy.set_observer(self.observer)

    def request_stop(self) -> None:
        """Stop the run as an interrupt would. May be called from any thread; returns at once."""
        self.strategy.request_stop()

    def stop(self) -> None:
        """Stop the run, and wait until a background run has ended; the models stay unchanged."""
        self.strategy.request_stop()
        if self.options.background:
            self.strategy.wait(self)


# -- before the run ---------------------------------------------------------------------------------------------------


def prepare(request: Request, options: Options, strategy: Strategy) -> TrainingRun:
    """Plan, preconditions and hoist: all checks before anything starts. Raises TpuMagicsError."""
    host, planned = strategy.plan(options)
    models = strategy.check(request, host, planned)
    hoists = _plan_hoists(request, options, planned) if strategy.hoists else None
    if hoists is not None:
        models = {**models, **{free_name(name, models): model for name, model in hoists.models.items()}}
    size = sum(session.current.backend.models.model_bytes(model) for model in models.values())
    strategy.require_memory(planned, size, options.force)
    folder = strategy.create_folder(options.run_name or request.folder_name)
    lock = None
    try:
        strategy.require_disk(folder.path, request, size, options.force)
        if strategy.saves and (saves := _plan_checkpoints(request, options, planned, folder, strategy.in_process)):
            planned, lock = replace(planned, checkpoints=saves[0]), saves[1]
        work = request.make(models, hoists)
        run = TrainingRun(request, options, planned, host, folder, work, models, size, hoists, strategy, lock=lock)
        strategy.attach(run)
    except BaseException as refused:
        if lock is not None:
            lock.release()
        if isinstance(refused, TpuMagicsError):
            failures.record_refused(folder, refused)
            folder.release()
        raise
    if folder.warning:
        session.current.notebook.say(folder.warning)
    return run


def _plan_checkpoints(
    request: Request, options: Options, planned: Plan, folder: RunFolder, in_process: bool
) -> tuple[CheckpointPlan, PlaceLock] | None:
    current = session.current
    if planned.replicas > 1:
        _refuse_checkpoints(options)
        return None
    name = "".join(char for char in options.run_name or request.folder_name if char not in "/\0")
    about = {
        "name": name,
        "path": str(folder.path),
        "framework": current.local.name if in_process else current.backend.name,
        "device": planned.device,
        "ranks": planned.ranks,
    }
    more = options.save_every, options.keep, options.resume, options.force
    exchange = folder.path.name if current.pod is not None else ""
    return checkpoint_plan(current.checkpoints, name, *more, folder.path, about, current.notebook.say, exchange)


def _refuse_checkpoints(options: Options) -> None:
    """Refuse what asks for checkpoints where there are none; say so of a session that has a place for them."""
    where = "a TPU v2 or v3"
    if options.resume or options.save_every is not None:
        raise TpuMagicsError(
            f"Checkpoints are not saved on {where}.",
            "Each process drives two devices there, in two threads.",
            "Remove --resume and --save-every, and save in the training function.",
        )
    if session.current.checkpoints:
        session.current.notebook.say(f"No checkpoints are saved on {where}.")


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    return name if name not in taken else f"{name} (hoisted)"


def _plan_hoists(request: Request, options: Options, planned: Plan) -> hoist.HoistPlan | None:
    if options.hoist == "off" or request.hoistable is None:
        return None
    current = session.current
    if len(request.source) > LONGEST_READ:
        size = len(request.source) / 1e6
        current.notebook.say(f"The code is {size:.1f} MB long, so it is not searched for models to hoist.")
        return None
    up = current.backend.runtime_initialized()
    try:
        hoists = hoist.plan_hoists(
            request.hoistable,
            arguments=request.arguments,
            namespace=current.notebook.namespace,
            backend=current.backend,
            source=request.source if isinstance(request.hoistable, ast.Module) else None,
        )
    except TpuMagicsError:
        raise
    except Exception as error:  # a bug in the search must not stop the run
        current.notebook.say(f"Each worker builds its models: {type(error).__name__} in the search for them.")
        return None
    if not up and current.backend.runtime_initialized():
        raise TpuMagicsError(
            "Hoisting started the XLA runtime in this notebook.",
            "A forked worker cannot use a runtime that its parent has started. This is a bug in tpu_magics.",
            "Restart the kernel and train with --hoist off, and please report the cell.",
        )
    for line in (*hoists.describe(planned.ranks), *hoists.warnings()):
        current.notebook.say(line)
    return hoists


# -- the end ----------------------------------------------------------------------------------------------------------


def show_results(loaded: results.RunResults, output: str) -> None:
    """Set the names that the cell assigned, and say what could not be updated. `output`: the name of the result."""
    notebook = session.current.notebook
    notebook.namespace.update(loaded.names)
    if loaded.left:
        names = ", ".join(f"`{name}`" for name in loaded.left)
        notebook.say(f"Not updated in the notebook, because they cannot be pickled: {names} (reasons: {output}.left)")
    if loaded.unchanged:
        notebook.say(f"Changed in the worker, unchanged here: {unchanged_text(loaded.unchanged, output)}")
    for lost in (value for value in loaded.values[:1] if type(value) is results.MissingValue):
        notebook.say(lost.reason)
    for note in (*loaded.notes, *loaded.warnings):
        notebook.say(note)
