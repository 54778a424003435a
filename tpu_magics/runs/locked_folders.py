"""Temporary folders that another process removes when their own process is gone.

Each has a file that is locked (flock(2)) as long as the process that made it, or a fork of it, lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "tpu_magics-preflight-"
_LOCK = "lock"  # the file's name
_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0)  # seconds before each try to remove a folder
_MADE = 60.0  # seconds after which a folder without that file is not being made, but was left half removed


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


def make() -> LockedFolder:
    """A new one. Those whose process is gone are removed first. Raises OSError where no folder can be made."""
    remove_orphans()
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
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


def remove_orphans() -> None:
    """Folders that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _MADE:
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
