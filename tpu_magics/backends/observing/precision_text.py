"""In which precision a program multiplies, in a precision_text.

What lives here: the words. What does not: what was asked and whether it agrees (the framework's own).
"""

from __future__ import annotations

from collections.abc import Mapping


def describe_matmuls(request: str, total: int, bf16: int, types: Mapping[str, int]) -> str:
    """`request`: who asked for what, in words; `total`, `bf16`, `types`: see hlo.multiplications and
    hlo.multiplied_types."""
    if not total:
        return f"{request}: the graph has no matrix multiplication and no convolution."
    others = ", ".join(f"{count} {dtype}" for dtype, count in types.items() if dtype != "bf16")
    rest = f" (the others: {others})" if 0 < bf16 < total else f" ({others})" if others else ""
    are = "is" if total == 1 else "are"
    noun = "matrix multiplication or convolution" if total == 1 else "matrix multiplications and convolutions"
    return f"{request}: {bf16} of {total} {noun} {are} bf16{rest}, read from the graph before XLA optimises it."
