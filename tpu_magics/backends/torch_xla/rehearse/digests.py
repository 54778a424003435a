"""A checksum of a model's trained parameters on one rank, to compare the ranks (launch/supervisor.py).

Without buffers: BatchNorm statistics differ between ranks, on a TPU as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any


def digests(models: Mapping[str, Any]) -> dict[str, str]:
    """The checksum of each model that is not sharded over the ranks. One tensor at a time is fetched."""
    from tpu_magics.backends.torch_xla import fsdp_shards

    whole = {name: model for name, model in models.items() if not fsdp_shards.spread({name: model})}
    return {name: found for name, model in whole.items() if (found := _digest(model))}


def _digest(model: Any) -> str:
    """ "" for a model with parameters without values (lazy, or on "meta")."""
    import torch

    found = 0
    for parameter in model.parameters():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            return ""
        if parameter.requires_grad and parameter.numel():
            content = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            found = zlib.crc32(memoryview(content), found)
    return f"{found:08x}"
