"""accelerate's `synchronize_rng_state` in a rehearsal: the host broadcasts the random state, without a graph.

At the start of each epoch, accelerate (1.15, utils/random.py) moves a generator's state to the device, broadcasts it
and ends a step. It does so only with several ranks; these steps and compiles are not the program's and must not be
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.backends.torch_xla.post_import import PostImport
from tpu_magics.backends.torch_xla.rehearse.group import Group

if TYPE_CHECKING:
    from torch import Tensor


def install(group: Group) -> None:
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
