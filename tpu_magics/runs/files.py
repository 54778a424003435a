"""Where runs are stored, the names of a run's files, and how a record file is opened."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import from_json

ENVIRONMENT = "TPU_MAGICS_RUNS"
MOST_FILE = 1_000_000_000  # bytes of a file that is read as a whole, where nothing smaller is known
MOST_INFO = 4_000_000  # bytes of a run.json: one of 1,000 ranks has 150,000
LIVE = frozenset({"starting", "running", "collecting"})


class RunFiles:
    """The names of the files of a run. Nothing is read or made here."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def info_path(self) -> Path:
        return self.path / "run.json"

    @property
    def supervisor_path(self) -> Path:
        """Records of the parent (memory, warnings): only one process may append to a file."""
        return self.path / "supervisor.jsonl"

    def events_path(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.jsonl"

    def log_path(self, rank: int) -> Path:
        """Standard output and error of a rank."""
        return self.path / f"rank-{rank}.log"

    def stacks_path(self, rank: int) -> Path:
        """Where faulthandler writes the stacks of a rank that hangs."""
        return self.path / f"rank-{rank}.stacks"

    def metrics_path(self, rank: int, number: int) -> Path:
        """A report of the runtime's metrics that a rank made, by its number."""
        return self.path / f"rank-{rank}-metrics-{number}.txt"

    @property
    def scratch_path(self) -> Path:
        """Temporary files of the workers: not in the run folder, which may be on a slow disk, and removed when the
        run has ended."""
        return _temporary(self.path, "scratch-")

    @property
    def spare_scratch_path(self) -> Path:
        """Used where that one cannot be made because another account has its name."""
        return self.path / "scratch"

    def value_path(self, rank: int) -> Path:
        """The pickled return value of a rank, until the notebook has read it."""
        return self.path / f"result-value-{rank}.pkl"

    @property
    def partial_path(self) -> Path:
        """The step of the results of a run that did not end well (--keep-partial)."""
        return self.path / "result-partial.json"

    def display_path(self, number: int) -> Path:
        """What rank 0 displayed, by its number."""
        return self.path / f"display-{number}.json"


def runs_root(cwd: Path | str | None = None) -> Path:
    """Where runs are kept: $TPU_MAGICS_RUNS, else `.tpu_runs` under the working directory."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return _at_home(chosen)
    return (Path(cwd) if cwd is not None else working_folder()).absolute() / ".tpu_runs"


def _at_home(chosen: str) -> Path:
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        raise TpuMagicsError(
            f"{ENVIRONMENT}={chosen} is not a valid folder.",
            "It begins with ~, but that account has no home folder here.",
            f"Set {ENVIRONMENT} to an absolute path: %env {ENVIRONMENT}=/tmp/tpu_runs",
        ) from error


def working_folder() -> Path:
    """The working directory, also where it was removed (`Path.cwd()` raises then)."""
    try:
        return Path.cwd()
    except OSError:  # it was removed, and mkdir(parents=True) must not create its old path again
        return Path("/proc/self/cwd")


def fallback_root(root: Path | str) -> Path:
    """Where the runs of `root` go when it cannot be written: always the same folder, so that they are found again."""
    return _temporary(Path(root))


def _temporary(path: Path, prefix: str = "") -> Path:
    """A folder of this account's in the temporary one that belongs to `path`."""
    digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:12]
    return private_root() / f"{prefix}{digest}"


def private_root() -> Path:
    """The folder of this account's in the temporary one. temporary_folders.py makes and checks it."""
    return Path(tempfile.gettempdir()) / f"tpu_runs-{os.getuid()}"


def open_regular(path: Path | str, follow: bool = True) -> BufferedReader:
    """A file, opened for reading; with `follow` also through a symbolic link. Raises OSError where it cannot be read,
    or is no regular file: a FIFO blocks its reader, and a device may act when it is opened, or have no end."""
    _require_regular(path, os.stat(path, follow_symlinks=follow))  # noqa: PTH116 (also a str)
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        _require_regular(path, os.fstat(opened))  # it may have been exchanged in between
    except OSError:
        os.close(opened)
        raise
    return os.fdopen(opened, "rb")


def read_regular(path: Path | str, most: int = MOST_FILE, follow: bool = True) -> bytes:
    """All of such a file. Raises OSError, also where it is larger than `most` bytes."""
    with open_regular(path, follow) as file:
        content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
        content += file.read(most + 1 - len(content)) if len(content) <= most else b""  # it grows, or is of /proc
        if len(content) > most:
            size = max(os.fstat(file.fileno()).st_size, len(content))
            text = f"it has {size / 1e6:,.0f} MB, and at most {most / 1e6:,.0f} MB are read"
            raise OSError(errno.EFBIG, text, str(path))
    return content


def _require_regular(path: Path | str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {_kind(found.st_mode)}, not a file", str(path))


def open_record(path: Path) -> BufferedReader:
    """A file of a run, opened for reading. Raises OSError as `open_regular` does, and for a symbolic link: a file in a
    run folder must not lead elsewhere."""
    return open_regular(path, follow=False)


def read_record(path: Path) -> bytes:
    """All of a file of a run. Raises OSError as `open_record` does."""
    with open_record(path) as file:
        return file.read()


def refused_record(path: Path) -> str:
    """Why `path` is not read although it is there, as a sentence; "" where it is a file, or not there."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) else f"{path.name} was not read: it is {_kind(mode)}, not a file."


def kind_of(path: Path) -> str:
    """What is there in place of a file: "a folder", "a named pipe"; "" for a file, or nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) else _kind(mode)


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "a device")


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
)


def read_info(path: Path) -> dict[str, Any]:
    """The content of a `run.json`; an empty dict where there is none, or it is invalid or too long to be one."""
    try:
        with open_record(path) as file:
            content = file.read(MOST_INFO + 1)
        info = from_json(content) if len(content) <= MOST_INFO else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def refused_info(path: Path) -> str:
    """Why a `run.json` is not read although it is there, as a sentence, or ""."""
    with contextlib.suppress(OSError):
        size = path.lstat().st_size
        if size > MOST_INFO:
            return (
                f"{path.name} was not read: it has {size / 1e6:,.1f} MB and at most {MOST_INFO / 1e6:.0f} MB are read."
            )
    return refused_record(path)
