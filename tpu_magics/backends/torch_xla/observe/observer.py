"""torch_xla's part of the observer: what ran, what was compiled, and what the step did. The hooks call it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.observe.compiles import History, evaluation_batch
from tpu_magics.backends.observe.observer import Observer, guarded
from tpu_magics.backends.observe.sites import outwards
from tpu_magics.backends.torch.batches import BatchSizes
from tpu_magics.backends.torch.hooks import ReadCounter, TorchLoggedValues
from tpu_magics.backends.torch_xla.observe import counters, evidence, loaders, python_values, step_events
from tpu_magics.backends.torch_xla.observe.causes import explain
from tpu_magics.backends.torch_xla.observe.evidence import TorchCompileEvidence, distance
from tpu_magics.backends.torch_xla.observe.runtime_stats import RuntimeStats
from tpu_magics.backends.torch_xla.observe.xla_dumps import GraphPieces, XlaCompileReport, XlaDumps
from tpu_magics.backends.torch_xla.precision import TorchPrecisionWatch
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

_DROP_EVERY = 256  # steps
_EAGER = (
    "torch_xla's eager mode is on: every operation is compiled and run separately. These compiles are counted, but not "
    "explained. For training, turn eager mode off (torch_xla.experimental.eager_mode(False)), or wrap the step in "
    "torch_xla.compile(), which compiles it as one graph."
)


_COLLECTIVES = ("all-", "reduce-scatter", "collective-")


class TorchObserver(Observer[TorchCompileEvidence]):
    """Steps, compiles, reads and values of one rank."""

    sampler: RuntimeStats

    def __init__(
        self, writer: EventWriter, config: ObserverConfig, files: XlaDumps, precision: TorchPrecisionWatch
    ) -> None:
        history = History(writer, distance, explain)
        super().__init__(writer, config, history, TorchLoggedValues(writer, precision.logged), precision)
        self.files = files
        self.reads = ReadCounter(writer)
        self.undecided = step_events.UndecidedReads(self.reads)
        self.pieces = GraphPieces(files) if config.rehearsed and files.debugging else None
        self.sampler = RuntimeStats(writer, config, lambda: self.reads.seconds)
        self.events = step_events.StepEvents()
        self.batches = BatchSizes()
        self.newest_tensor = 0  # at the last step
        self.uploads: set[int] = set()  # of this step
        self.reading = False
        self.moving = 0
        self.value = counters.native()
        self.eager = counters.eager()
        self.cached, self.compiled = self.value("CachedCompile"), self.value("UncachedCompile")  # None: none yet
        self.executed_before = counters.graphs_executed()
        self.loading = False
        self.counted_in_batch = False
        self.syncs_of_exchange: int | None = None  # None: the ranks exchange nothing now
        self.parts: set[tuple[int, tuple[object, ...]]] = set()
        self.had_state = False
        self.host_training: python_values.HostTraining | None = None
        self.backward_on_device = False
        self.eager_mode = False
        self.ran_eagerly = False  # since the last step
        self.split_at: dict[str, list[events.Site]] = {}
        self.in_closures = False
        self.by_dynamo = False  # torch.compile's bridge ran a graph in this step
        self.synced = False  # after an optimizer's step, once at least

    @property
    def uncounted(self) -> bool:
        """Whether the number of recompiles is unknown."""
        return bool(self.stopped) or self.eager_mode or (self.config.rehearsed and self.pieces is None)

    @property
    def compiles(self) -> int | None:
        """Compiles so far as torch_xla counts them, in a rehearsal those of logical graphs; None if unknown."""
        return super().compiles if self.config.rehearsed else counters.compiles()

    def trained_on_host(self) -> str:
        """See WorkerWatcher."""
        on_device = self.backward_on_device or counters.graphs_executed() > self.executed_before
        if self.host_training is None or self.config.tracing or on_device:
            return ""
        return self.host_training.text(self.sites, self.config.cell_names)

    # -- steps ------------------------------------------------------------------------------------------------------
    def after_sync(self, frame: FrameType) -> None:
        """Count a step if anything ran since the last one, but at most one for each batch of an XLA loader."""
        if self.closed or threading.get_ident() != self.thread:
            return
        setup = self.events.untrained and self.sites.builds(frame)
        ran = self._after_sync(frame) if not self.stopped else self._ran_unobserved()
        if setup:
            return  # the constructor of a library's object, e.g. torch_xla's FSDP
        if (own := self.syncs_of_exchange) is not None:
            self.syncs_of_exchange = own + 1
        if not ran or own:
            return
        if self.values.pending or self.values.ready:
            self.reading = True  # reading logged values is our own read
            try:
                self.values.step_done()
            finally:
                self.reading = False
        if self.loading and self.counted_in_batch:
            return
        self.counted_in_batch = True
        if self.compiled_in_step:
            self._sample_mesh()
        self.count_steps()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """The ranks exchange values (xm.rendezvous, xm.mesh_reduce, accelerate's wait_for_everyone). The first sync in
        it ends what the training began; the others run graphs of its own, which are no steps."""
        if threading.get_ident() != self.thread:
            yield
            return
        self.syncs_of_exchange = 0
        try:
            yield
        finally:
            self.syncs_of_exchange = None

    def _after_sync(self, frame: FrameType) -> bool:
        try:
            ran = self._record_run(frame, "sync")
            if ran and self.batches.unrecorded and self.events.backward:
                self._record_batch()
            self.synced = self.synced or self.events.stepped
            self.by_dynamo = False
            untrained = self.events.untrained  # without training, a sync or a read before it ends a step
            self.undecided.decide(self.events.trains or untrained, alone=untrained and not ran)
            self.events.after_sync()
            self.ran_eagerly = False
            if self.pieces is not None:
                self.newest_tensor = counters.newest_tensor()
                self.uploads.clear()
        except Exception as error:
            self.failed(error)
            return False
        return ran

    def _record_batch(self) -> None:
        batch = self.batches.new_fields()
        if batch is not None:
            self.writer.record(events.Batch, **batch, ranks=self.config.ranks)

    def _ran_unobserved(self) -> bool:
        ran = bool(self._counted()[0])
        if ran and self.config.rehearsed and not self.steps.total % _DROP_EVERY:
            self.files.drop()
        return ran

    @guarded
    def _sample_mesh(self) -> None:
        """Another sharding or another model is another graph, so this runs after a compile."""
        self.sampler.sample_mesh()

    def on_device_batch(self, batch: Any) -> None:
        """An XLA loader returned a batch: its step has not been counted yet."""
        if threading.get_ident() == self.thread:
            self.loading = True
            self.counted_in_batch = False
            self._on_device_batch(batch)

    @guarded
    def _on_device_batch(self, batch: Any) -> None:
        self._batch_came()
        self.events.on_batch(batch)
        self.batches.on_batch(batch)
        if self.progress.learning:
            self.progress.on_batch()

    def _batch_came(self) -> None:
        self.events.batch_came()
        if self.undecided and not self.events.trains:
            self.events.between = self.undecided.decide(False) or self.events.between

    def on_loader(self, frame: FrameType, loader: Any) -> None:
        """A pass over a loader begins."""
        if self.mine() and self.config.tracing is None:
            self.progress.on_loader(frame, loader, loaders.length, loaders.is_xla_loader(loader))

    def on_loader_end(self) -> None:
        """An XLA loader is exhausted: the next sync is the user's own again."""
        self.loading = False

    # -- what runs --------------------------------------------------------------------------------------------------
    def ran(self) -> bool:
        """Whether a graph ran that is not recorded. Hooks ask this before they do more: mostly nothing ran."""
        return self.value("CachedCompile") != self.cached or self.value("UncachedCompile") != self.compiled

    @guarded
    def on_run(self, frame: FrameType, trigger: str, when: str = "") -> None:
        """Something may have run that is not a step."""
        if threading.get_ident() == self.thread:
            self._record_run(frame, trigger, when)

    @guarded
    def on_collective_run(self) -> None:
        """A collective on the host, in any thread, has run the pending operations."""
        if self.pieces is None:
            return  # it is counted at the next hook, as a separate graph
        executed, compiled = self._counted()
        if executed:
            self.compiled_in_step = self.compiled_in_step or bool(compiled)
            self.pieces.cut(executed, compiled)

    @guarded
    def on_collective_result(self) -> None:
        """A collective on the host has returned a tensor."""
        if self.pieces is not None:
            self.pieces.add_result()

    def _counted(self) -> tuple[int, int]:
        """How many graphs ran since the last call, and how many of them were compiled."""
        cached, compiled = self.value("CachedCompile"), self.value("UncachedCompile")
        new = (compiled or 0) - (self.compiled or 0)
        count = new + (cached or 0) - (self.cached or 0)
        self.cached, self.compiled = cached, compiled
        return count, new

    def _reports(self, count: int, compiled: int, trigger: str) -> list[XlaCompileReport]:
        """What was compiled, in terms of the user's program."""
        if self.pieces is None:
            return self.files.read(compiled)
        if trigger == "sync":
            return self.pieces.end_step(count, compiled)
        return self.pieces.run(count, compiled, grows=self.events.backward)

    def _record_run(self, frame: FrameType, trigger: str, when: str = "") -> bool:
        """Record what ran, and what was compiled, since the last call. Returns whether anything ran."""
        count, compiled = self._counted()
        if self.eager:
            return self._record_eager_run(count, compiled) and trigger == "sync"
        if not count and not (trigger == "sync" and self.pieces is not None and self.pieces.current):
            return False
        self.events.ran = True
        if trigger != "sync" or compiled:
            self.events.count_data_ops()
        if trigger == "library" and self.by_dynamo:
            trigger = "call"
        self.compiled_in_step = self.compiled_in_step or bool(compiled)
        reports = self._reports(count, compiled, trigger) if compiled or self.pieces is not None else []
        if reports:
            sites = self._record_compiles(reports, frame, trigger)
            if trigger == "library":
                self.split_at[when] = sites
        if trigger == "library" and not (self.events.untrained and self.sites.builds(frame)):
            self._cut_by_library(self.split_at.get(when, []), count)
        return True

    def _record_eager_run(self, count: int, compiled: int) -> bool:
        """Operations ran one by one: none of their graphs is a step, and none gets a record. Returns whether any ran
        since the last step."""
        if compiled:
            self.files.skip()
            self.compiled_in_step = True
        if count and not self.eager_mode:
            self.eager_mode = True
            self.warn("eager-mode", _EAGER)
        self.ran_eagerly = self.ran_eagerly or bool(count)
        return self.ran_eagerly

    def _cut_by_library(self, sites: list[events.Site], count: int) -> None:
        """Graphs ran in the middle of a step without a read: an operation needed a shape, or ran on the host. The line
        is known from the first time, when it compiled."""
        for site in dict.fromkeys(sites):
            self.events.cuts[site.id] = site
            self.reads.add(site, 0.0, cut=True, by_op=True, count=max(1, count // len(set(sites))))

    def _record_compiles(self, reports: list[XlaCompileReport], frame: FrameType, trigger: str) -> list[events.Site]:
        sites = []
        for one in reports:
            new = self._evidence(one, frame, trigger)
            batch = None if new.facts.backward else self.batches.last
            self.record_compile(new, evaluation_batch(batch, self.batches.training))
            sites.append(new.site)
        self.check_recompile_limit()
        return sites

    def _evidence(self, report: XlaCompileReport, frame: FrameType, trigger: str) -> TorchCompileEvidence:
        import torch

        stack = report.frames or self.sites.stack(frame)
        site = self.sites.of_stack(stack) or self.sites.of_frame(frame)
        values = python_values.take(frame, self.sites)
        if self.events.rates:
            values.numbers = {n: v for n, v in values.numbers.items() if not n.endswith("['lr']")} | self.events.rates
        facts = self.events.facts(site, torch.is_grad_enabled(), self.sites.decides, self.unsynced)
        known = report.graph is not None and not facts.data_ops  # the result of such an operation is not an input
        part = evidence.find_part(stack, frame, self.sites, facts, values, report.graph)
        if self.syncs_of_exchange and part.place is None:
            part = evidence.EXCHANGE
        part = replace(part, first=(site.id, part.key) not in self.parts)
        self.parts.add((site.id, part.key))
        through = self.sites.through(stack)
        running = evidence.running_optimizer(frame, self.sites)
        if running is not None and any("/torch/optim/" in path for path, _function in through):
            running = running._replace(closure=False)  # it ran before the closure, and is recorded now
        return TorchCompileEvidence(
            site,
            self.history.nth(site.id),
            self.steps.total,
            report,
            _trigger(frame, trigger),
            through,
            inputs=self.events.inputs(values, report.graph.parameters if report.graph and known else ()),
            short=frozenset(self.batches.short),
            by_rank=self.events.by_rank or self._is_of_one_rank(report, frame),
            part_text=part.text,
            facts=facts,
            snapshot=values,
            part=part,
            running=running,
        )

    def _is_of_one_rank(self, report: XlaCompileReport, frame: FrameType) -> bool:
        """Whether a library's constructor runs a graph without a collective: it cuts out the rank's own shard."""
        graph = report.graph
        alone = report.pieces == 1 and graph is not None and not any(op.startswith(_COLLECTIVES) for op in graph.counts)
        return self.config.ranks > 1 and alone and self.events.untrained and self.sites.builds(frame)

    @property
    def unsynced(self) -> int:
        """The steps of an optimizer since the last sync, where the program never syncs after one; else 0."""
        return self.events.most_steps if self.backward_on_device and not self.synced else 0

    # -- what a step does -------------------------------------------------------------------------------------------
    def on_read(self, frame: FrameType, tensor: Any, value: Any, seconds: float) -> None:
        """The host read a tensor."""
        import torch

        try:
            cut = self.ran() and self._record_run(frame, "read") and not (self.in_closures or _of_statistics(frame))
            site = self.sites.of_frame(frame)
            if self.pieces is not None:
                cut = cut or self._read_after_cut(self.pieces, frame, tensor, site)
            if cut:
                self.events.on_cut(site, value)
            self.events.on_read(value)
            running = evidence.running_optimizer(frame, self.sites) if cut else None
            if running is not None and not running.closure:
                self.events.read_by = running.kind
                self.reads.add(site, seconds, cut, optimizer=running.kind)
            elif cut and not self.events.trains:
                alone = tensor if self._leaves_nothing(tensor) else None
                self.undecided.add(site, seconds, torch.is_grad_enabled(), alone)
            else:
                self.reads.add(site, seconds, cut, unsynced=self.unsynced > 1)
        except Exception as error:
            self.failed(error)

    def _leaves_nothing(self, tensor: Any) -> bool:
        """Whether nothing is left to run but what leads to the tensors that were read. After the step's inputs have
        come, a read is of the step all the same: Python may compute its shapes from them."""
        began = self.config.tracing is not None or self.events.arrivals
        return not began and counters.only_pending(tensor, self.undecided.tensors)

    def _read_after_cut(self, pieces: GraphPieces, frame: FrameType, tensor: Any, site: events.Site) -> bool:
        """Whether the tensor was made in this step, and a collective has already run the graph that leads to it."""
        if not pieces.current or counters.tensor_id(tensor) <= self.newest_tensor:
            return False
        if counters.tensor_id(tensor) in self.uploads:
            return False  # it came from the host in this step: no graph leads to it
        reports = pieces.read(counters.tensor_id(tensor), site.id, grows=self.events.backward)
        if reports:
            self._record_compiles(reports, frame, "read")
        return True

    def on_upload(self, tensor: Any) -> None:
        """A tensor was moved to the device."""
        if self.moving:
            return
        try:
            if self.undecided and not self.events.trains:  # samples between two steps: what follows is the next one's
                sites, left = self.undecided.between_steps()
                self.events.forget_cuts(sites)
                self.events.between = left or self.events.between
            self.events.on_upload(tensor)
            if self.pieces is not None:
                self.uploads.add(counters.tensor_id(tensor))
        except Exception as error:
            self.failed(error)

    @contextmanager
    def moving_module(self) -> Iterator[None]:
        """A module is being moved: its parameters are not inputs of a step."""
        self.moving += 1
        try:
            yield
        finally:
            self.moving -= 1

    @guarded
    def before_backward(self, tensors: Any) -> None:
        self.events.forget_cuts(self.undecided.before_backward(tensors))
        self.events.before_backward()

    def after_backward(self, frame: FrameType, tensors: Any) -> None:
        """Until a backward pass was on the device."""
        self.backward_on_device = step_events.any_on_device(tensors)
        if not self.backward_on_device and self.host_training is None:
            self._find_host_training(frame)

    @guarded
    def _find_host_training(self, frame: FrameType) -> None:
        self.host_training = python_values.find_host_training(frame, self.sites)

    def before_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        if self.stopped or self.closed:
            return
        try:
            self.events.before_optimizer_step(optimizer)
            self.had_state = any(optimizer.state.values())
        except Exception as error:
            self.failed(error)

    def after_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        if not self.mine():
            return
        try:
            self.events.after_optimizer_step(optimizer, self.had_state, self.had_state or any(optimizer.state.values()))
            self.batches.on_optimizer_step()
        except Exception as error:
            self.failed(error)

    @guarded
    def on_load(self, module: Any, state: Any) -> None:
        if self.mine():
            self.events.on_load(module, state)

    @guarded
    def on_autocast(self, context: Any) -> None:
        if getattr(context, "_enabled", False):
            self.events.autocast.add(str(getattr(context, "fast_dtype", "")).removeprefix("torch."))

    def on_host_batch(self, iterator: Any, batch: Any) -> None:
        """A DataLoader's iterator returned a batch."""
        if self.stopped or self.closed:
            return
        try:
            own = threading.get_ident() == self.thread and not self.loading
            self.batches.on_host_batch(iterator, batch, own)
            if own:
                self._batch_came()
            if own and self.progress.learning:
                self.progress.on_batch(iterator)
        except Exception as error:
            self.failed(error)

    def warn_at(self, frame: FrameType | None, code: str, text: str) -> None:
        """Record a warning, from any thread. A text that begins with a blank lacks the user's line, which `frame` is
        in."""
        if text.startswith(" "):
            own = self.sites.user_frame(frame)
            site = self.sites.of_frame(own) if own is not None else None
            text = (f"Line {site.line} of {site.path}" if site is not None else "The training") + text
        self.warn(code, text)

    # -- the end ----------------------------------------------------------------------------------------------------
    @guarded
    def ended(self) -> None:
        """The user's function has ended: what follows is our own."""
        if self.ran() and self.pieces is None and not self.eager:
            self._record_last_runs(sys._getframe())
        self.undecided.decide(self.events.trains)
        self.reads.flush()
        self.sampler.sample()

    def _record_last_runs(self, frame: FrameType) -> None:
        """Record the graphs that operations of the user's lines ran after the last hook."""
        count, compiled = self._counted()
        self.events.count_data_ops()
        reports = [one for one in self._reports(count, compiled, "library") if self.sites.of_stack(one.frames)]
        self._cut_by_library(self._record_compiles(reports, frame, "library"), count)

    def close(self, read: bool = True) -> None:
        """Write the rest. `read`: also the tensors logged last; only after a last sync."""
        if read:
            self._last_mesh_sample()
        self.reading = True
        super().close(read)

    def _last_mesh_sample(self) -> None:
        try:
            self.sampler.last_mesh_sample(self.steps.total)
        except Exception as error:
            self.stop(error)


def _of_statistics(frame: FrameType) -> bool:
    """Whether torch's update_bn reads a batch counter: that is its own loop, and no step of the training."""
    return frame.f_code.co_filename.endswith("/batchnorm.py") and any(
        one.f_code.co_name == "update_bn" for one in outwards(frame)
    )


def _trigger(frame: FrameType, trigger: str) -> str:
    if trigger == "sync" and any(one.f_code.co_filename.endswith("parallel_loader.py") for one in outwards(frame)):
        return "loader"
    return trigger
