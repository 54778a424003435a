"""A function that is traced takes itself for rank 0 of eight: the collectives of the device are in its graphs, and
nobody waits for ranks that are not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate.accelerator")

from tests.backends.torch_xla.loops import placed
from tests.backends.torch_xla.traced import rows, same, steady, traced
from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.errors import TpuMagicsError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session"), pytest.mark.timeout(120)]
RANKS = 8


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))


def trains(model: Any, after_step: Callable[[], None] = lambda: None) -> None:
    import torch_xla

    device = torch_xla.device()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(torch.randn(8, 8).to(device)), torch.zeros(8).long().to(device)).backward()
        optimizer.step()
        after_step()
        torch_xla.sync()


def collectives(graph: LoweredGraph) -> int:
    """How many instructions have such an opcode (field 2 of HloInstructionProto)."""
    opcodes = (b"all-reduce", b"all-gather", b"reduce-scatter")
    return sum(graph.module.count(b"\x12" + bytes((len(one),)) + one) for one in opcodes)


# -- accelerate -------------------------------------------------------------------------------------------------------


def accelerated(model: Any, count: int = 256) -> None:
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list

    accelerator = Accelerator()
    assert (accelerator.num_processes, accelerator.process_index, accelerator.is_main_process) == (RANKS, 0, True)
    with accelerator.main_process_first():
        assert broadcast_object_list([1, "x"]) == [1, "x"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(rows(count), batch_size=4, shuffle=True)
    other = torch.utils.data.DataLoader(rows(64), batch_size=4)
    model, optimizer, loader, other = accelerator.prepare(model, optimizer, loader, other)
    for _ in range(4):
        for x, y in other:
            found = accelerator.gather_for_metrics(model(x).argmax(1) == y)
            accelerator.print(found.float().mean().item(), accelerator.reduce(found.sum(), "sum").item())
        accelerator.wait_for_everyone()
        for x, y in loader:  # each epoch begins with rank 0's random states for all
            accelerator.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def test_accelerate_reduces_the_gradients_in_the_graph() -> None:
    found = traced(accelerated, net(), world=RANKS)
    last = steady(found)
    assert collectives(last) >= 1 and (last.replicas, last.partitions, found.batch) == (RANKS, 1, 4)
    assert any(name.endswith("momentum_buffer of 0.weight") for name in last.parameters)
    assert found.notes == ()


def test_too_little_data_for_the_ranks_is_told() -> None:
    def few(model: Any) -> None:
        from accelerate import Accelerator

        loader = torch.utils.data.DataLoader(rows(8), batch_size=4, drop_last=True)
        accelerator = Accelerator()
        model, loader = accelerator.prepare(model, loader)
        for x, _ in loader:
            model(x)

    with pytest.raises(TpuMagicsError) as caught:
        traced(few, net(), world=RANKS)
    assert "came to no sync" in caught.value.what
    assert "as one of 8 ranks, and each gets 1/8 of the data" in caught.value.why
    assert caught.value.todo.endswith("data for at least three steps on each rank.")


# -- torch_xla --------------------------------------------------------------------------------------------------------


def with_xm(model: Any) -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    assert (xr.world_size(), xr.global_ordinal(), xm.is_master_ordinal()) == (RANKS, 0, True)
    device = torch_xla.device()
    model.to(device)
    xm.broadcast_master_param(model)
    assert xm.rendezvous("start", b"mine") == [b"mine"] * RANKS
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.distributed.DistributedSampler(rows(512), RANKS, xr.global_ordinal())
    for x, y in MpDeviceLoader(torch.utils.data.DataLoader(rows(512), batch_size=8, sampler=sampler), device):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer)
        assert xm.mesh_reduce("losses", loss.item(), sum) == 0
        assert xm.all_reduce("sum", loss.detach()).item() == 0
        assert xm.all_gather(loss.detach().view(1)).shape == (RANKS,)


def test_torch_xlas_collectives() -> None:
    found = traced(with_xm, net(), world=RANKS)
    assert collectives(steady(found)) >= 1 and steady(found).replicas == RANKS
    assert all("xm." in one.place.code or "loss.item()" in one.place.code for one in found.reads if one.place)


def sharded(model: Any) -> None:
    import torch_xla
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    device = torch_xla.device()
    model = XlaFullyShardedDataParallel(model.to(device))
    trains(model)


def test_fully_sharded_parameters() -> None:
    assert collectives(steady(traced(sharded, net(), world=RANKS))) >= 2


# -- torch.distributed ------------------------------------------------------------------------------------------------


def distributed(model: Any, backend: str, wrapped: bool = False) -> None:
    import torch.distributed as dist
    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(backend, init_method="xla://" if backend == "xla" else None)
    assert (dist.get_world_size(), dist.get_rank()) == (RANKS, 0)
    dist.barrier()
    everything: list[Any] = [None] * RANKS
    dist.all_gather_object(everything, {"a": 1})
    assert everything == [{"a": 1}] * RANKS
    mine = [{"b": 2}]
    dist.broadcast_object_list(mine)
    assert mine == [{"b": 2}] and dist.new_group([0, 1]) is not None
    device = torch_xla.device()
    model.to(device)
    if wrapped:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def reduces() -> None:
        if backend == "xla" and not wrapped:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        dist.barrier()

    trains(model, after_step=reduces)
    with contextlib.suppress(ValueError):
        dist.destroy_process_group()


def test_torch_distributed() -> None:
    assert collectives(steady(traced(distributed, net(), "xla", world=RANKS))) >= 1


def test_groups_that_are_not_of_xla_carry_nothing() -> None:
    assert collectives(steady(traced(distributed, net(), "gloo", world=RANKS))) == 0


def test_what_distributed_data_parallel_keeps_in_c_is_told() -> None:
    found = traced(distributed, net(), "xla", wrapped=True, world=RANKS)
    assert collectives(steady(found)) >= 1
    assert "tensors that only C++ code holds are missing from the graph outputs" in " ".join(found.notes)


# -- one rank ---------------------------------------------------------------------------------------------------------


def meets(model: Any) -> None:
    """A rendezvous ends a step, with one rank as with many; its own graphs are none of the step's."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    device, optimizer = placed(model)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 8).to(device)).pow(2).mean().backward()
        assert xm.rendezvous("half a step") == [b""]
        optimizer.step()
        torch_xla.sync()


def test_a_rendezvous_ends_a_step_as_it_does_in_training() -> None:
    assert steady(same(meets, net(), reads=1)).nth == 1
