"""The observer of one rank: the hooks call it, and it writes the records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from tpu_magics.backends.base import ObserverConfig, RecompileLimit, StepLimit, StopRequested
from tpu_magics.backends.observing.compile_evidence import CompileCause, evaluation_batch
from tpu_magics.backends.observing.guard import GuardedObserver, guarded
from tpu_magics.backends.observing.history import History
from tpu_magics.backends.observing.sites import Sites, outwards
from tpu_magics.backends.torch_xla.observe import counters, host_training, parts, snapshot, step_events
from tpu_magics.backends.torch_xla.observe.causes import explain
from tpu_magics.backends.torch_xla.observe.compile_evidence import TorchCompileEvidence, distance
from tpu_magics.backends.torch_xla.observe.logged_values import TorchLoggedValues
from tpu_magics.backends.torch_xla.observe.pieces import GraphPieces
from tpu_magics.backends.torch_xla.observe.read_counts import ReadCounter
from tpu_magics.backends.torch_xla.observe.runtime_stats import RuntimeStats
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport, XlaDumps
from tpu_magics.backends.torch_xla.precision import TorchPrecisionWatch
from tpu_magics.runs import events
from tpu_magics.runs.meter import StepMeter
from tpu_magics.runs.writer import EventWriter

_DROP_EVERY = 256  # steps
_EAGER = (
    "torch_xla's eager mode is on: every operation is compiled and run separately. These compiles are counted, but not "
    "explained. For training, turn eager mode off (torch_xla.experimental.eager_mode(False)), or wrap the step in "
    "torch_xla.compile(), which compiles it as one graph."
)


class TorchObserver(GuardedObserver):
    """Steps, compiles, reads and values of one rank; create it in the thread that runs the user's function."""

    def __init__(
        self, writer: EventWriter, config: ObserverConfig, files: XlaDumps, precision: TorchPrecisionWatch
    ) -> None:
        super().__init__(writer)
        self.config = config
        self.files = files
        self.precision = precision
        self.sites = Sites(config.cell_names, config.cell_ids)
        self.steps = StepMeter(writer)
        self.values = TorchLoggedValues(writer, self._logged_type)
        self.reads = ReadCounter(writer.write, writer.rank)
        self.history = History(writer.write, writer.rank, distance, explain)
        self.pieces = GraphPieces(files) if config.rehearsed and files.debugging else None
        self.youngest = 0
        self.sent: set[int] = set()
        self.vitals = RuntimeStats(writer.write, writer.rank, config, lambda: self.reads.seconds)
        self.events = step_events.StepEvents()
        self.thread = threading.get_ident()
        self.reading = False
        self.moving = 0
        self.value = counters.native()
        self.executed = counters.graphs_executed()
        self.compiled = counters.compiles()
        self.compiled_in_step = False
        self.loading = False
        self.counted_in_batch = False
        self.batch_size: int | None = None
        self.training_batch: int | None = None
        self.backwards = 0
        self.accumulation: int | None = None
        self.batch_recorded: tuple[int, int | None] | None = None
        self.loaders: dict[int, tuple[int, int | None]] = {}
        self.parts: set[tuple[int, tuple[object, ...]]] = set()
        self.had_state = False
        self.host_training: host_training.HostTraining | None = None
        self.backward_on_device = False
        self.eager_seen = False
        self.ran_eagerly = False  # since the last step
        self.began = self.executed
        self.split_at: dict[str, list[events.Site]] = {}

    @property
    def total_steps(self) -> int:
        """Steps so far."""
        return self.steps.total

    @property
    def compiles(self) -> int | None:
        """Compiles so far as torch_xla counts them, in a rehearsal those of logical graphs; None if unknown."""
        if not self.config.rehearsed:
            return counters.compiles()
        unknown = self.stopped or self.eager_seen or self.pieces is None
        return None if unknown else self.history.total

    @property
    def recompiles(self) -> int | None:
        """Recompiles so far; None if monitoring stopped."""
        uncounted = self.eager_seen or (self.config.rehearsed and self.pieces is None)
        return None if self.stopped or uncounted else self.history.recompiles

    def trained_on_host(self) -> str:
        """See WorkerWatcher."""
        if (
            self.host_training is None
            or self.backward_on_device
            or self.config.tracing
            or counters.graphs_executed() > self.began
        ):
            return ""
        return self.host_training.text(self.sites, self.config.cell_names)

    def mine(self) -> bool:
        """Whether this is the observed thread, and monitoring is on."""
        return not (self.closed or self.stopped) and threading.get_ident() == self.thread

    # -- steps ------------------------------------------------------------------------------------------------------
    @guarded
    def before_sync(self, frame: FrameType) -> None:
        """What ran since the last hook was triggered by something else, e.g. a shape that depends on values."""
        if threading.get_ident() == self.thread:
            self._ran(frame, "library")

    def after_sync(self, frame: FrameType) -> None:
        """Count a step if anything ran since the last one, but at most one for each batch of an XLA loader."""
        if self.closed or threading.get_ident() != self.thread:
            return
        ran = self._after_sync(frame) if not self.stopped else self._executed()
        if not ran:
            return
        self.reading = True  # reading logged values is our own read
        try:
            self.values.synced()
        finally:
            self.reading = False
        if self.loading and self.counted_in_batch:
            return
        self.counted_in_batch = True
        self.steps.step(compiled=self.compiled_in_step)
        if self.compiled_in_step:
            self.look_at_mesh()
        self.compiled_in_step = False
        if time.monotonic() >= self.vitals.due:
            self.look_at_vitals()
        if self.config.max_steps is not None and self.steps.total >= self.config.max_steps:
            raise StepLimit
        if self.config.stop_requested():
            raise StopRequested

    @guarded
    def _after_sync(self, frame: FrameType) -> bool:
        ran = self._ran(frame, "sync")
        if ran:
            self._note_batch()
        self.events.forget()
        self.ran_eagerly = False
        if self.pieces is not None:
            self.youngest = counters.newest_tensor()
            self.sent.clear()
        return ran

    def _executed(self) -> bool:
        executed = (self.value("UncachedCompile") or 0) + (self.value("CachedCompile") or 0)
        ran = executed != self.executed
        self.executed = executed
        if ran and self.config.rehearsed and not self.steps.total % _DROP_EVERY:
            self.files.drop()
        return ran

    @guarded
    def look_at_vitals(self) -> None:
        self.vitals.look_now_and_then()

    @guarded
    def look_at_mesh(self) -> None:
        """Another sharding or another model is another graph, so this runs after a compile."""
        self.vitals.look_at_mesh()

    def _last_look_at_mesh(self) -> None:
        try:
            self.vitals.last_look_at_mesh(self.steps.total)
        except Exception as error:
            self.stop(error)

    def next_batch(self, batch: Any) -> None:
        """An XLA loader returned a batch: its step has not been counted yet."""
        if threading.get_ident() == self.thread:
            self.loading = True
            self.counted_in_batch = False
            self._next_batch(batch)

    @guarded
    def _next_batch(self, batch: Any) -> None:
        self.events.batch(batch)
        self.batch_size = step_events.batch_size(batch) or self.batch_size

    def end_of_loader(self) -> None:
        """An XLA loader is exhausted: the next sync is the user's own again."""
        self.loading = False

    # -- what runs --------------------------------------------------------------------------------------------------
    @guarded
    def ran(self, frame: FrameType, trigger: str, when: str = "") -> None:
        """Something may have run that is not a step."""
        if threading.get_ident() == self.thread:
            self._ran(frame, trigger, when)

    @guarded
    def cut(self) -> None:
        """A collective on the host, in any thread, has run the pending operations."""
        if self.pieces is None:
            return  # it is counted at the next hook, as a separate graph
        executed, compiled = self._counted()
        if executed:
            self.compiled_in_step = self.compiled_in_step or bool(compiled)
            self.pieces.cut(executed, compiled)

    @guarded
    def made(self) -> None:
        """A collective on the host has returned a tensor."""
        if self.pieces is not None:
            self.pieces.made()

    def _counted(self) -> tuple[int, int]:
        """How many graphs ran since the last call, and how many of them were compiled."""
        now = self.value("UncachedCompile") or 0
        executed = now + (self.value("CachedCompile") or 0)
        count, self.executed = executed - self.executed, executed
        compiled, self.compiled = now - self.compiled, now
        return count, compiled

    def _reports(self, count: int, compiled: int, trigger: str) -> list[XlaCompileReport]:
        """What was compiled, in terms of the user's program."""
        if self.pieces is None:
            return self.files.read(compiled) if compiled else []
        if trigger == "sync":
            return self.pieces.synced(count, compiled)
        return self.pieces.run(count, compiled, grows=self.events.backward)

    def _ran(self, frame: FrameType, trigger: str, when: str = "") -> bool:
        """Record what ran, and what was compiled, since the last call. Returns whether anything ran."""
        count, compiled = self._counted()
        if counters.eager():
            return self._ran_eagerly(count, compiled) and trigger == "sync"
        if not count and not (trigger == "sync" and self.pieces is not None and self.pieces.current):
            return False
        if trigger != "sync" or compiled:
            self.events.look_at_data_ops()
        self.compiled_in_step = self.compiled_in_step or bool(compiled)
        reports = self._reports(count, compiled, trigger)
        if reports:
            sites = self._compiled(reports, frame, trigger)
            if trigger == "library":
                self.split_at[when] = sites
        if trigger == "library":
            self._cut_by_library(self.split_at.get(when, []), count)
        return True

    def _ran_eagerly(self, count: int, compiled: int) -> bool:
        """Operations ran one by one: none of their graphs is a step, and none gets a record. Returns whether any ran
        since the last step."""
        if compiled:
            self.files.skip()
            self.compiled_in_step = True
        if count and not self.eager_seen:
            self.eager_seen = True
            self.writer.write(events.Warned(time.time(), self.writer.rank, code="eager-mode", text=_EAGER))
        self.ran_eagerly = self.ran_eagerly or bool(count)
        return self.ran_eagerly

    def _cut_by_library(self, sites: list[events.Site], count: int) -> None:
        """Graphs ran in the middle of a step without a read: an operation needed a shape, or ran on the host. The line
        is known from the first time, when it compiled."""
        for site in dict.fromkeys(sites):
            self.events.cuts[site.id] = site
            self.reads.add(site, 0.0, cut=True, by_op=True, count=max(1, count // len(set(sites))))

    def _compiled(self, reports: list[XlaCompileReport], frame: FrameType, trigger: str) -> list[events.Site]:
        sites = [self._one_compile(one, frame, trigger) for one in reports]
        limit = self.config.max_recompiles
        if limit is not None and self.history.recompiles > limit:
            raise RecompileLimit(self.history.recompiles, limit)
        return sites

    def _one_compile(self, report: XlaCompileReport, frame: FrameType, trigger: str) -> events.Site:
        import torch

        places = report.frames or self.sites.places(frame)
        site = self.sites.of_places(places) or self.sites.of_frame(frame)
        seen = snapshot.take(frame, self.sites)
        if self.events.rates:
            seen.numbers = {n: v for n, v in seen.numbers.items() if not n.endswith("['lr']")} | self.events.rates
        facts = self.events.facts(torch.is_grad_enabled(), self.sites.decides)
        known = report.graph is not None and not facts.data_ops  # the result of such an operation is not an input
        inputs = self.events.inputs(seen, report.graph.parameters if report.graph and known else ())
        through = self.sites.through(places)
        part = parts.find(places, frame, self.sites, facts, seen, report.graph)
        part = replace(part, first=(site.id, part.key) not in self.parts)
        self.parts.add((site.id, part.key))
        new = TorchCompileEvidence(
            *(site, self.history.nth(site), self.steps.total, report, _trigger(frame, trigger), through),
            *(inputs, facts, seen, part),
        )
        self.history.add(new, self._first(facts.backward))
        if report.graph is not None:
            self.precision.graph_compiled(report.graph, report.hash or report.graph.digest[:32])
        return site

    def _first(self, backward: bool) -> CompileCause | None:
        """The note for a first compile: an evaluation with another batch size than training."""
        size, training = self.batch_size, self.training_batch
        if backward or size is None or training is None or size == training:
            return None
        return evaluation_batch(size, training)

    # -- what a step does -------------------------------------------------------------------------------------------
    @guarded
    def was_read(self, frame: FrameType, tensor: Any, value: Any, seconds: float) -> None:
        """The host read a tensor."""
        cut = self._ran(frame, "read")
        site = self.sites.of_frame(frame)
        cut = cut or self._read_after_cut(frame, tensor, site)
        if cut:
            self.events.cuts[site.id] = site
        self.events.read(value)
        self.reads.add(site, seconds, cut)

    def _read_after_cut(self, frame: FrameType, tensor: Any, site: events.Site) -> bool:
        """Whether the tensor was made in this step, and a collective has already run the graph that leads to it."""
        if self.pieces is None or not self.pieces.current or counters.tensor_id(tensor) <= self.youngest:
            return False
        if counters.tensor_id(tensor) in self.sent:
            return False  # it came from the host in this step: no graph leads to it
        reports = self.pieces.read(counters.tensor_id(tensor), site.id, grows=self.events.backward)
        if reports:
            self._compiled(reports, frame, "read")
        return True

    @guarded
    def arrived(self, tensor: Any) -> None:
        """A tensor was moved to the device."""
        if not self.moving:
            self.events.arrived(tensor)
            if self.pieces is not None:
                self.sent.add(counters.tensor_id(tensor))

    @contextmanager
    def moving_module(self) -> Iterator[None]:
        """A module is being moved: its parameters are not inputs of a step."""
        self.moving += 1
        try:
            yield
        finally:
            self.moving -= 1

    def goes_backward(self, frame: FrameType) -> None:
        self.events.backward = True
        self.backwards += 1
        self.ran(frame, "library", "before backward")

    def went_backward(self, frame: FrameType, tensors: Any) -> None:
        self.ran(frame, "library", "after backward")
        self.backward_on_device = self.backward_on_device or step_events.any_on_device(tensors)
        if not self.backward_on_device and self.host_training is None:
            self._look_at_host(frame)

    @guarded
    def _look_at_host(self, frame: FrameType) -> None:
        self.host_training = host_training.seen(frame, self.sites)

    @guarded
    def optimizer_steps(self, optimizer: Any) -> None:
        self.events.optimizer_steps(optimizer)
        self.had_state = any(optimizer.state.values())

    @guarded
    def optimizer_stepped(self, optimizer: Any) -> None:
        if threading.get_ident() == self.thread:
            self.events.optimizer_stepped(self.had_state, self.had_state or any(optimizer.state.values()))
            self.accumulation, self.backwards = (self.backwards or self.accumulation), 0

    @guarded
    def enters_autocast(self, context: Any) -> None:
        if getattr(context, "_enabled", False):
            self.events.autocast.add(str(getattr(context, "fast_dtype", "")).removeprefix("torch."))

    @guarded
    def loaded(self, iterator: Any, batch: Any) -> None:
        """A DataLoader's iterator returned a batch; its last one may be short."""
        number = getattr(iterator, "_num_yielded", 0)
        if number == 1 or id(iterator) not in self.loaders:
            self.loaders[id(iterator)] = (step_events.batch_size(batch) or 0, _length(iterator))
        full, length = self.loaders[id(iterator)]
        if threading.get_ident() == self.thread and not self.loading:
            self.batch_size = full or self.batch_size
        if number == length:
            last = step_events.batch_size(batch) or full
            if last < full:  # kept: accelerate and XLA's loaders fetch ahead of the step
                self.events.short.add((full, last))
            self.loaders.pop(id(iterator), None)

    def _note_batch(self) -> None:
        """The measured parts of the effective batch size: the batch of steps with a backward pass, and how many of
        these make one optimizer step."""
        if not self.events.backward or self.batch_size is None:
            return
        self.training_batch = self.batch_size if self.training_batch is None else self.training_batch
        batch = (self.training_batch, self.accumulation)
        if self.accumulation is not None and batch != self.batch_recorded:
            self.batch_recorded = batch
            self.writer.write(events.Batch(time.time(), self.writer.rank, *batch, self.config.ranks))

    # -- values -----------------------------------------------------------------------------------------------------
    def log(self, values: Mapping[str, Any]) -> None:
        """Record numbers at once; keep tensors on the device until after the sync."""
        self.values.log(values, self.steps.total)

    def _logged_type(self, dtype: str) -> None:
        self.precision.logged(dtype)

    # -- the end ----------------------------------------------------------------------------------------------------
    @guarded
    def ended(self) -> None:
        """The user's function has ended: what follows is our own."""
        self.reads.flush()
        self.vitals.look()

    def close(self, read: bool = True) -> None:
        """Write the rest. `read`: also the tensors logged last; only after a last sync."""
        if read:
            self._last_look_at_mesh()
        self.closed = True
        self.reading = True
        self.values.close(read)
        self.steps.flush()
        self.precision.close()


def _length(iterator: Any) -> int | None:
    """The number of batches of a DataLoader's iterator; None if unknown."""
    try:
        return len(iterator._index_sampler)
    except (TypeError, AttributeError):
        return None


def _trigger(frame: FrameType, trigger: str) -> str:
    if trigger == "sync" and any(one.f_code.co_filename.endswith("parallel_loader.py") for one in outwards(frame)):
        return "loader"
    return trigger
