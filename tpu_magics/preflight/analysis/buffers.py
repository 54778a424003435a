"""The largest buffers, and what the tiled layouts waste."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tpu_magics.preflight.analysis.allocations import HbmPiece
from tpu_magics.preflight.analysis.hlo_module import HloModule, Instruction
from tpu_magics.preflight.analysis.shapes import ArrayShape, shares
from tpu_magics.preflight.analysis.source_locations import op_name, read_frame_tables
from tpu_magics.preflight.compile_result import Buffer, PaddedDimension, Place, TilePadding

LARGEST = 20
_DEEPEST = 16


class BufferNames:
    """What the instructions of a program are called. `parameters`: "f32[768,768] encoder.weight", by their numbers, as
    the framework knows them."""

    def __init__(self, program: HloModule, parameters: Sequence[str] = ()) -> None:
        self._program, self._parameters = program, parameters
        self._by_name = {one.name: one for one in program.instructions()}
        self._places = read_frame_tables(program)

    def of(self, held: HbmPiece) -> tuple[str, Place | None]:
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


def _buffer(one: HbmPiece, tensor: ArrayShape, names: BufferNames) -> Buffer:
    op, place = names.of(one)
    return Buffer(one.value.size, tensor.plain, str(tensor), tensor.layout, one.allocation.kind, op, place)


def padding(pieces: Iterable[HbmPiece], names: BufferNames) -> TilePadding:
    """What the layouts of these pieces waste. Bytes as laid out are the compiler's own; tables of addresses are left
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
