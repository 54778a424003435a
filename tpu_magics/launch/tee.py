"""What is printed while a run goes on in this process: it is shown as ever, and kept in the run folder.

What lives here: the second way of Python's output. What does not: output of forked workers (streams.py), and what is
displayed. ipykernel's streams also get what C++ writes to the descriptors; a plain program's do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Log:
    """A log that is appended to, whole writes at a time, until the disk is full."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is printed within is not the person's, and is not kept."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def write(self, text: Any) -> None:
        """Append what a stream was given; never raises. Processes that were forked meanwhile write nothing."""
        if self._fd is None or self._paused or os.getpid() != self._pid:
            return
        data = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
        with suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size if self._fd is not None else 0

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@contextmanager
def kept(log: Log) -> Iterator[None]:
    """Within it the existing stdout and stderr also write to `log`. The objects are changed, not replaced: logging
    handlers, progress bars and the person's own variables hold them."""
    undo = [_teed(stream, log) for stream in dict.fromkeys((sys.stdout, sys.stderr)) if stream is not None]
    try:
        yield
    finally:
        for one in undo:
            one()


def _teed(stream: Any, log: Log) -> Callable[[], None]:
    original = stream.write
    own = vars(stream).get("write") if hasattr(stream, "__dict__") else None

    def write(text: Any) -> Any:
        log.write(text)
        return original(text)

    def undo() -> None:
        if stream.write is not write:
            return  # somebody else has put something in its place
        if own is None:
            del stream.write
        else:
            stream.write = own

    try:
        stream.write = write
    except AttributeError:  # a stream that cannot be changed is not kept
        return lambda: None
    return undo
