"""What a worker of torch_xla notes while it trains: steps, and the values that the user logs.

What lives here: the count of user-visible steps and the reading of logged tensors. What does not: compiles and their
causes.

All of torch_xla's ways to end a step (torch_xla.sync, xm.mark_step, xm.optimizer_step(barrier=True), the loaders',
torch_xla.step) meet in one function of its C++ module; that one is wrapped, in the worker only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tpu_magics.backends.base import StepLimit
from tpu_magics.backends.torch_xla.post_import import PostImport
from tpu_magics.runs import live
from tpu_magics.runs.meter import StepMeter, ValueMeter
from tpu_magics.runs.writer import EventWriter

READ_EVERY = 0.25  # seconds between reads of logged tensors: each waits for the device
READ_AT_MOST = 256  # tensors kept alive until the next read


class Observer:
    """Counts steps and records values of one rank; made in the thread that runs the user's function."""

    def __init__(self, writer: EventWriter, max_steps: int | None) -> None:
        self.writer = writer
        self.max_steps = max_steps
        self.steps = StepMeter(writer)
        self.values = ValueMeter(writer)
        self.thread = threading.get_ident()
        self.closed = False
        self.executed = 0
        self.loading = False
        self.counted_in_batch = False
        self.pending: list[tuple[str, Any, int]] = []
        self.ready: list[tuple[str, Any, int]] = []
        self.last_read = time.monotonic()

    @property
    def total_steps(self) -> int:
        """Steps so far."""
        return self.steps.total

    # -- steps ------------------------------------------------------------------------------------------------
    def after_sync(self) -> None:
        """A step, if anything was executed since the last one, and at most one for each batch of an XLA loader."""
        if self.closed or threading.get_ident() != self.thread:
            return
        executed = graphs_executed()
        if executed == self.executed:
            return
        self.executed = executed
        self._release_values()
        if self.loading and self.counted_in_batch:
            return
        self.counted_in_batch = True
        self.steps.step()
        if self.max_steps is not None and self.steps.total >= self.max_steps:
            raise StepLimit

    def next_batch(self) -> None:
        """An XLA loader handed out a batch: the step that it begins has not been counted yet."""
        self.loading = True
        self.counted_in_batch = False

    def end_of_loader(self) -> None:
        """An XLA loader is exhausted: the next sync is the user's own again."""
        self.loading = False

    # -- values -----------------------------------------------------------------------------------------------
    def log(self, values: Mapping[str, Any]) -> None:
        """Record numbers at once; keep a device's tensor until after the sync, when reading it cuts no graph."""
        for name, value in values.items():
            if _on_device(value):
                self.pending.append((str(name), value, self.steps.total))
            else:
                self.values.log(str(name), _plain(value), self.steps.total)

    def _release_values(self) -> None:
        self.ready += self.pending
        self.pending = []
        if len(self.ready) >= READ_AT_MOST or time.monotonic() - self.last_read >= READ_EVERY:
            self._read()

    def _read(self) -> None:
        for name, tensor, step in self.ready:
            self.values.log(name, _plain(tensor.detach().cpu()), step)
        self.ready = []
        self.last_read = time.monotonic()

    def close(self, read: bool = True) -> None:
        """Write what is left. `read`: also the tensors logged last; only after a last sync."""
        self.closed = True
        if read:
            self.ready += self.pending
            self.pending = []
            self._read()
        self.steps.flush()
        self.values.flush()


def graphs_executed() -> int:
    """Graphs run so far in this process, compiled anew or found in the cache."""
    # torch_xla 2.9: metrics.py; counters appear with their first increment, until then the answer is None.
    import torch_xla

    counter = torch_xla._XLAC._xla_counter_value
    return (counter("UncachedCompile") or 0) + (counter("CachedCompile") or 0)


def compiles() -> int:
    """Graphs compiled so far in this process, as torch_xla counts them (`UncachedCompile`)."""
    import torch_xla

    return torch_xla._XLAC._xla_counter_value("UncachedCompile") or 0


def _on_device(value: Any) -> bool:
    device = getattr(value, "device", None)
    return device is not None and getattr(device, "type", "cpu") not in ("cpu", "meta")


def _plain(value: Any) -> Any:
    """A number from a tensor or NumPy value of one element; anything else as it is, or told in words."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if getattr(value, "numel", None) is not None and callable(value.numel):
        return value.item() if value.numel() == 1 else f"tensor of shape {list(value.shape)}"
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):
        return value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


@contextmanager
def observing(writer: EventWriter, max_steps: int | None) -> Iterator[Observer]:
    """Watch this process until the block ends. Only for workers: it changes torch_xla's and accelerate's modules."""
    import torch_xla
    from torch_xla.distributed import parallel_loader

    observer = Observer(writer, max_steps)
    marker = torch_xla._XLAC._xla_step_marker
    next_item = parallel_loader.PerDeviceLoader.next

    def step_marker(*args: Any, **kwargs: Any) -> Any:
        result = marker(*args, **kwargs)
        observer.after_sync()
        return result

    def next_batch(loader: Any) -> Any:
        try:
            batch = next_item(loader)
        except StopIteration:
            observer.end_of_loader()
            raise
        observer.next_batch()
        return batch

    torch_xla._XLAC._xla_step_marker = step_marker
    parallel_loader.PerDeviceLoader.next = next_batch
    live.set_recorder(observer.log)
    _add_tracker(observer)
    try:
        yield observer
    finally:
        live.set_recorder(None)
        torch_xla._XLAC._xla_step_marker = marker
        parallel_loader.PerDeviceLoader.next = next_item
        observer.closed = True


def finish() -> bool:
    """Run what is pending and wait for it, once: fetching tensors one by one would cut the graph at each of them."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    before = graphs_executed()
    torch_xla.sync()
    xm.wait_device_ops()
    return graphs_executed() > before


def _add_tracker(observer: Observer) -> None:
    """Make `accelerator.log(...)` reach the run's records through a tracker of accelerate's own kind (read in 1.15)."""
    PostImport().when_imported(
        "accelerate.accelerator", lambda module: _patch_accelerator(module.Accelerator, observer)
    )


def _patch_accelerator(Accelerator: Any, observer: Observer) -> None:
    from tpu_magics.backends.torch_xla.tracker import RunTracker

    start = Accelerator.__init__
    init_trackers = Accelerator.init_trackers

    def with_tracker(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        self.trackers = [*getattr(self, "trackers", []), RunTracker(observer.log)]

    def keep_tracker(self: Any, *args: Any, **kwargs: Any) -> None:
        init_trackers(self, *args, **kwargs)
        if not any(isinstance(tracker, RunTracker) for tracker in self.trackers):
            self.trackers.append(RunTracker(observer.log))

    Accelerator.__init__ = with_tracker
    Accelerator.init_trackers = keep_tracker
