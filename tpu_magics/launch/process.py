"""Forking a worker process and setting it up before user code runs.

A worker ignores SIGINT (Jupyter signals the whole process group, so an interrupt of another cell would reach it), leads
its own process group (so that its DataLoader workers end with it), and dies with the kernel.
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
STOP_SIGNAL = signal.SIGUSR2  # to a worker: stop after this step and write the weights
CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)  # faulthandler's
PARENT_EVERY = 0.5  # seconds between checks of a parent whose end sends no signal
UNRECORDED = 74  # exit code: the last record could not be written (sysexits.h EX_IOERR)
CRASHED = 70  # exit code: our own code in the worker failed (sysexits.h EX_SOFTWARE)


@contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Delay interrupts until the block ends, so that no fork and no load is left half done. Yields the list of delayed
    interrupts; code that handles them clears it.

    A signal mask is not enough in a process with threads: another thread takes the signal, and Python still runs its
    handler in the main thread. So the handler is replaced, which only the main thread can do.
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
    """Raise TpuMagicsError outside of the main thread: the death signal fires when the forking thread ends."""
    if threading.current_thread() is not threading.main_thread():
        raise TpuMagicsError(
            "Training can only be started from the main thread.",
            "The workers would be killed when the thread that started them ends.",
            "Run %%tpu_train in a normal cell, not in a subshell or a widget callback.",
        )


def flush_everything() -> None:
    """Flush Python's and C's output buffers: text buffered at the fork would appear twice."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass
    ctypes.CDLL(None).fflush(None)


def fork_worker(main: Callable[[], int], stack_file: Path) -> int:
    """Fork; the child runs `main` and exits with its exit code. Returns the child's pid.

    Call it from the main thread, with interrupts held and buffers flushed.
    """
    parent, numbers = os.getpid(), random.getstate()
    with warnings.catch_warnings():
        # Python 3.12+ warns about every fork of a process with threads. It is safe here: the child works in a new
        # thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = _fork()
    if pid:
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # the child did it first, or has ended
        return pid
    code = CRASHED
    try:
        become_worker(parent, stack_file)
        random.setstate(numbers)  # Python reseeds after a fork; NumPy and torch do not
        code = main()
    except BaseException:
        # An exception that passed this point would run the kernel's loop a second time.
        _write_crash(traceback.format_exc().encode("utf-8", "replace"), stack_file)
    finally:
        os._exit(code)


def _write_crash(text: bytes, stack_file: Path) -> None:
    """Write to the worker's output and to its stack file: the worker may have no output yet, or no free descriptor."""
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
            "The machine, the container or the account has reached its limit of processes or memory.",
            "End other programs and notebooks on this machine, or use fewer workers (-n 1), and run the cell again.",
        ) from error


def become_worker(parent: int, stack_file: Path) -> None:
    """Set up the child's process-wide state, in an order that never lets it outlive its kernel."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    gc.freeze()  # else the garbage collector writes to every inherited page
    close_sockets()
    skip_inherited_exit_handlers()
    dump_stacks_to(stack_file)
    os.register_at_fork(before=_remember_forking_thread, after_in_child=_set_up_grandchild)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CRASHED)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER), so that all processes started below
    this one can be found."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def skip_inherited_exit_handlers() -> None:
    """If a library calls C's `exit`, skip the exit handlers inherited from the notebook's libraries: they would wait
    for threads that a fork does not have, or crash (seen after JAX had run there). Handlers run from last to first:
    those of this worker's runtime, the flush of C's buffers, then `_exit`."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def close_sockets() -> None:
    """Close inherited sockets: while a worker has the kernel's ports open, a restart fails with "Address already in
    use". Their descriptors stay in use: the notebook's socket objects still exist here, and if they are closed later,
    they must not close a file with the same number."""
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

    Crash handlers that libraries installed in the notebook are removed: Ray's handler crashes itself after a notebook
    has left two clusters, and a SIGBUS would be reported as SIGSEGV without a line. `enable` alone would keep them: it
    does nothing if faulthandler is already enabled, as in every kernel.
    """
    faulthandler.disable()
    for number in CRASHES:
        signal.signal(number, signal.SIG_DFL)
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - stays open as long as the worker lives
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


# Threads that live as long as the worker; only their children can use the death signal.
lasting_threads: set[int] = set()
_forking: list[tuple[int, bool]] = []


def _remember_forking_thread() -> None:
    _forking[:] = [(os.getpid(), threading.get_ident() in lasting_threads)]


def _set_up_grandchild() -> None:
    """In a process forked by a worker (e.g. a DataLoader worker): die with the worker, and do not use its stack
    file."""
    parent, lasting = _forking[0]
    if lasting:
        die_with_parent(parent)
    else:
        threading.Thread(target=_die_with, args=(parent,), name="tpu_magics-parent", daemon=True).start()
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    """End this process when its parent has ended. For children of a thread that may end before its process: XLA's
    loaders iterate over a DataLoader in a thread, which starts the DataLoader workers."""
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)
