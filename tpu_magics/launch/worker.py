"""A worker between the fork and its exit: it becomes a rank, runs the work, and writes results and events."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType, NoneType
from typing import Any

from tpu_magics.backends.base import (
    HostTrainingError,
    ObserverConfig,
    StepLimit,
    StopRequested,
    WorkerSpec,
)
from tpu_magics.backends.protocols import Backend, WorkerWatcher
from tpu_magics.launch import descendants, process, stacks, streams
from tpu_magics.launch.endless_waits import EndlessWaits, waits_for
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.ranks import no_such_rank
from tpu_magics.launch.inherited_threads import (
    InheritedThreads,
    await_threads,
    drain_writers,
    finish_processes,
    finish_threads,
)
from tpu_magics.launch.results import NO_STEP, NOT_FINITE, NOT_KEPT, SHARDED, mark_partial_written, partial_warning
from tpu_magics.launch.resume.saving import files_of
from tpu_magics.launch.resume.training import RunRecords, TrainingCheckpoints, records_before
from tpu_magics.launch.state.changes import ChangeCollector, ResultPickler
from tpu_magics.launch.state.kinds import LocalKind
from tpu_magics.launch.state.settings import Settings
from tpu_magics.launch.state.settings import current as current_settings
from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.launch.work import Pickles, ScriptWork, Work
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.origin import is_user_function
from tpu_magics.runs.writer import EventWriter

DONE, FAILED = 0, 1  # exit codes of a worker
FINISHES, FINISHES_FAILED = 60.0, 2.0  # seconds that the function's threads have after its end
NAMED_THREADS = 3  # threads that ended with an exception: as many of a rank are named
_PYTHONS_OWN = "replaced in the worker; the notebook keeps Python's own"


@dataclass(frozen=True)
class WorkerTask:
    """What all workers of a run share. `cell_names`: file name of a cell -> "In [n]"; `cell_ids`: "In [n]" -> the front
    end's id of the cell; `snapshot`: the notebook's objects before the run (None: on another host); `threads`: the
    notebook's."""

    backend: Backend
    work: Work
    files: RunFiles
    cell_names: Mapping[str, str] = field(default_factory=dict)
    cell_ids: Mapping[str, str] = field(default_factory=dict)
    snapshot: StateSnapshot | None = None
    threads: InheritedThreads = field(default_factory=InheritedThreads)


def main(task: WorkerTask, spec: WorkerSpec) -> int:
    """Run one worker; returns its exit code. Called in the child's main thread, just after the fork."""
    return _Worker(task, spec).run()


class _Worker:
    """One worker process. Its rank is known once the runtime has started; until then it writes under its index."""

    def __init__(self, task: WorkerTask, spec: WorkerSpec) -> None:
        self.task = task
        self.spec = spec
        self.rank = spec.number
        self.began = time.monotonic()
        self.environ = dict(os.environ)  # the notebook's
        self.writer = EventWriter(task.files.events_path(self.rank), self.rank)
        self.steps = 0
        self.compiles: int | None = None
        self.recompiles: int | None = None
        self.ranks = 1
        self.status = "done"
        self.keep_partial = spec.keep_partial and spec.tracing is None
        self.stop_requested = False
        self.checkpoints: TrainingCheckpoints | None = None
        self.before: list[events.Event] = []
        self.waits = EndlessWaits(process.lasting_threads, task.threads.server_of, self._end_waiting)
        self.settings: Settings | None = None
        self.threads_until: float | None = None  # the function's, once it has returned

    def run(self) -> int:
        streams.redirect_descriptors(self.task.files.log_path(self.rank))
        streams.redirect_python()
        streams.forbid_input()
        streams.exit_as_in_a_script()
        streams.text_progress_bars()
        streams.redirect_displays(streams.Displays(self.task.files, self._announce, keep=self.rank == 0))
        self.task.threads.revive()
        descendants.set_mark(self.task.files.path)
        process.keep_reserve()
        threading.excepthook = self._thread_hook(threading.excepthook)
        if self.keep_partial:
            signal.signal(process.STOP_SIGNAL, self._request_stop)
        if self.spec.checkpoints is not None:
            signal.signal(signal.SIGTERM, self._request_save)
        try:
            self.task.backend.run_worker(self.spec, self._ready, self._train)
        except StopRequested as stopped:
            self._end(events.STOPPED, frames=stacks.from_exception(stopped, self.task.cell_names))
            return self._exit_code(DONE)
        except BaseException as error:
            self._end_failed(error)
            return self._exit_code(FAILED)
        self._finish_threads(self.status)
        self.waits.stop()
        if (failed := self.task.backend.failed_collective()) is not None:  # in a thread
            self._end_failed(failed)
            return self._exit_code(FAILED)
        self._record_end(self.status)
        return self._exit_code(DONE)

    def _exit_code(self, code: int) -> int:
        descendants.end_marked(descendants.mark_of(self.task.files.path, os.getpid()))
        if self.writer.failed is None:
            return code
        with contextlib.suppress(OSError):
            os.write(2, f"{self.writer.failed}\n".encode("utf-8", "replace"))
        return process.UNRECORDED

    # -- on the rank's thread -----------------------------------------------------------------------------------
    def _ready(self, ordinal: int, world_size: int, device: str) -> None:
        if not 0 <= ordinal < self.spec.ranks:
            raise no_such_rank(ordinal, self.spec.ranks, self.environ)
        scratch = self.spec.scratch.parent if self.spec.scratch is not None else None
        self.spec = replace(self.spec, checkpoints=files_of(self.spec.checkpoints, scratch))
        self.before = records_before(self.spec.checkpoints, ordinal)
        process.lasting_threads.add(threading.get_ident())
        if ordinal != self.rank:
            self._use_rank(ordinal)
        self.ranks = world_size
        self.structures = {n: self.task.backend.results.structure(m) for n, m in self.task.work.models.items()}
        if self.task.snapshot is not None:
            self.task.backend.follow_optimizers(self.task.snapshot.items())
        self.task.work.install(self._note, self.spec.replicas)
        self._write(events.Start, pid=os.getpid(), device=device, world_size=world_size)
        self._phase("training")
        for event in self.before:
            self.writer.write(event)
        self.waits.start()

    def _use_rank(self, ordinal: int) -> None:
        """Use the rank that the runtime assigned: on a TPU it may differ from the number of the process."""
        self.rank = ordinal
        self.writer = EventWriter(self.task.files.events_path(ordinal), ordinal)
        streams.redirect_descriptors(self.task.files.log_path(ordinal))
        streams.redirect_displays(streams.Displays(self.task.files, self._announce, keep=ordinal == 0))

    def _train(self, ordinal: int, replica: int) -> None:
        try:
            value = self._run_work(ordinal, replica) if replica else self._run_observed(ordinal)
        except BaseException:
            if self.keep_partial and not ordinal:
                self._keep_partial()
            raise
        if self.status == "done":
            if not replica:
                self.threads_until = time.monotonic() + FINISHES
                await_threads(FINISHES, lambda frame: bool(waits_for(frame)), self._note_waiting)
            self._write_results(ordinal, replica, value)
            if self.keep_partial and not ordinal:
                mark_partial_written(self.task.files, self.steps)
            finish_processes(FINISHES, self._note_waiting)

    def _run_work(self, ordinal: int, replica: int) -> Any:
        with process.forks_end_here():
            try:
                return self.task.work.run(ordinal, replica)
            finally:
                process.restore_builtins()

    def _request_stop(self, *_signal: Any) -> None:
        self.stop_requested = True

    def _request_save(self, *_signal: Any) -> None:
        if self.checkpoints is None:  # not begun, or ended
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        else:
            self.checkpoints.clock.want()

    def _keep_partial(self) -> None:
        """Rank 0 did not finish: write its weights as if it had."""
        try:
            if reason := self._reason_not_keepable():
                self._note(NOT_KEPT, partial_warning(reason))
                return
            self._write_results(0, 0, None)
            mark_partial_written(self.task.files, self.steps)
        except Exception as error:  # the error that ended the run is more important
            self._note(NOT_KEPT, partial_warning(error))

    def _reason_not_keepable(self) -> str:
        if not self.steps:
            return NO_STEP
        spread = self.spec.replicas > 1 or self.task.backend.results.splits_weights(self.task.work.models)
        return SHARDED if spread else ""

    def _enter_thread(self) -> None:
        """Just before the function, on the thread that runs it."""
        self.task.threads.enter()
        self.settings = current_settings()
        for node in self.task.snapshot.nodes if self.task.snapshot is not None else ():
            if isinstance(node.kind, LocalKind):
                node.kind.enter(node.value, node.mark)

    def _run_observed(self, ordinal: int) -> Any:
        backend = self.task.backend
        value = None
        self._enter_thread()
        with backend.observing(self.writer, self._observer_config()) as watcher:
            try:
                if self.task.snapshot is not None:
                    backend.rebuild(self.task.snapshot.items(), self.spec.replicas)
                    self._arrange_checkpoints(self.task.snapshot, watcher)
                with self.checkpoints.running() if self.checkpoints is not None else contextlib.nullcontext():
                    value = self._run_work(ordinal, 0)
                self.checkpoints = None
                if ordinal == 0:
                    streams.flush_figures()
            except StepLimit:
                self.status = "limit"
            except BaseException:
                watcher.close(read=False)
                raise
            finally:
                self._recover()
                self.steps = watcher.total_steps
                self.compiles, self.recompiles = watcher.compiles, watcher.recompiles
                watcher.ended()
        self._phase("finishing")
        if (backend.finish() or watcher.unsynced) and not self.steps:
            self._note("no-sync", backend.no_step)
        elif text := watcher.trained_on_host():
            if self.spec.strict:
                raise HostTrainingError(text)
            self._note("host-training", text)
        if self.spec.tracing is not None:
            self.status = "limit"  # the values on the device are zeros: they must not be loaded
        watcher.close()
        return value

    def _arrange_checkpoints(self, snapshot: StateSnapshot, watcher: WorkerWatcher) -> None:
        spec, plan = self.spec, self.spec.checkpoints
        if plan is None or spec.tracing is not None or spec.scratch is None:
            return
        work = self.task.work
        functions = [one for _, one in snapshot.items() if is_user_function(one)]
        self.checkpoints = TrainingCheckpoints(
            plan,
            work.resumable(functions),
            functions,
            self.task.backend,
            work.roots(),
            (self.rank, self.ranks),
            spec.scratch.parent,
            RunRecords(self.writer, watcher),
            self._note,
        )
        self.task.backend.follow_library_loops(self.checkpoints.loops, spec.scratch.parent / f"library-{self.rank}")

    def _recover(self) -> None:
        """Restore what the end of the worker needs and the function may have used up or closed."""
        process.release_descriptors()
        with contextlib.suppress(OSError):
            streams.reopen_descriptors(self.task.files.log_path(self.rank))

    def _observer_config(self) -> ObserverConfig:
        spec, task = self.spec, self.task
        cells = {"cell_names": task.cell_names, "cell_ids": task.cell_ids}
        kind = {"rehearsed": spec.meeting is not None, "spmd": spec.spmd is not None, "tracing": spec.tracing}
        before = sum(one.synced for one in events.only(self.before, events.Resumed))
        options: dict[str, Any] = {
            **spec.options(),
            **cells,
            **kind,
            "cache": spec.cache,
            "steps_before": before,
            "stop_requested": lambda: self.stop_requested,
        }
        return ObserverConfig(spec.device, self.ranks, spec.precision, **options)

    def _write_results(self, ordinal: int, replica: int, value: Any) -> None:
        if replica == 0:
            process.restore_memory_limits()
            self._phase("collecting")
        drain_writers()  # what they write, and count, is compared with the other ranks
        pickles, changed = self._collect_changes(ordinal, replica)
        results = self.task.work.results(ordinal, value, pickles, **changed)
        _write_whole(self.task.files, ordinal, results)
        models = self.task.work.models
        if replica == 0:
            self._check_trained(ordinal, models)
            if models:
                self.task.backend.results.collect_weights(models, self.task.files.path, ordinal)

    def _check_trained(self, ordinal: int, models: Mapping[str, Any]) -> None:
        """Checks of what was trained: the notebook's models are also checked as they are loaded there."""
        elsewhere = self.task.backend.results.trained_elsewhere(models)
        if self.spec.meeting is not None and (models or elsewhere):
            sums = {name: checksum for name, (checksum, _) in elsewhere.items()}
            self._write(events.Digest, models=dict(self.task.backend.results.digests(models)), optimizers=sums)
        for name, (_, bad) in elsewhere.items():
            if bad and ordinal == 0:
                self._note(NOT_FINITE, f"The trained weights are not finite: what `{name}` trained contains {bad}.")

    def _collect_changes(self, ordinal: int, replica: int) -> tuple[Pickles, dict[str, Any]]:
        """The changes besides weights: rank 0 writes them, the others only checksums. Returns the pickler of this
        rank's results, and what to add to them."""
        snapshot = self.task.snapshot
        backend = self.task.backend
        if replica:
            return backend.results, {}
        work = self.task.work
        if snapshot is None or isinstance(work, ScriptWork):  # a script's settings are its own
            self._drop_models(self._rebuilt_models())
            return backend.results, {}
        rebuilt = self._rebuilt_models()
        known = [name for name in rebuilt if snapshot.knows(name, work.models[name])]
        collector = ChangeCollector(snapshot, work.models, backend.object_state(), self.settings, known)
        changes = collector.changes()
        if collector.lost:  # parts that cannot be sent: as if they were unknown
            known = [name for name in known if name not in collector.lost]
            collector = ChangeCollector(snapshot, work.models, backend.object_state(), self.settings, known)
            changes = collector.changes()
        self._drop_models([name for name in rebuilt if name not in known])
        replaced = dict.fromkeys((f"builtins: {name}" for name in process.replaced_builtins), _PYTHONS_OWN)
        changes.left.update(replaced)
        if ordinal:
            return backend.results, {"sums": changes.sums}
        pickles: Pickles = backend.results
        if snapshot.mismatched:
            changes.leave_all(snapshot)
        else:
            pickles = ResultPickler(backend.results, collector)
            collector.add_names(changes, work.assigned())
        collector.write(changes, self.task.files.path)
        return pickles, {"sums": changes.sums, "done": list(changes.names), "rebuilt": known}

    def _rebuilt_models(self) -> list[str]:
        """The models of which the function changed the structure, or exchanged parts."""
        backend, snapshot = self.task.backend, self.task.snapshot

        def is_rebuilt(name: str, model: Any) -> bool:
            state = backend.object_state()
            other = state.is_rebuilt(model, self.structures.get(name), backend.results.structure(model))
            return other or (snapshot is not None and snapshot.is_exchanged(name, model, state))

        whole = [one for one in self.task.work.models.items() if not backend.results.splits_weights(dict([one]))]
        return [name for name, model in whole if is_rebuilt(name, model)]

    def _drop_models(self, rebuilt: Sequence[str]) -> None:
        """Do not return hoisted models with parts that cannot be sent: without hoisting they would not be returned
        either. (For a model of the notebook this is an error when the weights are loaded.)"""
        hoists, models, backend = self.task.work.hoists, self.task.work.models, self.task.backend
        own = {id(model) for model in hoists.models.values()} if hoists is not None else set()
        for name in [name for name in rebuilt if id(models[name]) in own]:
            if backend.results.structure(models[name]) != self.structures.get(name):
                del models[name]
                self._note("not-home", f"`{name}` is not updated in the notebook: the function changed its structure.")

    # -- events -------------------------------------------------------------------------------------------------
    def _write(self, kind: type[events.Event], **fields: Any) -> None:
        self.writer.write(kind(t=time.time(), rank=self.rank, **fields))

    def _phase(self, name: str) -> None:
        self._write(events.Phase, name=name)

    def _note(self, code: str, text: str) -> None:
        self._write(events.Warned, code=code, text=text)

    def _thread_hook(self, before: Callable[[Any], object]) -> Callable[[Any], None]:
        """What is called in a thread that ends with an exception: what waits for it may fail or hang for that reason.
        `before`: what the notebook has in this place."""
        left = itertools.repeat(None, NAMED_THREADS)

        def tell(ended: Any) -> None:
            before(ended)
            if isinstance(ended.exc_value, (SystemExit, NoneType)) or next(left, self) is self:
                return
            kind, text = stacks.describe(ended.exc_value)
            stack = stacks.from_exception(ended.exc_value, self.task.cell_names)
            line = base.at_line(stacks.last_user_frame(stack))
            name = f"The thread {ended.thread.name}" if ended.thread is not None else "A thread"
            self._note(events.THREAD_ERROR, f"{name} ended with {kind}: {base.one_line(text)}{line}.")

        return tell

    def _note_waiting(self, text: str) -> None:
        self._note("threads", text)

    def _announce(self, file: str, display_id: str, update: bool, action: str, wait: bool) -> None:
        fields = {"file": file, "display_id": display_id, "update": update, "action": action, "wait": wait}
        self._write(events.Display, offset=self._log_size(), **fields)

    def _log_size(self) -> int:
        try:
            return self.task.files.log_path(self.rank).stat().st_size
        except OSError:
            return 0

    def _end(self, status: str, **fields: Any) -> None:
        self.waits.stop()
        self._finish_threads(status)
        self._record_end(status, **fields)

    def _finish_threads(self, status: str) -> None:
        left = FINISHES if self.threads_until is None else self.threads_until - time.monotonic()
        seconds = max(left, FINISHES_FAILED) if status == "done" else FINISHES_FAILED
        threads = self.task.threads
        with process.own_memory_limits():  # without it a thread may never begin, and who starts it waits
            finish_threads(threads.items, seconds, lambda frame: bool(waits_for(frame)), self._note_waiting)

    def _record_end(self, status: str, **fields: Any) -> None:
        process.flush_everything()
        seconds = time.monotonic() - self.began
        totals = {
            "steps": self.steps,
            "compiles": self.compiles,
            "recompiles": self.recompiles,
            "log_end": self._log_size(),
        }
        self.writer.write_last(
            events.End(t=time.time(), rank=self.rank, status=status, seconds=seconds, **totals, **fields)  # type: ignore[arg-type]
        )
        self.writer.close()

    def _end_waiting(self, frame: FrameType | None, error: Exception) -> None:
        """In another thread: the function waits for what nobody here can do, or its thread is gone."""
        stack = stacks.from_frame(frame, self.task.cell_names) if frame is not None else ()
        self._record_end("failed", error_type=type(error).__name__, error_text=str(error), frames=stack)
        os._exit(self._exit_code(FAILED))

    def _end_failed(self, error: BaseException) -> None:
        """Write the traceback to the log after the last record, which marks the end of the user's output, so that it is
        not shown as output."""
        error_type, error_text = stacks.describe(error)
        stack = stacks.from_exception(error, self.task.cell_names)
        self._end("failed", error_type=error_type, error_text=error_text, frames=stack)
        with contextlib.suppress(OSError):
            os.write(2, stacks.traceback_text(error).encode("utf-8", "replace"))


def _write_whole(files: RunFiles, ordinal: int, content: bytes) -> None:
    """Write a rank's results: complete, or not at all."""
    path = files.value_path(ordinal)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
