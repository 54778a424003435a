"""FLOPs of one matrix multiplication or convolution, as XLA counts them.

Follows HloCostAnalysis (xla/service/hlo_cost_analysis.cc, GetConvolutionFlops and GetDotFlops): two per multiply-add; a
position of the window that falls on padding or on a hole of a dilated input is not counted. A TPU program has its
batched matrix multiplications as convolutions whose window has one valid position per batch; they come out as
2 * batch * m * k * n.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from tpu_magics.preflight.analysis.hlo_module import Instruction
from tpu_magics.preflight.analysis.shapes import ArrayShape


def flops(one: Instruction, left: ArrayShape, right: ArrayShape, result: ArrayShape) -> float:
    """FLOPs of a `dot` or a `convolution` with these operands. Raises ValueError or IndexError where its attributes are
    not of the form that XLA writes."""
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
