"""What a worker of torch_xla notes while it trains: steps, compiles with their causes, reads, values, precision.

What lives here: the door for the launcher; the way of a compile is hooks.py (noticed) -> told.py (what the runtime
wrote) -> snapshot.py and doing.py (what Python knew) -> causes.py (why) -> history.py (its record). What does not: the
graph's text (hlo.py), precision (precision.py).

Nothing is done per step but reading a few counters; compiles are rare, and looked at when they have happened. In a
rehearsal each piece of a step is looked at, too (pieces.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch_xla.observe.counters import graphs_executed
from tpu_magics.runs import events

if TYPE_CHECKING:
    from tpu_magics.backends.base import Watching
    from tpu_magics.backends.torch_xla.observe.observer import Observer
    from tpu_magics.backends.torch_xla.observe.told import Files
    from tpu_magics.runs.writer import EventWriter

__all__ = ["arrange", "finish", "observing"]


_files: list[Files] = []


def arrange(folder: Path | None, rank: int | None = None) -> None:
    """Make the runtime of this process write about its compiles into `folder`; before it starts. Without a folder
    compiles are noticed, but not explained. `rank`: of a rehearsal, where collectives cut the graphs."""
    import os

    from tpu_magics.backends.torch_xla.observe.told import Files

    files = Files(folder, rank)
    if folder is not None:
        files.arrange(os.environ)
    _files[:] = [files]


@contextmanager
def observing(writer: EventWriter, watching: Watching) -> Iterator[Observer]:
    """Watch this process until the block ends. Only for workers: it changes torch_xla's and accelerate's modules."""
    from tpu_magics.backends.torch_xla import trace, trainer
    from tpu_magics.backends.torch_xla.observe import hooks
    from tpu_magics.backends.torch_xla.observe.observer import Observer
    from tpu_magics.backends.torch_xla.observe.told import Files
    from tpu_magics.backends.torch_xla.precision import PrecisionWatch
    from tpu_magics.runs import value_log

    def write(kind: type[events.Event], **fields: Any) -> None:
        writer.write(kind(t=time.time(), rank=writer.rank, **fields))

    tracer = None if watching.tracing is None else trace.begin(watching.tracing)
    files = tracer.files if tracer is not None else _files[0] if _files else Files(None)
    precision = PrecisionWatch(watching.precision, write)
    observer = Observer(writer, watching, files, precision)
    if tracer is not None:
        tracer.observer, observer.value = observer, tracer.value
        observer.executed = observer.compiled = 0
    precision.install()
    if watching.rehearsed and not files.debugging:
        files.notes.append("the pieces that collectives cut cannot be put together, so their number is not available")
    for note in files.notes:
        write(events.Warned, code="not-observed", text=f"Of compiles, {note}.")
    with hooks.installed(observer), trainer.recording(writer):
        try:
            with value_log.recorded_by(observer.log):
                yield observer
        finally:
            observer.closed = True
            files.remove()


def finish() -> bool:
    """Run what is pending and wait for it, once: fetching tensors one by one would cut the graph at each of them."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    from tpu_magics.backends.torch_xla import trace

    tracer = trace.going()
    if tracer is not None:
        return tracer.finish()
    before = graphs_executed()
    torch_xla.sync()
    xm.wait_device_ops()
    return graphs_executed() > before
