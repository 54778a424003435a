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

import base64
import binascii
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tpu_magics.backends.hlo.text import Computation, HloModule, Instruction
from tpu_magics.preflight.analysis.execution_counts import ExecutionCounts, count_executions
from tpu_magics.preflight.analysis.instructions import ArrayShape, array_shapes, bits, op_name
from tpu_magics.preflight.compile_result import Multiplications

# -- FLOPs of one multiplication --------------------------------------------------------------------------------------

# Follows HloCostAnalysis (xla/service/hlo_cost_analysis.cc, GetConvolutionFlops and GetDotFlops): two per multiply-add;
# a position of the window that falls on padding or on a hole of a dilated input is not counted. A TPU program has its
# batched matrix multiplications as convolutions whose window has one valid position per batch; they come out as 2 *
# batch * m * k * n.


def flops(one: Instruction, left: ArrayShape, right: ArrayShape, result: ArrayShape) -> float:
    """FLOPs of a `dot` or a `convolution` with these operands, as XLA counts them. Raises ValueError or IndexError
    where its attributes are not of the form that XLA writes."""
    return _dot(one, left, result) if one.opcode == "dot" else _convolution(one, left, right, result)


def _dot(one: Instruction, left: ArrayShape, result: ArrayShape) -> float:
    contracted = (int(place) for place in one.attribute("lhs_contracting_dims").split(",") if place)
    return 2.0 * math.prod(result.dims) * math.prod(left.dims[place] for place in contracted)


def _convolution(one: Instruction, left: ArrayShape, right: ArrayShape, result: ArrayShape) -> float:
    operands, _, results = one.attribute("dim_labels").partition("->")
    inputs, _, kernels = operands.partition("_")
    groups, batches = (int(one.attribute(name) or 1) for name in ("feature_group_count", "batch_group_count"))
    features, batch = left.dims[inputs.index("f")] // groups, left.dims[inputs.index("b")] // batches
    spatial = sorted(label for label in results if label.isdigit())
    lengths = [
        (left.dims[inputs.index(label)], right.dims[kernels.index(label)], result.dims[results.index(label)])
        for label in spatial
    ]
    positions = math.prod(map(_valid, lengths, _moves(one.attribute("window"), len(spatial))))
    return 2.0 * features * batch * result.dims[results.index("f")] * positions


class _Move(NamedTuple):
    """How the kernel moves along one dimension. `low`: padding before the first element of the input."""

    stride: int
    low: int
    input_dilation: int
    kernel_dilation: int


def _moves(window: str, count: int) -> list[_Move]:
    """The text of a window, "size=3x3 stride=2x2 pad=0_1x0_1": what is not there is 1, and no padding."""
    texts = dict(field.partition("=")[::2] for field in window.split())
    strides, inputs, kernels = (_numbers(texts.get(name), count) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    pads = [int(one.partition("_")[0]) for one in texts["pad"].split("x")] if "pad" in texts else [0] * count
    return [_Move(*one) for one in zip(strides, pads, inputs, kernels, strict=True)]


def _numbers(text: str | None, count: int) -> list[int]:
    return [int(one) for one in text.split("x")] if text else [1] * count


@functools.lru_cache(maxsize=4096)
def _valid(lengths: tuple[int, int, int], move: _Move) -> int:
    """How many pairs of a kernel and a result position meet an element of the input."""
    input_, kernel, result = lengths
    return sum(_met(place * move.kernel_dilation - move.low, input_, result, move) for place in range(kernel))


def _met(start: int, input_: int, result: int, move: _Move) -> int:
    """For how many n in range(result) is start + n * stride a multiple of the input's dilation, and that multiple
    within the input?"""
    stride, dilation = move.stride, move.input_dilation
    first = max(0, -(start // stride))
    last = min(result - 1, ((input_ - 1) * dilation - start) // stride)
    step = dilation // math.gcd(stride, dilation)
    met = next((n for n in range(first, min(first + step, last + 1)) if (start + n * stride) % dilation == 0), None)
    return 0 if met is None else (last - met) // step + 1


# -- multiplications in kernels ---------------------------------------------------------------------------------------

# Seen with libtpu 0.0.52 on v5e: softmax(q k) v becomes a kernel named "online-softmax", whose body stands in the text
# as MLIR, in base64; XLA's own FLOPs leave it out. A kernel that the user wrote (Pallas) has a body in MLIR's binary
# form, which is not read here.
TARGET = "tpu_custom_call"
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')
_GRID = re.compile(r"iteration_bounds = array<i64: ([\d, ]+)>")
_MATMUL = re.compile(
    r"tpu\.matmul .*dot_dimension_numbers<\[([\d, ]*)\]"
    r".*: vector<([^>]*)>, vector<([^>]*)>, vector<[^>]*> -> vector<([^>]*)>"
)


class KernelProduct(NamedTuple):
    """A multiplication of a kernel: the element types of its operands, and FLOPs of one run of the kernel."""

    types: tuple[str, str]
    flops: float


def kernel_products(call: Instruction) -> tuple[KernelProduct, ...] | None:
    """The multiplications of a kernel; None where its body cannot be read."""
    text = _text(call)
    if text is None or "scf.for" in text or "scf.while" in text:
        return None
    grid = _GRID.search(text)
    rounds = math.prod(int(one) for one in grid[1].split(",")) if grid else 1
    return tuple(_product(rounds, *found) for found in _MATMUL.findall(text))


def _text(call: Instruction) -> str | None:
    body = _BODY.search(call.tail)
    if body is None:
        return None
    try:
        raw = base64.b64decode(body[1], validate=True)
    except binascii.Error:
        return None
    return raw.decode("utf-8", "replace") if raw.lstrip().startswith(b"module") else None


def _product(rounds: int, contracted: str, left: str, right: str, result: str) -> KernelProduct:
    sizes, dtype = _vector(left)
    depth = math.prod(sizes[int(place)] for place in contracted.split(",") if place.strip())
    return KernelProduct((dtype, _vector(right)[1]), 2.0 * rounds * depth * math.prod(_vector(result)[0]))


def _vector(text: str) -> tuple[tuple[int, ...], str]:
    *sizes, dtype = text.split("x")
    return tuple(int(one) for one in sizes), dtype


# -- multiplications of a program -------------------------------------------------------------------------------------

_MULTIPLYING = ("dot", "convolution")
_MORE = 1.01  # so much more than was written is flops_text
_UNREAD = ("ragged-dot", "scaled-dot")
# What leaves the values of its operand as they are, but for their type.
_MOVING = frozenset({"convert", "reshape", "transpose", "bitcast", "copy", "broadcast"})
# MLIR's names of element types that XLA names otherwise.
_NAMES = {"i8": "s8", "i4": "s4", "i32": "s32", "f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2"}


class Multiplication(NamedTuple):
    """One multiplication of a program: the type it counts for, FLOPs of one run, the name of its op, that of the
    instruction, whether it is part of a kernel, and its shapes: "bf16[4096,768] x bf16[768,768] -> f32[4096,768]"."""

    dtype: str
    flops: float
    op: str
    name: str
    kernel: bool = False
    shapes: str = ""


class MultiplicationCounts(NamedTuple):
    """`products`: by computation; `executions`: how often each runs; `loops`: a loop has multiplications in its
    body."""

    multiplications: Multiplications
    products: Mapping[str, tuple[Multiplication, ...]]
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
        result = array_shapes(one.type)[0]
        shapes = f"{left} x {right} -> {result}"
        return Multiplication(_wider(*types), flops(one, left, right, result), op_name(one), one.name, shapes=shapes)

    def _inside(self, call: Instruction) -> Iterator[Multiplication]:
        if call.opcode in _UNREAD:
            self.unread.append(call.opcode)
        elif call.attribute("custom_call_target") == f'"{TARGET}"':
            found = kernel_products(call)
            if found is None:
                self.unread.append(f"kernel {op_name(call) or call.name}")
            for types, count in found or ():
                yield Multiplication(
                    _wider(*(_NAMES.get(one, one) for one in types)), count, op_name(call), call.name, kernel=True
                )


def multiplications(program: HloModule, unoptimised: HloModule | None) -> MultiplicationCounts:
    """Counts the multiplications. `unoptimised`: the same program before optimisation, where there is one."""
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
    found = Multiplications(dict(sums), dict(numbers), in_kernels)
    counted = {
        name: tuple(one._replace(dtype=wanted.dtype(one)) for one in inside) for name, inside in products.of.items()
    }
    return MultiplicationCounts(found, counted, counts, bool(looped), notes)


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
    """The element types of the multiplications before optimisation."""

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
