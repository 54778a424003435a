"""Matrix multiplications inside kernels (`tpu_custom_call`) that the compiler puts in place of a part of the program.

Seen with libtpu 0.0.52 on v5e: softmax(q k) v becomes a kernel named "online-softmax", whose body stands in the text as
MLIR, in base64; XLA's own FLOPs leave it out. A kernel that the user wrote (Pallas) has a body in MLIR's binary form,
which is not read here.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import NamedTuple

from tpu_magics.preflight.analysis.hlo_module import Instruction

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


def products(call: Instruction) -> tuple[KernelProduct, ...] | None:
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
