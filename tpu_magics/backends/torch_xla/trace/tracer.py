"""What is done at each sync of a function that is traced.

What lives here: taking the pending graph, zeros in its place, and when that is enough. What does not: what is pending
(live.py), and the reads in between (reads.py).

The functions of torch_xla's C++ module that run a graph were read in 2.9.0: `_xla_step_marker` ends a step,
`_xla_sync_multi` and `_xla_sync_live_tensors` run a graph within one; `_xla_warm_up_cache` and `_run_cached_graph`
belong to torch.compile.
"""

from __future__ import annotations

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
from tpu_magics.backends.torch_xla import hlo
from tpu_magics.backends.torch_xla.observe.told import Files, Told
from tpu_magics.backends.torch_xla.trace import live
from tpu_magics.backends.torch_xla.trace.reads import Reads
from tpu_magics.backends.torch_xla.trace.written import write
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import Observer

_LONGEST = 64  # syncs: gradients are accumulated over fewer


class Tracer:
    """The tracer of one worker; made and used in the thread that runs the person's function."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self.started = time.monotonic()
        self.reads = Reads(self._place)
        self.graphs: list[Graph] = []
        self.told: list[Told] = []
        self.seen: list[str] = []  # the native hash of each sync's graph
        self.known: dict[tuple[str, bool], str] = {}
        self.steps = 0
        self.batch: int | None = None
        self.settled = False
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.observer: Observer | None = None

    # -- what the observer asks instead of the runtime's counters ---------------------------------------------------
    def value(self, name: str) -> int:
        """Graphs so far, as torch_xla counts them: "UncachedCompile" for new ones, "CachedCompile" for known ones."""
        return self.counts[name]

    @property
    def files(self) -> Files:
        """What the runtime would have written of each graph."""
        return _TracedFiles(self)

    def install(self) -> None:
        """Listen to all that runs a graph; from here on a read gives zeros."""
        import torch_xla

        extension = torch_xla._XLAC
        extension._set_ir_debug(True)  # the Python frames of each operation
        self._replace(extension, "_xla_step_marker", self._step)
        self._replace(extension, "_xla_sync_multi", self._part)
        self._replace(extension, "_xla_sync_live_tensors", self._all_live)
        for name in ("_xla_warm_up_cache", "_run_cached_graph"):
            self._replace(extension, name, _no_dynamo)
        self.reads.__enter__()

    def _replace(self, extension: Any, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(extension, name, None)
        if original is not None:
            setattr(extension, name, lambda *args, **kwargs: ours(original, *args, **kwargs))

    # -- what runs a graph ------------------------------------------------------------------------------------------
    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.reads.off():
            new = self._take(live.tensors(), sys._getframe(2))
            result = original(*args, **kwargs)
        if new is not None and self._ends_step() and (self.settled or self.steps >= self.tracing.steps):
            raise StepLimit
        return result

    def _all_live(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.reads.off():
            self._take(live.tensors(), sys._getframe(2))
            return original(*args, **kwargs)

    def _part(self, original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        with self.reads.off():
            self._take(live.ordered(tensors), sys._getframe(2))
            return original(tensors, *args, **kwargs)

    def _ends_step(self) -> bool:
        """Whether what was taken is a whole step: the optimizer stepped, or nothing goes backward; and note it."""
        doing = self.observer.doing if self.observer is not None else None
        whole = doing is None or doing.stepped or not doing.backward
        self.steps += whole
        if len(self.seen) >= _LONGEST:
            self.notes.append(f"After {_LONGEST} syncs the optimizer had made no step; later ones are not known.")
            return True
        self.settled = whole and len(self.seen) > 1 and self._repeated()
        return whole

    def _repeated(self) -> bool:
        """Whether the newest graph is that of the sync before it; where gradients are accumulated, that of the last
        whole step."""
        newest = self.seen[-1]
        whole = self.known.get(("whole", True))
        self.known["whole", True] = newest
        return newest == self.seen[-2] or newest == whole

    # -- taking a graph ---------------------------------------------------------------------------------------------
    def _take(self, tensors: Sequence[Any], frame: FrameType) -> str | None:
        """The pending graph of these tensors, which are zeros afterwards. None where nothing is pending."""
        pending = live.pending(tensors)
        if not pending:
            return None
        key = live.graph_hash(pending)
        self.batch = self.batch or self._rows()
        if key not in self.seen:
            self._keep(live.Pending.of(pending), frame)
            self.counts["UncachedCompile"] += 1
        else:
            self.counts["CachedCompile"] += 1
        self.seen.append(key)
        live.zero(pending)
        return key

    def _keep(self, found: live.Pending, frame: FrameType) -> None:
        parsed = hlo.parse(found.text)
        module = numbered(found.module, by_type=True)
        print_ = hlo.fingerprint(parsed)
        places = {number: self._users(frames) for number, frames in module.frames.items()}
        self.graphs.append(
            Graph(
                module=module.module,
                form="hlo",
                hash=print_,
                donors=found.donors,
                replicas=self.tracing.world,
                partitions=self.tracing.devices,
                site=self._place(frame),
                nth=len(self.seen),
                steady=False,
                parameters=found.names(parsed.parameters, frame),
                places={number: place for number, place in places.items() if place is not None},
            )
        )
        self.told.append(Told(print_[:32], len(parsed.parameters), len(parsed.outputs), graph=parsed))

    def _users(self, frames: Sequence[tuple[str, str, int]]) -> Place | None:
        site = self.observer.sites.of_places(frames) if self.observer is not None else None
        return Place(site.path, site.line, site.code) if site is not None else None

    def _place(self, frame: FrameType) -> Place | None:
        if self.observer is None or self.observer.sites.users_frame(frame) is None:
            return None
        site = self.observer.sites.of_frame(frame)
        return Place(site.path, site.line, site.code)

    # -- the end ----------------------------------------------------------------------------------------------------
    def finish(self) -> bool:
        """The function has ended: what it left pending is a graph as well. Returns whether anything was."""
        syncs = len(self.seen)
        left = False
        if not self.settled:
            with self.reads.off():
                left = self._take(live.tensors(), sys._getframe(1)) is not None
        self._write(syncs)
        return left

    def _write(self, syncs: int) -> None:
        steady = self.seen.index(self.seen[-1]) if self.seen else 0
        order = {key: place for place, key in enumerate(dict.fromkeys(self.seen))}
        last = order[self.seen[steady]] if self.seen else -1
        write(
            self.tracing.folder,
            [(one, place == last) for place, one in enumerate(self.graphs)],
            syncs=syncs,
            settled=self.settled,
            reads=self.reads.told(),
            refused=self.reads.refused(),
            seconds=time.monotonic() - self.started,
            batch=self.batch,
            notes=self.notes,
        )

    def _rows(self) -> int | None:
        """Rows of the largest input of this step."""
        arrivals = self.observer.doing.arrivals if self.observer is not None else []
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


def _no_dynamo(*_args: Any, **_kwargs: Any) -> Any:
    raise TpuMagicsError(
        "A function that uses torch.compile cannot be traced.",
        "torch.compile(backend='openxla') compiles its graphs by itself, and has to run them for that.",
        "Take torch.compile out for the preflight: torch_xla compiles the same step as a whole.",
    )
