"""One worker process: how it is forked, and what it must be before any of the user's code runs in it.

What lives here: the fork, the process group, the death signal, inherited sockets, crash dumps. What does not: what the
worker does (worker.py), its output (streams.py), watching it (supervise.py).

A worker ignores SIGINT (Jupyter signals the whole process group, so another cell's interrupt would reach it), leads a
process group of its own (so that DataLoader workers go with it), and dies with the kernel.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tpu_magics.errors import TpuMagicsError

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
STACK_SIGNAL = signal.SIGUSR1
STOP_SIGNAL = signal.SIGUSR2  # to a worker: end with this step, and bring home what was learned
CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)  # faulthandler's
PARENT_EVERY = 0.5  # seconds between looks at a parent that no death signal tells of
UNRECORDED = 74  # exit code: the last record could not be written (sysexits.h EX_IOERR)
CRASHED = 70  # exit code: the worker's own machinery failed (sysexits.h EX_SOFTWARE)


@contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Hold an interrupt back until the block ends: half a fork or half a load would be worse than a late one. Gives
    the list of those that came; who answers them clears it.

    In a process with threads a signal mask does not do: another thread takes the signal, and Python runs its handler in
    the main thread all the same. So the handler is replaced; only the main thread can, and only it is interrupted.
    """
    late: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield late
        return
    old = signal.signal(signal.SIGINT, lambda number, _frame: late.append(number))
    try:
        yield late
    finally:
        signal.signal(signal.SIGINT, old if old is not None else signal.default_int_handler)
        if late:
            signal.raise_signal(signal.SIGINT)


def require_main_thread() -> None:
    """The death signal follows the forking thread, so it must be one that outlives the run."""
    if threading.current_thread() is not threading.main_thread():
        raise TpuMagicsError(
            "Training cannot be started from a thread.",
            "Workers are tied to the thread that forks them, and would be killed when it ends.",
            "Run %%tpu_train in a cell of its own (not from a subshell or a widget's callback).",
        )


def flush_everything() -> None:
    """Empty Python's and C's output buffers: what is buffered at the fork would appear twice."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass
    ctypes.CDLL(None).fflush(None)


def fork_worker(main: Callable[[], int], stack_file: Path) -> int:
    """Fork; the child runs `main` and leaves with its exit code, never returning. Returns the child's pid.

    Call it with interrupts held and buffers flushed, from the main thread.
    """
    parent, numbers = os.getpid(), random.getstate()
    with warnings.catch_warnings():
        # Python 3.12+ warns about every fork of a process with threads. We fork knowingly: the child's work runs in
        # a new thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = _fork()
    if pid:
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # the child was faster, or is gone already
        return pid
    code = CRASHED
    try:
        become_worker(parent, stack_file)
        random.setstate(numbers)  # Python seeds it anew after a fork; NumPy and torch do not
        code = main()
    except BaseException:
        # Anything that passed this point would run the kernel's own loop a second time.
        _tell_crash(traceback.format_exc().encode("utf-8", "replace"), stack_file)
    finally:
        os._exit(code)


def _tell_crash(text: bytes, stack_file: Path) -> None:
    """Into the worker's output, and beside its stacks: it may have no output yet, or no descriptor left for one."""
    with suppress(OSError):
        os.write(2, text)
    with suppress(OSError):
        os.closerange(0, 3)
        os.write(os.open(stack_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), text)


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        raise TpuMagicsError(
            f"A worker could not be forked: {error.strerror}.",
            "The machine, the container or the account has no room for another process, or not enough memory.",
            "End programs and other notebooks that run here, or use fewer workers (-n 1), and run the cell again.",
        ) from error


def become_worker(parent: int, stack_file: Path) -> None:
    """Set up the child's process-wide state, in an order that leaves no moment in which it could outlive its kernel."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    gc.freeze()  # the collector would otherwise write into every inherited page
    close_sockets()
    leave_out_inherited_exit_handlers()
    dump_stacks_to(stack_file)
    os.register_at_fork(before=_remember_forking_thread, after_in_child=_grandchild)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent goes (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CRASHED)


def adopt_orphans() -> None:
    """Take the place of parents below that have ended (prctl(2), PR_SET_CHILD_SUBREAPER), so that all that this process
    has started is found below it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_out_inherited_exit_handlers() -> None:
    """A library that calls C's `exit` ends this process with that status. What the notebook's libraries had registered
    for their end would wait for threads that a fork does not have, or crash (seen after JAX had run there). Handlers
    run from the last to the first: those of this worker's own runtime, C's buffers, the end."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def close_sockets() -> None:
    """Close inherited sockets: while a worker holds the kernel's ports, a restart fails with "Address already in
    use". Their numbers stay taken: the notebook's socket objects live on here, and what they close some day must not
    be a file that got the number."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if str(entry.readlink()).startswith("socket:"):
                os.dup2(nothing, int(entry.name), inheritable=False)
        except OSError:
            pass
    os.close(nothing)


def dump_stacks_to(path: Path) -> None:
    """Write Python stacks to `path` on a crash, and on `STACK_SIGNAL`.

    What libraries installed in the notebook for crashes goes: Ray's handler, where a notebook has left two clusters,
    crashes itself, and a rank's SIGBUS would be told as SIGSEGV with no line. `enable` alone would leave it in front:
    it does nothing where faulthandler is on already, as in every kernel.
    """
    faulthandler.disable()
    for number in CRASHES:
        signal.signal(number, signal.SIG_DFL)
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - stays open as long as the worker lives
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


# Threads that live as long as the worker; only their children may be tied to them by the death signal.
lasting_threads: set[int] = set()
_forking: list[tuple[int, bool]] = []


def _remember_forking_thread() -> None:
    _forking[:] = [(os.getpid(), threading.get_ident() in lasting_threads)]


def _grandchild() -> None:
    """In a process that a worker forked (a DataLoader worker): die with the worker, and never use its crash file."""
    parent, lasting = _forking[0]
    if lasting:
        die_with_parent(parent)
    else:
        threading.Thread(target=_die_after, args=(parent,), name="tpu_magics-parent", daemon=True).start()
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def _die_after(parent: int) -> None:
    """End this process when its parent has gone. For children of a thread that may end before its process: XLA's
    loaders iterate over a DataLoader in a thread, and start its workers there."""
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)
