"""A model's large parameters on their way to the device.

What lives here: a placeholder in place of each: nobody looks at them while a function is traced, and a copy of a model
takes memory and time. What does not: all else that comes from the host, which a step may decide by (truth.py).
"""

from __future__ import annotations

import functools
import re
from typing import Any

LARGE = 1 << 20  # bytes
_TYPE = re.compile(r"^XLA Shape: (\w+)\[", re.MULTILINE)


def placeholder(tensor: Any, dtype: Any) -> Any:
    """A tensor on the device as a tensor of the host would become there, without memory; None where it is small, or no
    such placeholder can be made."""
    import torch_xla
    from torch_xla.core import xla_builder

    if not dtype.is_floating_point or tensor.numel() * tensor.element_size() < LARGE:
        return None
    type_ = _on_device(dtype)
    if not type_:
        return None
    shape = xla_builder.mkshape(type_, tuple(tensor.shape)).shape
    made = torch_xla._XLAC._xla_create_placeholder_tensor(shape)  # 2.9.0
    return made if made.dtype == dtype else None


@functools.lru_cache(maxsize=16)
def _on_device(dtype: Any) -> str:
    """How the device holds torch's type: with XLA_USE_BF16 a float32 is a "bf16" there."""
    import torch
    import torch_xla

    one = torch.zeros(1, dtype=dtype, device="cpu").to(torch_xla.device())
    found = _TYPE.search(torch_xla._XLAC._get_xla_tensor_debug_info(one))
    return found[1] if found else ""
