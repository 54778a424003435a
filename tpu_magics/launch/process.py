"""Forking a worker process, setting it up before user code runs, and reserving resources for its end.

A worker ignores SIGINT (Jupyter signals the whole process group, so an interrupt of another cell would reach it), leads
its own process group (so that its DataLoader workers end with it), and dies with the kernel. Its function may use up
all that a process can have. Its forked children die with it; programs that it starts are ended (descendants.py).
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import descendants, stacks

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
STACK_SIGNAL = signal.SIGUSR1
STOP_SIGNAL = signal.SIGUSR2  # to a worker: stop after this step and write the weights
CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)  # faulthandler's
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

    def seeded() -> int:
        random.setstate(numbers)  # Python reseeds after a fork; NumPy and torch do not
        return main()

    if pid == 0:
        end_as_worker(seeded, parent, stack_file)
    with suppress(OSError):  # the child did it first, or has ended
        os.setpgid(pid, pid)
    return pid


def end_as_worker(main: Callable[[], int], parent: int, stack_file: Path) -> NoReturn:
    """Make this process a worker that runs `main`, and end it with its exit code."""
    code = CRASHED
    try:
        become_worker(parent, stack_file)
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
    signal.set_wakeup_fd(-1)  # an event loop's, and often a socket
    close_sockets()
    skip_inherited_exit_handlers()
    dump_stacks_to(stack_file)
    _worker[:] = [(os.getpid(), descendants.start_time(os.getpid()))]
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
    they must not close a file with the same number. What is written to one (a multiprocessing.Pipe() writes to its
    descriptor) is an error, and not lost."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
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
_worker: list[tuple[int, int | None]] = []  # pid and start time


def _remember_forking_thread() -> None:
    _forking[:] = [(os.getpid(), threading.get_ident() in lasting_threads)]


def _set_up_grandchild() -> None:
    """In a process forked by a worker, or by such a process: die with the worker, and do not use its stack file.

    The death signal follows the thread that forked. So only children of the worker's lasting threads use it: the child
    of a process that ends at once, as daemons have it, lives on, and so do a DataLoader's workers that were started in
    a thread of XLA's loaders.
    """
    parent, lasting = _forking[0]
    if lasting and parent == _worker[0][0]:
        die_with_parent(parent)
    else:
        threading.Thread(target=_die_with_worker, name="tpu_magics-parent", daemon=True).start()
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def _die_with_worker() -> None:
    descendants.wait_for_end(*_worker[0])
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def forks_end_here() -> Iterator[None]:
    """A bare `os.fork()` within the block makes a second process that goes on with the caller's code. It ends with the
    block, as at the end of a script: it must not write this run's results, nor go on as a second kernel."""
    own = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != own:
            _end_fork(error)
        raise
    if os.getpid() != own:
        _end_fork(None)


def _end_fork(error: BaseException | None) -> NoReturn:
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            code = error.code or 0
        elif error is not None:
            os.write(2, stacks.traceback_text(error).encode("utf-8", "replace"))
        flush_everything()
    finally:
        os._exit(code & 0xFF)


# -- resources reserved for the end -----------------------------------------------------------------------------------


RESERVED = 32  # descriptors reserved for writing results
_ENOUGH_DESCRIPTORS = 256  # with a lower limit, none are reserved
_MEMORY = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_limits_before: dict[int, tuple[int, int]] = {}
_builtins_before: dict[str, Any] = {}
replaced_builtins: list[str] = []  # of Python's own, by the user code


def keep_reserve() -> None:
    """Before the user code: lower the limit of open files a little, and remember the limits of memory and Python's
    built-in functions."""
    _builtins_before.update(builtins.__dict__)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _limits_before.update((number, resource.getrlimit(number)) for number in _MEMORY)
    if soft >= _ENOUGH_DESCRIPTORS:  # not RLIM_INFINITY, which is negative
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft - RESERVED, hard))


def restore_builtins() -> None:
    """After the user code: with a `len` that it has replaced, threads would end without a word. Calls none of them."""
    for name, value in _builtins_before.items():
        if builtins.__dict__.get(name) is not value:
            builtins.__dict__[name] = value
            replaced_builtins.append(name)


def release_descriptors() -> None:
    """After the user code: allow as many more open files as were reserved."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= 0:
        wanted = soft + RESERVED
        with contextlib.suppress(OSError, ValueError):  # the function raised it to the maximum of this account
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard) if hard >= 0 else hard))


def restore_memory_limits() -> None:
    """Restore the limits of memory from before the user code, as far as the system allows: writing results and threads
    need some."""
    for number in _limits_before:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, _limits_before[number])


@contextmanager
def own_memory_limits() -> Iterator[None]:
    """Within it, the limits of memory are those from before the user code; then they are as they were, since the
    notebook explains a failure by them."""
    limits = {number: resource.getrlimit(number) for number in _MEMORY}
    restore_memory_limits()
    try:
        yield
    finally:
        for number, limit in limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, limit)


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
