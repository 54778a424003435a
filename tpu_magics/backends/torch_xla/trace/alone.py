"""Rank 0 of a world whose other ranks are not there.

What lives here: what torch_xla and torch.distributed have to be told, so that a function that is traced takes itself
for one of many. What does not: collectives: they stay in the graph, which nobody runs.
"""

from __future__ import annotations

from typing import Any

from tpu_magics.backends.torch_xla.rehearse import world


def enter(size: int) -> None:
    """Make this process rank 0 of `size`. For good: the process ends with its rank."""
    import torch.distributed as dist
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    world.enter(0, size)
    # torch_xla 2.9: both wait for all ranks; each would have brought what this one brings.
    xm.rendezvous = xr.rendezvous = _rendezvous(size)
    _start_groups_alone(dist, size)


def _rendezvous(size: int) -> Any:
    def rendezvous(_tag: str, payload: bytes = b"", replicas: Any = None) -> list[bytes]:
        return [payload] * (len(replicas) if replicas else size)

    return rendezvous


def _start_groups_alone(dist: Any, size: int) -> None:
    """torch.distributed's groups meet in a store; this one answers at once, whoever is missing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group

    def init_process_group(backend: Any = None, *_args: Any, **kwargs: Any) -> Any:
        more = {name: kwargs[name] for name in ("timeout", "pg_options", "device_id") if name in kwargs}
        return original(backend, store=FakeStore(), rank=0, world_size=size, **more)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group
