"""Cancel running tf.functions when the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cancelling() -> Iterator[Callable[[], None]]:
    """Within it tf.functions can be given up between two of their ops (a program of XLA is one op). The function that
    is given does that, from any thread, to what is executed at that moment; what is called afterwards is not concerned.

    Read in TensorFlow 2.21: tensorflow/python/eager/cancellation.py, which has no public name, and context.py, which
    asks it for the manager of each call. Where they are missing, nothing can be given up before it has ended.
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
    """One manager for call after call. TensorFlow cancels it where a call fails, also by the end of its data, and a
    call with a cancelled one would fail as well: then there is a new one."""

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
