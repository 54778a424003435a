"""Workers in new processes, where a fork of the notebook's process cannot use the device.

The run is packed once, as for another host. Each worker unpacks it; its large arrays lie in a file that all of them map
copy-on-write, so that the workers share a model's memory as forks do. `python -m tpu_magics.launch.spawned FOLDER` is
such a worker.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import process, streams, worker
from tpu_magics.runs.files import RunFiles

if TYPE_CHECKING:
    from tpu_magics.launch.run import TrainingRun
    from tpu_magics.launch.state.snapshot import StateSnapshot

_FILE = "spawned.pkl"


@dataclass(frozen=True)
class SpawnedTask:
    """What a worker reads. `parent`: the process with which it ends; `run`: the folder of the run; `arrays`: number of
    files with large arrays; `shell`: the notebook has an IPython shell."""

    parent: int
    run: Path
    spec: WorkerSpec
    arrays: int
    shell: bool


def write(run: TrainingRun, snapshot: StateSnapshot, folder: Path) -> int:
    """Write the packed run into a folder; returns the number of files with large arrays. Raises TpuMagicsError that
    names what cannot be pickled, or says that cloudpickle is missing."""
    try:
        from tpu_magics.launch.pods import payload
        from tpu_magics.launch.pods.pod import BUNDLE
    except ImportError as error:
        raise TpuMagicsError(
            "The workers cannot be started: this runtime does not survive a fork, and cloudpickle is missing.",
            f"Without a fork, each worker is a new process, to which the function is sent: {error}.",
            'Install it: %pip install "cloudpickle>=3"',
        ) from error
    bundle = payload.pack_run(run, snapshot, payload.PROCESSES)
    (folder / BUNDLE).write_bytes(bundle.data)
    for number, array in enumerate(bundle.arrays):
        (folder / f"array-{number}.bin").write_bytes(memoryview(array))
    return len(bundle.arrays)


def start(run: TrainingRun, spec: WorkerSpec, arrays: int, folder: Path) -> int:
    """Start a worker; returns its pid. `folder`: of the packed run."""
    own = folder / f"worker-{spec.index}"
    own.mkdir()
    task = SpawnedTask(os.getpid(), run.folder.path, spec, arrays, streams.running_shell() is not None)
    (own / _FILE).write_bytes(pickle.dumps(task))
    log = str(run.folder.log_path(spec.number))
    path = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    # Not a Popen: it would wait for the process as well as the supervisor.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", __name__, str(own)],
        {**os.environ, "PYTHONPATH": path},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
    )


def main(folder: Path) -> None:
    """Be the worker; does not return."""
    task: SpawnedTask = pickle.loads((folder / _FILE).read_bytes())
    files = RunFiles(task.run)
    process.end_as_worker(lambda: _work(task, folder.parent, files), task.parent, files.stacks_path(task.spec.number))


def _work(task: SpawnedTask, folder: Path, files: RunFiles) -> int:
    from tpu_magics.launch.pods import host_process

    prepared = host_process.prepare(folder, task.spec.device, task.arrays, task.shell)
    return worker.main(replace(prepared, files=files), task.spec)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
