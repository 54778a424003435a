"""Append events to a record file. Nothing here raises into the training: a full disk must not end a ten-hour run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from tpu_magics.runs.events import Event, to_line


class EventWriter:
    """Appends events to `path`, for the rank `rank`.

    The file is opened by the first write, and belongs to the process that did this first write: in the children of
    that process (a DataLoader's workers) `write` does nothing, because only one process may append to a record file,
    and because a lock that another thread held at the fork would never be released there. So a writer may be made in
    the parent and then used in one child, or be made and used in the child. Any thread may write.

    `failed`: why nothing is written any more, or None. The first failure is final: a torn line may stand at the end
    of the file, and nothing must be glued to it.
    """

    def __init__(self, path: Path | str, rank: int) -> None:
        self.path = Path(path).absolute()
        self.rank = rank
        self.failed: str | None = None
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._pid: int | None = None
        self._closed = False
        self._lock = threading.RLock()

    @property
    def mine(self) -> bool:
        """Whether this process may write: it opened the file, or no process has yet."""
        return self._pid in (None, os.getpid())

    def write(self, event: Event) -> int:
        """Append one event. Returns the bytes written, 0 where it was not written. Never raises."""
        try:
            line = to_line(event)
        except Exception:  # a value whose own code raises or that has no end: this event is lost, the next is not
            return 0
        if not self.mine:
            return 0
        with self._lock:
            return self._append(line)

    def record(self, kind: type[Event], **fields: Any) -> None:
        """Write an event of this rank and this moment."""
        self.write(kind(round(time.time(), 3), self.rank, **fields))

    def write_last(self, event: Event) -> int:
        """Write the last record: tries again after a failure, on a line of its own."""
        with self._lock:
            torn, self.failed = self.failed is not None, None
            if torn:
                self._append(b"\n")
            return self.write(event)

    def close(self) -> None:
        """Close the file. Later writes do nothing."""
        if not self.mine:
            return
        with self._lock, contextlib.suppress(OSError):
            fd, self._fd, self._closed = self._fd, None, True
            if fd is not None and self._file == _identity(fd):
                os.close(fd)

    def _append(self, line: bytes) -> int:
        if self._closed or self.failed is not None:
            return 0
        try:
            fd = self._open()
            written = os.write(fd, line)
            while written < len(line):  # only a disk that is filling up splits a write; this one raises
                written += os.write(fd, line[written:])
        except OSError as error:
            self.failed = f"{self.path.name} could not be written: {error.strerror or error}"
            return 0
        return len(line)

    def _open(self) -> int:
        """The open file; opened again if it was closed: its number may belong to another file now."""
        if self._fd is None or self._file != _identity(self._fd):
            self._pid = os.getpid()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place is an error, and no wait
            self._fd = os.open(self.path, flags, 0o600)
            self._file = _identity(self._fd)
        return self._fd


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file an open descriptor is; None: it is not open."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
