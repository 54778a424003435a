"""torch_xla's runtime (backends/torch/runtime.py documents each function). Importing this module does not start it."""

from __future__ import annotations

import sys
from typing import Any

device_type = "xla"
random = "xla"


def running() -> bool:
    # torch_xla 2.9: torch_xla/_internal/pjrt.py checks the same before it spawns.
    extension = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    return extension is not None and bool(extension._xla_runtime_is_initialized())


def step() -> None:
    import torch_xla

    torch_xla.sync()


def rank_device() -> Any:
    import torch_xla

    return torch_xla.device()


def ranks() -> tuple[int, int]:
    import torch_xla.runtime as xr

    return xr.world_size(), xr.global_ordinal()


def average(gradients: list[Any]) -> None:
    import torch_xla.core.xla_model as xm

    xm.all_reduce("sum", gradients, scale=1.0 / ranks()[0])


def broadcast(value: Any, rank: int) -> Any:
    """Over the host: torch_xla's own collective makes a graph of each size."""
    import torch_xla.core.xla_model as xm

    return xm.mesh_reduce("tpu_magics-broadcast", value, lambda values: values[rank])


def settle() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    torch_xla.sync(wait=True)
    xm.wait_device_ops()


def fetch(batch: list[Any]) -> list[Any]:
    # torch_xla 2.9.0: the call behind xm.save and torch_xla's own distributed checkpoints.
    import torch_xla

    return list(torch_xla._XLAC._xla_get_cpu_tensors(batch))


def send(tensor: Any) -> Any:
    """Not with tensor.to(): torch_xla 2.9 takes a number sent so for one that others use too, whose memory a step must
    not reuse, which makes another graph of it."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    return xm.send_cpu_data_to_device([tensor], torch_xla.device())[0]


def get_seed() -> int:
    import torch_xla.core.xla_model as xm

    return int(xm.get_rng_state())


def set_seed(seed: int) -> None:
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(seed)
