"""Recognise a process by its pid and start time: the system reuses pids."""

from __future__ import annotations

import os
from pathlib import Path


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where it is gone or /proc is not available.

    Field 22 of /proc/<pid>/stat (man 5 proc). The command's name, field 2, may hold blanks and brackets.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def same_process(pid: int, started: int | None) -> bool:
    """Whether the process that had this pid and start time is still there (not: another that got its pid)."""
    found = process_started(pid)
    if found is not None:
        return started is None or found == started
    return not Path("/proc/self/stat").exists() and _answers(pid)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
