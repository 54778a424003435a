"""How a worker joins a rehearsal."""

from __future__ import annotations

import ctypes

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch_xla.rehearse import collectives, graph, random_states, world
from tpu_magics.backends.torch_xla.rehearse.group import LOOPBACK, Group
from tpu_magics.backends.torch_xla.rehearse.store import meeting_store

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_LARGE = 1 << 20  # bytes
_joined: list[Group] = []


def join(spec: WorkerSpec, rank: int) -> None:
    """Make this process a rank of the world in `spec`, once its runtime is running; waits for the others."""
    assert spec.meeting is not None
    _return_freed_memory()
    world.enter(rank, spec.ranks, spec.index)
    group = Group(meeting_store(spec, rank), rank, spec.ranks, spec.collective_timeout, spec.address or LOOPBACK)
    collectives.install(group)
    random_states.install(group)
    graph.refuse_captured()
    group.meet()
    _joined[:] = [group]


def _return_freed_memory() -> None:
    """Large blocks of memory return to the system when they are freed. By default, glibc keeps them once they recur:
    with a block for each graph and copy, a rank then holds about twice what it needs (measured with a model of 200 MB),
    and N ranks share one machine."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def carried() -> tuple[int, float]:
    """How many collectives the host has run for this rank, and their seconds (including waiting for others)."""
    return (_joined[0].count, _joined[0].seconds) if _joined else (0, 0.0)
