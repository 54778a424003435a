"""Ends processes that a worker's function started in sessions of their own, which signals to its group do not reach.

They are found by an environment variable that only this worker sets, so that nothing else is signaled; those with
another environment, as former descendants of the worker. (Forked children that run no other program die with the
worker: process.py.)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

Process = tuple[int, int]  # pid and start time in ticks: pids are reused

VARIABLE = "TPU_MAGICS_WORKER"
GRACE = 0.5  # seconds between TERM and KILL


def marker(run: Path, pid: int) -> str:
    """The value of the variable in worker `pid` of a run, and in the processes that it starts."""
    return f"{run.absolute()}:{pid}"


def set_marker(run: Path) -> None:
    """In a worker: mark the processes that it will start."""
    os.environ[VARIABLE] = marker(run, os.getpid())


def descendants(pid: int) -> set[Process]:
    """The descendants of a process. (A worker adopts orphaned descendants.)"""
    processes: set[Process] = set()
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            started = _start_time(child)
            if started is not None and (child, started) not in processes:
                processes.add((child, started))
                waiting.append(child)
    return processes


def end_orphans(run: Path, pid: int, known: Iterable[Process] = ()) -> None:
    """End what worker `pid` left behind after its end; `known`: descendants seen before."""
    wanted = f"{VARIABLE}={marker(run, pid)}".encode()
    _end([*_marked_pidfds(wanted), *_open_pidfds(known)])


def end_descendants(pid: int) -> None:
    """End the descendants of a process, also those that are just leaving its process group."""
    _end(_open_pidfds(descendants(pid)))


def _end(descriptors: Iterable[int]) -> None:
    with contextlib.ExitStack() as stack:
        left = {stack.enter_context(_closing(descriptor)) for descriptor in descriptors}
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            for descriptor in left:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, number)
            left -= _wait_for_end(left, seconds)


def _open_pidfds(processes: Iterable[Process]) -> Iterator[int]:
    """pidfds of those that still run."""
    for pid, started in processes:
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone; a system without them
            continue
        if _start_time(pid) == started:
            yield descriptor
        else:
            os.close(descriptor)


def _children(pid: int) -> Iterator[int]:
    """The children that its threads started; none if the system does not show them."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def _start_time(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def _marked_pidfds(wanted: bytes) -> Iterator[int]:
    """pidfds of the processes with the mark; each is checked again once it is open, since pids are reused."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _has_variable(entry, wanted):
            try:
                descriptor = os.pidfd_open(int(entry.name))
            except (OSError, AttributeError):  # gone; a system without them
                continue
            if _has_variable(entry, wanted):
                yield descriptor
            else:
                os.close(descriptor)


def _has_variable(entry: Path, wanted: bytes) -> bool:
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


def _wait_for_end(descriptors: set[int], seconds: float) -> set[int]:
    """Those that end within this time (pidfd_open(2): the descriptors become readable)."""
    ended: set[int] = set()
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while ended != descriptors and (ready := poll.poll(seconds * 1000)):
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            ended.add(descriptor)
    return ended
