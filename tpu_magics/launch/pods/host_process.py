"""A host's own process: it stands there for the notebook's, and forks that host's workers.

What lives here: from the parcel to the workers, and their watch until none is left. What does not: forking and watching
(launch/process.py, launch/supervise.py, as on one host), and the way to the notebook (carrier.py).

Started as `python -m tpu_magics.launch.pods.host_process FOLDER`; its standard input tells it to stop by its end.
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
from tpu_magics.launch import failure, process, supervise, worker
from tpu_magics.launch.pods import bundle, payload
from tpu_magics.launch.pods.host_task import BUNDLE, ENDED, REFUSED, RUNNING, TASK, HostState, HostTask
from tpu_magics.launch.relay import NoScreen, Relay
from tpu_magics.launch.state.snapshot import take_snapshot
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.private import make_scratch


def main(folder: Path) -> int:
    """Run this host's workers; what happens stands in the folder. Returns an exit code."""
    process.die_with_parent(os.getppid())
    task: HostTask = pickle.loads((folder / TASK).read_bytes())
    state = HostState(memory_total=host_memory(Path("/")).total or 0)
    try:
        with _temporary_folder(folder):
            made = _prepare(task, folder)
    except Exception as error:
        state.phase, state.refused = REFUSED, _error_fields(error)
        state.write(folder)
        return 1
    _HostRun(task, folder, made, state).until_end()
    process.flush_everything()
    os._exit(0)  # the frameworks' own ends take time, and nothing of them is needed


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """What imports leave until the interpreter's own end, which this process does not have, goes with the folder
    (torch 2.9: a folder of torch.distributed.nn's)."""
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


# -- becoming like the notebook's process -----------------------------------------------------------------------------


def _prepare(task: HostTask, folder: Path) -> worker.Task:
    os.environ["PJRT_DEVICE"] = task.device
    arrays = [bundle.map_file(folder / f"array-{number}.bin") for number in range(task.arrays)]
    space = _new_main(task.shell)
    got = bundle.unpack((folder / BUNDLE).read_bytes(), arrays, space)
    (folder / BUNDLE).unlink()
    os.environ.update(got.environment)
    payload.prepare_process(got, space)
    work = payload.rebuild_work(got, space, folder)
    for path in folder.glob("array-*.bin"):
        path.unlink()  # it stays mapped
    snapshot = take_snapshot(work.roots(), got.backend.object_state(), work.models)
    snapshot.elsewhere = snapshot.form() != got.form or got.form == -1
    return worker.Task(got.backend, work, RunFiles(folder), got.cell_names, got.cell_ids, snapshot)


def _new_main(shell: bool) -> dict[str, Any]:
    """The names of a new `__main__`, in which the notebook's come to lie; where it has a shell of IPython's there is
    one here, which displays and the cell's own magics need. It keeps no history."""
    _original_main.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    if shell:
        from IPython.core.history import HistoryManager
        from IPython.core.interactiveshell import InteractiveShell

        HistoryManager.enabled = False
        InteractiveShell.instance()
    return vars(sys.modules["__main__"])


_original_main: list[types.ModuleType] = []  # this file's own, which nobody else would keep


def worker_spec(task: HostTask, index: int, scratch: Path, environment: dict[str, str | None]) -> WorkerSpec:
    """What worker `index` of this host is told."""
    return WorkerSpec(
        index=index,
        count=task.workers,
        device=task.device,
        precision=task.precision,
        environment=environment,
        max_steps=task.steps,
        replicas=task.replicas,
        max_recompiles=task.max_recompiles,
        strict=task.strict,
        scratch=scratch / f"worker-{index}",
        cache=task.cache,
        meeting=scratch if task.rehearsed else None,
        first=task.first,
        world=task.world,
        store=task.store if task.hosts > 1 else None,
        address=task.address,
        collective_timeout=task.collective_timeout,
    )


def worker_environment(task: HostTask) -> dict[str, str | None]:
    """What this host needs (its repairs), and what it is told of the others."""
    found: dict[str, str | None] = dict(inspect_host().worker_environment)
    return {**found, **task.environment}


# -- running ----------------------------------------------------------------------------------------------------------


class _HostRun:
    """The workers of this host, and what is told of them."""

    def __init__(self, task: HostTask, folder: Path, made: worker.Task, state: HostState) -> None:
        self.task = task
        self.folder = folder
        self.made = made
        self.state = state
        self.kills = failure.oom_kills()
        state.memory_at_start = host_memory(Path("/")).available or 0
        self.watch: supervise.Watch | None = None

    def until_end(self) -> None:
        environment = worker_environment(self.task)
        children: list[supervise.Watched] = []
        process.flush_everything()
        with process.interrupts_held():
            try:
                scratch = make_scratch(self.made.files)
                for index in range(self.task.workers):
                    children.append(self._fork_one(index, scratch, environment))
            finally:
                self.watch = self._watching(children)
                if len(children) < self.task.workers:
                    self.watch.stop("worker")
        self._tell(RUNNING)
        self.watch.run()
        self._tell(ENDED)

    def _fork_one(self, index: int, scratch: Path, environment: dict[str, str | None]) -> supervise.Watched:
        files = self.made.files
        told = worker_spec(self.task, index, scratch, environment)
        pid = process.fork_worker(lambda: worker.main(self.made, told), files.stacks_path(told.number))
        return supervise.Watched(told.number, pid, told.number)

    def _watching(self, children: list[supervise.Watched]) -> supervise.Watch:
        relay = Relay(self.made.files, NoScreen())
        task = self.task  # on a TPU the runtime gives the ranks: any of the run's may be here
        ranks = range(task.world) if task.device == "TPU" else range(task.first, task.first + task.workers)
        return supervise.Watch(self.made.files, children, relay, onlooker=self, ranks=ranks, whole=False)

    # -- as an onlooker: called at each tick ----------------------------------------------------------------------
    def look(self) -> None:
        assert self.watch is not None
        if _is_closed(sys.stdin.fileno()):
            self.watch.stop("interrupt")
        if self._rows() != self.state.workers:
            self._tell(RUNNING)

    def settle(self) -> None:
        pass

    def close(self, why: str) -> None:
        pass

    def _rows(self) -> list[dict[str, Any]]:
        assert self.watch is not None
        return [_worker_row(one) for one in self.watch.workers]

    def _tell(self, phase: str) -> None:
        assert self.watch is not None
        kills = failure.oom_kills()
        self.state = replace(
            self.state,
            phase=phase,
            reason=self.watch.reason,
            workers=self._rows(),
            memory_low=self.watch.memory_low,
            oom_kills=None if kills is None or self.kills is None else kills - self.kills,
        )
        self.state.write(self.folder)


def _worker_row(one: supervise.Watched) -> dict[str, Any]:
    """A worker as the notebook is told of it; memory only once it has ended: it changes all the time."""
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
    """Whether the other end of a pipe was closed: the carrier said stop, or is gone."""
    readable, _, _ = select.select([descriptor], [], [], 0)
    return bool(readable) and not os.read(descriptor, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
