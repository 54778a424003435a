"""What each operation of an optimised program costs: the compiler's own estimate of its cycles, FLOPs, and bytes.

While it generates code, libtpu (0.0.17, 0.0.21.1, 0.0.52) notes `estimated_cycles` beside nearly all fusions, reduces
and copies, for v3 to 7x (0.0.52 also for v2). It has none for collectives, scatters and gathers, sorts, random numbers,
kernels, and copies that run beside other operations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tpu_magics.backends.hlo.text import Computation, HloModule, Instruction
from tpu_magics.preflight.analysis.instructions import ArrayShape, array_shapes, op_name
from tpu_magics.preflight.analysis.multiplications import TARGET, Multiplication, MultiplicationCounts
from tpu_magics.preflight.analysis.traffic import HbmTraffic
from tpu_magics.preflight.compile_result import (
    COLLECTIVE,
    COPY,
    ELEMENTWISE,
    GATHER,
    KERNEL,
    MATMUL,
    PREFETCH,
    RANDOM,
    REDUCE,
    SCATTER,
    SORT,
    CollectiveTransfer,
    OpCost,
)

_ESTIMATE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = .*"estimated_cycles":"(\d+)"', re.MULTILINE)
_NONE = 2**62  # and more: the compiler could not say
# Attributes that name computations whose operations run one by one.
_RUNS = {
    "while": ("condition", "body"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "call": ("to_apply",),
    "custom-call": ("called_computations",),
}


def read_estimates(path: Path) -> dict[str, int]:
    """Cycles of one run by the names of instructions. Raises OSError where there is no such file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        found = (_ESTIMATE.match(line) for line in file if '"estimated_cycles"' in line)
        return {one[1]: int(one[2]) for one in found if one and int(one[2]) < _NONE}


def op_costs(
    program: HloModule, counted: MultiplicationCounts, traffic: HbmTraffic, estimates: Mapping[str, int]
) -> tuple[OpCost, ...]:
    """The costs in the order in which the operations run; those of a loop where it stands, once."""
    costs = _Costs(program, counted, traffic, estimates)
    times = counted.executions.times
    found: dict[str, dict[str, OpCost]] = {}
    for computation, one in traffic.operations():
        if runs := times[computation.name]:
            found.setdefault(computation.name, {})[one.name] = costs.of(runs, computation, one)
    in_order = [one for name in (program.entry, *found) for one in _in_order(program, name, found)]
    return tuple(in_order)


def _in_order(program: HloModule, name: str, left: dict[str, dict[str, OpCost]]) -> Iterator[OpCost]:
    """The costs of that computation and of those that it runs, taken from `left`."""
    costs = left.pop(name, {})
    computation = program.computations.get(name)
    for one in computation.instructions.values() if computation is not None else ():
        for attribute in _RUNS.get(one.opcode, ()):
            for called in one.called(attribute):
                yield from _in_order(program, called, left)
        if one.name in costs:
            yield costs[one.name]


# -- kinds ------------------------------------------------------------------------------------------------------------

_COLLECTIVES = frozenset(
    {
        *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
        *("collective-permute", "collective-broadcast"),
    }
)
# What an operation is by what is in it: the first that is there.
_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    (MATMUL, frozenset({"convolution", "dot", "ragged-dot", "scaled-dot"})),
    (COLLECTIVE, _COLLECTIVES),
    (SORT, frozenset({"sort", "topk"})),
    (SCATTER, frozenset({"scatter", "select-and-scatter"})),
    (GATHER, frozenset({"gather"})),
    (RANDOM, frozenset({"rng", "rng-bit-generator", "rng-get-and-update-state"})),
    (REDUCE, frozenset({"reduce", "reduce-window"})),
)
# What only moves, widens or fills.
_MOVING = frozenset(
    {
        *("copy", "transpose", "reshape", "bitcast", "bitcast-convert", "slice", "dynamic-slice", "tuple", "iota"),
        *("dynamic-update-slice", "concatenate", "pad", "reverse", "broadcast", "parameter", "constant"),
        *("get-tuple-element", "copy-start", "copy-done", "async-start", "async-done", "custom-call"),
    }
)


def _kind(opcodes: set[str]) -> str:
    found = next((kind for kind, those in _KINDS if those & opcodes), None)
    return found or (COPY if opcodes <= _MOVING else ELEMENTWISE)


# -- costs ------------------------------------------------------------------------------------------------------------

_NAMES = 4  # that an operation may belong to
_DEEPEST = 8


class _Costs:
    def __init__(
        self, program: HloModule, counted: MultiplicationCounts, traffic: HbmTraffic, estimates: Mapping[str, int]
    ) -> None:
        self.program = program
        self.counted = counted
        self.traffic = traffic
        self.estimates = estimates
        self._ends_of: dict[str, dict[str, str]] = {}  # by computation
        self.devices = math.prod(
            int(found[1]) if (found := re.search(rf"\b{name}=(\d+)", program.header)) else 1
            for name in ("replica_count", "num_partitions")
        )

    def of(self, times: float, computation: Computation, one: Instruction) -> OpCost:
        """The cost of an instruction whose computation runs so often."""
        parts = list(self._parts(one))
        if _goes_on(parts):
            parts = [part for part in parts if part.opcode not in _COLLECTIVES]
        products = list(self._products(computation, one))
        cycles = self.estimates.get(one.name)
        largest = max(array_shapes(one.type), key=lambda shape: shape.padded, default=None)
        main = max(products, key=lambda product: product.flops, default=None)
        return OpCost(
            name=one.name,
            kind=self._kind_of(one, parts),
            runs=times,
            cycles=None if cycles is None else times * cycles,
            flops=times * sum(product.flops for product in products),
            dtype=main.dtype if main is not None else "",
            bytes=times * self.traffic.of(computation, one),
            shape=(main.shapes if main is not None else "") or (f"{largest}{largest.layout}" if largest else ""),
            plain=largest.plain if largest else 0,
            padded=largest.padded if largest else 0,
            transfer=self._transfer(times, computation, one, parts),
            ops=self._names(computation, one, parts, main),
        )

    def _kind_of(self, one: Instruction, parts: Sequence[Instruction]) -> str:
        if one.opcode == "custom-call":
            return KERNEL if one.attribute("custom_call_target").strip('"') == TARGET else ELEMENTWISE
        kind = _kind({part.opcode.removesuffix("-start") for part in (one, *parts)} - {"fusion", "call", "async"})
        if kind == COPY and _DONE in _targets(parts):
            return COLLECTIVE
        return PREFETCH if kind == COPY and one.opcode.endswith("-start") else kind

    def _parts(self, one: Instruction, depth: int = 0) -> Iterator[Instruction]:
        """The instructions of what it calls."""
        names = one.called("calls") if one.opcode in ("fusion", "async-start") and depth < _DEEPEST else ()
        for name in names:
            inside = self.program.computations.get(name)
            for part in inside.instructions.values() if inside is not None else ():
                yield part
                yield from self._parts(part, depth + 1)

    def _products(self, computation: Computation, one: Instruction, depth: int = 0) -> Iterator[Multiplication]:
        found = self.counted.products.get(computation.name, ())
        yield from (product for product in found if product.name == one.name)
        for name in one.called("calls") if one.opcode in ("fusion", "async-start") and depth < _DEEPEST else ():
            inside = self.program.computations.get(name)
            for part in inside.instructions.values() if inside is not None else ():
                yield from self._products(inside, part, depth + 1) if inside is not None else ()

    # -- names ------------------------------------------------------------------------------------------------------
    def _names(
        self, computation: Computation, one: Instruction, parts: Sequence[Instruction], main: Multiplication | None
    ) -> tuple[str, ...]:
        """What the framework calls it: the multiplication in it, itself, what is in it, what it is made from, and what
        is made from it."""
        moves = one.opcode in ("copy", "copy-start", "async-start", "transpose")
        beside = [self._near(computation, one, True), self._near(computation, one, False)]
        near = (name for found in (beside if moves else beside[::-1]) for name in found)
        own = (main.op if main is not None else "", op_name(one))
        inside = (op_name(part) for part in reversed(parts) if part.opcode not in ("parameter", "constant"))
        found = [name for group in (own, inside, near) for name in _first(group)]
        return tuple(dict.fromkeys(found))

    def _near(self, computation: Computation, one: Instruction, users: bool) -> Iterator[str]:
        """Names of the instructions that use it, or that it uses, through those without a name, the nearest first."""
        known, level = {one.name}, [one]
        for _ in range(_DEEPEST):
            others = [other for each in level for other in self._beside(computation, each, users)]
            level = []
            for other in others:
                if other.name not in known:
                    known.add(other.name)
                    if name := op_name(other):
                        yield name
                    else:
                        level.append(other)

    def _beside(self, computation: Computation, one: Instruction, users: bool) -> Iterable[Instruction]:
        if users:
            return self.traffic.users(computation).get(one.name, ())
        return [computation.instructions[name] for name in one.operands if name in computation.instructions]

    # -- transfers between chips --------------------------------------------------------------------------------------
    def _transfer(
        self, times: float, computation: Computation, one: Instruction, parts: Sequence[Instruction]
    ) -> CollectiveTransfer | None:
        found = next((part for part in (one, *parts) if part.opcode.removesuffix("-start") in _COLLECTIVES), None)
        if found is None:
            return None
        name, group = found.opcode.removesuffix("-start"), _group(found.tail, self.devices)
        made = sum(shape.plain for shape in (_results(computation, one) if found is one else array_shapes(found.type)))
        if name == "all-reduce" and sum(shape.plain for shape in array_shapes(one.type)) < made:
            name = "all-gather"  # a fusion that keeps a part of the sum sends half of it, as many bytes as a gather
        apart = {right - left for left, right in pairwise(group)}
        stride = apart.pop() if len(apart) == 1 else 0
        sent = _sent(name, max(len(group), 1)) * made
        return CollectiveTransfer(len(group), stride, times * sent, times * self._meanwhile(computation, one))

    def _meanwhile(self, computation: Computation, one: Instruction) -> float:
        """Cycles of the operations between the start of a transfer and its end."""
        names, end = list(computation.instructions), ""
        if one.opcode.endswith("-start"):
            users = self.traffic.users(computation).get(one.name, ())
            end = next((user.name for user in users if user.opcode.endswith("-done")), "")
        elif channel := _channel(list(self._parts(one))):
            end = self._ends(computation).get(channel, "")
        between = names[names.index(one.name) + 1 : names.index(end)] if end else ()
        return float(sum(self.estimates.get(name, 0) for name in between))

    def _ends(self, computation: Computation) -> Mapping[str, str]:
        """Names of the fusions that end a transfer, by its channel."""
        if computation.name not in self._ends_of:
            fusions = ((one, list(self._parts(one))) for one in computation.of("fusion"))
            ending = ((one, parts) for one, parts in fusions if _DONE in _targets(parts))
            self._ends_of[computation.name] = {_channel(parts): one.name for one, parts in ending}
        return self._ends_of[computation.name]


def _first(names: Iterable[str]) -> Iterator[str]:
    """The first few that are not empty."""
    found = (name for name in names if name)
    return (name for name, _ in zip(found, range(_NAMES), strict=False))


def _results(computation: Computation, one: Instruction) -> Sequence[ArrayShape]:
    """The shapes that a collective makes; one that starts has those of its operands first."""
    shapes = array_shapes(one.type)
    if not one.opcode.endswith("-start") or one.opcode == "all-reduce-start":
        return shapes
    taken = sum(len(array_shapes(computation.instructions[name].type)) for name in one.operands)
    return shapes[taken : 2 * taken] or shapes


def _sent(name: str, group: int) -> float:
    """Bytes that a device sends for each byte of its result, in a ring of so many devices (jax-ml.github.io/
    scaling-book/sharding has the derivation)."""
    most = (group - 1) / group
    return {"all-reduce": 2 * most, "reduce-scatter": float(group - 1), "collective-permute": 1.0}.get(name, most)


# A transfer that runs beside other operations can be in fusions: one starts it, some go on with it while they compute,
# one ends it. All have the collective in them, with one channel.
_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_IN_FUSIONS = '"async_collective_fusion_config"'
_CHANNEL = re.compile(r"channel_id=(\d+)")


def _targets(parts: Sequence[Instruction]) -> set[str]:
    return {part.attribute("custom_call_target").strip('"') for part in parts if part.opcode == "custom-call"}


def _in_fusions(parts: Sequence[Instruction]) -> Iterator[Instruction]:
    return (part for part in parts if part.opcode in _COLLECTIVES and _IN_FUSIONS in part.tail)


def _goes_on(parts: Sequence[Instruction]) -> bool:
    """Whether these are of a fusion that goes on with a transfer, or ends it."""
    return next(_in_fusions(parts), None) is not None and _START not in _targets(parts)


def _channel(parts: Sequence[Instruction]) -> str:
    found = (_CHANNEL.search(part.tail) for part in _in_fusions(parts))
    return next((one[1] for one in found if one), "")


_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIR = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_SIZE = re.compile(r"'(\w+)'=(\d+)")
_PART = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")  # of an axis: (the product of the parts before it) its size


def _group(text: str, devices: int) -> list[int]:
    """The first group of devices that an instruction's attributes name; without one, all."""
    if (found := _LISTED.search(text)) or (found := _PAIR.search(text)):
        return [int(number) for part in found.groups() for number in part.split(",") if number]
    if found := _IOTA.search(text):
        dims = [int(one) for one in found[3].split(",")]
        order = [int(one) for one in found[4].split(",")] if found[4] else list(range(len(dims)))
        return [_nth(place, dims, order) for place in range(int(found[2]))]
    if found := _MESH.search(text):
        return _of_mesh(found[1], found[2])
    return list(range(devices))


def _of_mesh(mesh: str, axes: str) -> list[int]:
    """The first group over these axes of a mesh whose devices are numbered in its order."""
    sizes = {name: int(size) for name, size in _SIZE.findall(mesh)}
    names, group = list(sizes), [0]
    for name, before, size in _PART.findall(axes):
        inner = math.prod(sizes[other] for other in names[names.index(name) + 1 :])
        number = int(size) if size else sizes[name]
        stride = inner * (sizes[name] // (int(before) * number) if size else 1)
        group = [one + stride * place for one in group for place in range(number)]
    return sorted(group)


def _nth(place: int, dims: Sequence[int], order: Sequence[int]) -> int:
    """The number at that place of range(product of `dims`), reshaped to `dims` and transposed by `order`."""
    at = [0] * len(dims)
    for axis in reversed(order):
        place, at[axis] = divmod(place, dims[axis])
    number = 0
    for size, one in zip(dims, at, strict=True):
        number = number * size + one
    return number
