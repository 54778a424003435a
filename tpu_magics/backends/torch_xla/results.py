"""How what was trained comes home (Results in backends/protocols.py), where XLA's FSDP may shard weights over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch import weights
from tpu_magics.backends.torch.pickling import dumps
from tpu_magics.backends.torch.weights import check_weights, load_weights, trained_elsewhere
from tpu_magics.backends.torch_xla import fsdp_shards
from tpu_magics.backends.torch_xla.fsdp_shards import spread as splits_weights
from tpu_magics.backends.torch_xla.fsdp_shards import structure

__all__ = [
    "check_weights",
    "collect_weights",
    "digests",
    "dumps",
    "load_weights",
    "splits_weights",
    "structure",
    "trained_elsewhere",
]


def digests(models: Mapping[str, Any]) -> Mapping[str, str]:
    return weights.digests({name: one for name, one in models.items() if not splits_weights({name: one})})


def collect_weights(models: Mapping[str, Any], folder: Path, rank: int) -> None:
    fsdp_shards.collect_shards(models, folder, rank)
    if splits_weights(models):
        import torch_xla.core.xla_model as xm

        xm.rendezvous("tpu_magics-shards")
    if rank == 0:
        weights.collect_weights(models, folder, fsdp_shards.full_weights)
