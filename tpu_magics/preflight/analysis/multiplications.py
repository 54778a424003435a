"""FLOPs of the matrix multiplications and convolutions of the optimised program, by element type.

The element type is that of the operands in the text of the optimised program, of two types the wider one; it is not the
precision that the hardware multiplies in: an f32 multiplication at default precision is one bf16 pass of the matrix
unit.

There is one exception. Where an f32 operand has to be copied anyway, the compiler stores the copy as bf16, because the
matrix unit would drop those bits (seen with libtpu 0.0.21.1 and 0.0.52 on v3 to v6e: both operands of grouped
convolutions and of convolutions with few channels, one operand of matrix multiplications in loops). Such a
multiplication has the memory traffic of f32 everywhere else, and the program did not request bf16; it counts as f32.
Whether bf16 was requested is read in the program before optimisation: from the multiplication of the same op name, else
from those of the same FLOPs, else from all. Where these do not agree, the optimised text decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tpu_magics.preflight.analysis import kernels
from tpu_magics.preflight.analysis.execution_counts import ExecutionCounts, count_executions
from tpu_magics.preflight.analysis.flops import flops
from tpu_magics.preflight.analysis.hlo_module import Computation, HloModule, Instruction
from tpu_magics.preflight.analysis.shapes import array_shapes, bits
from tpu_magics.preflight.analysis.source_locations import op_name
from tpu_magics.preflight.compile_result import Multiplications

_MULTIPLYING = ("dot", "convolution")
_MORE = 1.01  # so much more than was written is flops_text
_UNREAD = ("ragged-dot", "scaled-dot")
# What leaves the values of its operand as they are, but for their type.
_MOVING = frozenset({"convert", "reshape", "transpose", "bitcast", "copy", "broadcast"})
# MLIR's names of element types that XLA names otherwise.
_NAMES = {"i8": "s8", "i4": "s4", "i32": "s32", "f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2"}


class Multiplication(NamedTuple):
    """One multiplication of a program: the type it counts for, FLOPs of one run, the name of its op, and whether it is
    part of a kernel."""

    dtype: str
    flops: float
    op: str
    kernel: bool = False


class MultiplicationCounts(NamedTuple):
    """`executions`: how often each computation runs; `loops`: a loop has multiplications in its body."""

    multiplications: Multiplications
    executions: ExecutionCounts
    loops: bool
    notes: tuple[str, ...]


class _Multiplications:
    """The multiplications of each computation of a program, and what could not be read. `through`: an operand that is
    widened has the type that it had before."""

    def __init__(self, program: HloModule, through: bool = False) -> None:
        self.unread: list[str] = []
        self._through = through
        self.of = {one.name: tuple(self._read(one)) for one in program}

    def weight(self, computation: Computation) -> float:
        return sum(one.flops for one in self.of[computation.name])

    def __iter__(self) -> Iterator[Multiplication]:
        return (one for products in self.of.values() for one in products)

    def _read(self, computation: Computation) -> Iterator[Multiplication]:
        for one in computation.of(*_MULTIPLYING):
            try:
                yield self._product(computation, one)
            except (ValueError, IndexError, KeyError):
                self.unread.append(one.opcode)
        for one in computation.of("custom-call", *_UNREAD):
            yield from self._inside(one)

    def _product(self, computation: Computation, one: Instruction) -> Multiplication:
        operands = [computation.instructions[name] for name in one.operands[:2]]
        left, right = (array_shapes(operand.type)[0] for operand in operands)
        types = [_origin(computation, operand) for operand in operands] if self._through else [left.dtype, right.dtype]
        return Multiplication(_wider(*types), flops(one, left, right, array_shapes(one.type)[0]), op_name(one))

    def _inside(self, call: Instruction) -> Iterator[Multiplication]:
        if call.opcode in _UNREAD:
            self.unread.append(call.opcode)
        elif call.attribute("custom_call_target") == f'"{kernels.TARGET}"':
            found = kernels.products(call)
            if found is None:
                self.unread.append(f"kernel {op_name(call) or call.name}")
            for types, count in found or ():
                yield Multiplication(
                    _wider(*(_NAMES.get(one, one) for one in types)), count, op_name(call), kernel=True
                )


def multiplications(program: HloModule, unoptimised: HloModule | None) -> MultiplicationCounts:
    """Counts them. `unoptimised`: the same program before optimisation, where there is one."""
    products = _Multiplications(program)
    counts = count_executions(program, products.weight)
    before = _Multiplications(unoptimised, through=True) if unoptimised else None
    wanted = _RequestedTypes(before or ())
    sums: defaultdict[str, float] = defaultdict(float)
    numbers: Counter[str] = Counter()
    narrowed = in_kernels = 0.0
    for one, times in ((one, counts.times[name]) for name, found in products.of.items() for one in found):
        dtype = wanted.dtype(one)
        narrowed += one.flops * times if dtype != one.dtype else 0.0
        sums[dtype] += one.flops * times
        numbers[dtype] += times > 0
        in_kernels += one.flops * times if one.kernel else 0.0
    looped = {name for name in counts.loops if products.of[name]}
    whole = sum(sums.values())
    again = _again(program, whole, sum(one.flops for one in before)) if before and not counts.loops else ()
    notes = (*_unread(products.unread), *_rounds(looped & counts.unknown), *again, *_narrowed(narrowed, whole))
    return MultiplicationCounts(Multiplications(dict(sums), dict(numbers), in_kernels), counts, bool(looped), notes)


def _origin(computation: Computation, one: Instruction) -> str:
    """The narrowest type on the path to an operand: widened before it is multiplied, it holds no more than before."""
    types = [array_shapes(one.type)[0].dtype]
    while one.opcode in _MOVING and one.operands and one.operands[0] in computation.instructions:
        one = computation.instructions[one.operands[0]]
        types += [tensor.dtype for tensor in array_shapes(one.type)[:1]]
    return min((dtype for dtype in types if _is_float(dtype) == _is_float(types[0])), key=bits)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf"))


def _wider(*types: str) -> str:
    return max(types, key=bits)


class _RequestedTypes:
    """What the program before optimisation multiplies in."""

    def __init__(self, products: Iterable[Multiplication]) -> None:
        self._by_op: dict[str, set[str]] = {}
        self._by_flops: dict[float, set[str]] = {}
        self._all: set[str] = set()
        for one in products:
            self._by_op.setdefault(one.op, set()).add(one.dtype)
            self._by_flops.setdefault(one.flops, set()).add(one.dtype)
            self._all.add(one.dtype)

    def dtype(self, product: Multiplication) -> str:
        """The type that a multiplication of the optimised program counts for."""
        by_op = self._by_op.get(product.op, set()) if product.op else set()
        evidence = (by_op, self._by_flops.get(product.flops, set()), self._all)
        decided = next((types for types in evidence if len(types) == 1), set())
        return "f32" if product.dtype == "bf16" and decided == {"f32"} else product.dtype


def _unread(unread: list[str]) -> Iterator[str]:
    if unread:
        what = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in Counter(unread).most_common(5))
        yield f"multiplications without FLOPs in the compiler's text are not counted: {what}"


def _rounds(bodies: set[str]) -> Iterator[str]:
    if bodies:
        yield "the program does not give the number of iterations of a loop with multiplications: its body counts once"


def _again(program: HloModule, whole: float, written: float) -> Iterator[str]:
    """FLOPs that the compiler added. Names of instructions that it repeats to save memory have "remat" in them."""
    if written and whole > _MORE * written:
        saves = any(".remat" in one.name for one in program.instructions())
        why = ": the compiler recomputes values instead of keeping them, to save memory" if saves else ""
        more, size = 100 * (whole / written - 1), f"{written / 1e12:.4g} T" if written >= 1e12 else f"{written:.4g} "
        yield f"multiplications have {more:.3g} % more FLOPs than in the program as written ({size}FLOP){why}"


def _narrowed(narrowed: float, whole: float) -> Iterator[str]:
    if narrowed:
        share = 100 * narrowed / whole
        yield f"operands of {share:.3g} % of the FLOPs are f32 that the compiler itself stores as bf16: counted as f32"
