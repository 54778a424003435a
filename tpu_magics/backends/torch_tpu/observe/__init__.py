"""The observer of a TorchTPU worker: steps, compiles of torch.compile with their causes, operations that were compiled
one by one, reads, values, precision.

A compile goes through dynamo.py -> observer.py -> causes.py -> backends/observe/compiles.py. A step reads one counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpu_magics.backends.torch import trainer, trainer_progress
from tpu_magics.backends.torch_tpu.observe.hooks import installed
from tpu_magics.backends.torch_tpu.observe.observer import TpuObserver
from tpu_magics.backends.torch_tpu.trace import ProgramTracer

if TYPE_CHECKING:
    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.runs.writer import EventWriter

__all__ = ["finish", "observing"]

_tracers: list[ProgramTracer] = []  # at most one


@contextmanager
def observing(writer: EventWriter, config: ObserverConfig) -> Iterator[TpuObserver]:
    """Observe this process until the block ends. Only for workers: it changes torch's and torch_tpu's modules."""
    observer = TpuObserver(writer, config)
    if config.tracing is not None:
        observer.tracer = ProgramTracer(config.tracing, observer)
        observer.tracer.install()
        _tracers[:] = [observer.tracer]
    else:
        observer.eager.begin()
    following = trainer_progress.followed(observer.progress)
    with installed(observer), trainer.recording(writer), following, observer.active():
        yield observer


def finish() -> bool:
    """Wait for the device. Nothing is pending that has not been started: operations are not collected for a sync."""
    import torch

    if _tracers:
        return _tracers[0].finish()
    torch.accelerator.synchronize()
    return False
