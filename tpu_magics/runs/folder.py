"""The run folder as the launcher makes it, and `run.json`, which is replaced atomically.

Fields of `run.json`: `v` schema version, `id` name of the folder, `name`, `created` unix seconds, `status`, `pid` and
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
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import VERSION, to_json
from tpu_magics.runs.files import ENVIRONMENT, RunFiles, fallback_root, runs_root
from tpu_magics.runs.owner import owner_fields, this_owner
from tpu_magics.runs.temporary_folders import private_or_new

MAX_NAME = 80
_MAX_NAME_BYTES = 200  # a file name holds 255 bytes; the time before it and a number behind it need the rest
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RunFolder(RunFiles):
    """A run folder that this process writes. `warning`: what the user should know about its location, or ""."""

    def __init__(self, path: Path, info: dict[str, Any], warning: str = "") -> None:
        super().__init__(path)
        self.warning = warning
        self._info = info
        self._lock = threading.Lock()

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
        path, warning = _make_somewhere(wanted, name, created)
        folder = cls(path, _first_info(path, name, created, warning), warning)
        try:
            folder.update()
        except TpuMagicsError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

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
            _replace(self.info_path, to_json(self._info, indent=1) + b"\n")


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


def _make_somewhere(wanted: Path, name: str, created: float) -> tuple[Path, str]:
    try:
        return _make_unique(wanted, name, created), ""
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _cannot_write(wanted, error) from error
        path = _make_temporary(wanted, name, created)
        return path, f"{wanted} cannot be written ({error.strerror}): this run is stored in {path} instead."


def _make_temporary(wanted: Path, name: str, created: float) -> Path:
    root = Path(os.sep)
    try:
        root = fallback_root(wanted)
        return _make_unique(private_or_new(root), name, created)
    except OSError as error:
        raise _cannot_write(root, error) from error


def _make_unique(root: Path, name: str, created: float) -> Path:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created))}-{name}"
    number = 1
    while True:
        path = root / (first if number == 1 else f"{first}-{number}")
        try:
            path.mkdir(mode=0o700)
            return path
        except FileExistsError:
            number += 1


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


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _cannot_write(path.parent, error) from error


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


def free_text(folder: Path) -> str:
    """The free bytes of the file system that holds `folder` (or would), as text."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path("/"))  # noqa: PTH110 (Path.exists raises)
    try:
        found = os.statvfs(there)
    except OSError as error:
        return f"not available ({error.strerror}) bytes"
    return f"{found.f_bavail * found.f_frsize:,} bytes"
