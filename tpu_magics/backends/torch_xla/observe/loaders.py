"""Loaders of torch and torch_xla: how many batches a pass over one has."""

from __future__ import annotations

from typing import Any

from tpu_magics.backends.torch.batches import length_on_host
from tpu_magics.backends.torch_xla.trainer import AroundLoader


def is_xla_loader(loader: Any) -> bool:
    """Whether its iterator syncs at each batch."""
    from torch_xla.distributed.parallel_loader import MpDeviceLoader, PerDeviceLoader

    return isinstance(loader, (MpDeviceLoader, PerDeviceLoader))


def length(loader: Any) -> int | None:
    """The batches of one pass; None if unknown. torch_xla 2.9 (parallel_loader.py)."""
    from torch_xla.distributed.parallel_loader import MpDeviceLoader, PerDeviceLoader

    if isinstance(loader, MpDeviceLoader):
        return length(loader._loader)
    if isinstance(loader, AroundLoader):
        return length(loader.inner)
    if isinstance(loader, PerDeviceLoader):
        batches = length(loader._loader._cpu_loader)
        return None if batches is None else batches // len(loader._loader._devices)
    return length_on_host(loader)
