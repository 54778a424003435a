"""The watchdog of a run or preflight in the notebook's main thread: a thread that updates the observer, measures
memory, enforces the time limit, and delivers interrupts.

Python's signal handler raises an interrupt in the main thread between two bytecode instructions. It cannot while that
thread executes a long program of the framework, so after `PATIENCE` the framework is told to cancel, and again at each
further interrupt; a program that does not end by that is named. An interrupt that
would be lost, or would leave a context half entered, is raised a moment later. If the library call in which it was
raised, e.g. `model.fit`, continues, some code in there caught it, and it is raised again.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tpu_magics.launch.notebook import NullObserver, RunObserver
from tpu_magics.launch.supervisor import MEMORY_EVERY, SAVES, process_memory
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.origin import is_library, under


@contextmanager
def _context() -> Iterator[None]:
    yield


@asynccontextmanager
async def _async_context() -> AsyncIterator[None]:
    yield


# The start and end of a context: an exception raised there leaves it neither entered nor left, and its settings stay
# active as long as the traceback exists. When TensorFlow runs a step, that means: no gradients are recorded.
_ENDS = [(type(_context()), "__enter__", "__exit__"), (type(_async_context()), "__aenter__", "__aexit__")]
_CONTEXTS = [getattr(getattr(kind, name), "__code__", None) for kind, *names in _ENDS for name in names]
TICK = 0.1  # seconds between checks
PATIENCE = 0.5  # seconds that the main thread has to handle an interrupt by itself
STUCK = 2.0  # seconds after which a call that the framework did not cancel is named
AGAIN = 5.0  # seconds after which an interrupt that was caught is raised again
_LAUNCH = str(Path(__file__).parent)

INTERRUPT, TIMEOUT = "interrupt", "timeout"


class Watchdog:
    """Watches one run of the main thread. `meter`: receives its memory; `reason`: why it was stopped: "interrupt",
    "timeout", or ""."""

    def __init__(self, meter: MemoryMeter | None = None, timeout: float | None = None) -> None:
        self.reason = ""
        self.observer: RunObserver = NullObserver()
        self.give_up: Callable[[], None] = lambda: None
        self.tell_stuck: Callable[[FrameType | None], None] = lambda _frame: None  # with the main thread's frame
        self.save_first: Callable[[], bool] = lambda: False  # whether the user code saves its state now, and ends then
        self._meter = meter
        self._limit = timeout
        self._deadline: float | None = None
        self._requested_at: float | None = None
        self._handled = self._raise_at_end = False
        self._gave_up_at: float | None = None  # since then the main thread has not answered
        self._resend_at: float | None = None
        self._user_code = False  # the block is user code
        self._saves = False  # which was asked to save
        self._library_call: FrameType | None = None  # the library call in which the last interrupt was raised
        self._previous_hook: Callable[[Any], Any] = sys.__unraisablehook__
        self._sent_count = 0  # interrupts that the thread sent and the handler has not received
        self._next_memory = self._next_signal = 0.0
        self._stopping = threading.Event()
        self._interruptible = False
        self._lock = threading.Lock()
        self._previous: tuple[Any, int] | None = None
        self._sender, self._receiver = socket.socketpair()
        for end in (self._sender, self._receiver):
            end.setblocking(False)

    # -- the main thread ------------------------------------------------------------------------------------------
    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread until the block ends."""
        self._measure()
        thread = threading.Thread(target=self._loop, name="tpu_magics-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._restore()
            self._stopping.set()
            self._wake()
            thread.join()
            if self._meter is not None:
                self._meter.flush()
            for end in (self._sender, self._receiver):
                end.close()

    @contextmanager
    def interruptible(self, limited: bool = False) -> Iterator[None]:
        """An interrupt ends the block. `limited`: the block is user code; the time limit starts here and ends it as
        well."""
        handler = signal.signal(signal.SIGINT, self._on_interrupt)
        self._previous = (handler, signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False))
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        self._deadline = time.monotonic() + self._limit if limited and self._limit is not None else None
        self._resend_at = self._gave_up_at = None
        self._user_code = limited
        self._interruptible = True
        try:
            yield
            self._raise_at_end = self._raise_at_end or self._resend_at is not None
        finally:
            self._restore()
            if self._raise_at_end:
                self._raise_at_end = False
                raise KeyboardInterrupt

    def _restore(self) -> None:
        """Restore the previous interrupt handling."""
        self._interruptible, self._library_call = False, None
        with self._lock:  # no interrupt is being sent
            before, self._previous = self._previous, None
        if before is not None:
            if sys.unraisablehook == self._on_unraisable:
                sys.unraisablehook = self._previous_hook
            handler, wakeup = before
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            signal.signal(signal.SIGINT, handler if handler is not None else signal.default_int_handler)

    def _on_interrupt(self, _number: int, frame: FrameType | None) -> None:
        mine, self._sent_count = self._sent_count > 0, max(0, self._sent_count - 1)
        self._gave_up_at = None
        self._set_reason(INTERRUPT)
        if self._user_code and self._interruptible and not self._saves and self.save_first():
            self._saves = self._handled = True
            self._next_signal = time.monotonic() + SAVES
            self._resend_at = self._next_signal if self.reason == INTERRUPT else None
            return
        if self._interruptible and frame is not None and frame.f_code in _CONTEXTS:
            self._resend_later()
            return
        self._handled, self._resend_at = True, None  # this one ends the block: the next would hit cleanup code
        if self._interruptible:
            self._next_signal = time.monotonic() + AGAIN
            self._library_call = _outer_library_call(frame) if self._user_code else None
            raise KeyboardInterrupt
        self._raise_at_end = self._raise_at_end or not mine

    def _on_unraisable(self, unraisable: Any) -> None:
        """Python ignores exceptions in `__del__` and in callbacks of weak references and of the garbage collector: send
        the interrupt again."""
        if unraisable.exc_type is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
            self._resend_later()
        else:
            self._previous_hook(unraisable)

    def _resend_later(self) -> None:
        """An interrupt came where it cannot be raised: send it again once the main thread has left that place."""
        self._handled = False
        self._requested_at = self._resend_at = time.monotonic()

    # -- any thread -----------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Stop the training; returns at once."""
        self._set_reason(INTERRUPT)
        self._send()

    def _set_reason(self, reason: str) -> None:
        if self._requested_at is None:
            self.reason, self._requested_at = reason, time.monotonic()

    def _send(self) -> None:
        with self._lock:
            if self._interruptible:
                self._sent_count += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _wake(self) -> None:
        with suppress(OSError):
            self._sender.send(b"\0")

    # -- the thread -----------------------------------------------------------------------------------------------
    def _loop(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the main thread handles it
        while not self._stopping.is_set():
            self._wait_for_signal()
            self._enforce()
            self._measure()
            self.observer.look()

    def _wait_for_signal(self) -> None:
        """Wait for a tick, or for a signal to this process."""
        if not select.select([self._receiver], [], [], TICK)[0]:
            return
        with suppress(OSError):
            signals = self._receiver.recv(4096).replace(b"\0", b"")
            if signal.SIGINT in signals:
                self._set_reason(INTERRUPT)
                if self._gave_up_at is not None:  # another one, and the main thread has not answered yet
                    self._give_up(time.monotonic())
            self._forward(signals)

    def _forward(self, signals: bytes) -> None:
        """Pass signals on to an event loop that waits for them."""
        before = self._previous
        if signals and before is not None and before[1] >= 0:
            with suppress(OSError):
                os.write(before[1], signals)

    def _enforce(self) -> None:
        now = time.monotonic()
        lost_at = self._resend_at
        if lost_at is not None and now - lost_at > TICK / 2:
            self._resend_at = None
            self._send()
        if self._deadline is not None and now > self._deadline and self.reason != INTERRUPT and now > self._next_signal:
            self._next_signal = now + AGAIN
            self._set_reason(TIMEOUT)
            self._send_again(now)
        if self._library_call is not None and now > self._next_signal and self.reason == INTERRUPT:
            if _is_running(self._library_call):
                self._next_signal = now + AGAIN
                self._send_again(now)
            else:
                self._library_call = None
        waits = self._interruptible and not self._handled
        if waits and self._requested_at is not None and now - self._requested_at > PATIENCE:
            self._handled = True
            self._give_up(now)
        if self._gave_up_at is not None and now - self._gave_up_at > STUCK and self._interruptible:
            self._gave_up_at = float("inf")  # it is said once for each interrupt
            self.tell_stuck(sys._current_frames().get(threading.main_thread().ident or 0))

    def _give_up(self, now: float) -> None:
        self._gave_up_at = now
        self.give_up()

    def _send_again(self, now: float) -> None:
        self._handled, self._requested_at = False, now
        self._send()

    def _measure(self) -> None:
        now = time.monotonic()
        if self._meter is None or now < self._next_memory:
            return
        self._next_memory = now + MEMORY_EVERY
        measured = process_memory(os.getpid())
        if measured is not None:
            self._meter.sample(*measured)


@contextmanager
def interruptible() -> Iterator[None]:
    """A block that an interrupt ends at any point; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watchdog = Watchdog()
    with watchdog.running(), watchdog.interruptible():
        yield


def _outer_library_call(frame: FrameType | None) -> FrameType | None:
    """The outermost library call of the user code among the frames above `frame`, or None. An interrupt that the user
    code itself catches has left this call; one that code inside of it catches has not."""
    call: FrameType | None = None
    outermost: FrameType | None = None
    while frame is not None and not under(frame.f_code.co_filename, _LAUNCH):
        if is_library(frame.f_code.co_filename, frame.f_code.co_name):
            outermost = frame
        else:
            call = outermost
        frame = frame.f_back
    return call


def _is_running(call: FrameType) -> bool:
    """Whether the main thread is still in this call."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None
