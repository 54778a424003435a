"""What is done at each sync of a function that is traced.

What lives here: taking the pending graph, placeholders in its place, and the way of what was taken to the notebook.
What does not: what is pending (live.py), its graph (pending.py), when that is enough (settling.py), and the reads in
between (reads.py).

The functions of torch_xla's C++ module that run a graph were read in 2.9.0: `_xla_step_marker` ends a step,
`_xla_sync_multi` and `_xla_sync_live_tensors` run a graph within one; `_xla_warm_up_cache` and `_run_cached_graph`
belong to torch.compile; with `_set_use_eager_mode` each operation is a graph.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import StepLimit, Tracing
from tpu_magics.backends.hlo_proto import numbered
from tpu_magics.backends.lowered import Graph, Place
from tpu_magics.backends.observing import hlo
from tpu_magics.backends.torch_xla.observe.told import Files, Told
from tpu_magics.backends.torch_xla.trace import alone, live, shardings
from tpu_magics.backends.torch_xla.trace.doings import Doings
from tpu_magics.backends.torch_xla.trace.names import Names
from tpu_magics.backends.torch_xla.trace.pending import Pending, graph_hash
from tpu_magics.backends.torch_xla.trace.reads import Reads
from tpu_magics.backends.torch_xla.trace.settling import Settling
from tpu_magics.backends.torch_xla.trace.written import write, write_reads
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import Observer

_EAGER = "Eager mode was left off: each operation would be a graph of its own. They are part of the next graph here."
_ASTRAY = (
    "It read values, which were zero while it was traced: where one decides how long it goes on, it may end early."
)
_HIDDEN = "Up to {} tensors that only C++ holds are not among the results of the graphs; in training they are."


class Tracer:
    """The tracer of one worker; made and used in the thread that runs the person's function."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self.started = time.monotonic()
        self.reads = Reads(self._place, tracing.world)
        self.reads.changed = lambda: write_reads(tracing.folder, self.reads.zeros())
        self.names = Names()
        if tracing.devices == 1:  # under SPMD a model is split when it is there
            self.reads.moving = self.names.moving
        self.doings = Doings()
        self.settling = Settling(tracing.steps)
        self.graphs: dict[str, Graph] = {}  # by torch_xla's own hash
        self.told: list[Told] = []
        self.rows: dict[str, int | None] = {}  # of the largest input, by the graph's hash
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.hidden: list[int] = []  # at each sync: tensors that were not found
        self._observer: Observer | None = None

    # -- what the observer asks instead of the runtime's counters ---------------------------------------------------
    def value(self, name: str) -> int:
        """Graphs so far, as torch_xla counts them: "UncachedCompile" for new ones, "CachedCompile" for known ones."""
        return self.counts[name]

    @property
    def files(self) -> Files:
        """What the runtime would have written of each graph."""
        return _TracedFiles(self)

    @property
    def observer(self) -> Observer | None:
        """Who looks on, as in training."""
        return self._observer

    @observer.setter
    def observer(self, observer: Observer) -> None:
        self._observer = observer
        read = observer.values.read

        def quiet() -> None:  # what was logged is read by the observer, after the step
            with self.reads.off():
                read()

        observer.values.read = quiet  # type: ignore[method-assign]

    def install(self) -> None:
        """Listen to all that runs a graph; from here on nothing is computed."""
        import torch_xla

        extension = torch_xla._XLAC
        extension._set_ir_debug(True)  # the Python frames of each operation
        self._replace(extension, "_xla_step_marker", self._step)
        self._replace(extension, "_xla_sync_multi", self._part)
        self._replace(extension, "_xla_sync_live_tensors", self._all_live)
        self._replace(extension, "_set_use_eager_mode", self._stay_lazy)
        for name in ("_xla_warm_up_cache", "_run_cached_graph"):
            self._replace(extension, name, _no_dynamo)
        alone.meet_nobody(self.tracing.world)
        _leave_jax_alone()
        self.names.install()
        self.doings.install()
        self.reads.install()

    def _replace(self, extension: Any, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(extension, name, None)
        if original is not None:
            setattr(extension, name, functools.partial(ours, original))

    # -- what runs a graph ------------------------------------------------------------------------------------------
    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The end of a step."""
        taken = self._take_all(sys._getframe(1))
        self.reads.since_sync.clear()
        result = original(*args, **kwargs)
        if taken is not None and self.settling.add(self.doings.since_last(taken)):
            if self._observer is not None:  # why this graph is another one is told, too
                self._observer.after_sync(sys._getframe(1))
            raise StepLimit
        return result

    def _all_live(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A cut within a step."""
        self._take_all(sys._getframe(1))
        return original(*args, **kwargs)

    def _part(self, original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """A graph that leads to these tensors alone; the rest of the step stays whole."""
        found = live.pending(live.ordered(tensors))
        if not found:
            return None
        frame = sys._getframe(1)
        self._take(found, frame, step=False)
        self.reads.part(frame)
        live.give_zeros(found)
        return original(found, *args, **kwargs)

    def _stay_lazy(self, _original: Callable[..., Any], eager: bool) -> None:
        if eager and _EAGER not in self.notes:
            self.notes.append(_EAGER)

    # -- taking a graph ---------------------------------------------------------------------------------------------
    def _take_all(self, frame: FrameType) -> str | None:
        """The graph of all that is pending, which has placeholders for values afterwards; None where nothing is."""
        found = live.tensors()
        pending = live.pending(found)
        taken = self._take(pending, frame)
        if self.tracing.devices > 1:
            shardings.settle(pending)
        elif pending:
            self.hidden.append(live.alive() - len(found))
        live.give_placeholders()
        return taken

    def _take(self, pending: Sequence[Any], frame: FrameType, step: bool = True) -> str | None:
        """The graph of these tensors. None where there are none."""
        if not pending:
            return None
        key = graph_hash(pending)
        self.rows[key] = self.rows.get(key) or self._rows()
        if key in self.graphs:
            self.counts["CachedCompile"] += 1
        else:
            self.counts["UncachedCompile"] += 1
            self.graphs[key] = self._graph(Pending.of(pending, step), frame)
        return key

    def _graph(self, found: Pending, frame: FrameType) -> Graph:
        parsed = hlo.parse(found.text)
        module = numbered(found.module, by_type=True)
        print_ = hlo.fingerprint(parsed)
        users = {frames: self._users(frames) for frames in dict.fromkeys(module.frames.values())}
        places = {number: users[frames] for number, frames in module.frames.items()}
        self.told.append(Told(print_[:32], inputs=len(parsed.parameters), outputs=len(parsed.outputs), graph=parsed))
        return Graph(
            module=module.module,
            form="hlo",
            hash=print_,
            donors=found.donors,
            replicas=self.tracing.world,
            partitions=self.tracing.devices,
            site=self._place(frame),
            nth=len(self.settling.syncs),
            steady=False,
            parameters=self.names.told(parsed.parameters, found.ids, frame, self._observer),
            places={number: place for number, place in places.items() if place is not None},
        )

    def _users(self, frames: Sequence[tuple[str, str, int]]) -> Place | None:
        site = self._observer.sites.of_places(frames) if self._observer is not None else None
        return Place(site.path, site.line, site.code) if site is not None else None

    def _place(self, frame: FrameType) -> Place | None:
        if self._observer is None or self._observer.sites.users_frame(frame) is None:
            return None
        site = self._observer.sites.of_frame(frame)
        return Place(site.path, site.line, site.code)

    # -- the end ----------------------------------------------------------------------------------------------------
    def finish(self) -> bool:
        """The function has ended: what it left pending is a graph as well. Returns whether anything was."""
        syncs = len(self.settling.syncs)
        taken = None if self.settling.settled else self._take_all(sys._getframe(1))
        if taken is not None:
            self.settling.add(self.doings.since_last(taken))
        self.settling.at_end()
        if self.settling.notes and self.reads.zeros():
            self.notes.append(_ASTRAY)
        hidden = min(self.hidden, default=0)  # a loader's thread may have had some in its hands
        if hidden > 0:
            self.notes.append(_HIDDEN.format(hidden))
        self._write(syncs)
        return taken is not None

    def _write(self, syncs: int) -> None:
        steady = self.settling.steady
        order = sorted(self.graphs, key=lambda one: steady.index(one) if one in steady else -1)
        write(
            self.tracing.folder,
            [(self.graphs[one], one in steady) for one in order],
            syncs=syncs,
            settled=self.settling.settled,
            reads=self.reads.told(),
            refused=self.reads.refused(),
            seconds=time.monotonic() - self.started,
            batch=self._batch(steady),
            notes=[*self.notes, *self.settling.notes],
        )

    def _batch(self, steady: Sequence[str]) -> int | None:
        """Rows of what the steady graph was given; where it got nothing new, of what came last before it."""
        order = [*(one for one in self.graphs if one not in steady), *steady]
        return next((self.rows[one] for one in reversed(order) if self.rows[one]), None)

    def _rows(self) -> int | None:
        """Rows of the largest input of this step."""
        arrivals = self._observer.doing.arrivals if self._observer is not None else []
        shapes = [tuple(one.shape) for one in arrivals if len(one.shape)]
        return max(shapes, key=math.prod)[0] if shapes else None


class _TracedFiles(Files):
    """Stands where the observer reads what the runtime wrote."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(None)
        self.tracer = tracer
        self.taken = 0

    def read(self, count: int) -> list[Told]:
        told = self.tracer.told[self.taken : self.taken + count]
        self.taken += count
        return told


def _leave_jax_alone() -> None:
    """torch_xla 2.9 imports jax, where it is installed, to name a scope in it: that takes a second and slows down what
    follows. Who uses jax has imported it."""
    from torch_xla.debug import profiler

    original = profiler.maybe_get_jax
    profiler.maybe_get_jax = lambda *args, **kwargs: original(*args, **kwargs) if "jax" in sys.modules else None


def _no_dynamo(*_args: Any, **_kwargs: Any) -> Any:
    raise TpuMagicsError(
        "A function that uses torch.compile cannot be traced.",
        "torch.compile(backend='openxla') compiles its graphs by itself, and has to run them for that.",
        "Take torch.compile out for the preflight: torch_xla compiles the same step as a whole.",
    )
