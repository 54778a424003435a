"""What XLA's CPU plugin lacks of what torch_tpu 0.2.0 makes for a TPU, replaced in a worker of a rehearsal.

- Attention becomes a kernel for TPUs (`tpu_custom_call`), which the plugin does not have: the math form is used.
- cumsum and cumprod become the HLO operation `scan`, which it does not have either: they are made of others.
- It has no pinned host memory ("host memory allocator is not implemented for this client"): memory stays as it is.
  DistributedDataParallel(find_unused_parameters=True) asks for it in C++.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

_pinned: list[int] = []  # where the newest of what was to be pinned lies
_kept: list[Any] = []  # a library's registrations end with it


def arrange() -> None:
    """Replace them in this process (idempotent)."""
    import torch

    for switch in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{switch}_sdp")(False)
    if _kept:
        return
    library = torch.library.Library("aten", "IMPL")
    for name, function in (("cumsum", _cumsum), ("cumprod", _cumprod)):
        library.impl(name, function, "PrivateUse1", allow_override=True)
    _kept.append(library)
    torch.Tensor.pin_memory = _not_pinned
    _arrange_unused(library)


def _not_pinned(tensor: Any, *_args: Any, **_device: Any) -> Any:
    return tensor


def _arrange_unused(library: Any) -> None:
    """Make no memory pinned once a DistributedDataParallel looks for unused parameters. It asks whether its is."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        if model.find_unused_parameters and len(_kept) == 1:
            library.impl("empty_strided", _empty_strided, "CPU", allow_override=True)
            library.impl("is_pinned", _is_pinned, "CPU", allow_override=True)
            _kept.append(library)

    DistributedDataParallel.__init__ = init


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, pin_memory: bool | None = None, **_: Any
) -> Any:
    import torch

    length = 1 + sum((one - 1) * step for one, step in zip(size, stride, strict=True)) if math.prod(size) else 0
    made = torch.empty(length, dtype=dtype, device="cpu").as_strided(size, stride)
    if pin_memory:
        _pinned[:] = [made.data_ptr()]
    return made


def _is_pinned(tensor: Any, device: Any = None) -> bool:  # noqa: ARG001
    return tensor.data_ptr() in _pinned


def _cumsum(values: Any, dim: int, *, dtype: Any = None) -> Any:
    return _cumulated(values, dim, dtype, 0, "sum")


def _cumprod(values: Any, dim: int, *, dtype: Any = None) -> Any:
    return _cumulated(values, dim, dtype, 1, "prod")


def _cumulated(values: Any, dim: int, dtype: Any, neutral: int, how: str) -> Any:
    """Each element together with those before it, in n doublings: shift by 1, 2, 4, ... and combine."""
    import torch

    whole = not values.dtype.is_floating_point and not values.dtype.is_complex
    result = values.to(dtype or (torch.int64 if whole else values.dtype))
    if not values.dim():
        return result.clone()
    length, shift = values.shape[dim], 1
    while shift < length:
        before = result.narrow(dim, 0, length - shift)
        ahead = torch.full_like(result.narrow(dim, 0, shift), neutral)
        shifted = torch.cat([ahead, before], dim)
        result = result + shifted if how == "sum" else result * shifted
        shift *= 2
    return result if result is not values else result.clone()
