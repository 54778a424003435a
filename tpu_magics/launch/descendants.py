"""The processes that a worker starts: they carry a mark that they cannot lose by leaving its group or session, and end
with it. Run as a program, this file waits for the end of a notebook's process, and then ends those of its run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # as a program it starts in 10 ms, without what it does not need
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

# The mark is the soft limit of "file locks" (getrlimit(2): RLIMIT_LOCKS has had no effect since Linux 2.4.25, and
# Python's `resource` has no name for it). It is inherited by forks and by programs, also by those that get another
# environment, group, session or parent, and /proc shows it.
RLIMIT_LOCKS = 10
_LIMIT = "Max file locks"
VARIABLE = "TPU_MAGICS_WORKER"  # the mark where that limit cannot be set (gVisor)
PID_BITS = 22  # pids are at most 2**22 (proc(5), pid_max)
RUN_BITS = 40

GRACE_SECONDS = 0.5  # seconds between TERM and KILL
ROUNDS = 4  # a process may start another while it is ended
PARENT_EVERY = 0.5  # seconds between checks of a parent, where its end cannot be waited for


def mark_of(run: Path, pid: int = 0) -> int:
    """The mark of what worker `pid` of a run starts; with pid 0, what the marks of all its workers begin with."""
    import hashlib

    digest = hashlib.sha256(os.fsencode(os.path.abspath(run))).digest()  # noqa: PTH100 (a Path is slow to import)
    return (int.from_bytes(digest[: RUN_BITS // 8], "big") | 1) << PID_BITS | pid


def set_mark(run: Path) -> None:
    """In a worker: mark the processes that it will start."""
    import resource

    mark = mark_of(run, os.getpid())
    try:
        resource.setrlimit(RLIMIT_LOCKS, (mark, resource.getrlimit(RLIMIT_LOCKS)[1]))
    except (OSError, ValueError):
        os.environ[VARIABLE] = str(mark)


def end_marked(mark: int) -> None:
    """End the processes with this mark (of a worker, or of a run), except for this one."""
    numbers = [signal.SIGTERM, signal.SIGKILL]
    for _ in range(ROUNDS):
        with contextlib.ExitStack() as stack:
            left = {stack.enter_context(_closing(descriptor)) for descriptor in _marked(mark)}
            if not left:
                return
            for number in numbers:
                for descriptor in left:
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(descriptor, number)
                left -= _wait_for_end(left, GRACE_SECONDS)
        numbers = [signal.SIGKILL]


def _marked(mark: int) -> Iterator[int]:
    """pidfds of the living processes with the mark; each is checked again once it is open, since pids are reused."""
    for name in [entry.name for entry in os.scandir("/proc")]:
        if name.isdigit() and int(name) != os.getpid() and _has_mark(name, mark):
            try:
                descriptor = os.pidfd_open(int(name))
            except (OSError, AttributeError):  # gone; a system without them
                continue
            if _has_mark(name, mark):
                yield descriptor
            else:
                os.close(descriptor)


def _has_mark(pid: str, mark: int) -> bool:
    found = _mark_in_limits(pid) or _mark_in_environment(pid)
    same = found == mark if mark & (2**PID_BITS - 1) else found >> PID_BITS == mark >> PID_BITS
    return found != 0 and same and _lives(pid)


def _mark_in_limits(pid: str) -> int:
    line = next((line for line in _read(f"/proc/{pid}/limits").splitlines() if line.startswith(_LIMIT)), "")
    value = line[len(_LIMIT) :].split()[:1]
    return int(value[0]) if value and value[0].isdigit() else 0


def _mark_in_environment(pid: str) -> int:
    parts = (part.partition("=") for part in _read(f"/proc/{pid}/environ").split("\0"))
    return next((int(value) for name, _, value in parts if name == VARIABLE and value.isdigit()), 0)


def _lives(pid: str) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # gone, or another account's
        return ""


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for_end(descriptors: set[int], seconds: float) -> set[int]:
    """Processes that end within this time (pidfd_open(2): the descriptors become readable)."""
    ended: set[int] = set()
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    until = time.monotonic() + seconds
    while ended != descriptors and (ready := poll.poll(max(0.0, until - time.monotonic()) * 1000)):
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            ended.add(descriptor)
    return ended


# -- the end of another process ---------------------------------------------------------------------------------------


def wait_for_end(pid: int, started: int | None) -> None:
    """Wait until a process has ended that had this start time (`start_time`)."""
    with contextlib.suppress(OSError, AttributeError):  # a system without pidfds
        descriptor = os.pidfd_open(pid)
        while start_time(pid) == started:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if any(event & select.POLLNVAL for _, event in poll.poll()):
                break  # somebody has closed all descriptors of this process, as daemons do
    while started is not None and start_time(pid) == started:
        time.sleep(PARENT_EVERY)


def start_time(pid: int) -> int | None:
    """When a process started, in ticks; None for one that has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


# -- a notebook that is killed ----------------------------------------------------------------------------------------


class Guard:
    """A process that outlives this one if it is killed, and then ends what the workers of a run have started. (Workers
    and their forks end by themselves.) In a session of its own: a kernel is killed with its group."""

    def __init__(self, run: Path) -> None:
        import subprocess

        parent = os.getpid()
        arguments = (str(mark_of(run)), str(parent), str(start_time(parent)))
        self.process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError, ValueError):  # no process can be started, or there is no Python (embedded)
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def close(self) -> None:
        """End it: the run has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    wait_for_end(int(sys.argv[2]), int(sys.argv[3]))
    end_marked(int(sys.argv[1]))
