"""Temporary folders that only this account can use, and that are removed when their process is gone: private folders by
their owner's pid and start time, locked folders by a file that is locked (flock(2)) as long as the process, or a fork
of it, lives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.runs.files import RunFiles, private_root, read_record
from tpu_magics.runs.owner import process_started, same_process

OWNER = "owner"  # file: pid, start time and machine of the process that has the folder
SCRATCH = "scratch-*"
LEFT, _LONG = 60.0, 600.0  # seconds after which what has no owner yet is not being made, but was left
_seen: dict[tuple[int, int, int], float] = {}  # when each was first seen as it is


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


def scratch_of(files: RunFiles) -> Path:
    """The scratch folder that `make_scratch` has made."""
    return files.spare_scratch_path if files.spare_scratch_path.exists() else files.scratch_path


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
        return was_left(found)
    return machine == _machine() and not same_process(int(pid), int(started))


def was_left(found: os.stat_result) -> bool:
    """Whether a file or folder is not being made just now, but was left by a process that is gone: it has been as it is
    for LEFT by this process's own clock, or for much longer by the time of day, which may have been set."""
    key = found.st_dev, found.st_ino, found.st_mtime_ns
    seen = time.monotonic() - _seen.setdefault(key, time.monotonic())
    return seen > LEFT or time.time() - found.st_mtime > _LONG


def _machine() -> str:
    """The host and its pid namespace: hosts may share the temporary folder, containers of one host too."""
    try:
        return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


# -- locked folders ---------------------------------------------------------------------------------------------------


LOCKED_PREFIX = "tpu_magics-preflight-"
_LOCK = "lock"  # the file's name
_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0)  # seconds before each try to remove a folder


@dataclass(frozen=True)
class LockedFolder:
    """Made by `make`. `lock`: the open file whose lock says that the folder is in use."""

    path: Path
    lock: int

    def remove(self) -> None:
        """With all that is in it, also what a process that is being killed still writes. To be called once."""
        for pause in _PAUSES:
            time.sleep(pause)
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
        os.close(self.lock)


def make_locked() -> LockedFolder:
    """A new one. Those whose process is gone are removed first. Raises OSError where no folder can be made."""
    remove_unlocked()
    while True:
        path = Path(tempfile.mkdtemp(prefix=LOCKED_PREFIX))
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            path.rmdir()
            raise
        with contextlib.suppress(OSError):  # a file system without locks: no process gets one there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return LockedFolder(path, lock)
        os.close(lock)  # another process removed it as an orphan, just before it was locked


def remove_unlocked() -> None:
    """Folders that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{LOCKED_PREFIX}*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                if was_left(path.stat()):
                    shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:
            continue  # another account's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            LockedFolder(path, lock).remove()
