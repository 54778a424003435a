"""Resources that a worker reserves for its end, since the function may use up all that a process can have."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

RESERVED = 32  # descriptors reserved for writing results
_ENOUGH = 256  # with a lower limit, none are reserved
_limits_before: dict[int, tuple[int, int]] = {}


def keep_reserve() -> None:
    """Before the user code: lower the limit of open files a little, and remember the limit of the address space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _limits_before[resource.RLIMIT_AS] = resource.getrlimit(resource.RLIMIT_AS)
    if soft >= _ENOUGH:  # not RLIM_INFINITY, which is negative
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - RESERVED, hard))


def free_descriptors() -> None:
    """After the user code: allow as many more open files as were reserved."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= 0:
        wanted = soft + RESERVED
        with contextlib.suppress(OSError, ValueError):  # the function raised it to the maximum of this account
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard) if hard >= 0 else hard))


def free_memory() -> None:
    """Restore the limit of the address space from before the user code, as far as the system allows: writing results
    and threads need some."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        resource.setrlimit(resource.RLIMIT_AS, _limits_before[resource.RLIMIT_AS])


def address_space(pid: int) -> int | None:
    """The limit of a process's address space in bytes, also of one that has ended but was not reaped (proc(5)); None if
    it has none, or it is not available."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        limit = next(line.split()[3] for line in lines if line.startswith("Max address space"))
        return int(limit)
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def is_open(descriptor: int) -> bool:
    """Whether the descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
