"""HBM of a program from its buffer assignment and live ranges: the largest buffers, and what tiled layouts waste.

libtpu 0.0.21.1 writes the live ranges at the end of the buffer assignment, 0.0.52 has a file for them; both write them
for programs that are refused for their size, too. Colour 0, which is not written, is HBM; the others (vmem, smem, cmem,
host) are left out.
"""

from __future__ import annotations

import bisect
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tpu_magics.backends.hlo.text import HloModule, Instruction
from tpu_magics.preflight.analysis.instructions import ArrayShape, array_shapes, op_name, read_frame_tables, shares
from tpu_magics.preflight.compile_result import Buffer, HeldMemory, PaddedDimension, SourceLine, TilePadding

_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+), (.*)")
_VALUE = re.compile(r"^ value: <\d+ (\S+)(?: @\d+)?> \(size=(\d+),offset=(\d+)\): (.*)")
_RANGE = re.compile(r"^    (\S+\{[\d,]*\}):(\d+)-(\d+)\s*$")
_POINT = re.compile(r"^    (\d+):(\S+)\s*$")
_COLOUR = re.compile(r"\bcolor (\d+)\b")
_PARAMETER = re.compile(r"\bparameter (\d+), shape \|.*\| at ShapeIndex \{([\d,]*)\}")


class BufferValue(NamedTuple):
    """One value of the program in an allocation. `name`: its instruction, with the place in its tuple: "fusion{1}"."""

    name: str
    size: int
    offset: int
    type: str

    @property
    def tensor(self) -> ArrayShape | None:
        """What it holds; None for a tuple, which holds addresses only."""
        found = array_shapes(self.type) if not self.type.startswith("(") else ()
        return found[0] if found else None

    @property
    def instruction(self) -> str:
        """The name of the instruction that makes it."""
        return self.name.partition("{")[0]


@dataclass
class Allocation:
    """A stretch of HBM. `kind`: "argument" (also where a result takes it over), "output", "constant", "temporary";
    `parameter`: its number, and its place in it where the parameter is a tuple."""

    number: int
    size: int
    kind: str
    parameter: tuple[int, tuple[int, ...]] | None = None
    values: list[BufferValue] = field(default_factory=list)


class HbmPiece(NamedTuple):
    """A piece of HBM, by its largest value."""

    allocation: Allocation
    value: BufferValue


@dataclass
class Assignment:
    """`ranges`: of each value, the first and last point of the program where it is held; `order`: the instruction at
    each point."""

    allocations: list[Allocation] = field(default_factory=list)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    order: dict[int, str] = field(default_factory=dict)


def read_assignment(*files: Iterable[str]) -> Assignment:
    """The buffer assignment and the live ranges in these files, whichever has which. Unknown lines are left out."""
    found = Assignment()
    for lines in files:
        current: Allocation | None = None
        for line in lines:
            if line.startswith("allocation "):
                current = _allocation(line)
                found.allocations += [current] if current else []
            elif current is not None and line.startswith(" value: "):
                current.values += _value(line)
            elif (hbm_pieces := _RANGE.match(line)) is not None:
                found.ranges[hbm_pieces[1]] = int(hbm_pieces[2]), int(hbm_pieces[3])
            elif (point := _POINT.match(line)) is not None:
                found.order[int(point[1])] = point[2]
            elif not line.startswith(" "):
                current = None
    return found


def _allocation(line: str) -> Allocation | None:
    found = _ALLOCATION.match(line)
    colour = _COLOUR.search(found[3].partition("|")[0]) if found else None
    if not found or (colour and colour[1] != "0"):
        return None
    parameter = _PARAMETER.search(found[3])
    number = (int(parameter[1]), tuple(int(one) for one in parameter[2].split(",") if one)) if parameter else None
    return Allocation(int(found[1]), int(found[2]), _kind(found[3], bool(parameter)), number)


def _kind(text: str, parameter: bool) -> str:
    marks = (
        ("argument", parameter),
        ("output", "maybe-live-out" in text or "output shape is" in text),
        ("constant", text.startswith("constant") or ", constant" in text),
    )
    return next((kind for kind, there in marks if there), "temporary")


def _value(line: str) -> Iterator[BufferValue]:
    found = _VALUE.match(line)
    if found:
        yield BufferValue(found[1], int(found[2]), int(found[3]), found[4].strip())


def hbm_pieces(assignment: Assignment) -> list[HbmPiece]:
    """The content of HBM when the temporaries take most: all arguments, outputs and constants, each by the largest
    value in it, and the temporaries that are alive at that point. Where values share bytes (an operand and the result
    that overwrites it), the largest counts. Without live ranges: the temporaries that are alive at any point, by the
    same rule."""
    fixed = [one for one in assignment.allocations if one.kind != "temporary"]
    temporary = [one for one in assignment.allocations if one.kind == "temporary"]
    point = _fullest(temporary, assignment)
    whole = (HbmPiece(one, _whole(one, assignment)) for one in fixed if one.values)
    return [*whole, *(HbmPiece(one, value) for one in temporary for value in _apart(_alive(one, assignment, point)))]


def _whole(allocation: Allocation, assignment: Assignment) -> BufferValue:
    """The main value of an allocation: the first of an argument, the last of an output."""
    most = max(map(_weight, allocation.values))
    large = [value for value in allocation.values if _weight(value) == most]
    if allocation.kind == "output":
        return max(large, key=lambda value: (_range(value, assignment) or (0, 0))[1])
    return min(large, key=lambda value: (_range(value, assignment) or (0, 0))[0])


def _weight(value: BufferValue) -> tuple[int, bool]:
    return value.size, value.tensor is not None


def _range(value: BufferValue, assignment: Assignment) -> tuple[int, int] | None:
    name = value.name if value.name.endswith("}") else value.name + "{}"
    return assignment.ranges.get(name)


def _alive(allocation: Allocation, assignment: Assignment, point: int | None) -> list[BufferValue]:
    if point is None:
        return allocation.values
    ranges = ((value, _range(value, assignment)) for value in allocation.values)
    return [value for value, range_ in ranges if range_ and range_[0] <= point <= range_[1]]


def _apart(values: Iterable[BufferValue]) -> Iterator[BufferValue]:
    """Values that share no bytes, the largest first."""
    starts: list[int] = []
    ends: list[int] = []
    for value in sorted(values, key=_weight, reverse=True):
        end = value.offset + value.size
        place = bisect.bisect_right(starts, value.offset)
        if (place == 0 or ends[place - 1] <= value.offset) and (place == len(starts) or end <= starts[place]):
            starts.insert(place, value.offset)
            ends.insert(place, end)
            yield value


def _fullest(allocations: Iterable[Allocation], assignment: Assignment) -> int | None:
    """The point of the program where these allocations hold most bytes; None where no live ranges are known."""
    return max(_over_time(allocations, assignment), key=lambda held: held[1], default=(None, 0))[0]


def memory_curve(assignment: Assignment, cycles: Mapping[str, float]) -> tuple[tuple[float, int], ...]:
    """Bytes of HBM over the order of the program, at most about 400 points: the share of the cycles before a point, and
    the most that is held until the next. Empty: not known. `cycles`: of instructions, in all their runs, by name."""
    costs = [cycles.get(one, 0.0) for one in assignment.order.values()]
    before = dict(zip(assignment.order, accumulate(costs, initial=0), strict=False))
    whole = sum(costs)
    fixed = sum(one.size for one in assignment.allocations if one.kind != "temporary")
    temporary = [one for one in assignment.allocations if one.kind == "temporary"]
    held: dict[float, int] = {}
    for point, now in _over_time(temporary, assignment) if whole else ():
        share = round(before.get(point, 0) / whole * _POINTS) / _POINTS
        held[share] = max(held.get(share, 0), fixed + now)
    return tuple(sorted(held.items()))


def _over_time(allocations: Iterable[Allocation], assignment: Assignment) -> Iterator[tuple[int, int]]:
    """What these allocations hold at each point where a value begins. Values at the same offset count once: the largest
    of them."""
    ranges = sorted(
        (*range_, (allocation.number, value.offset), value.size)
        for allocation in allocations
        for value in allocation.values
        if (range_ := _range(value, assignment))
    )
    now = 0
    sizes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    ending: list[tuple[int, tuple[int, int], int]] = []
    for start, end, place, size in ranges:
        while ending and ending[0][0] < start:
            _, left, gone = heapq.heappop(ending)
            now -= _largest(sizes[left])
            sizes[left].remove(gone)
            now += _largest(sizes[left])
        now += max(size - _largest(sizes[place]), 0)
        sizes[place].append(size)
        heapq.heappush(ending, (end, place, size))
        yield start, now


def _largest(sizes: list[int]) -> int:
    return max(sizes, default=0)


# -- the largest buffers, and padding ---------------------------------------------------------------------------------

LARGEST = 20
_POINTS = 400
_DEEPEST = 16


class BufferNames:
    """Names of the instructions of a program. `parameters`: "f32[768,768] encoder.weight", by their numbers, as
    the framework knows them."""

    def __init__(self, program: HloModule, parameters: Sequence[str] = ()) -> None:
        self._program, self._parameters = program, parameters
        self._by_name = {one.name: one for one in program.instructions()}
        self._places = read_frame_tables(program)

    def of(self, held: HbmPiece) -> tuple[str, SourceLine | None]:
        """The op that makes the value, and its source line; of an op that the compiler added, its operand's."""
        named = self.parameter(held)
        one = self._by_name.get(held.value.instruction)
        if named or one is None:
            return named or held.value.instruction, self._places.of(one) if one else None
        source = next((other for other in self._sources(one) if op_name(other)), one)
        op = op_name(source) or one.name
        return (f"{one.opcode} of {op}" if source.opcode == "parameter" != one.opcode else op), self._places.of(source)

    def parameter(self, held: HbmPiece) -> str:
        """The name of the parameter that the piece holds; "" where it is none, or has none."""
        if held.allocation.parameter is None:
            return ""
        number, inside = held.allocation.parameter
        place = inside[0] if inside else number
        if place < len(self._parameters):
            return self._parameters[place].partition(" ")[2] or self._parameters[place]
        one = self._by_name.get(held.value.instruction)
        return op_name(one) if one else ""

    def _sources(self, one: Instruction) -> Iterator[Instruction]:
        """The instruction, what it calls, and where its first operand comes from, the nearest first."""
        found: Instruction | None = one
        for _ in range(_DEEPEST):
            if found is None:
                return
            yield found
            yield from self._called(found)
            found = self._by_name.get(found.operands[0]) if found.operands else None

    def _called(self, one: Instruction) -> Iterator[Instruction]:
        for name in one.called("calls"):
            computation = self._program.computations.get(name)
            if computation is not None and computation.root in computation.instructions:
                yield computation.instructions[computation.root]


def largest(pieces: Iterable[HbmPiece], names: BufferNames) -> tuple[Buffer, ...]:
    """The largest of these pieces, at most 20, the largest first."""
    found = ((one, tensor) for one in pieces if (tensor := one.value.tensor) is not None)
    chosen = sorted(found, key=lambda pair: pair[0].value.size, reverse=True)[:LARGEST]
    return tuple(_buffer(one, tensor, names) for one, tensor in chosen)


def held_memory(pieces: Iterable[HbmPiece], names: BufferNames) -> tuple[HeldMemory, ...]:
    """These pieces by what makes them, the largest first."""
    found: dict[tuple[str, str, SourceLine | None], list[int]] = defaultdict(list)
    for one in pieces:
        if one.value.tensor is not None:
            op, place = names.of(one)
            found[one.allocation.kind, op, place].append(one.value.size)
    held = (HeldMemory(sum(sizes), len(sizes), kind, op, place) for (kind, op, place), sizes in found.items())
    return tuple(sorted(held, key=lambda one: one.size, reverse=True))


def _buffer(one: HbmPiece, tensor: ArrayShape, names: BufferNames) -> Buffer:
    op, place = names.of(one)
    return Buffer(one.value.size, tensor.plain, str(tensor), tensor.layout, one.allocation.kind, op, place)


def padding(pieces: Iterable[HbmPiece], names: BufferNames) -> TilePadding:
    """The padding of these pieces. Bytes as laid out are the compiler's own; tables of addresses are left
    out. Of the dimensions the one that wastes most is first."""
    padded = plain = 0
    waste: defaultdict[tuple[int, int], _Waste] = defaultdict(_Waste)
    for one in pieces:
        tensor = one.value.tensor
        if tensor is not None and one.allocation.kind != "constant":
            padded, plain = padded + one.value.size, plain + tensor.plain
            for size, larger, wasted in shares(tensor):
                waste[size, larger].add(wasted, tensor, names.parameter(one))
    dimensions = (
        PaddedDimension(size, larger, one.wasted, one.buffers, one.example, one.name)
        for (size, larger), one in waste.items()
    )
    return TilePadding(padded, plain, tuple(sorted(dimensions, key=lambda one: one.wasted, reverse=True)))


@dataclass
class _Waste:
    """What one dimension wastes in all buffers that have it. `_most`, `_named`: of the example, of the name's."""

    wasted: int = 0
    buffers: int = 0
    example: str = ""
    name: str = ""
    _most: int = field(default=-1)
    _named: int = field(default=-1)

    def add(self, wasted: int, tensor: ArrayShape, name: str) -> None:
        self.wasted, self.buffers = self.wasted + wasted, self.buffers + 1
        if wasted > self._most:
            self.example, self._most = str(tensor), wasted
        if name and wasted > self._named:
            self.name, self._named = name, wasted
