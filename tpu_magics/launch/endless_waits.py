"""Ends a worker that waits for what nobody in its process can do, e.g. for a thread that the notebook has and a forked
worker has not; and one whose function's thread has ended without a result.

It is no matter of how long a wait takes: a rank is ended only where all its threads wait, without a time limit, for
something of Python's (a lock, a queue, an event, a future) that only a thread of this process can give, and where no
other thread is there that could. A wait for a device, another process, a file or the network is none of these.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from tpu_magics.launch.inherited_threads import is_idle, module_of

EVERY = 1.0  # seconds between looks
LASTS = 20.0  # seconds without any change, after which the waits are looked at
GONE = 5.0  # seconds that a worker has to end after the thread of its function
BUSY = 0.05  # share of one processor: a process that computes more may call Python again from C++
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_WAITING = {threading.__file__, queue.__file__}  # Python's own code, which has a wait's time limit in a variable
_WAITS = frozenset(("wait", "join", "_wait_for_tstate_lock", "acquire", "__enter__", "_acquire_restore", "get", "put"))
_LIMITS = ("timeout", "endtime", "remaining")


class WaitsForever(Exception):
    """A rank waits for something that no thread of its process can do."""


class ThreadEnded(Exception):
    """The thread of a rank's function has ended, and nobody was given its result or its error."""

    def __init__(self) -> None:
        super().__init__(
            "the thread of the function ended without a result and without an error. The function, or a library that "
            "it uses, has replaced a part of Python that threads need (threading, concurrent.futures)"
        )


class EndlessWaits:
    """Looks at the threads of a worker, in a thread of its own. `ranks`: ids of the threads that run the user's
    function; `server_of(objects)`: the notebook's thread that they belong to, "" for none; `end(frame, error)`: ends
    the worker, whose function is at this frame (None: its thread has ended)."""

    def __init__(
        self,
        ranks: Collection[int],
        server_of: Callable[[Sequence[Any]], str],
        end: Callable[[FrameType | None, Exception], None],
    ) -> None:
        self._ranks, self._server_of, self._end = ranks, server_of, end
        self._stopped = threading.Event()
        self._since = self._used = 0.0
        self._positions: dict[int, tuple[int, int]] = {}
        self._looked = False
        self._seen = 0.0

    def start(self) -> None:
        self._seen = time.monotonic()
        threading.Thread(target=self._loop, name="tpu_magics-waits", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _loop(self) -> None:
        while not self._stopped.wait(EVERY):
            found: tuple[FrameType | None, Exception] | None = None
            with suppress(Exception):  # a thread that ends meanwhile, an object whose own code raises
                found = self._lost() or self.look()
            if found is not None and not self._stopped.is_set():
                self._end(*found)
                return

    def _lost(self) -> tuple[None, ThreadEnded] | None:
        if sys._current_frames().keys() >= set(self._ranks):
            self._seen = time.monotonic()
        return (None, ThreadEnded()) if time.monotonic() - self._seen > GONE else None

    def look(self) -> tuple[FrameType, WaitsForever] | None:
        """Where a rank waits and for what, if nothing in this process can end the wait."""
        frames = _frames(self._ranks)
        positions = {ident: (id(frame), frame.f_lasti) for ident, frame in frames.items()}
        now, used = time.monotonic(), _processor_time()
        if positions != self._positions:
            self._positions, self._since, self._used, self._looked = positions, now, used, False
        lasted = now - self._since
        if self._looked or lasted < LASTS or used - self._used > BUSY * lasted or _may_be_signaled():
            return None
        self._looked = True  # until a thread does something
        waits = _all_waits(frames)
        rank = next((ident for ident in self._ranks if ident in waits), None) if waits is not None else None
        return None if waits is None or rank is None else (frames[rank], WaitsForever(self._text(waits[rank])))

    def _text(self, objects: Sequence[Any]) -> str:
        kind = next((type(one).__name__ for one in reversed(objects)), "lock")
        server = self._server_of(objects)
        if server:
            return f"It waits for a {kind} of a thread that only the notebook has ({server})."
        return f"It waits for a {kind}, and no thread of its process can end this wait."


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _may_be_signaled() -> bool:
    """Whether a signal may call code of the user's."""
    numbers = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGHUP)
    return any(callable(signal.getsignal(number)) for number in numbers)


def _frames(ranks: Collection[int]) -> dict[int, FrameType]:
    """Where the threads are, by id, without this one and those that could end no wait."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    found = {}
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        if ident in ranks or thread is None or not _ends_no_wait(thread, frame):
            found[ident] = frame
    return found


def _ends_no_wait(thread: threading.Thread, frame: FrameType) -> bool:
    if thread is threading.current_thread() or is_idle(thread, frame):
        return True
    return module_of(thread) == "tpu_magics" and frame.f_code.co_filename in _WAITING  # ours, with nothing to do


def _all_waits(frames: Mapping[int, FrameType]) -> dict[int, list[Any]] | None:
    """What each thread waits for, by its id; None where one does something else, or waits with a time limit."""
    waits = {ident: waits_for(frame) for ident, frame in frames.items()}
    return waits if all(waits.values()) else None


def waits_for(frame: FrameType) -> list[Any]:
    """The objects of Python's that this frame waits for without a limit, the outermost last; empty for none."""
    code = frame.f_code
    if code.co_filename not in _WAITING:
        return _entered(frame)
    if code.co_name not in _WAITS:
        return []
    objects: list[Any] = []
    at: FrameType | None = frame
    while at is not None and (at.f_code.co_filename in _WAITING or at.f_code.co_name in ("result", "exception")):
        names = at.f_locals
        if any(isinstance(names.get(name), (int, float)) and names[name] >= 0 for name in _LIMITS):
            return []
        if "self" in names:
            objects.append(names["self"])
        at = at.f_back
    return objects


def _entered(frame: FrameType) -> list[Any]:
    """The lock or queue of C that the current instruction waits for, which has no frame: `with lock:`,
    `lock.acquire()`, `queue.get()`. Python 3.11 and newer know where in the line the instruction is."""
    node = _expression_at(frame)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
        item = _value(node.func.value, frame) if node.func.attr in ("acquire", "get") else None
    else:
        item = _value(node, frame)
    is_locked = isinstance(item, _LOCK) and item.locked()
    is_locked = is_locked or (isinstance(item, _RLOCK) and repr(item).startswith("<locked"))
    return [item] if is_locked or (isinstance(item, queue.SimpleQueue) and item.empty()) else []


def _expression_at(frame: FrameType) -> ast.AST | None:
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    first, last, start, end = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
    if first is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        (statement,) = ast.parse(b"".join(lines)).body
    except (SyntaxError, ValueError):
        return None
    if isinstance(statement, ast.With) and len(statement.items) == 1:  # Python 3.11: all of it
        return statement.items[0].context_expr
    return statement.value if isinstance(statement, ast.Expr) else None


def _value(node: ast.AST | None, frame: FrameType) -> Any:
    """The value of a name or an attribute, without running code of the user's."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        attributes = getattr(_value(node.value, frame), "__dict__", {})
        return attributes.get(node.attr) if isinstance(attributes, dict) else None
    return None
