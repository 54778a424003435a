"""Placeholders for large tensors on their way to the device, whose copies would take memory and time.

Large parameters of models, and batches too large to compute anything from (constness.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.trace.constness import ELEMENTS

LARGE = 1 << 20  # bytes of a parameter
_TYPE = re.compile(r"^XLA Shape: (\w+)\[", re.MULTILINE)


class Uploads:
    """The uploads of one process. `moving`: whether a model is being moved now."""

    def __init__(self, moving: Callable[[], bool]) -> None:
        self.moving = moving

    def install(self) -> None:
        """Also intercept torch_xla's loaders, which use no operation; until the process ends."""
        import torch_xla

        extension = torch_xla._XLAC
        extension._xla_tensors_from_aten = functools.partial(self._sent, extension._xla_tensors_from_aten)

    def _sent(self, original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Several tensors at once."""
        shardings = args[1] if len(args) > 1 else kwargs.get("shardings")
        made = [None if shardings else self.placeholder(one, one.dtype) for one in tensors]
        if not any(one is not None for one in made):
            return list(original(tensors, *args, **kwargs))
        devices, *rest = args
        pairs = zip(tensors, made, devices, strict=True)
        return [one if one is not None else original([old], [device], *rest, **kwargs)[0] for old, one, device in pairs]

    def placeholder(self, tensor: Any, dtype: Any) -> Any:
        """A tensor on the device without memory, as the host tensor would become there; None if it is small, or no such
        placeholder can be made."""
        if tensor.is_xla or not self._is_large(tensor, dtype):
            return None
        import torch_xla
        from torch_xla.core import xla_builder

        type_ = _on_device(dtype)
        if not type_:
            return None
        shape = xla_builder.mkshape(type_, tuple(tensor.shape)).shape
        made = torch_xla._XLAC._xla_create_placeholder_tensor(shape)  # 2.9.0
        return made if made.dtype == dtype else None

    def _is_large(self, tensor: Any, dtype: Any) -> bool:
        if self.moving():
            return bool(dtype.is_floating_point and tensor.numel() * tensor.element_size() >= LARGE)
        return bool(tensor.numel() > ELEMENTS)


@functools.lru_cache(maxsize=16)
def _on_device(dtype: Any) -> str:
    """How the device holds torch's type: with XLA_USE_BF16, a float32 is a "bf16"."""
    import torch
    import torch_xla

    one = torch.zeros(1, dtype=dtype, device="cpu").to(torch_xla.device())
    found = _TYPE.search(torch_xla._XLAC._get_xla_tensor_debug_info(one))
    return found[1] if found else ""
