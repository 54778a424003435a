"""Writes the output of a run in this process to its log too, while it is shown as usual.

ipykernel's streams also get what C++ code writes to the descriptors; those of a plain program do not.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tpu_magics.launch import streams

_STDERR = 2  # the descriptor
# Written after other output: once it arrives, all of that has arrived. Terminals show nothing for it.
_MARK = "\x1b[m\x1b[0m\x1b[m"


class _MarkTimeout:
    """How long to wait for the mark, in seconds: long if it arrived before, however busy the machine; short if it did
    not, because the descriptor was redirected."""

    seconds = 3.0
    known, doubted = 10.0, 0.5


class Log:
    """A log file, written in whole writes until the disk is full, and bounded as a worker's."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._path = path
        self._size = 0
        self._pid = os.getpid()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block, printed text is not logged: it does not come from user code."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def write(self, text: Any) -> None:
        """Append text from a stream; never raises. Processes forked in the meantime write nothing."""
        if self._fd is None or self._paused or os.getpid() != self._pid:
            return
        data = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
        with suppress(OSError):
            while data:
                written = os.write(self._fd, data)
                data, self._size = data[written:], self._size + written
        if self._size > streams.LOG_MOST:
            self._size = streams.bound_log(self._path) or 0

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size if self._fd is not None else 0

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@contextmanager
def record(log: Log) -> Iterator[None]:
    """Within the block, the existing stdout and stderr also write to `log`. The objects are changed, not replaced:
    logging handlers, progress bars and user variables refer to them. Output of C++ code is filtered."""
    with _tee(log.write):
        yield


def filtered() -> AbstractContextManager[None]:
    """Within the block, output of C++ code is filtered; nothing is logged."""
    return _tee(lambda _: None)


@contextmanager
def _tee(keep: Callable[[Any], None]) -> Iterator[None]:
    changed = [_TeeStream(stream, keep) for stream in dict.fromkeys((sys.stdout, sys.stderr)) if stream is not None]
    try:
        yield
    finally:
        for one in changed:
            one.undo()


class _TeeStream:
    """A stream that also passes its text to `keep`. A stream that cannot be changed is left unchanged."""

    def __init__(self, stream: Any, keep: Callable[[Any], None]) -> None:
        self._stream, self._keep, self._original = stream, keep, stream.write
        self._own = vars(stream).get("write") if hasattr(stream, "__dict__") else None
        # ipykernel's thread that reads what C++ code writes to the descriptor
        self._reader = getattr(stream, "watch_fd_thread", None)
        self._shown = LogFilter()
        self._heard = threading.Event()
        with suppress(AttributeError):
            stream.write = self.write

    def write(self, text: Any) -> Any:
        if self._reader is None or threading.current_thread() is not self._reader:
            self._keep(text)
            return self._original(text)
        if _MARK in text:
            self._heard.set()
            text = text.replace(_MARK, "")
        self._keep(text)
        shown = self._shown.feed(text)
        return self._original(shown) if shown else 0

    def undo(self) -> None:
        self._hear_all()
        if self._stream.write != self.write:
            return  # another program replaced it, or it could not be changed
        if self._own is None:
            del self._stream.write
        else:
            self._stream.write = self._own
        if rest := self._shown.flush():
            self._original(rest)

    def _hear_all(self) -> None:
        """Wait for the output of C++ code so far, which arrives by another thread."""
        if self._stream is not sys.stderr or self._reader is None or not self._reader.is_alive():
            return
        with suppress(OSError):
            os.write(_STDERR, _MARK.encode())
            came = self._heard.wait(_MarkTimeout.seconds)
            _MarkTimeout.seconds = _MarkTimeout.known if came else _MarkTimeout.doubted


# -- TensorFlow's C++ log ---------------------------------------------------------------------------------------------

# Patterns of TensorFlow 2.21.
_RECORD = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? [\w./-]+:\d+\] (.*)")
_RAISED_TOO = ("OP_REQUIRES failed at ", "Local rendezvous is aborting with status: ")
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called"
_AFTER_INFO = ("To enable the following instructions: ",)
_AFTER_ERROR = ("The op is created at:", 'File "', "\t", "Stack trace for op definition", "\n")
_MAY_BEGIN_ONE = tuple("IWEFTS\t0123456789")


class LogFilter:
    """Filters the text that C++ code writes, which arrives in arbitrary pieces.

    Hidden are lines of level INFO, and errors that TensorFlow also raises in Python, with the op stacks after them. The
    log of the run has all of it.
    """

    def __init__(self) -> None:
        self._pending = ""  # the beginning of a line that may belong to the log
        self._inside_shown_line = False  # the beginning of this line was shown
        # How lines begin that belong to the hidden record before.
        self._skipped_beginnings: tuple[str, ...] = ()

    def feed(self, text: str) -> str:
        """The part of the text to show now."""
        lines = (self._pending + text).splitlines(keepends=True)
        self._pending = ""
        return "".join(self._feed_line(line) for line in lines)

    def flush(self) -> str:
        """The pending text, at the end."""
        pending, self._pending = self._pending, ""
        return pending

    def _feed_line(self, line: str) -> str:
        whole = line.endswith("\n")
        if self._inside_shown_line:
            self._inside_shown_line = not whole
            return line
        if not whole and line.startswith(_MAY_BEGIN_ONE):
            self._pending = line
            return ""
        if self._is_left_out(line):
            return ""
        self._inside_shown_line = not whole
        return line

    def _is_left_out(self, line: str) -> bool:
        if line.startswith(_PREAMBLE):
            return True
        if self._skipped_beginnings and line.startswith(self._skipped_beginnings):
            return True
        record = _RECORD.match(line)
        self._skipped_beginnings = _after(record) if record else ()
        return bool(self._skipped_beginnings)


def _after(record: re.Match[str]) -> tuple[str, ...]:
    """For a hidden record: how the lines begin that belong to it."""
    if record[1] == "I":
        return _AFTER_INFO
    return _AFTER_ERROR if record[2].startswith(_RAISED_TOO) else ()
