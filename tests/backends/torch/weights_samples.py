"""Models and tensors for the tests of weights that travel, and what must be the same of them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tpu_magics.backends.torch.weights import StagedWeights, check_weights, collect_weights, load_weights

DTYPES = [
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "uint16", "float8_e4m3fn", "float8_e5m2"),
]
XLA_DTYPES = [dtype for dtype in DTYPES if dtype != "uint16"]


def sample(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """Arbitrary bits of that dtype: NaNs with payloads, infinities and subnormals as well."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=kind).element_size()
    return torch.randint(0, 256, (*shape, size), dtype=torch.uint8, generator=generator).view(kind).view(shape)


def content(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """All that must be byte for byte the same: identity, type, place in memory, bits, strides, flags."""
    found: dict[str, tuple[Any, ...]] = {}
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                found[f"{prefix}.{key}"] = describe(tensor)
    return found


def describe(tensor: Any) -> tuple[Any, ...]:
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return (id(tensor), type(tensor))
    base = (id(tensor), type(tensor), tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return (*base, str(tensor))
    return (*base, tensor.stride(), tensor.data_ptr(), bits(tensor))


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def holding(**tensors: Any) -> nn.Module:
    """A module with buffers of these names; Parameters become parameters."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
    return module


def arrived(home: Any, worker: Any, folder: Path) -> StagedWeights:
    """The first two steps for one model: collected in the worker, checked in the notebook."""
    collect_weights({"model": worker}, folder)
    return check_weights({"model": home}, folder)


def bring_home(home: Any, worker: Any, folder: Path) -> tuple[str, ...]:
    """All three steps for one model; the notes."""
    staged = arrived(home, worker, folder)
    load_weights(staged)
    return staged.notes
