"""Ranks rehearsed with TorchTPU: torch.distributed's backend "tpu", carried by gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.launch.launching import failed, run, said

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def collectives() -> dict[str, Any]:
    dist.init_process_group("tpu")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0, device="tpu") + 10 * rank
    found: dict[str, Any] = {}
    for name in ("SUM", "AVG", "MAX", "PRODUCT"):
        value = mine.clone()
        dist.all_reduce(value, getattr(dist.ReduceOp, name))
        found[name] = value.tolist()
    parts = [torch.zeros(2, device="tpu") for _ in range(size)]
    dist.all_gather(parts, mine)
    found["gathered"] = [part.tolist() for part in parts]
    value = mine.clone()
    dist.broadcast(value, src=1)
    found["broadcast"] = value.tolist()
    scattered = torch.zeros(1, device="tpu")
    dist.reduce_scatter_tensor(scattered, mine)
    found["scattered"] = scattered.tolist()
    exchanged = torch.zeros(2, device="tpu")
    dist.all_to_all_single(exchanged, mine)
    found["exchanged"] = exchanged.tolist()
    halves = torch.tensor([0.5 + rank], dtype=torch.bfloat16, device="tpu")
    dist.all_reduce(halves)
    found["bf16"] = (str(halves.dtype), halves.tolist())
    dist.barrier()
    return found


def test_collectives_give_what_they_are_defined_to() -> None:
    first, second = run(collectives, processes=2).values
    assert first["SUM"] == second["SUM"] == [10, 12]
    assert (first["AVG"], first["MAX"], first["PRODUCT"]) == ([5, 6], [10, 11], [0, 11])
    assert first["gathered"] == second["gathered"] == [[0, 1], [10, 11]]
    assert first["broadcast"] == second["broadcast"] == [10, 11]
    assert (first["scattered"], second["scattered"]) == ([10], [12])
    assert (first["exchanged"], second["exchanged"]) == ([0, 10], [1, 11])
    assert first["bf16"] == ("torch.bfloat16", [2.0])


def passed_on() -> list[float]:
    dist.init_process_group("tpu")
    value = torch.tensor([1.5, 2.5], dtype=torch.bfloat16, device="tpu")
    if dist.get_rank() == 0:
        dist.send(value * 2, dst=1)
    else:
        dist.recv(value, src=0)
    return [float(one) for one in value.tolist()]


def test_a_tensor_is_sent_to_one_rank() -> None:
    assert run(passed_on, processes=2).values == [[1.5, 2.5], [3.0, 5.0]]


def parallel(model: Any) -> list[float]:
    dist.init_process_group("tpu")
    rank = dist.get_rank()
    wrapped = nn.parallel.DistributedDataParallel(model.to("tpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        wrapped(torch.full((2, 4), float(rank + step), device="tpu")).pow(2).mean().backward()
        optimizer.step()
    return [float(value) for value in model.weight.flatten().tolist()]


def test_data_parallel_ranks_have_equal_weights_and_bring_them_home() -> None:
    model = nn.Linear(4, 2)
    result = run(parallel, model, processes=2)
    assert result.values[0] == result.values[1]
    assert model.weight.flatten().tolist() == pytest.approx(result.value, abs=0)


def accelerated(model: Any) -> tuple[int, int, str, list[float]]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4) / 32)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        optimizer.zero_grad()
        accelerator.backward(wrapped(x).pow(2).mean())
        optimizer.step()
    weights = [float(value) for value in accelerator.unwrap_model(wrapped).weight.flatten().tolist()]
    return accelerator.process_index, accelerator.num_processes, accelerator.device.type, weights


def test_accelerate_trains_in_parallel() -> None:
    first, second = run(accelerated, nn.Linear(4, 2), processes=2).values
    assert (first[:3], second[:3]) == ((0, 2, "tpu"), (1, 2, "tpu"))
    assert first[3] == second[3]


def in_different_ones() -> None:
    dist.init_process_group("tpu")
    value = torch.ones(2 + dist.get_rank(), device="tpu")
    dist.all_reduce(value)


def test_different_collectives_are_told() -> None:
    error = failed(in_different_ones, processes=2, collective_timeout=10.0)
    text = said(error)
    assert "all_reduce SUM of float32[2]" in text and "float32[3]" in text


def not_met() -> None:
    dist.init_process_group("tpu")
    if dist.get_rank():
        dist.all_reduce(torch.ones(2, device="tpu"))


def test_a_rank_that_does_not_come_is_told() -> None:
    error = failed(not_met, processes=2, collective_timeout=2.0)
    assert "all_reduce SUM of float32[2]" in said(error)
