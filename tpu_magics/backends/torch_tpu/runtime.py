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
