"""Every parameter and buffer of a model by name: as in `state_dict()`, but without the name parts that wrappers add.

So a model has the same names in the worker, where it may be wrapped layer by layer, and in the notebook.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Attributes in which wrappers keep the module they wrap: torch_xla 2.9.0 (XlaFullyShardedDataParallel,
# XlaFlattenParamsWrapper, SpmdFullyShardedDataParallel) and torch 2.9.0 (OptimizedModule, CheckpointWrapper).
WRAPPER_SEGMENTS = frozenset(
    {"_fsdp_wrapped_module", "_fpw_module", "_orig_module", "_orig_mod", "_checkpoint_wrapped_module"}
)
# torch_xla 2.9.0 registers a wrapper's shards under names with this prefix; fsdp_shards.py reads them.
SHARD_PREFIX = "_fsdp_shard"


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor, or None.

    `name`: without the name parts of wrappers; `module` and `key`: where it is; `kind`: "parameter" or "buffer";
    `persistent`: whether `state_dict()` has it.
    """

    name: str
    module: Any
    key: str
    kind: str
    persistent: bool = True

    @property
    def tensor(self) -> Any:
        """The tensor there now, or None."""
        return self.table[self.key]

    @property
    def table(self) -> dict[str, Any]:
        """The module's own dict that the tensor is kept in."""
        table: dict[str, Any] = self.module._parameters if self.kind == "parameter" else self.module._buffers
        return table


def plain_name(name: str) -> str:
    """`name` without the name parts of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in WRAPPER_SEGMENTS)


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Every module of `model` once, with its name without wrappers (the model itself has "")."""
    for name, module in model.named_modules():
        yield plain_name(name), module


def slots(model: Any) -> list[Slot]:
    """Every place in `model` that is registered for a parameter or a buffer, set or not, in the model's order."""
    return [slot for name, module in named_modules(model) for slot in _own_slots(name, module)]


def _own_slots(prefix: str, module: Any) -> Iterator[Slot]:
    for key in module._parameters:
        if not key.startswith(SHARD_PREFIX):
            yield Slot(_join(prefix, key), module, key, "parameter")
    for key in module._buffers:
        persistent = key not in module._non_persistent_buffers_set
        yield Slot(_join(prefix, key), module, key, "buffer", persistent)


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
