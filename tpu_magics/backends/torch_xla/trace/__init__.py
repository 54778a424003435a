"""Traces a training function without running a step: its graphs, for the compiler of another machine.

At each sync the pending graph is captured, and then all pending tensors become placeholders. torch_xla's other state
(which tensor reuses whose memory, seeds, views) is as after a real step, so the graphs of the next steps are those that
training compiles; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.backends.base import TraceSpec
    from tpu_magics.backends.torch_xla.trace.tracer import Tracer

_active: list[Tracer] = []


def begin(tracing: TraceSpec) -> Tracer:
    """From now on nothing runs in this process, until it ends with its function."""
    from tpu_magics.backends.torch_xla.trace.tracer import Tracer

    tracer = Tracer(tracing)
    tracer.install()
    _active[:] = [tracer]
    return tracer


def active() -> Tracer | None:
    """The tracer of this process, if any."""
    return _active[0] if _active else None
