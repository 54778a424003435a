"""One compile process, as its parent sees it: start, events, memory, end.

It leads a session of its own, so that Jupyter's interrupt reaches the parent only, which then ends it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.preflight.compile_environment import environment
from tpu_magics.preflight.compiler.job import Job, JobProgram
from tpu_magics.preflight.targets import Target
from tpu_magics.runs import temporary_folders
from tpu_magics.runs.temporary_folders import LockedFolder

TERM_PATIENCE, KILL_PATIENCE = 2.0, 10.0  # seconds that the process group has to end
CHILDREN_EVERY = 2.0  # seconds between looks for processes that the compile process started (it starts none)
LAST_LINES = 12
# Lines that libtpu always writes, and those that follow a crash and say nothing of its cause.
_NOISE = ("pjrt_api.cc", "RAW: ", "symbolize.stripped_domain", "*** Check failure stack trace", "    @ ", "PC: @")


@dataclass
class CompileProcess:
    """Started by `start`, ended by `stop`, which must be called. `folder`: private, gone after `stop`; `pipe`: its
    events."""

    popen: subprocess.Popen[bytes]
    folder: LockedFolder
    pipe: int
    peak: int = 0
    _pending: bytes = b""
    _looked: float = field(default=0.0)
    _children: list[Any] = field(default_factory=list)

    def events(self, timeout: float) -> list[dict[str, Any]] | None:
        """The events since the last call, after waiting up to `timeout` seconds; None when there will be no more."""
        ready = select.poll()  # select(2) knows no descriptor above 1023
        ready.register(self.pipe, select.POLLIN)
        if not ready.poll(timeout * 1000):
            return []
        data = os.read(self.pipe, 2**20)
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def resident(self) -> int:
        """Bytes of host memory that it and its children use now; `peak` is the maximum so far."""
        import psutil

        found = 0
        for one in (*self._own(), *self._descendants()):
            try:
                found += one.memory_info().rss
            except psutil.Error:
                continue  # it is gone
        self.peak = max(self.peak, found)
        return found

    def _own(self) -> list[Any]:
        import psutil

        try:
            return [psutil.Process(self.popen.pid)]
        except psutil.Error:
            return []

    def _descendants(self) -> list[Any]:
        """Updated every CHILDREN_EVERY seconds only, because it reads all of /proc."""
        import psutil

        if time.monotonic() - self._looked > CHILDREN_EVERY:
            self._looked = time.monotonic()
            try:
                self._children = [child for one in self._own() for child in one.children(recursive=True)]
            except psutil.Error:
                self._children = []
        return self._children

    def ended(self) -> int:
        """Its exit code, when it has closed its pipe: minus the signal that ended it."""
        try:
            return self.popen.wait(KILL_PATIENCE)
        except subprocess.TimeoutExpired:
            self._end_group(signal.SIGKILL)
            return self.popen.wait()

    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its stderr and stdout, without those that libtpu always writes."""
        text = (self.folder.path / "output").read_text(encoding="utf-8", errors="replace")
        lines = (line.rstrip() for line in text.splitlines() if line.strip())
        found = [line for line in lines if not any(noise in line for noise in _NOISE)]
        return tuple(dict.fromkeys(found[-LAST_LINES:]))

    def stop(self) -> None:
        """End it, if it runs, and remove its folder. Leaves nothing behind."""
        for number, patience in ((signal.SIGTERM, TERM_PATIENCE), (signal.SIGKILL, KILL_PATIENCE)):
            if self.popen.poll() is None:
                self._end_group(number)
                try:
                    self.popen.wait(patience)
                except subprocess.TimeoutExpired:
                    continue
        self._end_group(signal.SIGKILL)  # children of it, if any
        os.close(self.pipe)
        self.folder.remove()

    def _end_group(self, number: int) -> None:
        try:
            os.killpg(self.popen.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def start(
    graphs: Mapping[int, LoweredGraph],
    target: Target,
    versions: Mapping[str, str],
    packages: Sequence[str],
    flags: Sequence[str] = (),
) -> CompileProcess:
    """A process that compiles these graphs, by number. Call it with interrupts held. `flags`: libtpu's."""
    folder = temporary_folders.make_locked()
    try:
        _job(folder.path, graphs, target, versions).write(folder.path / "job.json")
        return _started(folder, environment(os.environ, folder.path, packages, flags))
    except BaseException:
        folder.remove()
        raise


def _started(folder: LockedFolder, variables: Mapping[str, str]) -> CompileProcess:
    reading, writing = os.pipe()
    try:
        with open(folder.path / "output", "wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tpu_magics.preflight.compiler", str(folder.path / "job.json"), str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder.path,  # with -m, the working directory is searched for modules first: not the notebook's
                env=variables,
                pass_fds=(writing,),
                start_new_session=True,
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return CompileProcess(popen, folder, reading)


def _job(folder: Path, graphs: Mapping[int, LoweredGraph], target: Target, versions: Mapping[str, str]) -> Job:
    (folder / "logs").mkdir()
    return Job(
        parent=os.getpid(),
        target=target.name,
        topology=target.topology,
        options=target.options,
        available=target.chip.available,
        folder=str(folder),
        versions=versions,
        programs=tuple(_program(folder, number, graph) for number, graph in graphs.items()),
    )


def _program(folder: Path, number: int, graph: LoweredGraph) -> JobProgram:
    file = folder / f"{number}.module"
    file.write_bytes(graph.module)
    return JobProgram(
        number=number,
        file=str(file),
        form=graph.form,
        hash=graph.hash,
        donors=graph.donors,
        replicas=graph.replicas,
        partitions=graph.partitions,
        parameters=graph.parameters,
    )
