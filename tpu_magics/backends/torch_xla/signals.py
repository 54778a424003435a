"""Context managers for loading weights: SIGINT is deferred, and torch uses one thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread. A copy is limited by memory bandwidth, and OpenMP's threads wait for each other in
    busy loops: on a busy machine, copies with all threads took ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """SIGINT takes effect when the block ends.

    Blocking it in this thread is not enough: any thread that does not block it may receive a signal to the process, and
    Python then raises KeyboardInterrupt in the main thread. So in the main thread the handler is replaced as well.
    """
    arrived: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    handler = signal.getsignal(signal.SIGINT)
    # A handler that was not installed from Python is None and could not be restored.
    replaced = threading.current_thread() is threading.main_thread() and handler is not None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if replaced:
            signal.signal(signal.SIGINT, remember)
        yield
    finally:
        if replaced:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if arrived:
            signal.raise_signal(signal.SIGINT)
