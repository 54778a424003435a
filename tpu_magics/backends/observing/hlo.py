"""HLO graphs before XLA optimizes them: parse, compare and count. Framework-independent."""

from __future__ import annotations

import hashlib
from collections import Counter

from tpu_magics.backends.observing.hlo_compare import GraphChange, compare, distance
from tpu_magics.backends.observing.hlo_text import Graph, Op, Tensor, join, parse

__all__ = [
    "Graph",
    "GraphChange",
    "Op",
    "Tensor",
    "compare",
    "distance",
    "dtype_counts",
    "fingerprint",
    "join",
    "multiplications",
    "multiplied_types",
    "parse",
]


def fingerprint(graph: Graph) -> str:
    """Equal for equal graphs, however they are written: XLA's dumps and torch_xla's text use other numbers and names.
    It covers opcodes, types, constants, attributes, and where each operand comes from."""
    ops = "\n".join(f"{op.opcode} {op.results} {op.operands} {op.attributes} {op.value}" for op in graph.ops)
    return hashlib.sha256(ops.encode("utf-8", "surrogatepass")).hexdigest()


def multiplications(graph: Graph) -> tuple[int, int]:
    """How many matmuls and convolutions of floating-point numbers there are, and how many of them are in bf16. The
    operands decide, because sums may be kept wider."""
    floating = [types for types in graph.multiplied if all(_is_floating(dtype) for dtype in types)]
    return len(floating), sum(all(dtype == "bf16" for dtype in types) for types in floating)


def multiplied_types(graph: Graph) -> dict[str, int]:
    """How many of those matmuls and convolutions there are of each element type; of two types, the wider one's name."""
    floating = [types for types in graph.multiplied if all(_is_floating(dtype) for dtype in types)]
    return dict(Counter(next((dtype for dtype in types if dtype != "bf16"), "bf16") for types in floating))


def dtype_counts(graph: Graph) -> dict[str, int]:
    """How many of the graph's parameters have each element type, the most frequent first."""
    return dict(Counter(parameter.dtype for parameter in graph.parameters).most_common())


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("f", "bf", "c"))
