"""The process on a host that stands in for the notebook's: it unpacks the bundle, then forks and watches the workers.

Started as `python -m tpu_magics.launch.pods.host_process FOLDER`. It stops when its standard input is closed.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import inspect_host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import process, supervisor, worker
from tpu_magics.launch.errors import failure
from tpu_magics.launch.pods import bundle, payload
from tpu_magics.launch.pods.pod import BUNDLE, ENDED, REFUSED, RUNNING, TASK, HostState, HostTask
from tpu_magics.launch.state.snapshot import take_snapshot
from tpu_magics.launch.streams import NoScreen, Relay
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.temporary_folders import make_scratch


def main(folder: Path) -> int:
    """Run this host's workers and write their state to the folder. Returns an exit code."""
    process.die_with_parent(os.getppid())
    task: HostTask = pickle.loads((folder / TASK).read_bytes())
    state = HostState(memory_total=host_memory(Path("/")).total or 0)
    try:
        with _temporary_folder(folder):
            prepared = prepare(folder, task.plan.device, task.arrays, task.shell)
            for path in (folder / BUNDLE, *folder.glob("array-*.bin")):
                path.unlink()  # the mapping stays
    except Exception as error:
        state.phase, state.refused = REFUSED, _error_fields(error)
        state.write(folder)
        return 1
    _HostRun(task, folder, prepared, state).until_end()
    process.flush_everything()
    os._exit(0)  # without the frameworks' exit handlers, which take time


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """Keeps temporary files in a folder that is removed. Some imports remove theirs in an exit handler (torch 2.9: a
    folder of torch.distributed.nn), and this process skips exit handlers."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _error_fields(error: Exception) -> dict[str, str]:
    if isinstance(error, TpuMagicsError):
        return {"what": error.what, "why": error.why, "todo": error.todo}
    import traceback

    traceback.print_exception(error)
    return {"what": "", "why": f"{type(error).__name__}: {error}", "todo": ""}


# -- the state of the notebook's process ------------------------------------------------------------------------------


def prepare(folder: Path, device: str, count: int, shell: bool) -> worker.WorkerTask:
    """Unpack the bundle in a folder, with its `count` files of large arrays, and become like the notebook's process.
    `shell`: it has an IPython shell."""
    os.environ["PJRT_DEVICE"] = device
    arrays = [bundle.map_file(folder / f"array-{number}.bin") for number in range(count)]
    space = _new_main(shell)
    unpacked = bundle.unpack((folder / BUNDLE).read_bytes(), arrays, space)
    os.environ.update(unpacked.environment)
    payload.prepare_process(unpacked, space)
    work = payload.rebuild_work(unpacked, space, folder)
    snapshot = take_snapshot(work.roots(), unpacked.backend.object_state(), work.models)
    snapshot.compare(unpacked.structure)
    return worker.WorkerTask(unpacked.backend, work, RunFiles(folder), unpacked.cell_names, unpacked.cell_ids, snapshot)


def _new_main(shell: bool) -> dict[str, Any]:
    """The dict of a new `__main__` for the notebook's names. If the notebook has an IPython shell, so has this process,
    for displays and the cell's own magics, but without history."""
    _original_main.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    if shell:
        from IPython.core.history import HistoryManager
        from IPython.core.interactiveshell import InteractiveShell

        HistoryManager.enabled = False
        InteractiveShell.instance()
    return vars(sys.modules["__main__"])


_original_main: list[types.ModuleType] = []  # keeps this file's own globals alive


def worker_spec(task: HostTask, index: int, scratch: Path, environment: dict[str, str | None]) -> WorkerSpec:
    """The spec of worker `index` of this host."""
    return replace(
        task.plan.spec(index, scratch),
        count=task.workers,
        environment=environment,
        first=task.first,
        world=task.world,
        store=task.store if task.hosts > 1 else None,
        address=task.address,
    )


def worker_environment(task: HostTask) -> dict[str, str | None]:
    """The fixes for this host's environment, and the variables of the run."""
    environment: dict[str, str | None] = dict(inspect_host().worker_environment)
    return {**environment, **task.environment}


# -- running ----------------------------------------------------------------------------------------------------------


class _HostRun:
    """The workers of this host, and their state in the folder."""

    def __init__(self, task: HostTask, folder: Path, prepared: worker.WorkerTask, state: HostState) -> None:
        self.task = task
        self.folder = folder
        self.prepared = prepared
        self.state = state
        self.kills = failure.oom_kills()
        state.memory_at_start = host_memory(Path("/")).available or 0
        self.watch: supervisor.Supervisor | None = None

    def until_end(self) -> None:
        environment = worker_environment(self.task)
        children: list[supervisor.WorkerProcess] = []
        process.flush_everything()
        with process.interrupts_held():
            try:
                scratch = make_scratch(self.prepared.files)
                for index in range(self.task.workers):
                    children.append(self._fork_one(index, scratch, environment))
            finally:
                self.watch = self._watching(children)
                if len(children) < self.task.workers:
                    self.watch.stop("worker")
        self._write_state(RUNNING)
        self.watch.run()
        self._write_state(ENDED)

    def _fork_one(self, index: int, scratch: Path, environment: dict[str, str | None]) -> supervisor.WorkerProcess:
        files = self.prepared.files
        own = worker_spec(self.task, index, scratch, environment)
        pid = process.fork_worker(lambda: worker.main(self.prepared, own), files.stacks_path(own.number))
        return supervisor.WorkerProcess(own.number, pid, own.number)

    def _watching(self, children: list[supervisor.WorkerProcess]) -> supervisor.Supervisor:
        relay = Relay(self.prepared.files, NoScreen())
        task = self.task  # on a TPU the runtime assigns the ranks, so this host may have any of them
        ranks = range(task.world) if task.plan.device == "TPU" else range(task.first, task.first + task.workers)
        return supervisor.Supervisor(self.prepared.files, children, relay, observer=self, ranks=ranks, whole=False)

    # -- as an observer: called at each tick ----------------------------------------------------------------------
    def look(self) -> None:
        assert self.watch is not None
        if _is_closed(sys.stdin.fileno()):
            self.watch.stop("interrupt")
        if self._rows() != self.state.workers:
            self._write_state(RUNNING)

    def settle(self) -> None:
        pass

    def close(self, why: str) -> None:
        pass

    def _rows(self) -> list[dict[str, Any]]:
        assert self.watch is not None
        return [_worker_row(one) for one in self.watch.workers]

    def _write_state(self, phase: str) -> None:
        assert self.watch is not None
        kills = failure.oom_kills()
        self.state = replace(
            self.state,
            phase=phase,
            workers=self._rows(),
            memory_low=self.watch.memory_low,
            oom_kills=None if kills is None or self.kills is None else kills - self.kills,
        )
        self.state.write(self.folder)


def _worker_row(one: supervisor.WorkerProcess) -> dict[str, Any]:
    """A worker's row for the notebook; with memory only after its end, because memory changes all the time."""
    meter = one.meter if not one.alive else None
    return {
        "index": one.index,
        "rank": one.rank,
        "pid": one.pid,
        "exit": one.exit_code,
        "signal": one.signal,
        "ended": one.ended,
        "stopped_by_us": one.stopped_by_us,
        "good": one.good,
        "address_space": one.address_space,
        "peak_rss": meter.peak_rss if meter else None,
        "peak_pss": meter.peak_pss if meter else None,
    }


def _is_closed(descriptor: int) -> bool:
    """Whether the other end of a pipe was closed: the actor called `stop`, or has ended."""
    readable, _, _ = select.select([descriptor], [], [], 0)
    return bool(readable) and not os.read(descriptor, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
