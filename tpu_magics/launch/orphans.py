"""Processes that a worker's function has started in a session of their own: its process group's signals miss them.

They are known by a variable of the environment that only this worker has set, so that nothing else is ever signalled,
and those with another environment by having been below the worker. (Children that are forked and run no other program
die with the worker: process.py.)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

Process = tuple[int, int]  # its pid and when it began, in ticks: pids are given out again

VARIABLE = "TPU_MAGICS_WORKER"
GRACE = 0.5  # seconds between TERM and KILL


def marker(run: Path, pid: int) -> str:
    """What the variable holds in the worker `pid` of a run, and in what it starts."""
    return f"{run.absolute()}:{pid}"


def set_marker(run: Path) -> None:
    """In a worker: mark what it will start."""
    os.environ[VARIABLE] = marker(run, os.getpid())


def descendants(pid: int) -> set[Process]:
    """What runs below a process. (A worker takes the place of a parent that has ended.)"""
    found: set[Process] = set()
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            began = _began(child)
            if began is not None and (child, began) not in found:
                found.add((child, began))
                waiting.append(child)
    return found


def end_orphans(run: Path, pid: int, known: Iterable[Process] = ()) -> None:
    """End what the worker `pid`, which has ended, has left; `known`: what was seen below it."""
    wanted = f"{VARIABLE}={marker(run, pid)}".encode()
    _end([*_marked(wanted), *_held(known)])


def end_descendants(pid: int) -> None:
    """End what runs below a process: also what its group's signal would end, which may be just leaving the group."""
    _end(_held(descendants(pid)))


def _end(descriptors: Iterable[int]) -> None:
    with contextlib.ExitStack() as stack:
        left = {stack.enter_context(_closing(descriptor)) for descriptor in descriptors}
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            for descriptor in left:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, number)
            left -= _ended(left, seconds)


def _held(processes: Iterable[Process]) -> Iterator[int]:
    """Descriptors of those that still run."""
    for pid, began in processes:
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone; a system without them
            continue
        if _began(pid) == began:
            yield descriptor
        else:
            os.close(descriptor)


def _children(pid: int) -> Iterator[int]:
    """Those that its threads have started. A system that does not tell has none."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def _began(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def _marked(wanted: bytes) -> Iterator[int]:
    """Descriptors of the processes with the mark; each is read again once it is held: pids are given out again."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _has(entry, wanted):
            try:
                descriptor = os.pidfd_open(int(entry.name))
            except (OSError, AttributeError):  # gone; a system without them
                continue
            if _has(entry, wanted):
                yield descriptor
            else:
                os.close(descriptor)


def _has(entry: Path, wanted: bytes) -> bool:
    try:
        return wanted in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another account's
        return False


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(descriptors: set[int], seconds: float) -> set[int]:
    """Those of them that end within this time (pidfd_open(2): they become readable)."""
    ended: set[int] = set()
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while ended != descriptors and (found := poll.poll(seconds * 1000)):
        for descriptor, _ in found:
            poll.unregister(descriptor)
            ended.add(descriptor)
    return ended
