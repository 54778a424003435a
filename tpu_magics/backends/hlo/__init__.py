"""HLO as text and as protos: reading, comparing, counting. Standard library only.

A `Graph` is small and made to be kept and compared; an `HloModule` has every instruction with its
attributes, for an analysis of one program.
"""

from __future__ import annotations

from tpu_magics.backends.hlo.compare import GraphChange, Part, compare, distance, parts
from tpu_magics.backends.hlo.text import (
    MULTIPLYING,
    Graph,
    Op,
    Tensor,
    dtype_counts,
    fingerprint,
    join,
    multiplications,
    multiplied_types,
    parse,
    read,
)

__all__ = [
    "MULTIPLYING",
    "Graph",
    "GraphChange",
    "Op",
    "Part",
    "Tensor",
    "compare",
    "distance",
    "dtype_counts",
    "fingerprint",
    "join",
    "multiplications",
    "multiplied_types",
    "parse",
    "parts",
    "read",
]
