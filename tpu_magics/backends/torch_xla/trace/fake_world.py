"""Rank 0 of a world whose other ranks do not exist: collectives on the host return what rank 0 passes in.

Collectives on the device stay in the graph, which is not run. On a TPU, `xm.rendezvous` and the start of an epoch with
accelerate run small graphs that do not belong to the step; here they run none.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch_xla.rehearse import join

if TYPE_CHECKING:
    from torch import Tensor


def enter(size: int) -> None:
    """Make this process rank 0 of `size`, until it ends."""
    import torch.distributed as dist

    join.set_world(0, size, 0)
    join.replace_random_states(_FirstRankStates())  # type: ignore[arg-type]
    if dist.is_available():
        _fake_groups(dist, size)
        # torch 2.9: DistributedDataParallel compares the shapes of the ranks' parameters.
        dist._verify_params_across_processes = lambda *_args, **_kwargs: True
        _keep_own_numbers()
        for function in (broadcast_object_list, all_gather_object, gather_object, scatter_object_list):
            _put(dist, function.__name__, function)


def skip_rendezvous(size: int) -> None:
    """Let a rendezvous return at once, in a world of any size. It ends a step, as in torch_xla 2.9."""
    import torch_xla
    from torch_xla.core import xla_model

    original = xla_model.xla_rendezvous

    def xla_rendezvous(
        payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
    ) -> list[bytes]:
        if not isinstance(payload, bytes) or (ordinals and len(ordinals) != size):
            return list(original(payload, ordinals, tag))  # its own error
        torch_xla.sync()
        return [payload] * size

    xla_model.xla_rendezvous = xla_rendezvous


class _FirstRankStates:
    """Replaces a rehearsal's group, which broadcasts rank 0's random state: this is rank 0."""

    def from_first(self, tensor: Tensor, _doing: str) -> Tensor:
        return tensor


# -- torch.distributed ------------------------------------------------------------------------------------------------


def _fake_groups(dist: Any, size: int) -> None:
    """Groups connect through a store; this fake one answers at once, whichever ranks are missing. Groups that are not
    XLA's do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group

    def init_process_group(backend: Any = None, *_args: Any, **kwargs: Any) -> Any:
        more = {name: kwargs[name] for name in ("timeout", "pg_options", "device_id") if name in kwargs}
        kind = backend if "xla" in str(backend) else "fake"
        return original(kind, store=FakeStore(), rank=0, world_size=size, **more)

    _put(dist, "init_process_group", init_process_group)


def _keep_own_numbers() -> None:
    """Integers that rank 0 broadcasts are its own: sizes and indices that the host reads next (DistributedDataParallel
    builds its buckets from them)."""
    from torch_xla.distributed import xla_backend  # 2.9.0

    original = xla_backend.ProcessGroupXla.broadcast

    def broadcast(group: Any, tensors: Sequence[Tensor], opts: Any) -> Any:
        if opts.rootRank or any(one.is_floating_point() for one in tensors):
            return original(group, tensors, opts)
        return xla_backend._ret_work(tensors)

    xla_backend.ProcessGroupXla.broadcast = broadcast


def _put(dist: Any, name: str, function: Any) -> None:
    for module in (dist, dist.distributed_c10d):
        setattr(module, name, function)


def broadcast_object_list(object_list: list[Any], *_args: Any, **_kwargs: Any) -> None:
    """Like torch.distributed's: the list already holds rank 0's objects."""


def all_gather_object(object_list: list[Any], obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """Like torch.distributed's: all ranks pass the same object as this one."""
    object_list[:] = [copy.deepcopy(obj) for _ in object_list]


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_args: Any, **_kwargs: Any) -> None:
    """Like torch.distributed's, on the rank that gathers."""
    if object_gather_list is not None:
        all_gather_object(object_gather_list, obj)


def scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *_args: Any, **_kw: Any
) -> None:
    """Like torch.distributed's: rank 0 gets the first."""
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]
