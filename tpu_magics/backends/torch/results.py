"""How what was trained comes home (Results in backends/protocols.py), where no weight is sharded over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch import runtime, weights
from tpu_magics.backends.torch.modules import structure
from tpu_magics.backends.torch.pickling import dumps
from tpu_magics.backends.torch.weights import check_weights, digests, load_weights, trained_elsewhere

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


def splits_weights(models: Mapping[str, Any]) -> bool:  # noqa: ARG001
    return False


def collect_weights(models: Mapping[str, Any], folder: Path, rank: int) -> None:
    runtime.settle()
    if rank == 0:
        weights.collect_weights(models, folder)
