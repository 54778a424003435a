"""A signal that arrives as Python begins its next function, and not before."""

import _thread


class Signal(int):
    """`Signal(SIGINT).comes`: it has come to this process. To look at an attribute is no call, after which Python would
    answer signals; as the last expression of a `with` block it is answered in the context's `__exit__`."""

    comes = property(_thread.interrupt_main)
