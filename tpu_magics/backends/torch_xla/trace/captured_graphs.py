"""The graphs captured from one process, each once, with names for their parameters, and the differences between them
with the user's lines."""

from __future__ import annotations

import functools
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends import hlo
from tpu_magics.backends.base import TraceSpec
from tpu_magics.backends.hlo.proto import number_ops
from tpu_magics.backends.hlo.text import parse_module
from tpu_magics.backends.instances import instances
from tpu_magics.backends.lowered import LoweredGraph, SourceLine
from tpu_magics.backends.observe.sites import locals_of, outwards
from tpu_magics.backends.torch import optimizers
from tpu_magics.backends.torch_xla import spmd
from tpu_magics.backends.torch_xla.observe import python_values
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport, XlaDumps
from tpu_magics.backends.torch_xla.trace.host_reads import SourceLineFinder
from tpu_magics.backends.torch_xla.trace.live_tensors import PendingGraph, alias, graph_hash, inner, outer_tensors
from tpu_magics.backends.torch_xla.trace.op_scopes import WRAPPED, OpScopes

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver

SHOWN = 3
OpLine = tuple[hlo.Op, "SourceLine | None"]  # of the user's


class CapturedGraphs:
    """`graphs`: by torch_xla's own hash; `counts`: as torch_xla counts them; `observer`: the observer, as in
    training; `scopes`: what operations belong to."""

    def __init__(self, tracing: TraceSpec, names: ParameterNames, lines: SourceLineFinder, scopes: OpScopes) -> None:
        self.tracing = tracing
        self.names = names
        self.lines = lines
        self.scopes = scopes
        self.graphs: dict[str, LoweredGraph] = {}
        self.counts: Counter[str] = Counter()
        self.observer: TorchObserver | None = None
        self.reports: list[XlaCompileReport] = []
        self._seen: list[GraphListing] = []
        self.rows: dict[str, int | None] = {}  # of the largest input, by the graph's hash

    def add(self, pending: Sequence[Any], frame: FrameType, nth: int, step: bool) -> str:
        """Capture the graph of these inner tensors; returns its hash. `step`: all pending tensors; `nth`: number of its
        sync."""
        key = graph_hash(pending)
        self.rows[key] = self.rows.get(key) or self._rows_now()
        if key in self.graphs:
            self.counts["CachedCompile"] += 1
        else:
            self.counts["UncachedCompile"] += 1
            self.graphs[key] = self._graph(PendingGraph.of(pending, step), frame, nth)
        return key

    def _graph(self, found: PendingGraph, frame: FrameType, nth: int) -> LoweredGraph:
        parsed = hlo.parse(found.text)
        module = number_ops(found.module, by_type=True)
        print_ = hlo.fingerprint(parsed)
        users = {frames: self.lines.users(frames) for frames in dict.fromkeys(module.frames.values())}
        scopes = {number: self.scopes.of(name) for number, name in module.names.items()}
        known = {number: users[frames] or scopes[number][1] for number, frames in module.frames.items()}
        places = {number: place for number, place in known.items() if place is not None}
        parameters = self.names.describe(parsed.parameters, found.ids, frame, self.observer)
        self.reports.append(
            XlaCompileReport(print_[:32], inputs=len(parsed.parameters), outputs=len(parsed.outputs), graph=parsed)
        )
        self._seen.append(GraphListing.of(found.text, parsed, places, parameters))
        return LoweredGraph(
            module=module.module,
            form="hlo",
            hash=print_,
            donors=found.donors,
            replicas=self.tracing.world,
            partitions=self.tracing.devices,
            site=self.lines.place(frame),
            nth=nth,
            steady=False,
            parameters=parameters,
            places=places,
            scopes={number: scope for number, (scope, _) in scopes.items() if scope.phase},
            mesh=spmd.mesh_axes(in_order=True) if self.tracing.devices > 1 else (),
        )

    def differences(self) -> list[str]:
        """The difference of each graph from the one before it, in sentences; "" for the first."""
        pairs = zip(self._seen[1:], self._seen, strict=False)
        return [*[""][: len(self._seen)], *(difference(new, old) for new, old in pairs)]

    def batch(self, steady: Sequence[str]) -> int | None:
        """Rows of the steady graph's input; if it got no new input, of the last one before it."""
        order = [*(one for one in self.graphs if one not in steady), *steady]
        return next((self.rows[one] for one in reversed(order) if self.rows[one]), None)

    def _rows_now(self) -> int | None:
        """Rows of the largest input of this step."""
        arrivals = self.observer.events.arrivals if self.observer is not None else []
        shapes = [tuple(one.shape) for one in arrivals if len(one.shape)]
        return max(shapes, key=math.prod)[0] if shapes else None


class CapturedDumps(XlaDumps):
    """Replaces the files that the runtime would write for each graph."""

    def __init__(self, taken: CapturedGraphs) -> None:
        super().__init__(None)
        self.source = taken
        self.given = 0

    def read(self, count: int) -> list[XlaCompileReport]:
        reports = self.source.reports[self.given : self.given + count]
        self.given += count
        return reports


# -- differences in sentences -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphListing:
    """A graph, the user's line of each instruction, and its parameters: "f32[8,4] weight"."""

    graph: hlo.Graph
    places: tuple[SourceLine | None, ...]
    parameters: tuple[str, ...]

    @classmethod
    def of(
        cls, text: str, graph: hlo.Graph, places: Mapping[int, SourceLine], parameters: Sequence[str]
    ) -> GraphListing:
        """`text`: of the graph; `places`: by the numbers of its module's instructions (hlo/proto.py)."""
        numbers = _numbers(text)
        return cls(graph, tuple(places.get(number) for number in numbers), tuple(parameters))


def _numbers(text: str) -> list[int]:
    """The number in the module of each instruction of the text: the module has them in the order in which they were
    made, which is part of their names."""
    computations = enumerate(parse_module(text.splitlines()))
    names = ((place, name.rpartition(".")[2]) for place, one in computations for name in one.instructions)
    keys = [(place, int(number)) for place, number in names if number.isdigit()]
    ranks = {place: number for number, place in enumerate(sorted(range(len(keys)), key=keys.__getitem__))}
    return [ranks[place] for place in range(len(keys))]


def difference(new: GraphListing, old: GraphListing) -> str:
    """At most three sentences; "" if nothing differs."""
    found = chain(_parameters(new.parameters, old.parameters), _lines(new, old), _results(new.graph, old.graph))
    return " ".join(f"{one}." for one, _ in zip(found, range(SHOWN), strict=False))


def _parameters(new: Sequence[str], old: Sequence[str]) -> Iterator[str]:
    now, before = _named(new), _named(old)
    both = [name for name in now if name in before]
    yield from (f"{name} is now {now[name]}, before {before[name]}" for name in both if now[name] != before[name])
    if len(new) != len(old):
        known = {f"{types[name]} {name}" for types in (now, before) for name in both}
        for some, others, label in (
            (new, old, "New inputs"),
            (old, new, "Removed inputs"),
        ):
            which = [one for one in (Counter(some) - Counter(others)).elements() if one not in known]
            yield from [f"{label}: {_some(which)}"] if which else []


def _named(parameters: Sequence[str]) -> dict[str, str]:
    """Name -> type, of parameters with a unique name."""
    pairs = [one.partition(" ") for one in parameters]
    count = Counter(name for _, _, name in pairs)
    return {name: type_ for type_, _, name in pairs if name and count[name] == 1}


def _results(new: hlo.Graph, old: hlo.Graph) -> Iterator[str]:
    if len(new.outputs) != len(old.outputs):
        yield f"{len(new.outputs)} outputs now, before {len(old.outputs)}: other tensors are alive at the sync"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _lines(new: GraphListing, old: GraphListing) -> Iterator[str]:
    """The lines where the graphs start to differ: other operations on operands that did not change."""
    now, before = _with_lines(new), _with_lines(old)
    gone = [before[place] for place in _unmatched(before, now)]
    shown: set[SourceLine] = set()
    for op, place in _by_line(_first_of(now, _unmatched(now, before))):
        if place is not None and place not in shown:
            shown.add(place)
            yield f"{place} ({place.code}): {_change(op, place, gone)}"
    if not shown:
        lost = _by_line(_first_of(before, _unmatched(before, now)))
        yield from (f"{p} ({p.code}): {op.opcode} {op.result} was removed" for op, p in lost[:1] if p is not None)


def _with_lines(seen: GraphListing) -> list[OpLine]:
    ops = seen.graph.ops
    places = seen.places if len(seen.places) == len(ops) else [None] * len(ops)
    return list(zip(ops, places, strict=True))


def _unmatched(of: Sequence[OpLine], others: Sequence[OpLine]) -> list[int]:
    """Indices of operations that the others do not have, or have less often."""
    left = Counter(map(_key, others))
    left.subtract(map(_key, of))
    found = []
    for place in range(len(of) - 1, -1, -1):
        key = _key(of[place])
        if left[key] < 0:
            left[key] += 1
            found.append(place)
    return found[::-1]


def _key(line: OpLine) -> tuple[object, ...]:
    op, place = line
    return op.opcode, op.results, op.attributes, op.value, place


def _first_of(lines: Sequence[OpLine], changed: Sequence[int]) -> list[OpLine]:
    """The changed operations whose operands did not change."""
    places = set(changed)
    roots = [at for at in changed if not any(back and at - back in places for back in lines[at][0].operands)]
    return [lines[at] for at in roots]


def _by_line(lines: Sequence[OpLine]) -> list[OpLine]:
    """Operations with a user's line, in line order. Constants only if there is nothing else: a mean divides by the
    number of its elements."""
    found = (line for line in lines if line[1] is not None and line[0].opcode != "parameter")
    known = sorted(found, key=lambda one: one[1].line if one[1] else 0)
    return [one for one in known if one[0].opcode != "constant"] or known


def _change(op: hlo.Op, place: SourceLine, gone: Sequence[OpLine]) -> str:
    was = next((one for one, there in gone if there == place and one.opcode == op.opcode), None)
    if was is None:
        return f"{op.opcode} {op.result} is new"
    if was.results != op.results:
        return f"{op.result} now, before {was.result}"
    if was.value != op.value:
        return f"{op.value} now, before {was.value}"
    return f"{op.opcode} {op.attributes} now, before {was.attributes}"


# -- names of parameters ----------------------------------------------------------------------------------------------


# A name is found by the id of the tensor whose place a tensor takes (`alias` in live_tensors.py): at the end of a
# step, a model's parameter is the result of the step, and the graph's parameter is its value before.


class ParameterNames:
    """The models of a process: those that moved to the device (they may be older than the process), and those created
    in it."""

    def __init__(self) -> None:
        self._moved: weakref.WeakSet[Any] = weakref.WeakSet()
        self._moving = 0

    def moving(self) -> bool:
        """Whether a model is being moved now."""
        return self._moving > 0

    def moved(self) -> list[Any]:
        """The models that moved to the device."""
        return [one for one in self._moved if hasattr(one, "_modules")]

    def install(self) -> None:
        """Record every model that moves, until the process ends."""
        import torch

        original = torch.nn.Module._apply

        @functools.wraps(original)
        def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._moving:
                self._moved.add(module)
            self._moving += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._moving -= 1

        torch.nn.Module._apply = apply

    def describe(
        self, parameters: Sequence[Any], ids: Sequence[int], frame: FrameType, observer: TorchObserver | None
    ) -> Any:
        """The type of each parameter, and its name if known. `ids`: of their tensors; `frame`: the line of the sync."""
        known = self._known(frame, observer)
        return tuple(
            f"{type_} {known[one]}" if one in known else str(type_)
            for type_, one in zip(parameters, [*ids, *[-1] * len(parameters)], strict=False)
        )

    def _known(self, frame: FrameType, observer: TorchObserver | None) -> Mapping[int, str]:
        inputs = dict(_inputs(frame, observer)) if observer is not None else {}
        return {**inputs, **self._of_models(frame)}

    def _of_models(self, frame: FrameType) -> dict[int, str]:
        import torch

        models = _outermost([*self._moved, *instances(torch.nn.Module)])
        labels = _labels(models, frame) if len(models) > 1 else {}
        names: dict[int, str] = {}
        owners: dict[int, str] = {}
        for model in models:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                name = name.replace(WRAPPED, "")
                if tensor.is_xla:
                    owners[id(tensor)] = f"{labels[id(model)]}.{name}" if labels else name
                    names[alias(inner(tensor))] = owners[id(tensor)]
        for optimizer in optimizers.living():
            names.update(_kept_by(optimizer, owners))
        return names


def _outermost(models: Iterable[Any]) -> list[Any]:
    """The models that are not part of another one, and have parameters or buffers on the device."""
    each = {id(model): model for model in models if hasattr(model, "_modules")}
    inside = {id(part) for model in each.values() for part in model.modules() if part is not model}
    return [model for key, model in each.items() if key not in inside and _is_there(model)]


def _is_there(model: Any) -> bool:
    return any(one.is_xla for one in (*model.parameters(), *model.buffers()))


def _labels(models: Sequence[Any], frame: FrameType) -> dict[int, str]:
    """A name for each of several models: its variable, or its class."""
    variables = {id(value): name for name, value in reversed(list(_variables(frame)))}
    labels = {id(model): variables.get(id(model)) or type(model).__name__ for model in models}
    count = Counter(labels.values())
    return {
        key: label if count[label] == 1 else f"{label} {place}" for place, (key, label) in enumerate(labels.items())
    }


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The variables of the running functions, innermost first."""
    for one in outwards(frame):
        yield from locals_of(one).items()
        yield from list(one.f_globals.items())


def _kept_by(optimizer: Any, owners: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for parameter, state in optimizer.state.items():
        for kind, tensor in state.items() if isinstance(state, dict) else ():
            if python_values.is_tensor(tensor) and tensor.is_xla:
                yield alias(inner(tensor)), f"{kind} of {owners.get(id(parameter), 'a parameter')}"


def _inputs(frame: FrameType, observer: TorchObserver) -> Iterator[tuple[int, str]]:
    """Inputs from the host, by their name in the batch or the variable that holds them."""
    variables = {seen.key: name for name, seen in python_values.take(frame, observer.sites).tensors.items()}
    names = {**variables, **{one.key: one.name for one in observer.events.arrivals if one.name}}
    for one in outer_tensors():
        if id(one) in names:
            yield alias(inner(one)), names[id(one)]
