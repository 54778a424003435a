"""One compile process, as its parent sees it.

What lives here: its environment, its start, its events, its memory, its end. What does not: what it does (compiler/),
and what is made of its events (compile_watch.py).

It leads a session of its own, so that Jupyter's interrupt reaches the parent alone, which then ends it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import Graph
from tpu_magics.preflight.compiler.job import Job, Program
from tpu_magics.preflight.targets import Target

# What a host, a framework or the person set for other processes: flags change programs, and the variables of a real TPU
# would make libtpu look for it.
NOT_INHERITED = (
    *("ALLOW_MULTIPLE_LIBTPU_LOAD", "CLOUD_TPU_", "ENABLE_PJRT", "JAX_", "JAXLIB_", "LIBTPU_", "MEGASCALE_", "PJRT_"),
    *("PT_XLA_", "TF_", "TPU_", "XLA_", "XRT_"),
)
TERM_PATIENCE, KILL_PATIENCE = 2.0, 10.0  # seconds that the process group has to end
CHILDREN_EVERY = 2.0  # seconds between looks for processes that the compile process started (it starts none)
LAST_LINES = 12
# What libtpu takes this host for. With v4, v5p or v6e here, the cost analysis of libtpu 0.0.21.1 ends the process
# ("File not found: .../tpu_chip_config_memfile_megachip_tccontrol"). The answers for a topology do not depend on it:
# those for v2, v4 and v6e came out the same with four values and none, from 0.0.21.1 and 0.0.52.
HOST = "v5litepod-8"
PREFIX = "tpu_magics-preflight-"
_ROOT = Path(__file__).resolve().parents[2]
# Lines that libtpu always writes, and those that follow a crash and say nothing of its cause.
_IDLE = ("pjrt_api.cc", "RAW: ", "symbolize.stripped_domain", "*** Check failure stack trace", "    @ ", "PC: @")


@dataclass
class CompileProcess:
    """Started by `start`, ended by `stop`, which must be called. `folder`: private, gone after `stop`; `lock`: says
    that it is in use; `pipe`: its events."""

    popen: subprocess.Popen[bytes]
    folder: Path
    lock: int
    pipe: int
    peak: int = 0
    _pending: bytes = b""
    _looked: float = field(default=0.0)
    _children: list[Any] = field(default_factory=list)

    def events(self, timeout: float) -> list[dict[str, Any]] | None:
        """What it told since the last look, waiting so many seconds for it; None when it will tell no more."""
        if not select.select([self.pipe], [], [], timeout)[0]:
            return []
        data = os.read(self.pipe, 2**20)
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def resident(self) -> int:
        """Bytes of host memory that it and its children hold now; the most so far is `peak`."""
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
        """Looked for now and then only: it reads all of /proc."""
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
        """The end of what it wrote to stderr and stdout, without what libtpu writes each time."""
        text = (self.folder / "output").read_text(encoding="utf-8", errors="replace")
        told = [line.rstrip() for line in text.splitlines() if line.strip() and not any(idle in line for idle in _IDLE)]
        return tuple(dict.fromkeys(told[-LAST_LINES:]))

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
        _remove(self.folder, self.lock)

    def _end_group(self, number: int) -> None:
        try:
            os.killpg(self.popen.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def start(
    graphs: Mapping[int, Graph], target: Target, versions: Mapping[str, str], packages: Sequence[str]
) -> CompileProcess:
    """A process that compiles these graphs, by number. Call it with interrupts held."""
    _remove_orphans()
    folder, lock = _new_folder()
    reading, writing = os.pipe()
    try:
        _job(folder, graphs, target, versions).write(folder / "job.json")
        with open(folder / "output", "wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tpu_magics.preflight.compiler", str(folder / "job.json"), str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,  # with -m, the working directory is searched for modules first: not the notebook's
                env=environment(os.environ, target, folder, packages),
                pass_fds=(writing,),
                start_new_session=True,
            )
    except BaseException:
        os.close(reading)
        _remove(folder, lock)
        raise
    finally:
        os.close(writing)
    return CompileProcess(popen, folder, lock, reading)


def environment(given: Mapping[str, str], target: Target, folder: Path, packages: Sequence[str]) -> dict[str, str]:
    """The variables of the process: those of this one, less what would change the compile, and the TPU's."""
    kept = {name: value for name, value in given.items() if not name.startswith(NOT_INHERITED)}
    path = [*packages, *kept.get("PYTHONPATH", "").split(os.pathsep), *(() if _installed() else (str(_ROOT),))]
    absolute = [str(Path(one).absolute()) for one in path if one]  # its working directory is another
    return {
        **kept,
        **target.environment,
        "TPU_ACCELERATOR_TYPE": HOST,
        "PYTHONPATH": os.pathsep.join(absolute),
        "TMPDIR": str(folder),
        "TPU_LOG_DIR": str(folder / "logs"),  # otherwise /tmp/tpu_logs, which is never emptied
    }


def _installed() -> bool:
    """This package lies where the interpreter looks for itself."""
    return str(_ROOT) in (*site.getsitepackages(), site.getusersitepackages())


def _job(folder: Path, graphs: Mapping[int, Graph], target: Target, versions: Mapping[str, str]) -> Job:
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


def _program(folder: Path, number: int, graph: Graph) -> Program:
    file = folder / f"{number}.module"
    file.write_bytes(graph.module)
    return Program(
        number=number,
        file=str(file),
        form=graph.form,
        hash=graph.hash,
        donors=graph.donors,
        replicas=graph.replicas,
        partitions=graph.partitions,
        parameters=graph.parameters,
    )


# -- the folder -------------------------------------------------------------------------------------------------------


def _new_folder() -> tuple[Path, int]:
    """With a file in it that is locked as long as this process lives: a kernel that is restarted removes nothing."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_orphans() -> None:
    """Folders whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
        except OSError:
            continue  # another account's, or just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            _remove(folder, lock)
