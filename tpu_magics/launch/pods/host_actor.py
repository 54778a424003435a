"""The Ray actor on each host of a run: it starts the host's process, sends its files to the notebook, and stops it.

Every method but `close` returns within about a second, so that the notebook always gets an answer. The process ends
with the actor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.host import free_disk
from tpu_magics.launch.pods.pod import BUNDLE, DISPLAYS, LOG, OUTPUT, RECORDS, RESULTS, TASK, HostTask, read_state
from tpu_magics.launch.resume import saving
from tpu_magics.runs import temporary_folders
from tpu_magics.runs.files import RunFiles, private_root
from tpu_magics.runs.temporary_folders import remove_scratch, scratch_of

CHUNK_BYTES = 4 << 20  # of files in one answer, and as many again of records
POLL_INTERVAL = 0.02  # seconds
_WHOLE_LINES = (".jsonl",)  # sent in whole lines, since several hosts may write to one file
STOP_TIMEOUT = 5.0  # seconds, in which a process must end after `stop`
# Ray sets these for its own worker process, the number of threads to its CPUs (2.60).
_RAY_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")

FileChunk = tuple[str, int, bytes]
"""A file's name, an offset, and the bytes at that offset."""


class HostActor:
    """One host of a run."""

    def __init__(self, name: str) -> None:
        root = temporary_folders.private_or_new(private_root() / "hosts")  # pickles are loaded from there
        temporary_folders.remove_orphans(root)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
        temporary_folders.note_owner(self.folder)
        self.process: subprocess.Popen[bytes] | None = None

    def describe(self, ports: int) -> dict[str, Any]:
        """What the notebook needs to know about this host, with this number of free ports."""
        return {"pid": os.getpid(), "ports": list(_free_ports(ports)), "disk": free_disk(self.folder)}

    def start(self, task: HostTask, bundle: bytes, *arrays: Any) -> int:
        """Start this host's process; returns its pid. `arrays` come from the object store."""
        (self.folder / TASK).write_bytes(pickle.dumps(task))
        (self.folder / BUNDLE).write_bytes(bundle)
        for number, array in enumerate(arrays):
            with (self.folder / f"array-{number}.bin").open("wb") as file:
                file.write(memoryview(array))
        with (self.folder / LOG).open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tpu_magics.launch.pods.host_process", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        return self.process.pid

    def _environment(self) -> dict[str, str]:
        environment = {
            name: text for name, text in os.environ.items() if name not in _RAY_VARIABLES and name[:4] != "RAY_"
        }
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        return environment

    # -- what it writes -------------------------------------------------------------------------------------------
    def poll(self, offsets: Mapping[str, int], seconds: float) -> tuple[list[FileChunk], dict[str, Any]]:
        """What its files contain after these offsets, and its state. Waits for news for up to `seconds`.

        The state is read first: once the process has ended, its files are complete.
        """
        until = time.monotonic() + seconds
        before = self._state()
        while True:
            state = self._state()
            news = list(self._news(offsets))
            if news or state != before or time.monotonic() >= until or state["exit"] is not None:
                return news, state
            time.sleep(POLL_INTERVAL)

    def _state(self) -> dict[str, Any]:
        code = None if self.process is None else self.process.poll()
        scratch = scratch_of(RunFiles(self.folder))
        return {
            **read_state(self.folder),
            "exit": code,
            "can_save": saving.can_save(scratch),
            "saves_and_ends": saving.ends(scratch),
        }

    def _news(self, offsets: Mapping[str, int]) -> Iterator[FileChunk]:
        """Reads the records first, and sends them last, after the displays and output that they refer to. Records wait
        for a display that is too large for one answer."""
        records = list(self._chunks(self._named(RECORDS), offsets))
        others = list(self._chunks(self._named(DISPLAYS, *OUTPUT), offsets))
        sent = {**offsets, **{name: start + len(data) for name, start, data in others}}
        yield from others
        if all(path.stat().st_size <= sent.get(path.name, 0) for path in self._named(DISPLAYS)):
            yield from records

    def _named(self, *patterns: str) -> Iterable[Path]:
        for pattern in patterns:
            yield from sorted(self.folder.glob(pattern))

    def _chunks(self, paths: Iterable[Path], offsets: Mapping[str, int]) -> Iterator[FileChunk]:
        left = CHUNK_BYTES
        for path in paths:
            chunk = _read_new(path, offsets.get(path.name, 0), left)
            if chunk is not None:
                left -= len(chunk[2])
                yield chunk

    # -- the end --------------------------------------------------------------------------------------------------
    def save(self, how: str) -> None:
        """Have its ranks save a checkpoint at their next item. `how`: as in `saving.ask`."""
        saving.ask(scratch_of(RunFiles(self.folder)), how)

    def stop(self) -> None:
        """Have the process stop its workers; returns at once."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def results(self) -> list[tuple[str, int]]:
        """The result files for the notebook, with their sizes in bytes."""
        paths = [path for one in self.folder.glob(RESULTS) for path in (one, *one.rglob("*")) if path.is_file()]
        return [(str(path.relative_to(self.folder)), path.stat().st_size) for path in sorted(paths)]

    def fetch(self, name: str, offset: int, size: int) -> bytes:
        """A part of a result file."""
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def close(self) -> None:
        """End the process and remove all files."""
        if self.process is not None:
            self.stop()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)  # its workers die with it
                self.process.wait()
        remove_scratch(RunFiles(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)


def _read_new(path: Path, offset: int, most: int) -> FileChunk | None:
    try:
        if path.stat().st_size == offset:
            return None  # the usual case, without opening the file: a run may have thousands of displays
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = offset if offset <= size else 0  # emptied by the user's own command (see launch/streams.py)
            file.seek(start)
            data = file.read(min(most, size - start))
    except OSError:
        return None
    if path.suffix in _WHOLE_LINES:
        data = data[: data.rfind(b"\n") + 1]
    return (path.name, start, data) if data else None


def _free_ports(count: int) -> Iterator[int]:
    """Different free ports."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
            yield int(probe.getsockname()[1])
