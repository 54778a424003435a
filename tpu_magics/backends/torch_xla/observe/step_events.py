"""What happened since the start of the step: inputs from the host, reads, backward passes, optimizer steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tpu_magics.backends.torch.batches import leaves
from tpu_magics.backends.torch.hooks import ReadCounter
from tpu_magics.backends.torch_xla.observe import counters
from tpu_magics.backends.torch_xla.observe.python_values import FrameSnapshot, Number
from tpu_magics.runs.events import Input, Site

_KEPT = 256  # events of one kind in one step
_FIRST_NODES = 64  # of a backward pass: the loss that was read may have been scaled or summed
_UNNAMED = "input"


@dataclass(frozen=True)
class StepFacts:
    """What happened since the last step when a graph ran.

    `cuts`: sites where the host read a value of this step; `deciding`: those that decide which branch Python takes;
    `outcomes`: the numbers that each of `cuts` read, by its id; `values`: numbers that were read; `backward`,
    `stepped`: there was a backward pass, an optimizer step; `optimizer`: its class; `state_created`: the optimizer
    created its state; `autocast`: the kinds of autocast that were entered; `grad`: grad mode when it ran; `data_ops`:
    operations whose shape depends on values; `unsynced`: steps of an optimizer so far in a program that never syncs
    after one, `steps_in_graph`: those of them since a graph ran last, `steps_at_line`: those since this line read
    first; `adds`: the backward pass added to gradients that were there; `averaged`: an AveragedModel was updated;
    `between`: values were computed and read before the step began; `loaded`: modules that load_state_dict copied device
    tensors into; `closure_runs`: backward passes since the running step of an optimizer began, in its closure, and
    `most_closure_runs` in any step; `closure_syncs`: a closure has synced; `read_by`: the class of an optimizer that
    has read a value in its step.
    """

    cuts: tuple[Site, ...] = ()
    deciding: tuple[Site, ...] = ()
    outcomes: Mapping[int, tuple[Number, ...]] = field(default_factory=dict)
    values: tuple[Number, ...] = ()
    backward: bool = False
    stepped: bool = False
    optimizer: str = ""
    state_created: bool = False
    autocast: frozenset[str] = frozenset()
    grad: bool = True
    data_ops: tuple[str, ...] = ()
    unsynced: int = 0
    steps_in_graph: int = 0
    steps_at_line: int = 0
    adds: bool = False
    averaged: bool = False
    between: bool = False
    loaded: tuple[str, ...] = ()
    closure_runs: int = 0
    most_closure_runs: int = 0
    closure_syncs: bool = False
    read_by: str = ""


class Arrival(NamedTuple):
    """A tensor that came from the host. `name`: in the batch; `key`: its id on the device, 0 once it is another's."""

    name: str
    key: int
    dtype: Any
    shape: Any


@dataclass
class UndecidedRead:
    """Reads at one line that ran a graph before it is known whether a training step is around them. `grad`: whether
    gradients were on; `alone`: they left no operation to run but those that lead to what was read, `tensors`."""

    site: Site
    grad: bool
    alone: bool
    count: int = 0
    seconds: float = 0.0
    tensors: list[weakref.ref[Any]] = field(default_factory=list)


class UndecidedReads:
    """The reads of one rank that ran a graph since the last sync, before a backward pass or an optimizer's step: part
    of a training step, or of an evaluation, which they split as little as samples between two steps do. Nor does a read
    split the step that computes from what the sync before it ran, and leaves nothing for the step."""

    def __init__(self, reads: ReadCounter) -> None:
        self._reads = reads
        self._waiting: dict[tuple[int, bool, bool], UndecidedRead] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def tensors(self) -> list[Any]:
        """What the reads that left nothing else have read, and still exists."""
        found = [one() for each in self._waiting.values() for one in each.tensors]
        return [one for one in found if one is not None]

    def add(self, site: Site, seconds: float, grad: bool, alone: Any = None) -> None:
        """`alone`: the tensor that was read, if nothing else was left to run."""
        key = site.id, grad, alone is not None
        one = self._waiting.setdefault(key, UndecidedRead(site, grad, alone is not None))
        one.count += 1
        one.seconds += seconds
        if alone is not None and len(one.tensors) < _KEPT:
            one.tensors.append(weakref.ref(alone))

    def decide(self, cut: bool, alone: bool = False) -> bool:
        """Count all of them, as reads that split a step or not; `alone`: the same of those that left nothing else.
        Returns whether any left something."""
        left = any(not one.alone for one in self._waiting.values())
        self._count(list(self._waiting), lambda one: alone if one.alone else cut)
        return left

    def between_steps(self) -> tuple[set[int], bool]:
        """Count those without gradients as reads between two steps; returns the ids of their lines, and whether any
        left something."""
        without = {key: one for key, one in self._waiting.items() if not one.grad}
        return self._count(list(without), lambda _one: False), any(not one.alone for one in without.values())

    def before_backward(self, tensors: Any) -> set[int]:
        """Count those that left nothing to the step whose backward pass begins; returns the ids of their lines. A loss
        that was read is of the step, even if its backward pass needs no other result of the forward pass."""
        for one in self._waiting.values():
            one.alone = one.alone and not _leads_to(tensors, one.tensors)
        sites = self._count([key for key, one in self._waiting.items() if one.alone], lambda _one: False)
        return sites - {one.site.id for one in self._waiting.values()}

    def _count(self, keys: list[tuple[int, bool, bool]], cut: Callable[[UndecidedRead], bool]) -> set[int]:
        counted = [self._waiting.pop(key) for key in keys]
        for one in counted:
            self._reads.add(one.site, one.seconds, cut(one), count=one.count)
        return {one.site.id for one in counted}


def _leads_to(tensors: Any, read: Iterable[weakref.ref[Any]]) -> bool:
    """Whether the backward pass of `tensors` goes through one of those that were read, among its first operations."""
    there = (one() for one in read)
    wanted = {one.grad_fn for one in there if one is not None and one.grad_fn is not None}
    nodes = [tensor.grad_fn for _name, tensor in leaves("", [tensors])] if wanted else []
    for node in nodes:
        if node in wanted:
            return True
        if len(nodes) < _FIRST_NODES:
            nodes += [following for following, _input in getattr(node, "next_functions", ())]
    return False


class StepEvents:
    """The events of the current step."""

    def __init__(self) -> None:
        self.ops_counted = counters.data_ops()
        self.untrained = True  # no backward pass and no optimizer's step yet, in any step
        self.gradients_left = False  # by a backward pass, and not cleared since
        self.in_step = False  # of an optimizer
        self.closure_runs = self.most_closure_runs = 0
        self.closure_syncs = False
        self.read_by = ""
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self.arrivals: list[Arrival] = []
        self.ran = False  # a graph
        self.cuts: dict[int, Site] = {}
        self.outcomes: dict[int, list[Number]] = {}
        self.values: list[Number] = []
        self.backward = False
        self.stepped = False
        self.optimizer = ""
        self.state_created = False
        self.autocast: set[str] = set()
        self.rates: dict[str, Number] = {}
        self.data_ops: set[str] = set()
        self.by_rank = False
        self.adds = False
        self.averaged = False
        self.between = False
        self.loaded: dict[str, None] = {}
        self.steps: Counter[int] = Counter()  # by optimizer
        self.steps_at_first: dict[int, int] = {}  # when a site read first
        self.steps_at_run: Counter[int] = Counter()  # when a graph ran last

    @property
    def trains(self) -> bool:
        """Whether this is a training step, as far as it goes."""
        return self.backward or self.stepped

    @property
    def most_steps(self) -> int:
        """The steps of the optimizer that has made the most of them."""
        return max(self.steps.values(), default=0)

    @property
    def steps_in_graph(self) -> int:
        """Steps since a graph ran last."""
        return max((self.steps - self.steps_at_run).values(), default=0)

    # -- notes ------------------------------------------------------------------------------------------------------
    def on_upload(self, tensor: Any) -> None:
        key = id(tensor)
        self.arrivals = [one._replace(key=0) if one.key == key else one for one in self.arrivals]
        if len(self.arrivals) < _KEPT:
            self.arrivals.append(Arrival("", key, tensor.dtype, tensor.shape))

    def on_batch(self, batch: Any) -> None:
        """An XLA loader returned a batch: the input of the step."""
        self.arrivals = [Arrival(name, id(tensor), tensor.dtype, tensor.shape) for name, tensor in leaves("", batch)]

    def count_data_ops(self) -> None:
        """Which of them ran since the last call. Each runs a graph, so this is called when a graph ran."""
        counted, before = counters.data_ops(), self.ops_counted
        self.ops_counted = counted
        ran = zip(counters.DATA_OPS, counted, before, strict=True)
        self.data_ops.update(name for name, now, earlier in ran if now > earlier)

    def on_read(self, value: Any) -> None:
        """A number that the host read."""
        if isinstance(value, (bool, int, float)) and len(self.values) < _KEPT:
            self.values.append(value)

    def on_cut(self, site: Site, value: Any) -> None:
        """A read ran a graph."""
        outcomes = self.outcomes.setdefault(site.id, [])
        if isinstance(value, (bool, int, float)) and len(outcomes) < _KEPT:
            outcomes.append(value)
        self.cuts[site.id] = site
        self.steps_at_first.setdefault(site.id, self.most_steps)
        self.steps_at_run = self.steps.copy()

    def batch_came(self) -> None:
        """What was read before the batch of a step is not read in the step: an evaluation between two epochs."""
        if not self.trains:
            self.forget_cuts(set(self.cuts))

    def forget_cuts(self, sites: Iterable[int]) -> None:
        """What was read at these lines was not of the step."""
        for site in sites:
            self.cuts.pop(site, None)
            self.outcomes.pop(site, None)

    def before_backward(self) -> None:
        self.backward, self.untrained = True, False
        self.adds = self.adds or self.gradients_left
        self.gradients_left = True
        if self.in_step:
            self.closure_runs += 1
            self.most_closure_runs = max(self.most_closure_runs, self.closure_runs)

    def after_sync(self) -> None:
        """What has come from the host is for the step after a sync that had nothing to run: on a TPU, accelerate's
        `accumulate` syncs between the batch and its step."""
        self.closure_syncs = self.closure_syncs or self.in_step
        arrivals = [] if self.ran else self.arrivals
        self.forget()
        self.arrivals = arrivals

    def on_load(self, module: Any, state: Mapping[str, Any]) -> None:
        """load_state_dict: what it copies from tensors on the device is computed in the next graph."""
        if any_on_device(list(state.values())):
            self.loaded[type(module).__name__] = None

    def before_optimizer_step(self, optimizer: Any) -> None:
        """Keep its learning rates: a scheduler may have changed them by the time of the sync."""
        self.in_step, self.closure_runs = True, 0
        kind = self.optimizer = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if isinstance(rate, (int, float)):
                self.rates[f"{kind}.param_groups[{number}]['lr']"] = rate

    def after_optimizer_step(self, optimizer: Any, had_state: bool, has_state: bool) -> None:
        self.stepped, self.untrained, self.in_step = True, False, False
        self.steps[id(optimizer)] += 1
        self.state_created = self.state_created or (has_state and not had_state)

    # -- evidence ----------------------------------------------------------------------------------------------------
    def facts(self, site: Site, grad: bool, deciding: Callable[[Site], bool], unsynced: int = 0) -> StepFacts:
        return StepFacts(
            cuts=tuple(self.cuts.values()),
            deciding=tuple(site for site in self.cuts.values() if deciding(site)),
            outcomes={site: tuple(values) for site, values in self.outcomes.items() if values},
            values=tuple(self.values),
            backward=self.backward,
            stepped=self.stepped,
            optimizer=self.optimizer,
            state_created=self.state_created,
            autocast=frozenset(self.autocast),
            grad=grad,
            data_ops=tuple(sorted(self.data_ops)),
            unsynced=unsynced,
            steps_in_graph=self.steps_in_graph,
            steps_at_line=self.most_steps - self.steps_at_first.get(site.id, self.most_steps),
            adds=self.adds,
            averaged=self.averaged,
            between=self.between,
            loaded=tuple(self.loaded),
            closure_runs=self.closure_runs,
            most_closure_runs=self.most_closure_runs,
            closure_syncs=self.closure_syncs,
            read_by=self.read_by,
        )

    def inputs(self, snapshot: FrameSnapshot, parameters: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[Input, ...]:
        """The inputs of the step by name: what came from the host, and what the user's variables hold on the device if
        the graph takes it in (`parameters`: type and shape)."""
        inputs: dict[str, Input] = {}
        for arrival in self.arrivals:
            dtype, shape = str(arrival.dtype).removeprefix("torch."), tuple(arrival.shape)
            name = arrival.name or snapshot.name_of(arrival.key, dtype, shape) or f"{_UNNAMED} {len(inputs)}"
            inputs.setdefault(name, Input(name, shape, dtype))
        taken = {(dtype, shape) for dtype, shape in parameters}
        for one in snapshot.tensors.values():
            named = one.leaf and one.shape and "[" not in one.name  # not what the step computed and kept
            named = named and one.name != "self"  # that of a tensor's own method, which reads it (torch.save)
            if named and one.where == "xla" and any((d, one.shape) in taken for d in hlo_types(one.dtype)):
                inputs.setdefault(one.name, Input(one.name, one.shape, one.dtype))
        return tuple(inputs.values())


_TYPES: Mapping[str, tuple[str, ...]] = {
    "float32": ("f32", "bf16"),
    "float64": ("f64", "f32", "bf16"),
    "bfloat16": ("bf16",),
    "float16": ("f16",),
    "int64": ("s64", "s32"),
    "int32": ("s32",),
    "int16": ("s16",),
    "int8": ("s8",),
    "uint8": ("u8",),
    "bool": ("pred",),
}


def hlo_types(dtype: str) -> tuple[str, ...]:
    """XLA's names for torch's type: with XLA_USE_BF16 a float32 is bf16."""
    return _TYPES.get(dtype, ())


def any_on_device(tensors: Any) -> bool:
    """Whether any of the tensors is on the XLA device."""
    return any(tensor.is_xla for _name, tensor in leaves("", [tensors]))
