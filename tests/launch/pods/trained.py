"""Training functions of the tests, which the hosts import."""

from __future__ import annotations

import os
from typing import Any


def net(seed: int = 0) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def steps(model: Any, count: int = 5) -> list[float]:
    """Data-parallel training; each rank has its own data. Returns the losses of this rank."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    model.to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(count):
        generator = torch.Generator().manual_seed(100 * step + xr.global_ordinal())
        batch = torch.randn(8, 4, generator=generator).to(torch_xla.device())
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        losses.append(loss.item())
        if xr.global_ordinal() == 0:
            print(f"step {step}", flush=True)
    return losses


def the_world() -> dict[str, Any]:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    return {
        "rank": xr.global_ordinal(),
        "size": (xr.world_size(), xr.global_device_count(), xr.process_count()),
        "local": (xr.local_ordinal(), xm.get_local_ordinal(), os.environ.get("LOCAL_RANK", str(xr.local_ordinal()))),
        "master": (xm.is_master_ordinal(local=False), xm.is_master_ordinal()),
        "removed names": (xm.get_ordinal(), xm.xrt_world_size()),
        "parent": os.getppid(),
    }


def accelerated(model: Any) -> tuple[Any, ...]:
    """As users write it, with accelerate."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    data = torch.utils.data.TensorDataset(torch.arange(96, dtype=torch.float32).reshape(24, 4) / 100)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
    gathered = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    return gathered.tolist(), accelerator.num_processes, loss.item()


def _rebuilt() -> Any:
    import not_on_the_hosts  # type: ignore[import-not-found]

    return not_on_the_hosts


class Absent:
    """A training function that can be pickled here but not unpickled on a host."""

    def __call__(self) -> None: ...

    def __reduce__(self) -> Any:
        return _rebuilt, ()
