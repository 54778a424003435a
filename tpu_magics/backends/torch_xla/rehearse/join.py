"""How a worker joins a rehearsal: its rank, and the random states that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.rehearsal import meeting_store, return_freed_memory
from tpu_magics.backends.torch.rehearsal.group import LOOPBACK, Group
from tpu_magics.backends.torch_xla.rehearse import collectives, graph

if TYPE_CHECKING:
    from torch import Tensor

_joined: list[Group] = []


def join(spec: WorkerSpec, rank: int) -> None:
    """Make this process a rank of the world in `spec`, once its runtime is running; waits for the others."""
    assert spec.meeting is not None
    return_freed_memory()
    set_world(rank, spec.ranks, spec.index)
    group = Group(meeting_store(spec, rank), rank, spec.ranks, spec.collective_timeout, spec.address or LOOPBACK)
    collectives.install(group)
    replace_random_states(group)
    graph.refuse_captured()
    group.meet()
    _joined[:] = [group]


def carried() -> tuple[int, float]:
    """How many collectives the host has run for this rank, and their seconds (including waiting for others)."""
    return (_joined[0].count, _joined[0].seconds) if _joined else (0, 0.0)


# -- rank and world size ----------------------------------------------------------------------------------------------


def set_world(rank: int, size: int, local: int) -> None:
    """Make this worker rank `rank` of `size` for torch_xla.runtime, and for everything that uses it (xm,
    torch.distributed's "xla" backend, accelerate, transformers), until the process ends; `local`: its number on its
    host."""
    import torch_xla
    import torch_xla.runtime as xr

    xr._WORLD_SIZE = size
    xr._ORDINAL = rank
    # local_ordinal() would read a variable that is 0 until the first compile (observe/xla_dumps.py).
    values = {"global_device_count": size, "global_runtime_device_count": size, "local_ordinal": local}
    for name, value in values.items():
        setattr(xr, name, _always(value))
    # The C++ module only knows this process: xr.process_index() and process_count() call it.
    counted = {
        "_xla_get_process_index": rank,
        "_xla_get_num_processes": size,
        "_xla_get_default_device_ordinal": rank,
    }
    for name, value in counted.items():
        setattr(torch_xla._XLAC, name, _always(value))


def _always(value: int) -> Any:
    return lambda *_args, **_kwargs: value


# -- accelerate's random states ---------------------------------------------------------------------------------------


# At the start of each epoch, accelerate (1.15, utils/random.py) moves a generator's state to the device, broadcasts it
# and ends a step. It does so only with several ranks; these steps and compiles are not the program's and must not be
# counted.


def replace_random_states(group: Group) -> None:
    """Patch accelerate when it is imported, until the process ends."""
    PostImport().when_imported("accelerate.utils.random", lambda module: _replace(module, group))


def _replace(module: Any, group: Group) -> None:
    original: Callable[..., None] = module.synchronize_rng_state

    def synchronize_rng_state(rng_type: Any = None, generator: Any = None) -> None:
        places: dict[str, _RandomSource] = {"torch": _Torch(), "xla": _Xla(), "generator": _Generator(generator)}
        place = places.get(str(getattr(rng_type, "value", rng_type)))
        if place is None:
            original(rng_type, generator)
        else:
            place.put(group.from_first(place.get(), "accelerate's synchronize_rng_state"))

    module.synchronize_rng_state = synchronize_rng_state


class _RandomSource(Protocol):
    def get(self) -> Tensor: ...

    def put(self, state: Tensor) -> None: ...


class _Torch:
    def get(self) -> Tensor:
        import torch

        return torch.get_rng_state()

    def put(self, state: Tensor) -> None:
        import torch

        torch.set_rng_state(state)


class _Generator:
    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def get(self) -> Tensor:
        assert self.generator is not None, "Need a generator to synchronize its seed."  # accelerate's own words
        state: Tensor = self.generator.get_state()
        return state

    def put(self, state: Tensor) -> None:
        self.generator.set_state(state)


class _Xla:
    def get(self) -> Tensor:
        import torch
        import torch_xla.core.xla_model as xm

        return torch.tensor(xm.get_rng_state(), device="cpu")

    def put(self, state: Tensor) -> None:
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(int(state.item()))
