"""Starting threads where there may be no memory for them."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

BEGINS = 5.0  # seconds that a thread has to begin


def begin_thread(body: Callable[[], object]) -> bool:
    """Call `body` in a new thread, which does not keep the process from ending. Returns whether it began: where a limit
    leaves no memory for it (RLIMIT_AS, RLIMIT_DATA), `Thread.start()` would wait forever for a thread that has died."""
    begun = threading.Event()

    def run() -> None:
        begun.set()
        body()

    try:
        _thread.start_new_thread(run, ())
    except (RuntimeError, MemoryError):
        return False
    return begun.wait(BEGINS)
