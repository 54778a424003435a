"""Full weights from models wrapped with torch_xla's XlaFullyShardedDataParallel (FSDP), under the names that the
notebook knows.

FSDP takes the parameters out of the module it wraps and keeps one shard of each per rank. The notebook's model is the
module inside; `watch_wrappers` remembers its wrapper. After training, every rank calls `collect_shards`, and then rank
0 joins the shards (`full_weights`). SPMD needs none of this: fetching a sharded tensor gathers it. Attribute names as
in torch_xla 2.9.0, torch_xla/distributed/fsdp.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tpu_magics.backends.torch import modules, optimizers
from tpu_magics.backends.torch.modules import SHARD_PREFIX, named_modules, plain_name
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.tensor_transfer import settle, tensor_bytes, to_cpu
from tpu_magics.errors import TpuMagicsError

_FSDP = "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel"
_HOLDER = "_tpu_magics_wrapper"


@dataclass(frozen=True)
class ShardPart:
    """One full parameter within a shard's full tensor: its names (several, if tied) and its shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return functools.reduce(lambda left, right: left * right, self.shape, 1)


@dataclass(frozen=True)
class Shard:
    """One rank's shard of a tensor that consists of `parts`, one after the other.

    `key`: the same on all ranks; `members`: the global ranks whose shards make the whole, in order; `flat`: cut from
    the flattened tensor (and padded), not along its first dimension.
    """

    key: str
    parts: tuple[ShardPart, ...]
    members: tuple[int, ...]
    flat: bool
    tensor: Any


class _Holder:
    """Keeps a wrapper alive as long as the module inside it; not copied or pickled with the module."""

    def __init__(self, wrapper: Any = None) -> None:
        self.wrapper = wrapper

    def __deepcopy__(self, memo: Any) -> _Holder:
        return _Holder()

    def __reduce__(self) -> tuple[type[_Holder], tuple[()]]:
        return _Holder, ()


# -- in every worker, before the user's function ----------------------------------------------------------------------
def watch_wrappers() -> None:
    """From now on, the wrapped module remembers every FSDP wrapper created in this process (idempotent).

    The reference is strong: a wrapper is often a local variable of the training function, and the shards would be gone
    when the function returns. Module and wrapper refer to each other, so they are still freed together.
    """
    PostImport().when_imported(_FSDP, lambda module: _watch(module.XlaFullyShardedDataParallel))


def _watch(Fsdp: Any) -> None:
    original = Fsdp.__init__
    if getattr(original, "watched", False):
        return

    @functools.wraps(original)
    def remembering(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        optimizers.refuse_sharding(module)
        original(self, module, *args, **kwargs)
        object.__setattr__(module, _HOLDER, _Holder(self))

    remembering.watched = True  # type: ignore[attr-defined]
    Fsdp.__init__ = remembering


# -- in every worker, after it -----------------------------------------------------------------------------------------
def collect_shards(models: Mapping[str, Any], folder: Path, rank: int) -> None:
    """Run pending operations, and write this rank's shards for rank 0. Called on every rank, including rank 0, before
    rank 0's `collect_weights`; `rank` is the global one."""
    settle()
    found = [shard for name, model in models.items() for shard in shards(name, model) if len(shard.members) > 1]
    if not found or rank == 0:
        return
    values = to_cpu([shard.tensor for shard in found])
    target = _shard_file(folder, rank)
    temporary = target.with_suffix(".tmp")
    try:
        torch.save({shard.key: value for shard, value in zip(found, values, strict=True)}, temporary)
        temporary.replace(target)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the disk is full
        temporary.unlink(missing_ok=True)
        size = sum(tensor_bytes(value) for value in values)
        raise TpuMagicsError(
            f"Rank {rank} could not write its shards of the trained weights ({size / 1e6:.1f} MB).",
            str(error),
            f"Free some space on the disk that holds {folder}, or set TPU_MAGICS_RUNS to a folder on another disk.",
        ) from error


def spread(models: Mapping[str, Any]) -> bool:
    """Whether a parameter is sharded over several ranks, so that rank 0 must wait for the others' shards."""
    return any(len(shard.members) > 1 for name, model in models.items() for shard in shards(name, model))


def structure(model: Any) -> frozenset[tuple[str, tuple[int, ...] | None]]:
    """Names and shapes of a model's parameters and buffers, as they were before FSDP took them."""
    own = {(name, shape) for name, shape in modules.structure(model) if SHARD_PREFIX not in name}
    parts = (part for shard in shards("", model) for part in shard.parts)
    return frozenset(own | {(part.names[0], part.shape) for part in parts})


def full_weights(name: str, model: Any, folder: Path) -> dict[str, Any]:
    """Every parameter of `model` that FSDP took, complete and on the CPU, by its plain name. Tied names share one
    tensor. Called by rank 0 after `collect_shards` has returned on every rank."""
    own = shards(name, model)
    needed = sorted({rank for shard in own for rank in shard.members if rank != 0})
    keys = {shard.key for shard in own if len(shard.members) > 1}
    others = {rank: _read_shards(folder, rank, name, keys) for rank in needed}
    result: dict[str, Any] = {}
    for shard, value in zip(own, to_cpu([shard.tensor for shard in own]), strict=True):
        result.update(unflatten(shard, [value if rank == 0 else others[rank][shard.key] for rank in shard.members]))
    return result


def unflatten(shard: Shard, pieces: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of all parameters in `shard`, from the pieces of all its members in order."""
    whole = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=0)
    if not shard.flat:
        part = shard.parts[0]
        yield from ((name, whole[: part.shape[0]]) for name in part.names)
        return
    start = 0
    for part in shard.parts:
        values = whole[start : start + part.size].view(part.shape)
        yield from ((name, values) for name in part.names)
        start += part.size


def shards(name: str, model: Any) -> list[Shard]:
    """This rank's shards of `model`, called `name` in the notebook, in the same order on every rank."""
    found: list[Shard] = []
    for prefix, wrapper in _wrappers(model):
        for shard in _shards_of(wrapper, prefix):
            found.append(Shard(f"{name}/{shard.key}", shard.parts, shard.members, shard.flat, shard.tensor))
    return found


# -- FSDP's own records ------------------------------------------------------------------------------------------------
def _wrappers(model: Any) -> Iterator[tuple[str, Any]]:
    """Every FSDP wrapper in or around a part of `model`, with the plain name of what it wraps."""
    fsdp = getattr(sys.modules.get(_FSDP), "XlaFullyShardedDataParallel", None)
    if fsdp is None:
        return
    seen: set[int] = set()
    for prefix, module in list(named_modules(model)):
        holder = vars(module).get(_HOLDER)
        for wrapper in (module, getattr(holder, "wrapper", None)):
            if isinstance(wrapper, fsdp) and id(wrapper) not in seen:
                seen.add(id(wrapper))
                yield prefix, wrapper


def _shards_of(wrapper: Any, prefix: str) -> Iterator[Shard]:
    members = _members(wrapper)
    flat_parts = _flat_parts(wrapper, prefix)
    tied = _tied(wrapper.shared_full_param_infos, prefix)
    for tensor in wrapper.sharded_params:
        origin = tensor._orig_name
        name = _join(prefix, plain_name(origin))
        parts = flat_parts.get(origin.rpartition(".")[2])
        if parts is None:
            parts = (ShardPart((name, *tied.get(name, ())), tuple(tensor._orig_size)),)
        yield Shard(name, parts, members, not wrapper._shard_param_on_dim_0, tensor)


def _flat_parts(wrapper: Any, prefix: str) -> dict[str, tuple[ShardPart, ...]]:
    """The parameters inside each of the wrapper's flat ones ("flat_param_0", ...)."""
    found: dict[str, tuple[ShardPart, ...]] = {}
    inner = wrapper.module
    for key, flat in zip(inner.flat_param_names, inner.flat_params, strict=True):
        names, shapes, _ = flat.metadata()
        tied = _tied(flat._shared_param_infos, prefix)
        full_names = [_join(prefix, plain_name(name)) for name in names]
        found[key] = tuple(
            ShardPart((name, *tied.get(name, ())), tuple(shape)) for name, shape in zip(full_names, shapes, strict=True)
        )
    return found


def _tied(infos: Sequence[Any], prefix: str) -> dict[str, tuple[str, ...]]:
    """The other names of each tied parameter. An info is (module name, name of the module that has it first, module,
    key, first module, key there)."""
    found: dict[str, tuple[str, ...]] = {}
    for module_name, first_name, _, key, _, first_key in infos:
        first = _join(prefix, plain_name(f"{first_name}.{first_key}"))
        found[first] = (*found.get(first, ()), _join(prefix, plain_name(f"{module_name}.{key}")))
    return found


def _members(wrapper: Any) -> tuple[int, ...]:
    """Global ranks that share this wrapper's parameters, in the order of their shards."""
    if wrapper.sharding_groups is None:
        return tuple(range(wrapper.world_size))
    import torch_xla.runtime as xr

    ordinal = xr.global_ordinal()
    for group in wrapper.sharding_groups:
        if ordinal in group:
            return tuple(group)
    raise TpuMagicsError(
        f"Rank {ordinal} is in none of the FSDP sharding groups {wrapper.sharding_groups}, so its weights are "
        "incomplete.",
        todo="List every rank in sharding_groups.",
    )


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


# -- files -------------------------------------------------------------------------------------------------------------
def _shard_file(folder: Path, rank: int) -> Path:
    return folder / f"result-shards-{rank}.pt"


def _read_shards(folder: Path, rank: int, name: str, keys: set[str]) -> dict[str, Any]:
    """What `collect_shards` wrote on `rank`, which must have `keys`; memory-mapped, so only used parts need memory."""
    path = _shard_file(folder, rank)
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise _no_shards(name, rank, f"{path} could not be read: {error}") from error
    if missing := sorted(keys - found.keys()):
        raise _no_shards(name, rank, f"{path} lacks {missing[0]} ({len(missing)} of {len(keys)} are missing).")
    return found


def _no_shards(name: str, rank: int, why: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"`{name}` is sharded, and the shards of rank {rank} are missing, so its weights cannot be assembled.",
        why,
        f"See the log of rank {rank}: %tpu_logs -r {rank}",
    )
