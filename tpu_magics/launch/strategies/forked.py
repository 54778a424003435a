"""Workers that are forked from the notebook's process, on this host."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch_xla.import_guard import require_alone
from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.launch import object_graph, plan, preconditions, process, results, session, spawned, supervisor, worker
from tpu_magics.launch.errors import base, diagnosis
from tpu_magics.launch.errors import failure as failures
from tpu_magics.launch.inherited_threads import InheritedThreads
from tpu_magics.launch.notebook import RunObserver
from tpu_magics.launch.options import NO_SPMD, Options
from tpu_magics.launch.plan import Plan
from tpu_magics.launch.request import Request
from tpu_magics.launch.run import Strategy, TrainingRun, show_results
from tpu_magics.launch.state.snapshot import StateSnapshot, take_snapshot
from tpu_magics.launch.streams import Relay, Screen
from tpu_magics.runs import events
from tpu_magics.runs.reader import Run
from tpu_magics.runs.temporary_folders import make_scratch

BUSY_PATIENCE = 30.0  # seconds: a device stays busy for so long after its holder was killed
BUSY_PAUSE = 2.0  # seconds between attempts
_STATUS = {"interrupt": "interrupted", "timeout": "timeout"}


class ForkedStrategy(Strategy):
    """One fork for each worker. `workers`: overrides their number without a check; `watch`: the supervisor, once they
    are started; `snapshot`: the notebook's objects before the run; `memory`: of the host at the start."""

    says_tpu_menu = True
    can_spawn = True  # workers can be new processes

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers
        self.watch: supervisor.Supervisor | None = None
        self.snapshot: StateSnapshot | None = None
        self._thread: threading.Thread | None = None
        self._thread_ended = threading.Event()
        self._forks = True
        self._packed: int | None = None  # files with large arrays, where workers are new processes

    # -- before the run -------------------------------------------------------------------------------------------
    def check_options(self, request: Request, options: Options) -> None:  # noqa: ARG002
        preconditions.refuse_in_process_options(options)

    def plan(self, options: Options) -> tuple[Host, Plan]:
        current = session.current
        host = session.known_host()
        options = _with_session(options, host)
        count = plan.count_workers(host, options.processes, options.spmd) if self._workers is None else self._workers
        return host, plan.make_plan(host, options, current.precision, count, current.cache, current.collective_timeout)

    def check(self, request: Request, host: Host | None, planned: Plan) -> dict[str, Any]:
        assert host is not None
        current = session.current
        require_alone()
        current.backend.refuse(planned.precision, planned.spmd)
        current.backend.prepare()
        if planned.rehearsed:
            preconditions.require_rehearsal(current.backend, planned.ranks)
        if self.says_tpu_menu:
            _say_tpu_menu(host)
        models = object_graph.find_models(iter(request.items), current.backend.models.is_model)
        blockers = current.fork_blockers
        self._forks = not self._needs_processes(host)
        preconditions.check(preconditions.LaunchContext(current.backend, host, blockers, models, self._forks))
        if not self._forks:
            current.notebook.say(
                f"The {current.backend.runtime} already runs in this notebook, started by {blockers.start}. So the "
                "workers of this rehearsal are new processes, to which the function and its objects are sent. On a TPU "
                "the run would be refused, because the notebook would hold the chip. For that, restart the kernel, "
                f"{blockers.start.advice(current.backend.starts_it)}"
            )
        return models

    def _needs_processes(self, host: Host) -> bool:
        """Whether this process runs a runtime that forks cannot use, but that does not keep the device from others."""
        up = host.device == "CPU" and session.current.backend.runtime_initialized()
        return up and self.can_spawn and find_spec("cloudpickle") is not None

    def require_memory(self, planned: Plan, models_bytes: int, force: bool) -> None:
        plan.require_memory(planned, models_bytes, force, saves=bool(session.current.checkpoints))

    def require_disk(self, folder: Path, request: Request, models_bytes: int, force: bool) -> None:  # noqa: ARG002
        plan.require_disk(folder, models_bytes, force)

    def attach(self, run: TrainingRun) -> None:  # noqa: ARG002
        self.memory = failures.MemoryAtStart.measure()
        self._deadline = time.monotonic() + BUSY_PATIENCE

    # -- start ----------------------------------------------------------------------------------------------------
    def start(self, run: TrainingRun) -> None:
        run.open_panel()
        self.start_workers(run)

    def start_workers(self, run: TrainingRun) -> None:
        """On an error none is left running."""
        if self.snapshot is None:
            self.snapshot = self.take_snapshot(run)
        backend, workers = session.current.backend, run.plan.workers
        threads = self.notebook_threads(run)
        task = worker.WorkerTask(backend, run.work, run.folder, run.cell_names, run.cell_ids, self.snapshot, threads)
        children: list[supervisor.WorkerProcess] = []
        screen = self.screen(run)
        process.flush_everything()
        with process.interrupts_held():
            try:
                scratch = make_scratch(run.folder)
                self._packed = None
                with threads.at_rest():
                    for index in range(workers):
                        pid = self.fork_worker(run, task, index, scratch)
                        children.append(supervisor.WorkerProcess(index, pid, index))
            finally:
                self.watch = watch = supervisor.Supervisor(
                    run.folder,
                    children,
                    Relay(run.folder, screen),
                    run.plan.timeout,
                    run.observer,
                    keep=run.plan.keep_partial,
                    saves=run.plan.checkpoints is not None,
                )
                if len(children) < workers:
                    watch.stop("worker")
                    watch.run()
            record = run.start_record(background=run.options.background)
            run.folder.update(status="running", workers=watch.table(), **record)

    def take_snapshot(self, run: TrainingRun) -> StateSnapshot:
        """A snapshot of the objects that the work can reach, before the fork."""
        current = session.current
        adapter, background = current.backend.object_state(), run.options.background
        snapshot = take_snapshot(run.work.roots(), adapter, run.models, background=background)
        for name in (name for name in snapshot.unseen if name not in current.unseen_reported):
            current.unseen_reported.add(name)
            current.notebook.say(
                f"`{name}` is too large to compare: some changes in it may not be updated in the notebook."
            )
        return snapshot

    def notebook_threads(self, run: TrainingRun) -> InheritedThreads:
        """The notebook's threads, which have done what they can before the fork."""
        if session.current.spawns:  # objects with threads are not sent to new processes
            return InheritedThreads()
        threads = InheritedThreads(run.request.items, run.cell_names)
        threads.settle(session.current.notebook.say)
        return threads

    def fork_worker(self, run: TrainingRun, task: worker.WorkerTask, index: int, scratch: Path) -> int:
        """Fork worker `index`, or start it as a new process; returns its pid."""
        spec = run.plan.spec(index, scratch)
        if session.current.spawns or not self._forks:
            if self._packed is None:
                assert self.snapshot is not None
                self._packed = spawned.write(run, self.snapshot, scratch)
            return spawned.start(run, spec, self._packed, scratch)
        return process.fork_worker(lambda: worker.main(task, spec), run.folder.stacks_path(index))

    def screen(self, run: TrainingRun) -> Screen:
        notebook = session.current.notebook
        return notebook.background_screen(run.folder.name) if run.options.background else notebook.screen()

    # -- supervision ----------------------------------------------------------------------------------------------
    def supervise(self, run: TrainingRun) -> None:
        """In this thread: if the device is still busy, start again."""
        if run.options.background:
            self._supervise_in_thread(run)
            return
        self._watch().run()
        while failures.device_was_busy(self._watch()) and time.monotonic() < self._deadline:
            session.current.notebook.say(
                "The TPU is still busy (the process that used it may have just ended): trying again."
            )
            time.sleep(BUSY_PAUSE)
            self._start_again(run)
        if self._may_spawn(run) and failures.fork_was_refused(self._watch()):
            self._spawn(run)

    def _may_spawn(self, run: TrainingRun) -> bool:
        current = session.current
        return run.plan.device == "TPU" and current.backend.spawns and not current.spawns

    def _start_again(self, run: TrainingRun) -> None:
        for path in run.folder.path.glob("rank-*"):  # they would be read as those of the next attempt
            path.unlink(missing_ok=True)
        self.start_workers(run)
        self._watch().run()

    def _spawn(self, run: TrainingRun) -> None:
        """Again, in new processes, and so in later runs if that works."""
        session.current.notebook.say(
            "No forked worker could start the TPU's runtime: trying again with new processes, to which the function "
            "and its objects are sent."
        )
        session.current.spawns = True
        try:
            self._start_again(run)
        finally:
            session.current.spawns = not failures.fork_was_refused(self._watch())

    def _watch(self) -> supervisor.Supervisor:
        assert self.watch is not None
        return self.watch

    def _supervise_in_thread(self, run: TrainingRun) -> None:
        watch = self._watch()

        def supervise() -> None:
            try:
                watch.run()
                if self._may_spawn(run) and failures.fork_was_refused(watch):  # a thread cannot start workers
                    session.current.spawns = True
            finally:
                try:
                    run.observer.settle()
                finally:
                    self._thread_ended.set()

        name = run.folder.name
        self._thread = threading.Thread(target=supervise, name=f"tpu_magics-watch-{name}", daemon=True)
        self._thread.start()
        session.current.notebook.say(
            f"Training {name!r} in the background: {run.options.output}.wait() loads its results, %tpu_stop stops it."
        )

    def wait(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Not with Thread.join(): an interrupted join marks a running thread as stopped (seen in CPython 3.11)."""
        while self._thread is not None and not self._thread_ended.wait(0.1):
            pass

    @property
    def ended(self) -> bool:
        return self.watch is not None and (self._thread is None or self._thread_ended.is_set())

    def set_observer(self, observer: RunObserver) -> None:
        if self.watch is not None:
            self.watch.observer = observer

    def request_stop(self) -> None:
        if self.watch is not None:
            self.watch.stop("interrupt")

    # -- the end --------------------------------------------------------------------------------------------------
    def collect(self, run: TrainingRun) -> results.RunResults:
        try:
            return self._collect(run, self._watch())
        finally:
            self.snapshot = None

    def _collect(self, run: TrainingRun, watch: supervisor.Supervisor) -> results.RunResults:
        if watch.reason != "done" or not all(w.good for w in watch.workers):
            raise self._with_partial_results(run, watch, self.explain_failure(run, watch))
        run.folder.update(status="collecting", workers=watch.table())
        if any(w.end is not None and w.end.status == events.STOPPED for w in watch.workers):
            raise _ended_outside(run)
        limited = any(w.end is not None and w.end.status == "limit" for w in watch.workers)
        try:
            loaded = results.RunResults() if limited else self.load(run, run.plan.ranks)
        except TpuMagicsError as error:
            path = str(run.folder.path)
            raise TrainingFailed(error.what, error.why, error.todo, error.details, rank=0, run=path) from error
        except OSError as error:
            raise failures.cannot_read_results(error, run.folder) from error
        _record_warnings(run, loaded)
        self._close(run, "stopped" if limited else "done", models=loaded.models)
        return loaded

    def explain_failure(self, run: TrainingRun, watch: supervisor.Supervisor) -> TrainingFailed:
        """Why the run failed."""
        return diagnosis.diagnose(failures.record(run, watch, self.memory))

    def _with_partial_results(
        self, run: TrainingRun, watch: supervisor.Supervisor, error: TrainingFailed
    ) -> TrainingFailed:
        """With --keep-partial: load the weights of rank 0's last step, and say so in the error."""
        if not run.plan.keep_partial:
            return error
        step = results.partial_step(run.folder)
        try:
            if step is None:
                raise TpuMagicsError(results.reason_partial_missing(run.folder, watch.workers))
            loaded = self.load(run, 1)
            _record_warnings(run, loaded)
            show_results(loaded, run.options.output)
        except (TpuMagicsError, OSError) as failed:
            reason = failed.what if isinstance(failed, TpuMagicsError) else str(failed)
            return results.with_sentence(
                error, f"Nothing was kept (--keep-partial): {reason.rstrip('.')}. {base.UNCHANGED}"
            )
        run.folder.update(kept=results.partial_text(step), models=loaded.models)
        return results.with_sentence(error, f"Kept in the notebook: {results.partial_text(step)} (--keep-partial).")

    def load(self, run: TrainingRun, ranks: int) -> results.RunResults:
        backend, background = session.current.backend, run.options.background
        own = run.folder.own  # a pickle is loaded from there only
        try:
            return results.collect_results(
                own, ranks, run.models, backend, self.snapshot, background, functools.partial(_where, run)
            )
        except TpuMagicsError as error:
            raise _as_of(run, own.path, error) from error

    def abort(self, run: TrainingRun, error: BaseException) -> BaseException:  # noqa: ARG002
        self.snapshot = None
        if self.watch is not None:
            self.watch.end()
        return error

    def close_failed(self, run: TrainingRun, error: BaseException) -> None:
        reason = "interrupt" if isinstance(error, KeyboardInterrupt) else ""
        if isinstance(error, TrainingFailed) and self.watch is not None:
            reason = self.watch.reason
        failure = {"failure": failures.error_record(error)} if isinstance(error, TpuMagicsError) else {}
        self._close(run, _STATUS.get(reason, "failed"), **failure)

    def _close(self, run: TrainingRun, status: str, **fields: Any) -> None:
        """Results of a background run may be loaded much later than its last worker ended."""
        watch = self.watch
        over = [one for one in watch.workers if one.ended is not None] if watch is not None else []
        ended = max((one.ended for one in over if one.ended is not None), default=time.time())
        seconds = max(one.noticed for one in over) - watch.began if watch is not None and over else 0.0
        workers = watch.table() if watch else []
        run.folder.update(status=status, ended=ended, seconds=seconds, workers=workers, **fields)


def _where(run: TrainingRun, name: str, model: Any) -> str:
    """A model that the function builds for itself is not the one that may have its name in the notebook."""
    hoists = run.work.hoists
    own = hoists is not None and any(one is model for one in hoists.models.values())
    return f"the function's own {name} ({run.options.output}.models[{name!r}])" if own and name.isidentifier() else name


def _as_of(run: TrainingRun, opened: Path, error: TpuMagicsError) -> TpuMagicsError:
    """The error with the folder's name in place of the opened folder; another one if its name was taken from it."""
    if run.folder.replaced:
        return TpuMagicsError(
            "The run folder was moved or replaced during the run.",
            f"{run.folder.path} is not the folder any more in which this run began, so nothing is loaded from it: "
            f"whoever can write to {run.folder.path.parent} can put a folder there. {base.UNCHANGED}",
            "Set TPU_MAGICS_RUNS to a folder that only you can change, and run the cell again.",
        )
    texts = (error.what, error.why, error.todo, *error.details)
    what, why, todo, *details = (text.replace(str(opened), str(run.folder.path)) for text in texts)
    return TpuMagicsError(what, why, todo, details)


def _ended_outside(run: TrainingRun) -> TrainingFailed:
    """A worker got a SIGTERM that was not the launcher's, and has saved."""
    return TrainingFailed(
        "The run was ended from outside: a worker got a SIGTERM.",
        f"It saved a checkpoint and stopped. {base.UNCHANGED}",
        "Find out what sent the signal: a batch system, a limit of the container, another program.",
        run=str(run.folder.path),
    )


def _with_session(options: Options, host: Host) -> Options:
    """The options, with the session's ranks or devices if the cell has neither."""
    current = session.current
    if options.spmd == NO_SPMD:
        return replace(options, spmd=None, processes=options.processes or current.processes)
    if options.processes is None and options.spmd is None:
        options = replace(options, processes=current.processes, spmd=current.spmd)
    return replace(options, spmd=plan.spmd_devices(host, options.spmd, current.spmd))


def _say_tpu_menu(host: Host) -> None:
    """On a notebook service without a TPU: say once which menu selects one."""
    where = host.environment
    if host.device == "CPU" and where.menu and not session.current.menu_shown:
        session.current.menu_shown = True
        session.current.notebook.say(f"No TPU in this {where.name} runtime: training on XLA:CPU. {where.how_to_select}")


def _record_warnings(run: TrainingRun, loaded: results.RunResults) -> None:
    if loaded.warnings:
        run.folder.update(warnings=[*Run(run.folder.path).info.get("warnings", ()), *loaded.warnings])
