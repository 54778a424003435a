"""A training function traced, and no step of it run: its graphs for a compiler of another machine.

What lives here: tracer.py (what happens at each sync), live.py (what of a process is pending), reads.py (values that
the host asks for), alone.py (one rank of a world that is not there), written.py (the way to the notebook). What does
not: compiling (preflight/), and why a graph changed (observe/, which looks on as in training).

At each sync the pending graph is taken, and then every pending tensor is set to zero, in place: what torch_xla runs at
that sync is a graph of zeros, and all that it keeps (which tensor takes over whose memory, seeds, views) is as after a
real step. So the graphs of the next steps are the ones that training compiles; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.backends.base import TraceSpec
    from tpu_magics.backends.torch_xla.trace.tracer import Tracer

_going: list[Tracer] = []


def begin(tracing: TraceSpec) -> Tracer:
    """From now on nothing is run in this process. For good: it ends with its function."""
    from tpu_magics.backends.torch_xla.trace.tracer import Tracer

    tracer = Tracer(tracing)
    tracer.install()
    _going[:] = [tracer]
    return tracer


def going() -> Tracer | None:
    """The tracer of this process, if it has one."""
    return _going[0] if _going else None
