"""A run in forked workers: checks and plan, fork, watching, results."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import (
    hoist,
    object_graph,
    partial_results,
    plan,
    preconditions,
    process,
    results,
    run_observer,
    session,
    supervisor,
    worker,
)
from tpu_magics.launch.errors import base, diagnosis
from tpu_magics.launch.errors import failure as failures
from tpu_magics.launch.plan import Options, Plan
from tpu_magics.launch.relay import Relay, Screen
from tpu_magics.launch.request import LONGEST_READ, Request
from tpu_magics.launch.state.restore import unchanged_text
from tpu_magics.launch.state.snapshot import StateSnapshot, take_snapshot
from tpu_magics.launch.work import Work
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.private_folders import make_scratch
from tpu_magics.runs.reader import Run

BUSY_PATIENCE = 30.0  # seconds: a device stays busy for so long after its holder was killed
BUSY_PAUSE = 2.0  # seconds between attempts


def prepare(request: Request, options: Options, workers: int | None) -> ForkedRun:
    """All checks before the fork, and the plan."""
    current = session.current
    host = session.known_host()
    backend = current.backend
    options = _with_session(options, host)
    count = plan.count_workers(host, options.processes, options.spmd) if workers is None else workers
    precision = options.precision or current.precision
    made = plan.make_plan(host, options, precision, count, current.cache, current.collective_timeout)
    preconditions.require_alone()
    backend.prepare()
    if made.rehearsed:
        preconditions.require_rehearsal(backend, made.ranks)
    _show_tpu_menu(host)
    models = object_graph.find_models(iter(request.items), backend.is_model)
    preconditions.check(
        preconditions.LaunchContext(backend, host, current.fork_blockers, request.items, models, request.source)
    )
    hoists = make_hoist_plan(request, options, made)
    if hoists is not None:
        taken = set(models)
        models = {**models, **{free_name(name, taken): model for name, model in hoists.models.items()}}
    size = sum(backend.model_bytes(model) for model in models.values())
    plan.require_memory(made, size, options.force)
    folder = RunFolder.create(options.run_name or request.folder_name)
    try:
        plan.require_disk(folder.path, size, options.force)
    except TpuMagicsError as refused:
        failures.record_refused(folder, refused)
        raise
    if folder.warning:
        current.notebook.say(folder.warning)
    work = request.make(models, hoists)
    return ForkedRun(request, options, made, host, folder, work, models, size, hoists)


def _with_session(options: Options, host: Host) -> Options:
    """The options, with the session's ranks or devices if the cell has neither."""
    current = session.current
    if options.spmd == plan.NO_SPMD:
        return replace(options, spmd=None, processes=options.processes or current.processes)
    if options.processes is None and options.spmd is None:
        options = replace(options, processes=current.processes, spmd=current.spmd)
    return replace(options, spmd=plan.spmd_devices(host, options.spmd, current.spmd))


def free_name(name: str, taken: set[str]) -> str:
    return name if name not in taken else f"{name} (hoisted)"


def _show_tpu_menu(host: Host) -> None:
    """On a notebook service without a TPU: say once which menu selects one."""
    where = host.environment
    if host.device == "CPU" and where.menu and not session.current.menu_shown:
        session.current.menu_shown = True
        session.current.notebook.say(
            f"No TPU in this {where.name} runtime: training on XLA:CPU. To select a TPU: {where.menu}."
        )


def make_hoist_plan(request: Request, options: Options, made: Plan) -> hoist.HoistPlan | None:
    if options.hoist == "off" or request.hoistable is None:
        return None
    current = session.current
    if len(request.source) > LONGEST_READ:
        size = len(request.source) / 1e6
        current.notebook.say(f"The code is {size:.1f} MB long, so it is not searched for models to hoist.")
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
            "Hoisting started the XLA runtime in this notebook.",
            "A forked worker cannot use a runtime that its parent has started. This is a bug in tpu_magics.",
            "Restart the kernel and train with --hoist off, and please report the cell.",
        )
    for line in (*hoists.describe(made.ranks), *hoists.warnings()):
        current.notebook.say(line)
    return hoists


@dataclass
class ForkedRun:
    """A run in forked workers, until its results are loaded."""

    request: Request
    options: Options
    plan: Plan
    host: Host
    folder: RunFolder
    work: Work
    models: Mapping[str, Any]
    models_bytes: int
    hoists: hoist.HoistPlan | None
    watch: supervisor.Supervisor | None = None
    thread: threading.Thread | None = None
    watch_ended: threading.Event = field(default_factory=threading.Event)
    observer: run_observer.RunObserver = field(default_factory=run_observer.NullObserver)
    finished: bool = False
    snapshot: StateSnapshot | None = None
    result: results.TrainResult = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        wait = self.finish if self.options.background else None
        self.result = results.TrainResult(Run(self.folder.path), self.models, wait)
        self.cell_names = dict(session.current.notebook.cell_names())
        self.available = host_memory(Path("/")).available or 0
        self.oom_kills = failures.oom_kills()
        self.deadline = time.monotonic() + BUSY_PATIENCE

    @property
    def busy(self) -> bool:
        """Whether workers are alive, or the results are not loaded yet."""
        return not self.finished

    @property
    def ended(self) -> bool:
        """Whether all workers have ended."""
        return self.watch is not None and (self.thread is None or self.watch_ended.is_set())

    # -- forking --------------------------------------------------------------------------------------------------
    def fork(self) -> None:
        """Fork the workers. On an error none is left running."""
        current = session.current
        cells = (self.cell_names, dict(current.notebook.cell_ids()))
        if self.snapshot is None:
            self.snapshot = self.take_snapshot()
        task = worker.WorkerTask(current.backend, self.work, self.folder, *cells, self.snapshot)
        children: list[supervisor.WorkerProcess] = []
        screen = self._screen()
        process.flush_everything()
        with process.interrupts_held():
            try:
                scratch = make_scratch(self.folder)
                for index in range(self.plan.workers):
                    children.append(self._fork_one(task, index, scratch))
            finally:
                relay = Relay(self.folder, screen)
                self.watch = supervisor.Supervisor(
                    self.folder, children, relay, self.plan.timeout, self.observer, keep=self.plan.keep_partial
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
        """A snapshot of the objects that the work can reach, before the fork."""
        current = session.current
        found = take_snapshot(self.work.roots(), current.backend.object_state(), self.models)
        for name in (name for name in found.unseen if name not in current.unseen_reported):
            current.unseen_reported.add(name)
            current.notebook.say(
                f"`{name}` is too large to compare: some changes in it may not be updated in the notebook."
            )
        return found

    def _fork_one(self, task: worker.WorkerTask, index: int, scratch: Path) -> supervisor.WorkerProcess:
        spec = self.plan.spec(index, scratch)
        pid = process.fork_worker(lambda: worker.main(task, spec), self.folder.stacks_path(index))
        return supervisor.WorkerProcess(index, pid, index)

    def _screen(self) -> Screen:
        notebook = session.current.notebook
        return notebook.background_screen(self.folder.name) if self.options.background else notebook.screen()

    # -- watching -------------------------------------------------------------------------------------------------
    def open_panel(self) -> None:
        """Show the panel of the run, if the notebook can."""
        notebook, background = session.current.notebook, self.options.background

        def panel() -> run_observer.RunObserver | None:
            return None if self.options.plain else notebook.panel(self.folder, self.request_stop, background)

        def follow() -> run_observer.RunObserver | None:
            return notebook.follow(
                self.folder, self.request_stop, run_observer.FREE if background else run_observer.WAITS
            )

        with process.interrupts_held():
            self.set_observer(run_observer.open_observer(panel, notebook.say, follow))

    def set_observer(self, observer: run_observer.RunObserver) -> None:
        """Set who observes the run, from the supervisor's next tick on."""
        self.observer = observer
        if self.watch is not None:
            self.watch.observer = observer

    def request_stop(self) -> None:
        """Stop the run as an interrupt would. May be called from any thread; returns at once."""
        if self.watch is not None:
            self.watch.stop("interrupt")

    def watch_until_end(self) -> None:
        """Watch in this thread. If the device is still busy, start again."""
        assert self.watch is not None
        self.watch.run()
        while failures.device_was_busy(self.watch) and time.monotonic() < self.deadline:
            session.current.notebook.say(
                "The TPU is still busy (the process that used it may have just ended): trying again."
            )
            time.sleep(BUSY_PAUSE)
            self._clear_attempt()
            self.fork()
            self.watch.run()

    def _clear_attempt(self) -> None:
        """Delete the files of the failed attempt: they would be read as those of the next one."""
        for path in self.folder.path.glob("rank-*"):
            path.unlink(missing_ok=True)

    def watch_in_thread(self) -> None:
        name = f"tpu_magics-watch-{self.folder.name}"
        self.thread = threading.Thread(target=self._watch_in_background, name=name, daemon=True)
        self.thread.start()
        session.current.notebook.say(
            f"Training {self.folder.name!r} in the background: _tpu.wait() loads its results, %tpu_stop stops it."
        )

    def _watch_in_background(self) -> None:
        assert self.watch is not None
        try:
            self.watch.run()
        finally:
            try:
                self.observer.settle()
            finally:
                self.watch_ended.set()

    def _wait_watch_ended(self) -> None:
        """Wait until the watching thread has ended. Not with Thread.join(): an interrupted join marks a running thread
        as stopped (seen in CPython 3.11)."""
        while self.thread is not None and not self.watch_ended.wait(0.1):
            pass

    def stop(self) -> None:
        """Stop a background run; the models stay unchanged."""
        if self.watch is not None and self.thread is not None:
            self.request_stop()
            self._wait_watch_ended()

    def abandon(self, error: BaseException) -> None:
        """Clean up after an error or an interrupt outside of `finish`."""
        if self.finished:
            return
        with process.interrupts_held():
            try:
                if self.watch is not None:
                    self.watch.end()
            finally:
                self.finished, self.snapshot = True, None
                session.current.active_run = None
                self.result.failure = error
                failure = {"failure": failures.error_record(error)} if isinstance(error, TpuMagicsError) else {}
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", **failure)
                self.observer.settle()

    # -- the end --------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Load the results, once, or raise the error of a failed run. Waits for a background run; an interrupt ends the
        wait."""
        if self.finished:
            return
        self._wait_watch_ended()
        assert self.watch is not None
        # An interrupt is raised after all results are loaded, so that they are not loaded in part.
        with process.interrupts_held():
            self.finished = True
            session.current.active_run = None
            try:
                loaded = self._collect(self.watch)
            except BaseException as error:
                self.result.failure = error
                if not isinstance(error, TrainingFailed):
                    self._close("failed")
                raise
            finally:
                self.snapshot = None
                self.observer.settle()
            self._show_results(loaded)

    def _collect(self, watch: supervisor.Supervisor) -> results.RunResults:
        if watch.reason != "done" or not all(w.good for w in watch.workers):
            self._fail(self._keep_partial(watch, self.explain_failure(watch)))
        self.folder.update(status="collecting", workers=watch.table())
        limited = any(w.end is not None and w.end.status == "limit" for w in watch.workers)
        try:
            loaded = results.RunResults() if limited else self._load()
        except TpuMagicsError as error:
            self._fail(
                TrainingFailed(error.what, error.why, error.todo, error.details, rank=0, run=str(self.folder.path))
            )
        except OSError as error:
            self._fail(failures.cannot_read_results(error, self.folder))
        self._record_warnings(loaded)
        self._close("stopped" if limited else "done", models=[] if limited else list(self.models))
        self.result.settle(loaded)
        return loaded

    def explain_failure(self, watch: supervisor.Supervisor) -> TrainingFailed:
        """Why the run failed."""
        return diagnosis.diagnose(failures.record(self, watch))

    def _keep_partial(self, watch: supervisor.Supervisor, error: TrainingFailed) -> TrainingFailed:
        """With --keep-partial: load the weights of rank 0's last step, and say so in the error."""
        if not self.plan.keep_partial:
            return error
        step = partial_results.step_of(self.folder)
        try:
            if step is None:
                raise TpuMagicsError(partial_results.reason_missing(self.folder, watch.workers))
            loaded = self._load(ranks=1)
            self._record_warnings(loaded)
            self._show_results(loaded)
        except (TpuMagicsError, OSError) as failed:
            reason = failed.what if isinstance(failed, TpuMagicsError) else str(failed)
            return partial_results.with_sentence(
                error, f"Nothing was kept (--keep-partial): {reason.rstrip('.')}. {base.UNCHANGED}"
            )
        self.folder.update(kept=partial_results.describe(step), models=list(self.models))
        return partial_results.with_sentence(
            error, f"Kept in the notebook: {partial_results.describe(step)} (--keep-partial)."
        )

    def _load(self, ranks: int | None = None) -> results.RunResults:
        backend, background = session.current.backend, self.options.background
        ranks = ranks or self.plan.ranks
        return results.collect_results(self.folder, ranks, self.models, backend, self.snapshot, background)

    def _record_warnings(self, loaded: results.RunResults) -> None:
        if loaded.warnings:
            self.folder.update(warnings=[*Run(self.folder.path).info.get("warnings", ()), *loaded.warnings])

    def _show_results(self, loaded: results.RunResults) -> None:
        session.current.notebook.namespace.update(loaded.names)
        if loaded.left:
            names = ", ".join(f"`{name}`" for name in loaded.left)
            session.current.notebook.say(
                f"Not updated in the notebook, because they cannot be pickled: {names} (reasons: _tpu.left)"
            )
        if loaded.unchanged:
            session.current.notebook.say(f"Changed in the worker, unchanged here: {unchanged_text(loaded.unchanged)}")
        for lost in (value for value in loaded.values[:1] if isinstance(value, results.MissingValue)):
            session.current.notebook.say(lost.reason)
        for note in (*loaded.notes, *loaded.warnings):
            session.current.notebook.say(note)

    def _fail(self, error: TrainingFailed) -> None:
        status = {"interrupt": "interrupted", "timeout": "timeout"}.get(
            self.watch.reason if self.watch else "", "failed"
        )
        self._close(status, failure=failures.error_record(error))
        raise error

    def _close(self, status: str, **fields: Any) -> None:
        ended = self._end_time()
        seconds = ended - (self.watch.started if self.watch else ended)
        workers = self.watch.table() if self.watch else []
        self.folder.update(status=status, ended=ended, seconds=seconds, workers=workers, **fields)

    def _end_time(self) -> float:
        """When the last worker ended: results of a background run may be loaded much later."""
        ends = [one.ended for one in self.watch.workers if one.ended is not None] if self.watch else []
        return max(ends, default=time.time())
