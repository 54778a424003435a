"""Folders in the shared temporary folder that only this account can use; those of dead processes are removed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

from tpu_magics.runs.files import RunFiles, private_root, read_record
from tpu_magics.runs.owner import process_started, same_process

OWNER = "owner"  # file: pid, start time and machine of the process that has the folder
SCRATCH = "scratch-*"
LEFT = 60.0  # seconds after which a folder without that file is not being made, but was left


def make_private(path: Path) -> None:
    """Make a folder of mode 0700 in `private_root()`, and that one too; either may be there.

    Raises OSError where it cannot be made, or is not a folder that only this account could change: another may have
    taken the name.
    """
    for each in (path.parent, path) if path != private_root() else (path,):
        each.mkdir(mode=0o700, exist_ok=True)
        found = each.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others can change it", str(each))
        if found.st_mode & 0o077:  # made as a parent: mkdir's mode is for the last folder of a path only
            each.chmod(0o700)


def private_or_new(path: Path) -> Path:
    """`path` as `make_private` makes it; a new folder where another account has taken its name."""
    try:
        make_private(path)
    except PermissionError:
        return Path(tempfile.mkdtemp(prefix="tpu_runs-"))
    return path


def make_scratch(files: RunFiles) -> Path:
    """The scratch folder of a run, empty. Those of dead processes are removed first. Where it cannot be made,
    writing into it raises."""
    path = files.scratch_path
    remove_orphans(path.parent, SCRATCH)
    remove_scratch(files)  # of an attempt before this one
    try:
        make_private(path)
    except OSError:
        path = files.spare_scratch_path
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        note_owner(path)
    return path


def remove_scratch(files: RunFiles) -> None:
    """Remove the scratch folder of a run."""
    for path in (files.scratch_path, files.spare_scratch_path):
        shutil.rmtree(path, ignore_errors=True)


# -- owners -------------------------------------------------------------------------------------------------------


def note_owner(folder: Path) -> None:
    """Write into a folder that this process owns it."""
    (folder / OWNER).write_text(f"{os.getpid()} {process_started(os.getpid())} {_machine()}")


def remove_orphans(root: Path, pattern: str = "*") -> None:
    """Remove the folders that processes of this machine have left that are gone."""
    with contextlib.suppress(OSError):
        for folder in root.glob(pattern):
            with contextlib.suppress(OSError, ValueError):  # another process is making or removing it just now
                if _is_orphan(folder):
                    shutil.rmtree(RunFiles(folder).scratch_path, ignore_errors=True)
                    shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    try:
        pid, started, machine = read_record(folder / OWNER).decode().split()
    except FileNotFoundError:
        return time.time() - found.st_mtime > LEFT
    return machine == _machine() and not same_process(int(pid), int(started))


def _machine() -> str:
    """The host and its pid namespace: hosts may share the temporary folder, containers of one host too."""
    try:
        return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
