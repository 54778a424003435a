"""TorchTPU's runtime (backends/torch/runtime.py documents each function). Importing this module does not start it.

torch_tpu 0.2.0. A seed is the device's whole random state as one number: 8 bytes of the seed, then 8 of how many
numbers were drawn; so what torch.manual_seed gets is one as well.
"""

from __future__ import annotations

import sys
from typing import Any

device_type = "tpu"
random = "tpu"
_BACKEND = "torch_tpu._internal.device._device_ops_backend"
_STATE_BYTES = 16


def running() -> bool:
    backend = sys.modules.get(_BACKEND)
    return backend is not None and bool(backend._is_initialized())


def step() -> None:
    """Operations run at once."""


def rank_device() -> Any:
    import torch

    return torch.device(device_type)


def ranks() -> tuple[int, int]:
    import torch.distributed as dist

    return (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def average(gradients: list[Any]) -> None:
    import torch.distributed as dist

    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        gradient.div_(dist.get_world_size())


def broadcast(value: Any, rank: int) -> Any:
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=rank)
    return values[0]


def settle() -> None:
    import torch

    torch.accelerator.synchronize()


def fetch(batch: list[Any]) -> list[Any]:
    return [tensor.cpu() for tensor in batch]


def send(tensor: Any) -> Any:
    return tensor.to(device_type)


def get_seed() -> int:
    state = sys.modules[_BACKEND].get_rng_state(-1)
    return int.from_bytes(bytes(state.tolist()), "little")


def set_seed(seed: int) -> None:
    import torch

    state = torch.tensor(list(seed.to_bytes(_STATE_BYTES, "little")), dtype=torch.uint8, device="cpu")
    sys.modules[_BACKEND].set_rng_state(state, -1)
