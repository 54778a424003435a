"""What a worker keeps back for its own end, where the function may have used up all that a process can have."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

RESERVED = 32  # descriptors with which results can still be written
_ENOUGH = 256  # below this many, none is kept back
_before: dict[int, tuple[int, int]] = {}


def keep_reserve() -> None:
    """Before the user's code: lower the limit of open files a little, and note the limit of the address space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _before[resource.RLIMIT_AS] = resource.getrlimit(resource.RLIMIT_AS)
    if soft >= _ENOUGH:  # not RLIM_INFINITY, which is negative
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - RESERVED, hard))


def free_descriptors() -> None:
    """After it: so many more files can be open than the function could have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= 0:
        wanted = soft + RESERVED
        with contextlib.suppress(OSError, ValueError):  # the function has raised it to what this account may have
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard) if hard >= 0 else hard))


def free_memory() -> None:
    """The address space is limited no more than before the function, as far as the system allows: transfers and
    threads need some."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        resource.setrlimit(resource.RLIMIT_AS, _before[resource.RLIMIT_AS])


def address_space(pid: int) -> int | None:
    """The limit of a process's address space in bytes, also of one that has ended and was not reaped (proc(5)); None:
    it has none, or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        found = next(line.split()[3] for line in lines if line.startswith("Max address space"))
        return int(found)
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def is_open(descriptor: int) -> bool:
    """Whether a number is an open file's."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
