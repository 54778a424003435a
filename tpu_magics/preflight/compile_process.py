"""One compile process, as its parent sees it: versions, environment, start, events, memory, end.

It leads a session of its own, so that Jupyter's interrupt reaches the parent only, which then ends it.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import site
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_magics.backends.frameworks import FRAMEWORKS
from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.chips import find_chips
from tpu_magics.preflight.compiler import Job, JobProgram
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


# -- the environment --------------------------------------------------------------------------------------------------


# In which libtpu compiles for a TPU that is not here, and looks for none.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # What libtpu takes this host for. With v4, v5p or v6e here, the cost analysis of libtpu 0.0.21.1 ends the process
    # ("File not found: .../tpu_chip_config_memfile_megachip_tccontrol"). The answers for a topology do not depend on
    # it: those for v2, v4 and v6e came out the same with four values and none, from 0.0.21.1 and 0.0.52.
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    # Otherwise "Internal error when accessing libtpu multi-process lockfile" as long as any other process of this host
    # has libtpu loaded, be it to compile (seen with 0.0.21.1 and 0.0.52). torch_xla sets it too.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Prefixes of names that a host, a framework or the user set for other processes: flags change programs, and the
# variables of a real TPU would make libtpu look for it.
NOT_INHERITED = (
    *("ALLOW_MULTIPLE_LIBTPU_LOAD", "CLOUD_TPU_", "ENABLE_PJRT", "ENABLE_RUNTIME_", "ENABLE_TFRT_", "ENABLE_TPU"),
    *("JAX_", "JAXLIB_", "LIBTPU_", "MEGASCALE_", "PJRT_", "PT_XLA_", "PTXLA_", "TF_", "TPU_", "VBAR_", "XLA_", "XRT_"),
)
# Older names of what begins with TPU_ today; libtpu 0.0.21.1 and 0.0.52 read them, and end at what they do not like.
NOT_INHERITED_EITHER = ("ALT", "CHIPS_PER_HOST_BOUNDS", "HOST_BOUNDS", "WRAP")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# What torch_xla itself puts into them when it is imported (torch_xla/__init__.py, 2.9.0): on any host, on one with a
# TPU, and on one with a TPU of the fifth generation.
_TORCH_XLA = ("--xla_cpu_enable_fast_math=false",)
_TORCH_XLA_ON_TPU = (
    "--xla_tpu_use_enhanced_launch_barrier=false",
    "--xla_latency_hiding_scheduler_rerun=1",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
    "--xla_tpu_enable_flash_attention=false",
)
_TORCH_XLA_ON_V5 = ("--xla_enable_async_all_gather=true", "--xla_enable_async_collective_permute=true")
_SET_BY_TORCH_XLA = frozenset((*_TORCH_XLA, *_TORCH_XLA_ON_TPU, *_TORCH_XLA_ON_V5))
_ROOT = Path(__file__).resolve().parents[2]


def torch_xla_flags(target: Target) -> tuple[str, ...]:
    """The flags that torch_xla sets for compiles on that TPU.

    Without them libtpu makes attention one kernel that keeps no scores, which torch_xla turns off: for f32 attention of
    8 x 12 x 2048 x 64 on a v5e the program needs 1813 MB with them and 505 MB without (libtpu 0.0.52; 0.0.21.1: the
    same to 1 MB).
    """
    return (*_TORCH_XLA_ON_TPU, *(_TORCH_XLA_ON_V5 if target.generation.startswith("v5") else ()))


def environment(
    given: Mapping[str, str], folder: Path, packages: Sequence[str], flags: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of the process: those of this one, without those that would change the compile, and the TPU's.
    `flags`: for libtpu."""
    kept = {
        name: value
        for name, value in given.items()
        if not name.startswith(NOT_INHERITED) and name not in NOT_INHERITED_EITHER
    }
    path = [*packages, *kept.get("PYTHONPATH", "").split(os.pathsep), *(() if _installed() else (str(_ROOT),))]
    absolute = [str(Path(one).absolute()) for one in path if one]  # its working directory is another
    return {
        **kept,
        **ENVIRONMENT,
        **({"LIBTPU_INIT_ARGS": " ".join(flags)} if flags else {}),
        "PYTHONPATH": os.pathsep.join(absolute),
        "TMPDIR": str(folder),
        "TPU_LOG_DIR": str(folder / "logs"),  # otherwise /tmp/tpu_logs, which is never emptied
    }


def flags_left_out(given: Mapping[str, str]) -> tuple[str, ...]:
    """Notes about the user's compiler flags, which the process does not get."""
    found = ((name, [one for one in given.get(name, "").split() if one not in _SET_BY_TORCH_XLA]) for name in FLAGS)
    return tuple(
        f"{name} ({' '.join(flags)}) was ignored in this compile; a run with it may compile a different program"
        for name, flags in found
        if flags
    )


def _installed() -> bool:
    """Whether the interpreter finds this package without PYTHONPATH."""
    return str(_ROOT) in (*site.getsitepackages(), site.getusersitepackages())


# -- versions ---------------------------------------------------------------------------------------------------------


NEEDED = {"jaxlib": (0, 6, 2), "libtpu": (0, 0, 17)}  # the oldest that this was run with
NEWER_PYTHON = (3, 11)  # of the oldest jaxlib above
INSTALL = "Install them with: pip install 'tpu-magics[preflight]'"
UPGRADE = "Install newer ones with: pip install -U 'tpu-magics[preflight]'"
ELSEWHERE = (
    "Run the preflight on another machine (it needs no TPU), and install there: pip install -U 'tpu-magics[preflight]'"
)
HOST_ROOT = Path("/")  # where this host's TPU is looked for


def compiler_versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """Versions by name. `packages`: folders that are searched before this interpreter's own.

    Raises TpuMagicsError where one is missing or too old.
    """
    found = {name: version for name in NEEDED if (version := _version(name, packages))}
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise _missing(missing)
    old = [name for name, least in NEEDED.items() if _numbers(found[name]) < least]
    if old:
        raise _old(old, found, packages)
    return found


def listed_versions(found: Mapping[str, str]) -> str:
    """ "jaxlib 0.10.2, libtpu 0.0.52"."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _version(name: str, packages: Sequence[str]) -> str:
    found = metadata.distributions(name=name, path=[*packages, *sys.path])
    return next((one.version for one in found), "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version.split("+")[0]))


def _missing(names: Sequence[str]) -> TpuMagicsError:
    if sys.version_info < NEWER_PYTHON:
        return TpuMagicsError(
            f"{' and '.join(names)} are not available for this Python ({sys.version_info[0]}.{sys.version_info[1]}).",
            "The TPU compiler is part of libtpu and is called through jaxlib. Both need Python 3.11 or newer.",
            "Run the preflight with Python 3.11 or newer, and install there: pip install -U 'tpu-magics[preflight]'",
        )
    are = "is" if len(names) == 1 else "are"
    return TpuMagicsError(
        f"{' and '.join(names)} {are} not installed.",
        "The TPU compiler is part of libtpu and is called through jaxlib. It needs no TPU.",
        INSTALL,
    )


def _old(names: Sequence[str], found: Mapping[str, str], packages: Sequence[str]) -> TpuMagicsError:
    least = ", ".join(f"{name} {'.'.join(map(str, NEEDED[name]))}" for name in names)
    return TpuMagicsError(
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} too old for a preflight.",
        f"Found: {listed_versions(found)}. Needed: {least} or newer.{_needed_here(packages)}",
        ELSEWHERE if _trains_here(packages) else UPGRADE,
    )


def _needed_here(packages: Sequence[str]) -> str:
    if not _trains_here(packages):
        return ""
    return " torch_xla uses the installed libtpu on this host's TPU, and may not work with a newer one."


def _trains_here(packages: Sequence[str]) -> bool:
    """Whether newer ones would take this host's TPU away from torch_xla; in folders of their own they take nothing."""
    return (
        not packages
        and bool(find_chips(HOST_ROOT))
        and any(_version(one.name, ()) for one in FRAMEWORKS.values() if one.libtpu)
    )
