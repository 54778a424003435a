"""What a worker does between the fork and its exit.

What lives here: becoming a rank, running the work, writing the results and the last event. What does not: the fork
itself (process.py), the work (work.py), and anything of the notebook's side.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.base import Backend, StepLimit, Watching, WorkerSpec
from tpu_magics.launch import frames, process, streams
from tpu_magics.launch.work import Work
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.writer import EventWriter

DONE, FAILED = 0, 1  # exit codes of a worker
NO_SYNC = (
    "the function ended without a single sync: everything it did ran as one graph at its end. End each step with "
    "torch_xla.sync(), or iterate over a loader that accelerator.prepare has wrapped."
)


@dataclass(frozen=True)
class Task:
    """What all workers of a run share. `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the
    front end's id of that cell."""

    backend: Backend
    work: Work
    files: RunFiles
    cell_names: Mapping[str, str] = field(default_factory=dict)
    cell_ids: Mapping[str, str] = field(default_factory=dict)


def main(task: Task, spec: WorkerSpec) -> int:
    """Be one worker; returns its exit code. Runs in the child's main thread, just after the fork."""
    return _Worker(task, spec).run()


class _Worker:
    """One worker process. Its rank is known once the runtime is up; until then it writes under its index."""

    def __init__(self, task: Task, spec: WorkerSpec) -> None:
        self.task = task
        self.spec = spec
        self.rank = spec.number
        self.started = time.time()
        self.writer = EventWriter(task.files.events_path(self.rank), self.rank)
        self.steps = 0
        self.compiles: int | None = None
        self.recompiles: int | None = None
        self.ranks = 1
        self.status = "done"
        self.hoisted: dict[str, Any] = {}

    def run(self) -> int:
        streams.redirect_descriptors(self.task.files.log_path(self.rank))
        streams.redirect_python()
        streams.forbid_input()
        streams.text_progress_bars()
        streams.redirect_displays(streams.Displays(self.task.files, self._announce, keep=self._leads()))
        try:
            self.task.backend.run_worker(self.spec, self._ready, self._train)
        except BaseException as error:
            self._end_failed(error)
            return FAILED
        self._end(self.status)
        return DONE

    def _leads(self) -> bool:
        """Whether this worker is taken for rank 0 until the ranks are known."""
        return self.spec.number == 0

    # -- on the rank's thread -----------------------------------------------------------------------------------
    def _ready(self, ordinal: int, world_size: int, device: str) -> None:
        process.lasting_threads.add(threading.get_ident())
        if ordinal != self.rank:
            self._adopt(ordinal)
        self.ranks = world_size
        self.hoisted = self._structures()
        self.task.work.install(self._note, self.spec.replicas)
        self._write(events.Start, pid=os.getpid(), device=device, world_size=world_size)
        self._phase("training")

    def _structures(self) -> dict[str, Any]:
        hoists = self.task.work.hoists
        own = {id(model) for model in hoists.models.values()} if hoists is not None else set()
        return {n: self.task.backend.structure(m) for n, m in self.task.work.models.items() if id(m) in own}

    def _adopt(self, ordinal: int) -> None:
        """Take the rank that the runtime gave: on a TPU it need not be the number of the process."""
        self.rank = ordinal
        self.writer = EventWriter(self.task.files.events_path(ordinal), ordinal)
        streams.redirect_descriptors(self.task.files.log_path(ordinal))
        streams.redirect_displays(streams.Displays(self.task.files, self._announce, keep=ordinal == 0))

    def _train(self, ordinal: int, replica: int) -> None:
        value = self.task.work.run(ordinal, replica) if replica else self._observed(ordinal)
        if self.status == "done":
            self._bring_home(ordinal, replica, value)

    def _observed(self, ordinal: int) -> Any:
        backend = self.task.backend
        value = None
        with backend.observing(self.writer, self._watching()) as watcher:
            try:
                value = self.task.work.run(ordinal, 0)
                if ordinal == 0:
                    streams.flush_figures()
            except StepLimit:
                self.status = "limit"
            except BaseException:
                watcher.close(read=False)
                raise
            finally:
                self.steps = watcher.total_steps
                self.compiles, self.recompiles = watcher.compiles, watcher.recompiles
                watcher.ended()
        if backend.finish() and not self.steps:
            self._note("no-sync", NO_SYNC)
        if self.spec.tracing is not None:
            self.status = "limit"  # what is on the device now are zeros: nothing of it comes home
        watcher.close()
        return value

    def _watching(self) -> Watching:
        spec, task = self.spec, self.task
        limits = {"cache": spec.cache, "max_steps": spec.max_steps, "max_recompiles": spec.max_recompiles}
        cells = {"cell_names": task.cell_names, "cell_ids": task.cell_ids}
        kind = {"rehearsed": spec.meeting is not None, "spmd": spec.spmd is not None, "tracing": spec.tracing}
        return Watching(spec.device, self.ranks, spec.precision, **limits, **cells, **kind)  # type: ignore[arg-type]

    def _bring_home(self, ordinal: int, replica: int, value: Any) -> None:
        if replica == 0:
            self._phase("collecting")
            self._leave_changed()
        results = self.task.work.results(ordinal, value, self.task.backend)
        _write_whole(self.task.files, ordinal, results)
        models = self.task.work.models
        if replica == 0 and models:
            if self.spec.meeting is not None:
                self._write(events.Digest, models=dict(self.task.backend.digests(models)))
            self.task.backend.collect_weights(models, self.task.files.path, ordinal)

    def _leave_changed(self) -> None:
        """A hoisted model whose structure the function changed stays here: without hoisting it would not come home
        either. (For a model of the notebook's own the same is an error, at home.)"""
        models = self.task.work.models
        for name, before in self.hoisted.items():
            if name in models and self.task.backend.structure(models[name]) != before:
                del models[name]
                self._note("not-home", f"`{name}` stays in the worker: the function changed its structure.")

    # -- events -------------------------------------------------------------------------------------------------
    def _write(self, kind: type[events.Event], **fields: Any) -> None:
        self.writer.write(kind(t=time.time(), rank=self.rank, **fields))

    def _phase(self, name: str) -> None:
        self._write(events.Phase, name=name)

    def _note(self, code: str, text: str) -> None:
        self._write(events.Warned, code=code, text=text)

    def _announce(self, file: str, display_id: str, update: bool, action: str, wait: bool) -> None:
        fields = {"file": file, "display_id": display_id, "update": update, "action": action, "wait": wait}
        self._write(events.Display, offset=self._log_size(), **fields)

    def _log_size(self) -> int:
        return os.fstat(1).st_size

    def _end(self, status: str, **fields: Any) -> None:
        process.flush_everything()
        seconds = time.time() - self.started
        totals = {
            "steps": self.steps,
            "compiles": self.compiles,
            "recompiles": self.recompiles,
            "log_end": self._log_size(),
        }
        self._write(events.End, status=status, seconds=seconds, **totals, **fields)
        self.writer.close()

    def _end_failed(self, error: BaseException) -> None:
        """The traceback goes to the log after the last record, which says where the user's output ends: so nobody who
        follows the log takes it for output."""
        error_type, error_text = frames.describe(error)
        stack = frames.from_exception(error, self.task.cell_names)
        self._end("failed", error_type=error_type, error_text=error_text, frames=stack)
        os.write(2, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))


def _write_whole(files: RunFiles, ordinal: int, content: bytes) -> None:
    """Write a rank's results: complete under their name, or not at all."""
    path = files.value_path(ordinal)
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
