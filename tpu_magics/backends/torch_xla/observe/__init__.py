"""The observer of a torch_xla worker: steps, compiles with their causes, reads, values, precision.

A compile goes through hooks.py -> observer.py -> xla_dumps.py -> python_values.py, step_events.py and evidence.py,
which make its evidence -> backends/observe/compiles.py, with causes.py for the cause. A step only reads a few counters;
compiles are rare, and are analyzed when they happen. A rehearsal also tracks each piece of a step (xla_dumps.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_magics.backends.torch_xla.observe.counters import graphs_executed

if TYPE_CHECKING:
    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver
    from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps
    from tpu_magics.runs.writer import EventWriter

__all__ = ["arrange", "finish", "observing"]


_files: list[XlaDumps] = []


def arrange(folder: Path | None, rank: int | None = None) -> None:
    """Make the runtime of this process write about its compiles into `folder`; call it before the runtime starts.
    Without a folder, compiles are counted, but not explained. `rank`: of a rehearsal, where collectives split the
    graphs."""
    import os

    from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps

    files = XlaDumps(folder, rank)
    if folder is not None:
        files.arrange(os.environ)
    _files[:] = [files]


@contextmanager
def observing(writer: EventWriter, config: ObserverConfig) -> Iterator[TorchObserver]:
    """Observe this process until the block ends. Only for workers: it changes torch_xla's and accelerate's modules."""
    from tpu_magics.backends.torch import trainer, trainer_progress
    from tpu_magics.backends.torch_xla import graph_cache, trace
    from tpu_magics.backends.torch_xla.observe import hooks
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver
    from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps
    from tpu_magics.backends.torch_xla.precision import TorchPrecisionWatch

    tracer = None if config.tracing is None else trace.begin(config.tracing)
    files = tracer.files if tracer is not None else _files[0] if _files else XlaDumps(None)
    precision = TorchPrecisionWatch(config.precision, writer.record)
    observer = TorchObserver(writer, config, files, precision)
    if tracer is not None:
        tracer.observer, observer.value = observer, tracer.value
        observer.cached = observer.compiled = 0
    precision.install()
    if config.rehearsed and not files.debugging:
        files.notes.append(
            "the number of compiles is n/a, because the graph pieces between collectives cannot be joined"
        )
    for note in files.notes:
        observer.warn("not-observed", f"Compile information is incomplete: {note}.")
    with (
        hooks.installed(observer),
        trainer.recording(writer),
        trainer_progress.followed(observer.progress),
        graph_cache.told(observer.warn_at),
    ):
        try:
            with observer.active():
                yield observer
        finally:
            files.remove()


def finish() -> bool:
    """Run pending operations and wait for them, once: fetching tensors one by one would split the graph at each of
    them. Raises what a collective of a rehearsal raised, if the function went on after it, or it was in a thread."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    from tpu_magics.backends.torch.rehearsal import group
    from tpu_magics.backends.torch_xla import trace

    tracer = trace.active()
    if tracer is not None:
        return tracer.finish()
    if (broken := group.failure()) is not None:
        raise broken
    before = graphs_executed()
    torch_xla.sync()
    xm.wait_device_ops()
    return graphs_executed() > before
