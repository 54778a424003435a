"""Cancel running tf.functions when the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cancelling() -> Iterator[Callable[[], None]]:
    """Inside it, tf.functions can be cancelled between two of their ops (an XLA program is one op). Yields a function
    that cancels what is running, from any thread; later calls are not affected.

    Read in TensorFlow 2.21: tensorflow/python/eager/cancellation.py, which has no public name, and context.py, which
    asks it for the manager of each call. If they are missing, nothing can be cancelled.
    """
    try:
        from tensorflow.python.eager import cancellation

        theirs, given = cancellation.context, _CurrentManager(cancellation.CancellationManager)
    except (ImportError, AttributeError):
        yield _nothing
        return
    cancellation.context = lambda: theirs() or given.usable()
    try:
        yield given.cancel
    finally:
        cancellation.context = theirs


class _CurrentManager:
    """The manager for successive calls. TensorFlow cancels it when a call fails, also at the end of its data, and a
    call with a cancelled manager fails: then a new one is made."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.current = make()

    def usable(self) -> Any:
        if self.current.is_cancelled:
            self.current = self.make()
        return self.current

    def cancel(self) -> None:
        self.current.start_cancel()


def _nothing() -> None:
    pass
