"""Giving up what TensorFlow executes: for an interrupt that comes while the process is in a long tf.function.

What lives here: the cancellation that TensorFlow itself has. What does not: when it is asked for (launch/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cancelling() -> Iterator[Callable[[], None]]:
    """Within it tf.functions that this thread calls can be given up between two of their ops (a program of XLA is one
    op). The function that is given does that, from any thread, to what is executed at that moment; what is called
    afterwards is not concerned.

    Read in TensorFlow 2.21: tensorflow/python/eager/cancellation.py, which has no public name. Where it is missing,
    nothing can be given up before it has ended.
    """
    try:
        from tensorflow.python.eager import cancellation

        manager, context = cancellation.CancellationManager, cancellation.CancellationManagerContext
        entered = [context(manager())]
    except (ImportError, AttributeError):
        yield _nothing
        return

    def give_up() -> None:
        old = entered[-1]._cancellation_manager
        entered.append(context(manager()))
        entered[-1].__enter__()
        old.start_cancel()

    with entered[0]:
        yield give_up


def _nothing() -> None:
    pass
