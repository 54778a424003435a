"""The run folder as the launcher makes it, and `run.json`, which is replaced atomically.

Fields of `run.json`: `v` schema version, `id` name of the folder, `name`, `created` unix seconds, `order` the same, or
more where the clock was set back: after all runs that were there (by it they are in order), `status`, `pid` and
`pid_started` of the kernel, `kernel` its id and `notebook` its path ("" where they are not known), `plan`, `host`,
`versions`, `workers` (one object per rank: `rank`, `pid`, `exit`, `signal`, `peak_rss`, `peak_pss`), `ended` unix
seconds, `seconds`, `failure` (`what`, `why`, `todo`, `details`, or null), `models` (names updated in the notebook),
`warnings` (texts). Of a run on several hosts also `hosts` (`index`, `name`, `address`, `ranks`), `host` in each worker
(its index), and `sent` (bytes that went into the object store).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
import unicodedata
import weakref
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import VERSION, to_json
from tpu_magics.runs.files import ENVIRONMENT, RunFiles, fallback_root, runs_root
from tpu_magics.runs.index import next_order
from tpu_magics.runs.owner import owner_fields, this_owner
from tpu_magics.runs.temporary_folders import private_or_new

MAX_NAME = 80
_MAX_NAME_BYTES = 200  # a file name holds 255 bytes; the time before it and a number behind it need the rest
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RunFolder(RunFiles):
    """A run folder that this process writes. `warning`: what the user should know about its location, or ""; `opened`:
    the folder itself, opened when it was made."""

    def __init__(self, path: Path, info: dict[str, Any], opened: int, warning: str = "") -> None:
        super().__init__(path)
        self.warning = warning
        self._info = info
        self._lock = threading.Lock()
        self._opened = opened
        self.release = weakref.finalize(self, os.close, opened)

    @classmethod
    def create(cls, name: str, root: Path | str | None = None, cwd: Path | str | None = None) -> RunFolder:
        """Make the folder of a new run, mode 0700, and its `run.json` with status "starting".

        Where it cannot be made under `root` (by default `runs_root(cwd)`), it is made in a temporary folder, and
        `warning` names both. Raises TpuMagicsError, before anything is made, for a name that cannot be used, and
        where the disk is full.
        """
        check_name(name)
        created = time.time()
        wanted = Path(root).absolute() if root is not None else runs_root(cwd)
        path, opened, warning = _make_somewhere(wanted, name, created)
        folder = cls(path, _first_info(path, name, created, warning), opened, warning)
        folder._info["order"] = next_order(path.parent, created)
        try:
            folder.update()
        except TpuMagicsError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

    @property
    def own(self) -> RunFiles:
        """The files of the folder that this process has made, also where another folder has its name by now: in a place
        that others can write to, they can rename it and put theirs there. (Until `release`.)"""
        return RunFiles(f"/proc/self/fd/{self._opened}") if self.release.alive else RunFiles(self.path)

    @property
    def replaced(self) -> bool:
        """Whether another folder, or none, has its name."""
        try:
            return self.release.alive and not os.path.samestat(self.path.lstat(), os.fstat(self._opened))
        except OSError:
            return True

    @property
    def name(self) -> str:
        return str(self._info["name"])

    @property
    def info(self) -> dict[str, Any]:
        """A copy of the content of `run.json`."""
        with self._lock:
            return dict(self._info)

    def update(self, **fields: Any) -> None:
        """Merge `fields` into `run.json`. A reader sees the old file or the new one.

        Safe from any thread of the process that made the folder. Raises TpuMagicsError where it cannot be written;
        the fields are kept and go out with the next update.
        """
        if os.getpid() != self._info["pid"]:
            raise RuntimeError("only the process that made a run folder writes its run.json")
        with self._lock:
            self._info.update(fields)
            _replace(self.own.info_path, self.path, to_json(self._info, indent=1) + b"\n")


def check_name(name: str) -> None:
    """Raise TpuMagicsError where `name` cannot be the name of a run."""
    problem = _name_problem(name)
    if problem:
        raise TpuMagicsError(
            f"A run cannot be named {name[: MAX_NAME + 20]!r}.",
            f"The name is part of a folder's name, and {problem}.",
            f"Choose a name of 1 to {MAX_NAME} characters without a slash, for example --run-name first-try",
        )


def _name_problem(name: str) -> str:
    unprintable = any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in name)
    problems = (
        (not name.strip(), "it is empty"),
        (len(name) > MAX_NAME, f"it has {len(name)} characters, and at most {MAX_NAME} are possible"),
        ("/" in name, "it contains a slash"),
        (name.startswith("."), "it begins with a dot"),
        (unprintable, "it contains a control character"),
        (len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES, f"it takes more than {_MAX_NAME_BYTES} bytes"),
    )
    return next((text for found, text in problems if found), "")


def _make_somewhere(wanted: Path, name: str, created: float) -> tuple[Path, int, str]:
    """The path of the new folder, the opened folder, and a warning, or ""."""
    try:
        return *_make_unique(wanted, name, created), ""
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _cannot_write(wanted, error) from error
        path, opened = _make_temporary(wanted, name, created)
        return path, opened, f"{wanted} cannot be written ({error.strerror}): this run is stored in {path} instead."


def _make_temporary(wanted: Path, name: str, created: float) -> tuple[Path, int]:
    root = Path(os.sep)
    try:
        root = fallback_root(wanted)
        return _make_unique(private_or_new(root), name, created)
    except OSError as error:
        raise _cannot_write(root, error) from error


def _make_unique(root: Path, name: str, created: float) -> tuple[Path, int]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created))}-{name}"
    number = 1
    while True:
        path = root / (first if number == 1 else f"{first}-{number}")
        try:
            path.mkdir(mode=0o700)
            return path, _open_new(path)
        except FileExistsError:
            number += 1


def _open_new(path: Path) -> int:
    """Open the folder that was just made. Raises PermissionError where it is another one: who can write to the folder
    around it may be faster. (One of root's is this account's on mounts that belong to root.)"""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(opened).st_uid in (os.geteuid(), 0) and not os.listdir(opened):  # noqa: PTH208 (of a descriptor)
        return opened
    os.close(opened)
    raise PermissionError(errno.EPERM, "another account owns new folders there", str(path))


def _first_info(path: Path, name: str, created: float, warning: str) -> dict[str, Any]:
    return {
        "v": VERSION,
        "id": path.name,
        "name": name,
        "created": created,
        "status": "starting",
        **owner_fields(this_owner()),
        "plan": {},
        "host": {},
        "versions": {},
        "workers": [],
        "ended": None,
        "seconds": None,
        "failure": None,
        "models": [],
        "warnings": [warning] if warning else [],
    }


def _replace(path: Path, folder: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise (_cannot_write if os.path.lexists(folder) else _was_removed)(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> TpuMagicsError:
    if error.errno in _NO_SPACE:
        return TpuMagicsError(
            "The run folder could not be written: the disk is full.",
            f"{folder} is on a file system with {free_text(folder)} free ({error.strerror}).",
            f"Free some space, or set {ENVIRONMENT} to a folder on another disk, and run the cell again.",
        )
    return TpuMagicsError(
        "The run folder could not be written.",
        f"{folder}: {error.strerror or error}.",
        f"Set {ENVIRONMENT} to a folder that you can write, and run the cell again.",
    )


def _was_removed(folder: Path, _error: OSError) -> TpuMagicsError:
    return TpuMagicsError(
        "The run folder was removed while it was in use.",
        f"{folder} is not there any more, and with it what the run had written.",
        f"Remove folders of runs only when they have ended (%tpu_runs shows which), and run the cell again. If a "
        f"program empties this place by itself, set {ENVIRONMENT} to another one.",
    )


def free_text(folder: Path) -> str:
    """The free bytes of the file system that holds `folder` (or would), as text."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path("/"))  # noqa: PTH110 (Path.exists raises)
    try:
        found = os.statvfs(there)
    except OSError as error:
        return f"not available ({error.strerror}) bytes"
    return f"{found.f_bavail * found.f_frsize:,} bytes"
