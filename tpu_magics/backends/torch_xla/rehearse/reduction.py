"""Reductions over ranks for each element type, as XLA defines them.

XLA adds bools as "or" and multiplies them as "and". A scale is converted to the element type first, so 0.125 is 0 for
integers, and 1/3 has float32 digits also for float64 (torch_xla 2.9.0, cross_replica_reduces.cpp: ScalarValue(scale,
type)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KINDS = ("sum", "mul", "min", "max", "and", "or")
_OF_TRUTH = {"sum": "max", "or": "max", "max": "max", "mul": "min", "and": "min", "min": "min"}


def check(kind: str, dtype: torch.dtype) -> None:
    """Raise RuntimeError for what XLA does not support."""
    if kind not in KINDS:
        raise RuntimeError(
            f'{kind!r} is not an XLA reduction. XLA has {", ".join(KINDS)}. For an average, reduce with "sum" and '
            "divide by the number of ranks."
        )
    if kind in ("and", "or") and (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            f"XLA has no {kind!r} reduction for {str(dtype).removeprefix('torch.')}, only for bool and integers. "
            "Convert the tensor, or use xm.REDUCE_MIN or xm.REDUCE_MAX."
        )
    if dtype.is_complex and kind != "sum":
        raise RuntimeError(f"XLA has no {kind!r} reduction for complex numbers, only the sum.")


def travelling(dtype: torch.dtype) -> torch.dtype:
    """The type in which gloo reduces it: half-precision sums are rounded once, at the end."""
    import torch

    wider = {
        torch.bfloat16: torch.float32,
        torch.float16: torch.float32,
        torch.bool: torch.uint8,
        torch.int16: torch.int32,
        torch.uint16: torch.int32,
        torch.uint32: torch.int64,
        torch.float8_e4m3fn: torch.float32,
        torch.float8_e5m2: torch.float32,
    }
    return wider.get(dtype, dtype)


def kind_of(kind: str, dtype: torch.dtype) -> str:
    """The operation in the travelling type."""
    import torch

    return _OF_TRUTH[kind] if dtype == torch.bool else kind


def scaled(tensor: Tensor, scale: float) -> Tensor:
    """The result times the scale, in the result's own type and memory."""
    import torch

    if scale == 1.0:
        return tensor
    factor = torch.tensor(scale, dtype=torch.float32, device="cpu").to(tensor.dtype)
    return tensor.logical_and_(factor) if tensor.dtype == torch.bool else tensor.mul_(factor)
