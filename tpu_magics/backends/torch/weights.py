"""Trained weights from a worker to the notebook, in three steps; and their checksum.

worker, every rank:  collect_shards(models, folder, rank)   runs pending operations (torch_xla/fsdp_shards.py)
worker, rank 0:      collect_weights(models, folder)        complete or not at all
notebook:            staged = check_weights(models, folder) changes nothing
                     load_weights(staged)                   all or nothing
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch import optimizers, weights_files
from tpu_magics.backends.torch.modules import slots
from tpu_magics.backends.torch.tensor_transfer import memory_of, settle, unwrap
from tpu_magics.backends.torch.weights_check import StagedWeights, check_weights, layout_of, state_of
from tpu_magics.backends.torch.weights_files import ManifestEntry
from tpu_magics.backends.torch.weights_load import load_weights

__all__ = ["StagedWeights", "check_weights", "collect_weights", "load_weights"]

Joined = Callable[[str, Any, Path], Mapping[str, Any]]


def collect_weights(models: Mapping[str, Any], folder: Path, joined: Joined = lambda *_: {}) -> None:
    """In the worker, rank 0, after training: write all parameters and buffers of `models` into `folder`.

    Call it on the thread that the training function ran on, when nothing observes the runtime any more, and after every
    rank has returned from `collect_shards`.

    Args:
        joined: (name, model, folder) -> the parameters that were sharded over the ranks, whole, by name.

    Raises:
        TpuMagicsError: the disk is full, or shards of another rank are missing. Nothing is left in the folder then.
    """
    settle()
    found = _TensorCollector(tuple(models))
    entries = {name: found.entries(name, model, joined(name, model, folder)) for name, model in models.items()}
    weights_files.write_weights(folder, entries, found.tensors)


class _TensorCollector:
    """The tensors to write, each once, and the key of each."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._models = models
        self._keys: dict[Hashable, str] = {}
        self.tensors: dict[str, Any] = {}

    def entries(self, model: str, module: Any, whole: Mapping[str, Any]) -> dict[str, ManifestEntry]:
        """The manifest's entries of one model; `whole`: parameters that were sharded, joined."""
        prefix = weights_files.key_prefix(model, self._models)
        entries = {
            slot.name: self._entry(prefix, slot.name, slot.kind, slot.persistent, slot.tensor) for slot in slots(module)
        }
        for name, tensor in whole.items():
            entries[name] = self._entry(prefix, name, "parameter", True, tensor)
        return entries

    def _entry(self, prefix: str, name: str, kind: str, persistent: bool, tensor: Any) -> ManifestEntry:
        state = state_of(tensor)
        if state != "data":
            return ManifestEntry(kind, state, persistent)
        plain = unwrap(tensor)
        key = self._keys.setdefault(_identity(tensor), prefix + name)
        self.tensors.setdefault(key, plain)
        return ManifestEntry(
            kind,
            state,
            persistent,
            bool(tensor.requires_grad),
            tuple(plain.shape),
            str(plain.dtype).removeprefix("torch."),
            layout_of(plain),
            key,
        )


def _identity(tensor: Any) -> Hashable:
    """Equal for names of one tensor, or of the same view of the same memory."""
    if tensor.device.type != "cpu" or layout_of(tensor) != "strided" or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


# -- checksums --------------------------------------------------------------------------------------------------------


# Without buffers: BatchNorm statistics differ between ranks, on a TPU as well.


def digests(models: Mapping[str, Any]) -> dict[str, str]:
    """The checksum of each model. One tensor at a time is fetched."""
    return {name: found for name, model in models.items() if (found := _digest(model))}


def _digest(model: Any) -> str:
    """ "" for a model with parameters without values (lazy, or on "meta")."""
    import torch

    found = 0
    for parameter in model.parameters():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            return ""
        if parameter.requires_grad and parameter.numel():
            found = _checksum(parameter.detach().cpu(), found)
    return f"{found:08x}"


def _checksum(values: Any, before: int) -> int:
    return zlib.crc32(memory_of(values.contiguous()), before)


def trained_elsewhere(models: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What optimizers trained besides `models`: the model of a script, or one that a function builds. By the class of
    the optimizer: a checksum of its parameters, and "NaN" or "Inf" if they contain such values, else ""."""
    settle()
    known = {id(parameter) for model in models.values() for parameter in model.parameters()}
    sums: dict[str, int] = {}
    bad: dict[str, str] = {}
    for name, parameter in optimizers.trained():
        if id(parameter) not in known and parameter.numel():
            values = parameter.detach().cpu()
            sums[name] = _checksum(values, sums.get(name, 0))
            bad[name] = bad.get(name) or weights_files.not_finite(values)
    return {name: (f"{found:08x}", bad[name]) for name, found in sums.items()}
