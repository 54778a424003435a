"""TensorFlow's C++ log in a notebook: what of it is shown in the cell.

What lives here: telling apart the lines of that log. What does not: how they come to a stream (tee.py). A kernel gives
to its stderr what C++ writes to the descriptor; the run's log and the server's have all of it.

Not shown are lines of the level INFO, and what TensorFlow logs of an error that it raises in Python as well, with the
stack of each op behind it: the cell shows that error. All else is shown. The forms are those of TensorFlow 2.21.
"""

from __future__ import annotations

import re

_RECORD = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? [\w./-]+:\d+\] (.*)")
_RAISED_TOO = ("OP_REQUIRES failed at ", "Local rendezvous is aborting with status: ")
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called"
_AFTER_INFO = ("To enable the following instructions: ",)
_AFTER_ERROR = ("The op is created at:", 'File "', "\t", "Stack trace for op definition", "\n")
_MAY_BEGIN_ONE = tuple("IWEFTS\t0123456789")


class Shown:
    """What of the text that C++ writes is shown; it comes in pieces that end anywhere."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of a line that may be one of the log
        self._within = False  # a line whose beginning was shown
        self._leaves: tuple[str, ...] = ()  # beginnings of lines that belong to the record before, which is not shown

    def of(self, text: str) -> str:
        """What is shown now."""
        lines = (self._held + text).splitlines(keepends=True)
        self._held = ""
        return "".join(self._of_line(line) for line in lines)

    def rest(self) -> str:
        """What was held back, at the end."""
        held, self._held = self._held, ""
        return held

    def _of_line(self, line: str) -> str:
        whole = line.endswith("\n")
        if self._within:
            self._within = not whole
            return line
        if not whole and line.startswith(_MAY_BEGIN_ONE):
            self._held = line
            return ""
        if self._is_left_out(line):
            return ""
        self._within = not whole
        return line

    def _is_left_out(self, line: str) -> bool:
        if line.startswith(_PREAMBLE):
            return True
        if self._leaves and line.startswith(self._leaves):
            return True
        record = _RECORD.match(line)
        self._leaves = _after(record) if record else ()
        return bool(self._leaves)


def _after(record: re.Match[str]) -> tuple[str, ...]:
    """Of a record that is not shown: how the lines begin that belong to it."""
    if record[1] == "I":
        return _AFTER_INFO
    return _AFTER_ERROR if record[2].startswith(_RAISED_TOO) else ()
