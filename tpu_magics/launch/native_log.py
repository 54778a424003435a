"""Filters TensorFlow's C++ log in the cell's output; the run's log and the server's log have all of it.

Lines of level INFO are hidden, and so are errors that TensorFlow also raises in Python, with the op stacks after them.
The patterns match TensorFlow 2.21.
"""

from __future__ import annotations

import re

_RECORD = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? [\w./-]+:\d+\] (.*)")
_RAISED_TOO = ("OP_REQUIRES failed at ", "Local rendezvous is aborting with status: ")
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called"
_AFTER_INFO = ("To enable the following instructions: ",)
_AFTER_ERROR = ("The op is created at:", 'File "', "\t", "Stack trace for op definition", "\n")
_MAY_BEGIN_ONE = tuple("IWEFTS\t0123456789")


class LogFilter:
    """Filters the text that C++ code writes, which arrives in arbitrary pieces."""

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
        held, self._pending = self._pending, ""
        return held

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
