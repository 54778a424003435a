"""The notebook's threads, which a forked worker does not have: what they were doing is finished before the fork, what
can work in the worker gets new threads there, and what cannot is named before the start.

Known are the writers, executors, pools and listeners of the table below. Code of other threads is not started again in
a worker: it could begin its work anew.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import logging.handlers
import multiprocessing.pool
import multiprocessing.process
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tpu_magics.backends.instances import instances
from tpu_magics.backends.threads import begin_thread
from tpu_magics.launch import object_graph
from tpu_magics.launch.state.fingerprints import attributes
from tpu_magics.runs.origin import is_library

DRAINS = 10.0  # seconds that writers have to write what was given to them
COMPUTES = 30.0  # seconds that the notebook's executors have for results that the function can reach
HELD = 1.0  # seconds that other threads have to release the locks that the function can reach
POLL = 0.01
UNUSED = 1.0  # seconds after which a thread that waits for work gets none
SAID = 2.0  # seconds after which it is said what a worker waits for at its end
# Threads of the kernel, of progress bars, and ours: no function waits for them.
_NOT_THE_USERS = frozenset(
    (
        "ipykernel",
        "IPython",
        "zmq",
        "tornado",
        "jupyter_client",
        "debugpy",
        "pydevd",
        "_pydevd_bundle",
        "pydevd_file_utils",
        "tqdm",
        "tpu_magics",
    )
)
_WAITED_FOR = (
    queue.Queue,
    queue.SimpleQueue,
    threading.Event,
    threading.Condition,
    threading.Semaphore,
    threading.Barrier,
    concurrent.futures.Future,
)
_LOCKS: tuple[Any, ...] = (type(threading.Lock()), type(threading.RLock()))


# -- what a thread does -----------------------------------------------------------------------------------------------


def module_of(thread: threading.Thread) -> str:
    """The package whose code the thread runs."""
    target = _target(thread)
    code = target if target is not None else type(thread)
    return str(getattr(code, "__module__", "") or "").partition(".")[0]


def is_users(thread: threading.Thread) -> bool:
    """Whether user code may wait for this thread."""
    return thread is not threading.main_thread() and module_of(thread) not in _NOT_THE_USERS


def _target(thread: threading.Thread) -> Any:
    """What it was started with; None where its class has a `run` of its own. (CPython 3.10 to 3.14 keep it until the
    thread ends.)"""
    return getattr(thread, "_target", None)


def _arguments(thread: threading.Thread) -> tuple[Any, ...]:
    return tuple(getattr(thread, "_args", None) or ())


def _is_of(thread: threading.Thread, module: str, name: str) -> bool:
    """Whether the thread is of this class, or runs this function or method."""
    target = _target(thread)
    target = getattr(target, "__func__", target)
    return any(
        (getattr(code, "__module__", ""), getattr(code, "__qualname__", "")) == (module, name)
        for code in (type(thread), target)
    )


def _objects_of(thread: threading.Thread) -> Iterator[Any]:
    """What the code of the thread can reach."""
    yield thread
    named = {str(number): value for number, value in enumerate(_arguments(thread))}
    codes = (_target(thread) or thread.run, getattr(thread, "function", None))  # the latter: of a Timer
    for code in codes:
        yield from (value for _, value in object_graph.reachable_objects(code, named))


def is_idle(thread: threading.Thread, frame: FrameType) -> bool:
    """Whether the thread has nothing to do until it is given something, or does nothing that user code waits for.
    `frame`: where it is."""
    if _is_of(thread, "concurrent.futures.thread", "_worker") and frame.f_code.co_name == "_worker":
        return True
    return module_of(thread) in _NOT_THE_USERS - {"tpu_magics"} or (_is_writer(thread) and _is_written(thread))


# -- writers ----------------------------------------------------------------------------------------------------------


class _Discarded:
    """Takes the place of a file while a worker traces: its values are zeros."""

    def write(self, _data: Any) -> None:
        pass

    def flush(self) -> None:
        pass


def _active_mlflow_run() -> Any:
    """The run that the notebook has started, or None."""
    with suppress(Exception):  # another version, or its server cannot be reached
        return sys.modules["mlflow"].active_run()
    return None


def _discard(thread: Any) -> None:
    thread._record_writer = _Discarded()
    if not _is_writer(thread):  # the notebook reads its queue
        thread._queue.put = lambda *_args, **_kwargs: None


def _queue_of(thread: threading.Thread) -> Any:
    listener = getattr(_target(thread), "__self__", None)
    return getattr(thread, "_queue", None) or getattr(listener, "queue", None) or getattr(listener, "_queue", None)


def _is_mlflows(thread: threading.Thread) -> bool:
    """Whether it sends what mlflow was given with asynchronous logging (mlflow 3.17)."""
    return _is_of(thread, "mlflow.utils.async_logging.async_logging_queue", "AsyncLoggingQueue._logging_loop")


def _is_writer(thread: threading.Thread) -> bool:
    """Whether it writes what is put in a queue of this process, and its code can be started again at any time.

    Not those that read a queue of multiprocessing (tensorboardX): they go on in the notebook, and read there what
    workers put in it."""
    known = _is_mlflows(thread) or any(
        _is_of(thread, module, name)
        for module, name in (
            ("tensorboard.summary.writer.event_file_writer", "_AsyncWriterThread"),
            ("logging.handlers", "QueueListener._monitor"),
        )
    )
    return known and isinstance(_queue_of(thread), (queue.Queue, queue.SimpleQueue))


def _is_tensorboardx(thread: threading.Thread) -> bool:
    return _is_of(thread, "tensorboardX.event_file_writer", "_EventLoggerThread")


def _is_written(thread: threading.Thread) -> bool:
    waiting = _queue_of(thread)
    if _is_tensorboardx(thread):
        return _waits_for_more(thread, waiting)
    counts = hasattr(waiting, "unfinished_tasks") and not _is_mlflows(thread)  # which does not tell what it has done
    return bool(waiting.unfinished_tasks == 0 if counts else waiting.empty())


def _waits_for_more(thread: threading.Thread, waiting: Any) -> bool:
    """Whether a thread has written all of a queue of multiprocessing. That counts an item until `get` has it; when
    `get` waits for the next one, it is written."""
    if waiting.qsize():
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "_poll":
        frame = frame.f_back
    return frame is not None


def drain_writers(seconds: float = DRAINS) -> None:
    """Let the writers of this process write all that was given to them, to their files."""
    writers = [thread for thread in threading.enumerate() if _is_writer(thread) or _is_tensorboardx(thread)]
    _wait(lambda: all(_is_written(one) or not one.is_alive() for one in writers), seconds)
    for thread in threading.enumerate():
        file = getattr(thread, "_record_writer", None)
        if file is not None and thread in writers:
            with suppress(Exception):
                file.flush()


def _restart(thread: threading.Thread) -> None:
    """Start a thread of the notebook in this process: the same object, to which others refer."""
    target, arguments, keywords = _target(thread), _arguments(thread), getattr(thread, "_kwargs", None)
    threading.Thread.__init__(
        thread, target=target, name=thread.name, args=arguments, kwargs=keywords, daemon=thread.daemon
    )
    thread.start()


# -- executors and pools ----------------------------------------------------------------------------------------------


def _executors(threads: Iterable[threading.Thread]) -> Iterator[Any]:
    """The executors that these threads work for. (CPython 3.10 to 3.14: weak references in their arguments.)"""
    for thread in threads:
        reference: Any = None
        if _is_of(thread, "concurrent.futures.thread", "_worker") and _arguments(thread):
            reference = _arguments(thread)[0]
        elif _is_of(thread, "concurrent.futures.process", "_ExecutorManagerThread"):
            reference = getattr(thread, "executor_reference", None)
        executor = reference() if callable(reference) else None
        if executor is not None:
            yield executor


def _renew_thread_executor(executor: Any) -> None:
    """Without threads and without the calls that wait: these run in the notebook. New calls start new threads."""
    executor._threads = set()
    executor._work_queue = queue.SimpleQueue()
    executor._idle_semaphore = threading.Semaphore(0)
    executor._shutdown_lock = threading.Lock()


def _renew_process_executor(executor: Any) -> None:
    if executor._shutdown_thread:
        return
    more = getattr(executor, "_max_tasks_per_child", None)
    concurrent.futures.ProcessPoolExecutor.__init__(
        executor,
        executor._max_workers,
        executor._mp_context,
        executor._initializer,
        executor._initargs,
        **({"max_tasks_per_child": more} if more is not None else {}),
    )


def _renew_pool(pool: Any) -> None:
    if pool._state != multiprocessing.pool.RUN:
        return
    more = {} if isinstance(pool, multiprocessing.pool.ThreadPool) else {"context": pool._ctx}
    multiprocessing.pool.Pool.__init__(
        pool, pool._processes, pool._initializer, pool._initargs, pool._maxtasksperchild, **more
    )


_RENEWED: tuple[tuple[type, Callable[[Any], None]], ...] = (
    (concurrent.futures.ThreadPoolExecutor, _renew_thread_executor),
    (concurrent.futures.ProcessPoolExecutor, _renew_process_executor),
    (multiprocessing.pool.Pool, _renew_pool),
)


class NotInWorker(RuntimeError):
    """A result that a thread of the notebook had not computed at the fork."""


def _refuse(result: Any, name: str) -> None:
    """Let who waits for a result of the notebook's raise an error: in this process nobody computes it."""
    error = NotInWorker(
        f"`{name}` was still being computed in the notebook when the worker was forked; its result stays there"
    )
    if isinstance(result, concurrent.futures.Future):
        result._condition = threading.Condition()
        with suppress(concurrent.futures.InvalidStateError):
            result.set_exception(error)
    else:
        result._event = threading.Event()
        result._success, result._value = False, error
        result._event.set()


def _is_pending(item: Any) -> bool:
    if issubclass(type(item), concurrent.futures.Future):
        return not item.done()
    return issubclass(type(item), multiprocessing.pool.ApplyResult) and not item.ready()


# -- before the fork --------------------------------------------------------------------------------------------------


@dataclass
class InheritedThreads:
    """The notebook's threads at a fork. `items`: what the function can reach, by name; `cells`: file name of a cell ->
    "In [n]"; `tracing`: nothing that the worker computes is meant to be kept."""

    items: Sequence[tuple[str, Any]] = ()
    cells: Mapping[str, str] = field(default_factory=dict)
    tracing: bool = False
    threads: list[threading.Thread] = field(default_factory=list)
    _mlflow_run: Any = None
    _serves: dict[int, threading.Thread] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)
    _locked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.threads = [thread for thread in threading.enumerate() if is_users(thread)]
        for thread in self.threads:
            if not _is_known(thread):
                for item in _objects_of(thread):
                    if issubclass(type(item), (*_WAITED_FOR, threading.Thread)):
                        self._serves.setdefault(id(item), thread)

    def problems(self) -> Iterator[str]:
        """What the function can reach and what does not work in a worker, as sentences."""
        named: set[int] = set()
        for name, item in self.items:
            thread = self._serves.get(id(item))
            if thread is not None and id(thread) not in named:
                named.add(id(thread))
                is_thread = item is thread
                subject = f"`{name}` is" if is_thread else f"`{name}` is used by"
                yield (
                    f"{subject} a thread of the notebook ({self.describe(thread)}), which does not run in a worker: "
                    "what waits for it there waits forever. Start it in the training function."
                )
            elif _runs_elsewhere(item):
                yield (
                    f"`{name}` is an event loop that runs in a thread of the notebook, which a worker does not have: "
                    "what is sent to it there never runs. Start the loop in the training function."
                )
        owned = {id(attributes(item).get("_iterator")) for _, item in self.items}  # a DataLoader's own is made anew
        for name, item in self.items:
            if id(item) not in owned and _reads_from_processes(item):
                yield (
                    f"`{name}` reads from processes of the notebook: each worker would take items that the others and "
                    "the notebook then lack. Make the iterator in the training function."
                )
            if id(item) in self._locked:
                yield (
                    f"`{name}` is locked, and stays locked in a worker: what acquires it there waits forever. Release "
                    "it before the run."
                )

    def describe(self, thread: threading.Thread) -> str:
        """A thread by its name, and the place of its code."""
        code = getattr(_target(thread) or thread.run, "__code__", None)
        if code is None:
            return thread.name
        path = self.cells.get(code.co_filename, Path(code.co_filename).name)
        return f"{thread.name}: `{code.co_name}`, {path}, line {code.co_firstlineno}"

    def server_of(self, objects: Iterable[Any]) -> str:
        """The thread of the notebook that one of these objects belongs to, "" for none."""
        thread = next((self._serves[id(one)] for one in objects if id(one) in self._serves), None)
        return "" if thread is None else self.describe(thread)

    def settle(self, say: Callable[[str], None]) -> None:
        """Before the fork: let threads write what they were given and compute what the function can reach, and say what
        will not work in a worker."""
        pending = [name for name, item in self.items if _is_pending(item)]
        if pending:
            say(f"Waiting for `{pending[0]}`, which is being computed in the notebook.")
            _wait(lambda: not any(_is_pending(item) for _, item in self.items), COMPUTES)
        drain_writers()
        self._mlflow_run = _active_mlflow_run()
        _flush(item for _, item in self.items)
        with self.at_rest():
            problems = list(self.problems())
        for problem in problems:
            say(problem)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within the block workers are forked: no other thread imports, or holds a lock that the function can reach.
        Nothing of the user's may be called in it."""
        if self.threads:
            _wait(lambda: not _others_import(), DRAINS)
        try:
            if self.threads:
                self._hold()
            yield
        finally:
            self._release()

    def _hold(self) -> None:
        until = time.monotonic() + HELD
        for lock in self._locks():
            if lock.acquire(timeout=max(0.0, until - time.monotonic())):
                self._held.append(lock)
            else:
                self._locked.add(id(lock))

    def _locks(self) -> list[Any]:
        """Without those that are locked for good, those of running threads, and those for which logging does it."""
        others = set(self._locked)
        for _, item in self.items:
            if issubclass(type(item), threading.Thread):
                others.add(id(getattr(item, "_tstate_lock", None)))
            elif issubclass(type(item), logging.Handler):
                others.add(id(item.lock))
        return [item for _, item in self.items if issubclass(type(item), _LOCKS) and id(item) not in others]

    def _release(self) -> None:
        held, self._held = self._held, []
        for lock in held:
            with suppress(RuntimeError):
                lock.release()

    # -- in the worker ------------------------------------------------------------------------------------------------
    def revive(self) -> None:
        """In the worker's main thread, just after the fork: release the locks, and start what can work here."""
        self._release()
        _reset_libraries()
        for thread in self.threads:
            with suppress(Exception):
                if self.tracing and hasattr(thread, "_record_writer"):
                    _discard(thread)
                if _is_writer(thread) and not (self.tracing and _is_mlflows(thread)):
                    _renew_queue(_queue_of(thread))
                    _restart(thread)
        for name, item in self.items:
            if _is_pending(item):
                _refuse(item, name)
        found = {id(one): one for one in (*_executors(self.threads), *(item for _, item in self.items))}
        for one in found.values():
            for kind, renew in _RENEWED:
                if issubclass(type(one), kind):
                    with suppress(Exception):
                        renew(one)

    def enter(self) -> None:
        """On the thread of the worker's function: mlflow forgets the notebook's run in a fork and in each new thread
        (3.17, utils/thread_utils.py), and would begin another."""
        if self._mlflow_run is not None and not self.tracing:
            with suppress(Exception):
                sys.modules["mlflow"].tracking.fluent._active_run_stack.get().append(self._mlflow_run)


_FORKS_ITSELF = frozenset(["wandb"])  # 0.31: its objects connect anew in a forked process


def _is_known(thread: threading.Thread) -> bool:
    """Whether a worker does well without this thread."""
    known = (
        ("concurrent.futures.thread", "_worker"),
        ("concurrent.futures.process", "_ExecutorManagerThread"),
        ("multiprocessing.pool", "Pool._handle_workers"),
        ("multiprocessing.pool", "Pool._handle_tasks"),
        ("multiprocessing.pool", "Pool._handle_results"),
        ("multiprocessing.pool", "worker"),
        ("multiprocessing.queues", "Queue._feed"),
        ("tensorboardX.event_file_writer", "_EventLoggerThread"),
    )
    if _is_writer(thread) or module_of(thread) in _FORKS_ITSELF:
        return True
    return any(_is_of(thread, module, name) for module, name in known)


def _runs_elsewhere(item: Any) -> bool:
    if not issubclass(type(item), asyncio.AbstractEventLoop) or not item.is_running():
        return False
    runs = getattr(item, "_thread_id", None)
    return any(is_users(one) for one in threading.enumerate() if one.ident == runs)


def _reads_from_processes(item: Any) -> bool:
    if not hasattr(type(item), "__next__"):
        return False
    lists = (value for value in getattr(item, "__dict__", {}).values() if issubclass(type(value), list))
    return any(isinstance(one, multiprocessing.process.BaseProcess) for value in lists for one in value[:1])


def _others_import() -> bool:
    """Whether another thread imports a module, whose lock would stay locked in a worker."""
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        while ident != own and frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                return True
            frame = frame.f_back  # type: ignore[assignment]
    return False


def _renew_queue(waiting: Any) -> None:
    """Another thread of the notebook may have held its lock at the fork."""
    if isinstance(waiting, queue.Queue):
        waiting.mutex = threading.Lock()
        for name in ("not_empty", "not_full", "all_tasks_done"):
            setattr(waiting, name, threading.Condition(waiting.mutex))


def _reset_libraries() -> None:
    """What multiprocessing does in the processes that it forks itself: its queues get new threads, its proxies new
    connections. And executors forget the notebook's threads, which they would wake at the end."""
    registry = getattr(sys.modules.get("multiprocessing.util"), "_afterfork_registry", {})
    for (_, _, reset), item in sorted(registry.items(), key=lambda pair: pair[0][:2]):
        if type(item).__module__.partition(".")[0] == "multiprocessing":
            with suppress(Exception):
                reset(item)
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    for lock in getattr(getattr(tqdm, "_lock", None), "locks", ()):
        if isinstance(lock, _LOCKS):  # the other is multiprocessing's, which its holder releases
            lock._at_fork_reinit()
    for module, table in (("thread", "_threads_queues"), ("process", "_threads_wakeups")):
        getattr(sys.modules.get(f"concurrent.futures.{module}"), table, {}).clear()


def _flush(items: Iterable[Any]) -> None:
    """Write what Python's files hold to the disk: at a fork both processes would, and a worker's end would lose it."""
    for item in items:
        if issubclass(type(item), io.IOBase):
            with suppress(Exception):  # closed, not writable, or a full disk
                item.flush()


def _wait(true: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


# -- the end of a worker ----------------------------------------------------------------------------------------------


def finish_threads(
    items: Iterable[tuple[str, Any]],
    seconds: float,
    is_waiting: Callable[[FrameType], bool],
    say: Callable[[str], None],
) -> None:
    """At the end of a worker, which no thread survives: let its threads write what they were given, and end as in
    Python: executors, and all threads that are no daemons.

    Args:
        items: what the function can reach.
        seconds: how long at most.
        is_waiting: whether a thread at this frame waits for something without a limit; such a thread is not waited for.
        say: shows what takes long, and what has not ended.
    """
    began = time.monotonic()
    drain_writers(min(seconds, DRAINS))
    ended = threading.Event()

    def end() -> None:
        try:
            _shut_down([item for _, item in items])
        finally:
            ended.set()

    if begin_thread(end):
        ended.wait(min(seconds, POLL))
    else:
        ended.set()
        say("No thread could be started at the end: what the function's files and executors still held is lost.")
    told = False
    while (threads := _own_threads()) or not ended.is_set():
        passed, names = time.monotonic() - began, _names(threads)
        if passed > seconds or (passed > UNUSED and threads and not _busy(threads, is_waiting)):
            say(f"Threads that the function started have not ended, and end with the worker: {names or 'executors'}.")
            return
        if passed > SAID and names and not told:
            told = True
            say(f"The function has returned. Waiting for the threads that it started: {names}.")
        time.sleep(POLL)


def await_threads(seconds: float, is_waiting: Callable[[FrameType], bool], say: Callable[[str], None]) -> None:
    """On the thread of the worker's function, before its results are taken: let code of the user's end that runs in
    threads that are no daemons, since what it changes belongs to the results. Arguments as above."""
    began, told = time.monotonic(), False
    while True:
        busy = [one for one in _busy(_own_threads(), is_waiting) if _runs_users_code(one)]
        passed = time.monotonic() - began
        if not busy or passed > seconds:
            return
        if passed > SAID and not told:
            told = True
            say(f"The function has returned. Waiting for the threads that it started: {_names(busy)}.")
        time.sleep(POLL)


def finish_processes(seconds: float, say: Callable[[str], None]) -> None:
    """On the thread of the worker's function, with which its processes end: let those of executors compute what they
    were given, and those of `multiprocessing` end that are no daemons, as Python does. `seconds`, `say`: as above."""
    began, told = time.monotonic(), False
    futures = sys.modules.get("concurrent.futures.process")
    if futures is not None and futures._threads_wakeups:
        begin_thread(futures._python_exit)
    while processes := _own_processes():
        passed, names = time.monotonic() - began, ", ".join(sorted(one.name for one in processes))
        if passed > seconds:
            say(f"Processes that the function started have not ended, and end with the worker: {names}.")
            return
        if passed > SAID and not told:
            told = True
            say(f"The function has returned. Waiting for the processes that it started: {names}.")
        time.sleep(POLL)


def _busy(threads: Sequence[threading.Thread], is_waiting: Callable[[FrameType], bool]) -> list[threading.Thread]:
    frames = sys._current_frames()
    return [one for one in threads if (frame := frames.get(one.ident or 0)) and not is_waiting(frame)]


def _runs_users_code(thread: threading.Thread) -> bool:
    if isinstance(thread, threading.Timer):
        return True
    frame = sys._current_frames().get(thread.ident or 0)
    called = (one.f_code for one, _ in traceback.walk_stack(frame)) if frame is not None else ()
    return any(not is_library(code.co_filename, code.co_name) for code in called)


def _names(threads: Sequence[threading.Thread]) -> str:
    return ", ".join(sorted({one.name for one in threads}))


def _own_threads() -> list[threading.Thread]:
    own = (threading.main_thread(), threading.current_thread())
    threads = [one for one in threading.enumerate() if not one.daemon and one not in own and is_users(one)]
    return [one for one in threads if one.is_alive()]


def _own_processes() -> list[Any]:
    """Processes that Python waits for at its end. A manager's server is ended by its manager."""
    children: list[Any] = list(multiprocessing.process._children)  # type: ignore[attr-defined]  # Python 3.10 to 3.14
    module = sys.modules.get("multiprocessing.managers")
    managers = tuple(f"{kind.__name__}-" for kind in _subclasses(module.BaseManager)) if module else ()
    own = [one for one in children if one._parent_pid == os.getpid() and not one.name.startswith(managers)]
    return [one for one in own if not one.daemon and one.is_alive()]


def _subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for one in kind.__subclasses__():
        yield from _subclasses(one)


def _shut_down(items: Sequence[Any]) -> None:
    _flush((*items, *instances(io.IOBase.__mro__[1])))  # of this process: what it inherited is frozen (process.py)
    for thread in threading.enumerate():
        if _is_mlflows(thread):  # before the executors that it uses
            with suppress(Exception):
                _target(thread).__self__.shut_down_async_logging()
    futures = sys.modules.get("concurrent.futures.thread")
    if futures is not None:
        with suppress(Exception):
            futures._python_exit()
    for thread in threading.enumerate():
        if _target(thread) is not None and _is_of(thread, "multiprocessing.queues", "Queue._feed"):
            with suppress(Exception):
                _end_feeder(thread)


def _end_feeder(thread: threading.Thread) -> None:
    """Let the thread of a multiprocessing queue write what was put in it."""
    from multiprocessing import queues

    buffer, not_empty = _arguments(thread)[:2]
    with not_empty:
        buffer.append(queues._sentinel)  # type: ignore[attr-defined]
        not_empty.notify()
    thread.join()
