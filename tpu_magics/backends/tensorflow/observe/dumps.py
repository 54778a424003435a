"""XLA's dumps: enabled once per process, and read as one record per compiled module."""

# Read and seen in TensorFlow 2.21: each compile writes `module_NNNN.a_inference_NAME_UID__....before_optimizations.txt`
# (of the FunctionDef `__inference_NAME_UID`), the assignment of its buffers, and a hundred other files. The first is
# written when XLA begins, the last when it has finished. In a folder that the user's XLA_FLAGS had named before,
# nothing is removed; XLA overwrites files of an earlier process, which the folder's time does not show.

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import CompileReport
from tpu_magics.runs import temporary_folders

_MODULE = re.compile(r"module_(\d+)\.(.*)$")
_FORBIDDEN = re.compile(r"\W", re.ASCII)
_UID = re.compile(r"_\d+(?=__)")
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*):$", re.MULTILINE)


@dataclass(frozen=True)
class DumpedModule:
    """One compile. `name`: XLA's; `function`: name of its FunctionDef, "" if unknown."""

    name: str
    function: str
    report: CompileReport

    def is_of(self, function: str) -> bool:
        """Whether it may be of this FunctionDef: XLA allows fewer characters in a name."""
        return self.name.startswith(f"a{_FORBIDDEN.sub('_', function[1:])}__")


class Dumps:
    """The dump folder of this process, or of the user (`theirs`); `known`: whether a FunctionDef of this name
    exists."""

    def __init__(self, folder: Path, known: Callable[[str], bool], theirs: bool = False) -> None:
        self.folder = folder
        self.known = known
        self.theirs = theirs
        self.time = 0  # of the folder, when it was read
        self._read: dict[Path, int] = {}  # texts that were read before, if they are not removed

    def changed(self) -> bool:
        """Whether anything was written since it was read. Takes about two microseconds in a folder of ours."""
        if self.folder.stat().st_mtime_ns != self.time:
            return True
        return any(_written(path) != written for path, written in self._read.items())

    def read(self) -> list[DumpedModule]:
        """The compiles since the last time, in the order in which they began; their files are removed."""
        groups: dict[int, list[Path]] = {}
        for path in self.folder.iterdir():
            if match := _MODULE.match(path.name):
                groups.setdefault(int(match[1]), []).append(path)
        found = [self._module(groups[number]) for number in sorted(groups)]
        self.empty()
        return [one for one in found if one is not None]

    def empty(self) -> None:
        """Remove the files, or note that they were read."""
        self.time = self.folder.stat().st_mtime_ns
        if self.theirs:
            self._read = {path: _written(path) for path in self.folder.iterdir() if path.name.endswith(NAMED)}
            return
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                path.unlink()
        self.time = self.folder.stat().st_mtime_ns

    def _module(self, paths: list[Path]) -> DumpedModule | None:
        text = next((path for path in paths if path.name.endswith(NAMED) and self._is_new(path)), None)
        if text is None:
            return None
        begun = _written(text)
        paths = [path for path in paths if _written(path) >= begun]
        times = [_written(path) for path in paths]
        graph = hlo.read(text)
        name = text.name.partition(".")[2]
        seconds = (max(times) - min(times)) / 1e9
        digest = hlo.fingerprint(graph)[:32] if graph is not None else ""
        return DumpedModule(name, self._function(name), CompileReport(digest, _memory(paths), seconds, graph))

    def _is_new(self, text: Path) -> bool:
        return self._read.get(text) != _written(text)

    def _function(self, name: str) -> str:
        """XLA adds an "a" before a name and any suffix after it."""
        candidates = ("_" + name[1 : match.end()] for match in _UID.finditer(name))
        return next((one for one in candidates if self.known(one)), "")


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def _memory(paths: list[Path]) -> dict[str, int] | None:
    """Bytes by use, from the buffer assignment after optimisation: lines `allocation 0: size 512, parameter 2, shape
    |f32[8,16]| at ShapeIndex {}, maybe-live-out:`."""
    path = next((path for path in paths if path.name.endswith("buffer-assignment.txt")), None)
    try:
        found = _ALLOCATION.findall(path.read_text("utf-8", "replace")) if path else []
    except OSError:
        return None
    sizes = [(int(size), what) for size, what in found]
    if not sizes:
        return None
    out = [(size, what) for size, what in sizes if "maybe-live-out" in what]
    return {
        "arguments": sum(size for size, what in sizes if what.startswith("parameter ")),
        "outputs": sum(size for size, what in out),
        "aliased": sum(size for size, what in out if what.startswith("parameter ")),
        "temporaries": sum(size for size, what in sizes if "preallocated-temp" in what or "thread-local" in what),
    }


# -- enabling the dumps ------------------------------------------------------------------------------------------------
# Seen in TensorFlow 2.21: XLA reads XLA_FLAGS when it first compiles, also where TensorFlow was imported before, and
# never again. TensorFlow itself counts traces, which are not compiles (a relaxed trace compiles once for each shape);
# the dump is the only source of compiles in a process that has imported TensorFlow.


FLAGS = "--xla_dump_hlo_as_text --xla_dump_disable_metadata"
NAMED = "before_optimizations.txt"
_VARIABLE = "XLA_FLAGS"
_TEXT = "--xla_dump_hlo_as_text"
_UNREAD = (
    "XLA_FLAGS sends XLA's dump to {folder}, but XLA wrote no HLO text there. Add --xla_dump_hlo_as_text to "
    "XLA_FLAGS, remove flags that select modules, and restart the kernel"
)
_TOO_LATE = (
    "XLA had already compiled before this run, and it reads XLA_FLAGS only once. Restart the kernel and run "
    "%tpu_init before the first compile"
)
_NONE_ON_TPU = "the TPU compiler wrote no dump to a folder on this host"


@dataclass(frozen=True)
class DumpSetup:
    """`folder`: where XLA dumps; None if it does not, with the `reason`. `theirs`: the user's XLA_FLAGS had named the
    folder, so its files are kept."""

    folder: Path | None
    reason: str = ""
    theirs: bool = False


_setups: list[DumpSetup] = []


def enable(device: str) -> DumpSetup:
    """Make XLA dump from now on; later calls return the same. `device`: "CPU" or "TPU"."""
    if not _setups:
        _setups.append(_enable(device))
    return _setups[0]


def _enable(device: str) -> DumpSetup:
    if "xla_dump_to" in os.environ.get(_VARIABLE, ""):
        return _user_folder(os.environ[_VARIABLE], device)
    try:
        folder = temporary_folders.make_locked()
    except OSError as error:
        return DumpSetup(None, f"no temporary folder could be created: {error.strerror or error}")
    dumps = folder.path / "dumps"
    dumps.mkdir(mode=0o700)
    try:
        with _flags(f'--xla_dump_to="{dumps}" {FLAGS}'):
            _compile(device)
    except BaseException as error:
        folder.remove()
        if not isinstance(error, Exception):
            raise
        return DumpSetup(None, f"a first compile failed ({type(error).__name__}: {error})"[:300])
    if not any(path.name.endswith(NAMED) for path in dumps.iterdir()):
        folder.remove()
        return DumpSetup(None, _TOO_LATE if device == "CPU" else _NONE_ON_TPU)
    atexit.register(_remove, folder, os.getpid())
    return DumpSetup(dumps)


def _user_folder(flags: str, device: str) -> DumpSetup:
    """The folder of the user's XLA_FLAGS, if a first compile shows that it can be read."""
    folder = _folder_in(flags)
    if folder is None:
        return DumpSetup(None, _UNREAD.format(folder="no folder"))
    before = _texts(folder)
    try:
        with _flags(_TEXT):  # without it there is no text if XLA_FLAGS asks for protos
            _compile(device)
    except Exception as error:
        return DumpSetup(None, f"a first compile failed ({type(error).__name__}: {error})"[:300])
    return (
        DumpSetup(folder, theirs=True) if _texts(folder) != before else DumpSetup(None, _UNREAD.format(folder=folder))
    )


def _folder_in(flags: str) -> Path | None:
    try:
        found = [one.partition("=")[2] for one in shlex.split(flags) if one.startswith("--xla_dump_to=")]
    except ValueError:  # an unclosed quotation
        found = []
    return Path(found[-1]) if found and found[-1] not in ("", "-", "sponge") else None


def _texts(folder: Path) -> dict[str, int]:
    """The modules' texts in the folder, with the time of each."""
    if not folder.is_dir():
        return {}
    return {one.name: one.stat().st_mtime_ns for one in folder.iterdir() if one.name.endswith(NAMED)}


def _remove(folder: temporary_folders.LockedFolder, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        folder.remove()


@contextmanager
def _flags(ours: str) -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = f"{before or ''} {ours}".strip()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def _compile(device: str) -> None:
    """A small compile on the device that will train."""
    import tensorflow as tf

    def canary(value: object) -> object:
        return tf.add(value, 1.0)

    found = tf.config.list_logical_devices(device)
    with tf.init_scope(), tf.device(found[0].name if found else None):
        tf.function(canary, jit_compile=True, autograph=False)(tf.zeros(3))
