"""What happens at each sync of a traced function, and the files in which the notebook gets the graphs.

C++ functions of torch_xla 2.9.0 that run a graph: `_xla_step_marker` ends a step, `_xla_sync_multi` and
`_xla_sync_live_tensors` run a graph within one; `_xla_warm_up_cache` and `_run_cached_graph` belong to torch.compile;
with `_set_use_eager_mode` each operation is a graph.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import StepLimit, TraceSpec
from tpu_magics.backends.lowered import write_reads, write_trace
from tpu_magics.backends.torch import optimizers
from tpu_magics.backends.torch.steady_state import SteadyStateDetector, TraceStepEvents
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps
from tpu_magics.backends.torch_xla.trace import fake_world, live_tensors, step_changes
from tpu_magics.backends.torch_xla.trace.captured_graphs import CapturedDumps, CapturedGraphs, ParameterNames
from tpu_magics.backends.torch_xla.trace.host_reads import HostReadLog, ReadKernels, SourceLineFinder
from tpu_magics.backends.torch_xla.trace.live_tensors import inner, number
from tpu_magics.backends.torch_xla.trace.op_scopes import OpScopes
from tpu_magics.backends.torch_xla.trace.placeholders import Uploads
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver

_EAGER = "Eager mode was ignored: it would compile each operation separately. Here they are part of the next graph."
_READ_ZEROS = (
    "The function read values, which are zero in a preflight. If one of them decides when it ends, it may end too "
    "early."
)
_STEP_ARGUMENTS = 4  # of _xla_step_marker, the last one is `reset_scope`
_HIDDEN = "Up to {} tensors that only C++ code holds are missing from the graph outputs. In training they are outputs."


class Tracer:
    """The tracer of one worker; created and used in the thread that runs the user's function."""

    def __init__(self, tracing: TraceSpec) -> None:
        self.tracing = tracing
        self.started = time.monotonic()
        self.lines = SourceLineFinder()
        self.names = ParameterNames()
        self.scopes = OpScopes(_open_scope, self.lines.place, self.names.moved)
        self.captured = CapturedGraphs(tracing, self.names, self.lines, self.scopes)
        self.host_reads = HostReadLog(self.lines)
        self.host_reads.changed = lambda: write_reads(tracing.folder, self.host_reads.zeros())
        # Under SPMD uploads are sharded, which placeholders cannot be.
        self.uploads = Uploads(self.names.moving) if tracing.devices == 1 else None
        self.reads = ReadKernels(self.host_reads, tracing.world, self.uploads)
        self.events = TraceStepEvents()
        self.steady_state = SteadyStateDetector(tracing.steps)
        self.notes: list[str] = []
        self.hidden: list[int] = []  # at each sync: tensors that were not found
        self._observer: TorchObserver | None = None

    # -- what the observer asks instead of the runtime's counters ---------------------------------------------------
    def value(self, name: str) -> int:
        """Number of graphs so far, as torch_xla counts them: "UncachedCompile" for new ones, "CachedCompile" for known
        ones."""
        return self.captured.counts[name]

    @property
    def files(self) -> XlaDumps:
        """What the runtime would have written for each graph."""
        return CapturedDumps(self.captured)

    @property
    def observer(self) -> TorchObserver | None:
        """The observer, as in training."""
        return self._observer

    @observer.setter
    def observer(self, observer: TorchObserver) -> None:
        self._observer = self.captured.observer = observer
        self.lines.sites = observer.sites
        read = observer.values.read

        def quiet() -> None:  # what was logged is read by the observer, after the step
            with self.host_reads.off():
                read()

        observer.values.read = quiet  # type: ignore[method-assign]

    def install(self) -> None:
        """Intercept everything that runs a graph; from here on nothing is computed."""
        import torch_xla

        extension = torch_xla._XLAC
        extension._set_ir_debug(True)  # the Python frames of each operation
        self._replace(extension, "_xla_step_marker", self._step)
        self._replace(extension, "_xla_sync_multi", self._part)
        self._replace(extension, "_xla_sync_live_tensors", self._all_live)
        self._replace(extension, "_set_use_eager_mode", self._stay_lazy)
        for name in ("_xla_warm_up_cache", "_run_cached_graph"):
            self._replace(extension, name, _no_dynamo)
        fake_world.skip_rendezvous(self.tracing.world)
        self.names.install()
        self.events.install()
        self.scopes.install()
        step_changes.install(self.tracing.changes, self.scopes, self.names.moving)
        self.reads.install()
        if self.uploads is not None:
            self.uploads.install()

    def _replace(self, extension: Any, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(extension, name, None)
        if original is not None:
            setattr(extension, name, functools.partial(ours, original))

    # -- what runs a graph ------------------------------------------------------------------------------------------
    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The end of a step."""
        captured = self._capture_all(sys._getframe(1))
        self.host_reads.synced()
        if len(args) < _STEP_ARGUMENTS:
            kwargs["reset_scope"] = False  # scopes may be open, of a module in which the step ends
        result = original(*args, **kwargs)
        if captured is not None and self.steady_state.add(self.events.since_last(captured)):
            if self._observer is not None:  # records why the graph changed
                self._observer.after_sync(sys._getframe(1))
            raise StepLimit
        return result

    def _all_live(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A split within a step."""
        self._capture_all(sys._getframe(1))
        return original(*args, **kwargs)

    def _part(self, original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """A graph of these tensors alone; the rest of the step stays whole."""
        found = live_tensors.pending(live_tensors.ordered(tensors))
        if not found:
            return None
        frame = sys._getframe(1)
        self._capture(found, frame, step=False)
        self.host_reads.part(frame)
        live_tensors.give_zeros(found)
        return original(found, *args, **kwargs)

    def _stay_lazy(self, _original: Callable[..., Any], eager: bool) -> None:
        if eager and _EAGER not in self.notes:
            self.notes.append(_EAGER)

    # -- taking a graph ---------------------------------------------------------------------------------------------
    def _capture_all(self, frame: FrameType) -> str | None:
        """Capture the graph of all pending tensors, which become placeholders; None if nothing is pending."""
        found = live_tensors.tensors()
        pending = live_tensors.pending(found)
        captured = self._capture(pending, frame)
        if self.tracing.devices > 1:
            settle(pending)
        elif pending:
            self.hidden.append(live_tensors.alive() - len(found))
        live_tensors.give_placeholders()
        return captured

    def _capture(self, pending: Sequence[Any], frame: FrameType, step: bool = True) -> str | None:
        """Capture the graph of these tensors. None if there are none."""
        if not pending:
            return None
        return self.captured.add(pending, frame, len(self.steady_state.syncs), step)

    # -- the end ----------------------------------------------------------------------------------------------------
    def finish(self) -> bool:
        """The function has ended: capture what is still pending. Returns whether anything was."""
        syncs = len(self.steady_state.syncs)
        captured = None if self.steady_state.settled else self._capture_all(sys._getframe(1))
        if captured is not None:
            self.steady_state.add(self.events.since_last(captured))
        self.steady_state.at_end()
        if self.steady_state.notes and self.host_reads.zeros():
            self.notes.append(_READ_ZEROS)
        hidden = min(self.hidden, default=0)  # a loader's thread may hold some
        if hidden > 0:
            self.notes.append(_HIDDEN.format(hidden))
        self._write(syncs)
        return captured is not None

    def _write(self, syncs: int) -> None:
        steady = self.steady_state.steady
        order = sorted(self.captured.graphs, key=lambda one: steady.index(one) if one in steady else -1)
        write_trace(
            self.tracing.folder,
            [(self.captured.graphs[one], one in steady) for one in order],
            syncs=syncs,
            sequence=[order.index(sync.graph) for sync in self.steady_state.syncs[:syncs]],
            settled=self.steady_state.settled,
            ended=self.steady_state.ended,
            differences=[] if self.steady_state.settled else self.captured.differences(),
            reads=self.host_reads.reads(),
            refused=self.host_reads.refused(),
            seconds=time.monotonic() - self.started,
            batch=self.captured.batch(steady),
            rows=[self.captured.rows[one] for one in order],
            notes=[*self.notes, *self.steady_state.notes],
        )


def _open_scope(name: str) -> Any:
    import torch_xla

    return torch_xla._XLAC.profiler.scope_pusher(name)


def _no_dynamo(*_args: Any, **_kwargs: Any) -> Any:
    raise TpuMagicsError(
        "A function that uses torch.compile cannot be traced.",
        "torch.compile(backend='openxla') compiles its own graphs and must run them to do so.",
        "Remove torch.compile for the preflight: torch_xla compiles the same step as one graph.",
    )


# -- shardings --------------------------------------------------------------------------------------------------------


# In training, XLA's partitioner decides them when it compiles the step, and torch_xla assigns them to the step's
# results: from the second step on they count as annotated. Here no step is compiled before the next one is traced.
# Optimizer state and gradients get the sharding of their parameter, as XLA decides too, because they are made from it
# element by element. Everything else without an annotation is replicated. XLA may shard that too (a bias beside a
# sharded weight); then a device needs less memory than the preflight says, not more. C++ functions as in torch_xla
# 2.9.0.


def settle(pending: Sequence[Any]) -> None:
    """Give a sharding to each of these inner tensors that has none. They must be pending: then it is only noted."""
    import torch_xla
    from torch_xla.distributed.spmd import ShardingType

    extension = torch_xla._XLAC
    bare = {number(one): one for one in pending if not extension._get_xla_sharding_spec(one)}
    if not bare:
        return
    for tensor, parameter in _like_parameters():
        found = bare.get(number(inner(tensor)))
        sharding = extension._get_xla_op_sharding(inner(parameter))
        if found is not None and sharding is not None and found.shape == parameter.shape:
            extension._xla_mark_sharding(found, sharding)
            del bare[number(found)]
    whole = extension.OpSharding([], [], [], ShardingType.REPLICATED)
    for one in bare.values():
        extension._xla_mark_sharding(one, whole)


def _like_parameters() -> Iterator[tuple[Any, Any]]:
    """(tensor, the parameter it belongs to)."""
    for parameter, state in (item for optimizer in optimizers.living() for item in optimizer.state.items()):
        kept = state.values() if isinstance(state, dict) else ()
        yield from ((one, parameter) for one in _on_device((*kept, parameter.grad)))


def _on_device(found: Iterable[Any]) -> Iterator[Any]:
    import torch

    return (one for one in found if issubclass(type(one), torch.Tensor) and one.is_xla)
