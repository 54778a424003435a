"""The precision of a graph's matmuls and convolutions, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping


def describe_matmuls(request: str, total: int, bf16: int, types: Mapping[str, int]) -> str:
    """`request`: the requested precision, in words; `total`, `bf16`, `types`: see hlo.multiplications and
    hlo.multiplied_types."""
    if not total:
        return f"{request}: the graph has no matmuls and no convolutions."
    others = ", ".join(f"{count} {dtype}" for dtype, count in types.items() if dtype != "bf16")
    rest = f" (others: {others})" if 0 < bf16 < total else f" ({others})" if others else ""
    return f"{request}: {bf16} of {total} matmuls and convolutions in bf16{rest}, before XLA optimizes the graph."
