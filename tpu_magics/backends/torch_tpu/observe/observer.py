"""TorchTPU's part of the observer. The hooks call it.

A step is a step of an optimizer; where several take turns (a GAN), a round of them is one. It ends where the next one
begins, so that what is logged after optimizer.step() belongs to it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends import hlo
from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.hlo.stablehlo import parse_stablehlo
from tpu_magics.backends.observe.compiles import CompileCause, CompileReport, History
from tpu_magics.backends.observe.measurements import Facts, PeriodicSampler, PrecisionWatch, precision_facts
from tpu_magics.backends.observe.observer import Observer, guarded
from tpu_magics.backends.torch.batches import BatchSizes, length_on_host
from tpu_magics.backends.torch.hooks import ReadCounter, TorchLoggedValues
from tpu_magics.backends.torch.precision_request import MIXED_VARIABLE, NAMES, OPTION
from tpu_magics.backends.torch_tpu import process_group
from tpu_magics.backends.torch_tpu.observe import batch_norm, eager_compiles
from tpu_magics.backends.torch_tpu.observe.causes import TpuCompile, distance, explain, guard_text
from tpu_magics.backends.torch_tpu.observe.dynamo import DynamoCompiles, FrameCompile, GraphBreakSite
from tpu_magics.backends.torch_tpu.observe.eager_compiles import EagerCompiles
from tpu_magics.runs import events
from tpu_magics.runs.events import Site
from tpu_magics.runs.writer import EventWriter

if TYPE_CHECKING:
    from tpu_magics.backends.torch_tpu.trace import ProgramTracer

_BACKEND = "torch_tpu._internal.device._device_ops_backend"
_BREAKS = 20  # that are recorded
_ONE_BY_ONE = "operations were compiled one by one"
_COMPILE_IT = "To compile the step as one program: step = torch.compile(step)."


class TpuObserver(Observer[TpuCompile]):
    """Steps, compiles, reads and values of one rank."""

    def __init__(self, writer: EventWriter, config: ObserverConfig) -> None:
        precision = TpuPrecisionWatch(config.precision, writer.record)
        values = TorchLoggedValues(writer, lambda _type: None)
        super().__init__(writer, config, History(writer, distance, explain), values, precision)
        self.cache: Any = sys.modules[_BACKEND]
        self.misses: Callable[[], int] = self.cache._get_cache_misses
        self.dynamo = DynamoCompiles(self.misses, self.on_break, self.stop)
        self.reads = ReadCounter(writer)
        self.sampler = TpuStats(writer, config, self)
        self.batches = BatchSizes()
        self.reading = False
        self.round: set[int] = set()  # optimizers that have stepped since the last step was counted
        self.ending: Any = None  # the optimizer of a step that is not counted yet
        self.sites_of: dict[tuple[int, str, bool], Site] = {}  # a frame -> where it was compiled first
        self.breaks: dict[tuple[str, int], GraphBreakSite] = {}
        self.before = self.misses()  # this observer
        self.seen = self.before  # until the last step
        self.requests = self.cache._get_cache_requests()
        self.on_device = False
        self.seconds = 0.0
        self.tracer: ProgramTracer | None = None  # of a preflight
        self.eager = EagerCompiles(self.eager_misses, self.sites.of_frame, self.stop)

    def eager_misses(self) -> int:
        """Operations that were compiled one by one, by this process so far."""
        return self.misses() - self.dynamo.counted

    @property
    def total_steps(self) -> int:
        """Steps so far, with one that no other has followed yet."""
        return self.steps.total + (self.ending is not None)

    @property
    def compiles(self) -> int | None:
        """Compiles so far, with those that no step has followed; None if unknown."""
        self._record_ended()
        return super().compiles

    @property
    def recompiles(self) -> int | None:
        """Recompiles so far; None if unknown."""
        self._record_ended()
        return super().recompiles

    @property
    def unsynced(self) -> int:
        """See WorkerWatcher: a compiled function needs no sync."""
        return 0

    def trained_on_host(self) -> str:
        """See WorkerWatcher."""
        ran = self.on_device or self.cache._get_cache_requests() > self.requests
        if ran or not self.steps.total or self.tracer is not None:
            return ""
        return (
            'No step ran on the device "tpu": the model stayed on the CPU and was trained there. Move the model and '
            'the batches to it: model.to("tpu").'
        )

    # -- steps ----------------------------------------------------------------------------------------------------
    def after_optimizer_step(self, optimizer: Any) -> None:
        """A step begins to end when an optimizer steps again; its other statements, such as logging, may follow."""
        if self.closed or threading.get_ident() != self.thread:
            return
        if self.round and id(optimizer) not in self.round:
            self.round.add(id(optimizer))
            return
        self.round = {id(optimizer)}
        self.ending = optimizer

    def on_next(self) -> None:
        """The next step begins: a batch is fetched, or there is a backward pass or a step of an optimizer. Raises
        StepLimit, RecompileLimit or StopRequested."""
        if self.ending is None or self.closed or threading.get_ident() != self.thread:
            return
        self.end_step()
        self.count_steps()

    def end_step(self) -> None:
        """What the step that ends did."""
        optimizer, self.ending = self.ending, None
        if not self.stopped:
            self._step_done(optimizer)
        if self.values.pending or self.values.ready:
            self.reading = True  # reading logged values is our own read
            try:
                self.values.step_done()
            finally:
                self.reading = False

    def _end_last_step(self, read: bool = True) -> None:
        """Nothing follows it, and no limit is held any more. `read`: the device may be read."""
        if self.ending is None:
            return
        if read:
            self.end_step()
        self.ending = None
        self.steps.step(compiled=self.compiled_in_step)

    @guarded
    def _step_done(self, optimizer: Any) -> None:
        if self.steps.total >= eager_compiles.STEPS:
            self.eager.end()
        misses = self.misses()
        if misses != self.seen:
            self.seen = misses
            self.compiled_in_step = True
            self.record_compiles()
        if not self.steps.total and self.tracer is None:
            self.on_device = _on_device(optimizer)
            self._check_batch_norm()
        self.batches.on_optimizer_step()
        if self.batches.unrecorded and (batch := self.batches.new_fields()) is not None:
            self.writer.record(events.Batch, **batch, ranks=self.config.ranks)

    def _check_batch_norm(self) -> None:
        """After the first step: whether what a BatchNorm learns besides its weights has changed."""
        self.reading = True
        try:
            if batch_norm.not_updated():
                self.warn("batch-norm", batch_norm.NOT_UPDATED)
        finally:
            self.reading = False

    # -- compiles -------------------------------------------------------------------------------------------------
    def record_compiles(self) -> None:
        """Record what torch.compile compiled. Raises RecompileLimit."""
        if self._record_ended():
            self.check_recompile_limit()

    @guarded
    def _record_ended(self, last: bool = False) -> bool:
        """Record what was compiled and is described by now; `last`: all of it. Returns whether there was anything."""
        done = self.dynamo.take(last)
        for one in done:
            self._record(one)
        return bool(done)

    def _record(self, one: FrameCompile) -> None:
        site = self.sites_of.setdefault(one.place, self.sites.of_stack(one.stack) or self.sites.of_frame(None))
        text = one.stablehlo
        graph = parse_stablehlo(text) if text else None
        name = hlo.fingerprint(graph)[:32] if graph is not None else ""
        self.seconds += one.seconds
        series = (site.id, one.number.partition("/")[0], one.backward)
        new = TpuCompile(
            site,
            self.history.nth(series),
            self.steps.total,
            CompileReport(name, None, one.seconds, graph),
            "backward" if one.backward else "call",
            self.sites.through(one.stack),
            inputs=one.inputs,
            short=frozenset(self.batches.short),
            guard=one.guard,
            function=one.function,
            backward=one.backward,
            series=series,
        )
        if one.compiled:
            self.record_compile(new, self._first(site))
        else:
            self.history.remember(new)

    def _first(self, site: Site) -> CompileCause | None:
        """The note for a first compile: the rest of a function behind a graph break."""
        found = next((one for key, one in self.breaks.items() if self.sites.of_line(*key) == site), None)
        if found is None:
            return None
        return CompileCause("graph-break", f"torch.compile splits the function here: {found.reason}.", found.hint)

    @guarded
    def on_break(self, found: GraphBreakSite) -> None:
        """A graph break; those inside of libraries (an optimizer has one of its own) are not the user's."""
        key = (found.path, found.line)
        if key in self.breaks or len(self.breaks) >= _BREAKS or not self.sites.is_user_code(found.path):
            return
        self.breaks[key] = found
        site = self.sites.of_line(*key)
        hint = f" {found.hint}" if found.hint else ""
        text = f"Graph break: torch.compile splits the function at line {site.line} of {site.path}: {found.reason}."
        self.warn("graph-break", f"{text}{hint}")

    # -- reads, batches -------------------------------------------------------------------------------------------
    def reads_of(self, tensor: Any) -> bool:
        """Whether reading `tensor` waits for the device, in the user's thread."""
        device = getattr(tensor, "device", None)
        return device is not None and device.type == "tpu" and self.mine()

    @guarded
    def on_read(self, frame: FrameType, seconds: float) -> None:
        """The host read a tensor. What a rehearsal's collectives read is not the user's."""
        if frame.f_code.co_filename == process_group.__file__:
            return
        self.reads.add(self.sites.of_frame(frame), seconds, cut=False)
        if self.tracer is not None:
            self.tracer.on_read(frame)

    def on_loader(self, frame: FrameType, loader: Any) -> None:
        """A pass over a DataLoader begins."""
        if self.mine():
            self.progress.on_loader(frame, loader, length_on_host, False)

    @guarded
    def on_host_batch(self, iterator: Any, batch: Any) -> None:
        """A DataLoader's iterator returned a batch."""
        own = threading.get_ident() == self.thread
        self.batches.on_host_batch(iterator, batch, own)
        if own:
            self.eager.on_batch()
        if own and self.progress.learning:
            self.progress.on_batch(iterator)

    # -- the end --------------------------------------------------------------------------------------------------
    @guarded
    def ended(self) -> None:
        """The user's function has ended: what follows is our own."""
        self.eager.end()
        self._end_last_step()
        self._record_ended(last=True)
        self.reads.flush()
        self.sampler.sample()
        self._tell_given_up()
        self._tell_eager()

    def _tell_given_up(self) -> None:
        """Functions that torch.compile has given up."""
        for name, path, line, guard in dict.fromkeys(self.dynamo.given_up()):
            site = self.sites.of_line(path, line)
            self.warn(
                "given-up",
                f"torch.compile does not compile `{name}` (line {site.line} of {site.path}) any more, after too many "
                f"recompiles: its other calls run operation by operation. The last guard that failed: "
                f"{guard_text(guard)}.",
            )

    def _tell_eager(self) -> None:
        """Operations outside of torch.compile that were compiled one by one. They are counted when they run."""
        import torch

        torch.accelerator.synchronize()
        compiled = self.eager_misses() - self.before
        cached = max(0, self.cache._get_cache_requests() - self.requests - (self.misses() - self.before))
        if compiled <= 0:
            return
        what = "groups of operations (DEFER_AND_FUSE) were compiled" if self.eager.fused else _ONE_BY_ONE
        text = f"Eager: {compiled:,} {what}, {cached:,} came from the cache."
        named = self.eager.text()
        where = f" Most of them, in the first {eager_compiles.STEPS} steps: {named}." if named else ""
        self.warn("eager", f"{text}{where} {_COMPILE_IT}")

    def close(self, read: bool = True) -> None:
        """Write the rest. `read`: also the tensors logged last."""
        self._record_ended(last=True)
        self._end_last_step(read)
        self.reading = True
        super().close(read)


def _on_device(optimizer: Any) -> bool:
    """Whether the parameters of an optimizer are on "tpu"."""
    return any(one.device.type == "tpu" for group in optimizer.param_groups for one in group["params"][:1])


class TpuStats(PeriodicSampler):
    """The statistics of one rank: seconds of compiling, and HBM where the device has its own memory."""

    def __init__(self, writer: EventWriter, config: ObserverConfig, observer: TpuObserver) -> None:
        super().__init__(writer)
        self.config = config
        self.observer = observer

    def sample(self) -> None:
        """Record what changed. What the device executes is not reported."""
        times = {"compiling": round(self.observer.seconds, 3), "waiting": round(self.observer.reads.seconds, 3)}
        self.record_if_new("times", events.Times, **times, executing=None, collectives=None, n_collectives=0)
        if self.config.device == "TPU":
            import torch

            free, total = torch.accelerator.get_memory_info()
            if total:
                self.record_if_new("hbm", events.Memory, hbm_used=total - free, hbm_total=total)


class TpuPrecisionWatch(PrecisionWatch):
    """The requested precision and that of the compiled graphs, of one rank."""

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph."""
        asked, source = self._request()
        total, bf16 = hlo.multiplications(graph)
        agrees = not total or {"bf16": bf16 == total, "fp32": bf16 == 0}.get(asked, True)
        reason = " Autocast leaves some operations in float32, or the program chooses another dtype itself."
        return precision_facts((asked, source), graph, digest, agrees, reason, ())

    def _request(self) -> tuple[str, str]:
        state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
        shared = state._shared_state if state is not None else {}
        mixed = str(shared.get("_mixed_precision") or os.environ.get(MIXED_VARIABLE) or "no")
        if mixed != "no":
            return NAMES.get(mixed, mixed), f'Accelerator(mixed_precision="{mixed}")'
        return (self.option, OPTION) if self.option else ("", "")
