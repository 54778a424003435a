"""Cases of torch.distributed with backend "xla", and of what torch_xla builds on its collectives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor

from tests.backends.torch_xla.rehearsed import (
    SHAPE,
    SIZES,
    TYPES,
    Case,
    data,
    grouped,
    groups,
    mine,
    of_all,
    on_device,
    reduced,
    refused,
    short,
    total,
    zeros,
)

OPERATIONS = {"sum": "SUM", "mul": "PRODUCT", "min": "MIN", "max": "MAX"}


def cases() -> Iterator[Case]:
    yield from _all_reduces()
    for dtype in TYPES:
        yield from (_all_gather(dtype), _reduce_scatter(dtype))
    yield Case("dist.broadcast, reduce, gather, scatter, barrier", _one_to_all, _one_to_all_expected)
    yield from _others()
    yield from _functional()
    yield Case("DistributedDataParallel", _ddp, _ddp_expected)
    yield from _built_on_them()


def _in_place(call: Callable[[Tensor], Any], tensor: Tensor) -> Tensor:
    call(tensor)
    return tensor


def _all_reduces() -> Iterator[Case]:
    yield from (_all_reduce(kind, dtype) for kind in OPERATIONS for dtype in TYPES)

    def bits(rank: int, _size: int) -> Any:
        tensors = [on_device(rank, dtype=torch.int32) for _ in range(2)]
        dist.all_reduce(tensors[0], dist.ReduceOp.BAND)
        dist.all_reduce(tensors[1], dist.ReduceOp.BOR)
        return tensors

    yield Case(
        "dist.all_reduce-band, bor",
        bits,
        lambda _rank, size: [reduced(kind, of_all(size, dtype=torch.int32)) for kind in ("and", "or")],
    )
    # torch_xla's process group has no average, on a TPU as here.
    yield refused(
        "dist.all_reduce-avg",
        lambda rank, _size: dist.all_reduce(on_device(rank), dist.ReduceOp.AVG),
        "Invalid reduce op",
    )


def _all_reduce(kind: str, dtype: torch.dtype) -> Case:
    operation = getattr(dist.ReduceOp, OPERATIONS[kind])
    return Case(
        f"dist.all_reduce-{kind}-{short(dtype)}",
        lambda rank, _size: _in_place(lambda one: dist.all_reduce(one, operation), on_device(rank, dtype=dtype)),
        lambda _rank, size: reduced(kind, of_all(size, dtype=dtype)),
        sizes=SIZES if kind == "sum" else (2, 3),
    )


def _all_gather(dtype: torch.dtype) -> Case:
    def gathered(rank: int, size: int) -> Any:
        parts = [zeros(*SHAPE, dtype=dtype) for _ in range(size)]
        whole, stacked = zeros(2 * size, 3, dtype=dtype), zeros(size, *SHAPE, dtype=dtype)
        dist.all_gather(parts, on_device(rank, dtype=dtype))
        dist.all_gather_into_tensor(whole, on_device(rank, dtype=dtype))
        dist.all_gather_into_tensor(stacked, on_device(rank, dtype=dtype))
        return [parts, whole, stacked]

    def expected(_rank: int, size: int) -> Any:
        parts = of_all(size, dtype=dtype)
        return [parts, torch.cat(parts), torch.stack(parts)]

    return Case(f"dist.all_gather-{short(dtype)}", gathered, expected)


def _reduce_scatter(dtype: torch.dtype) -> Case:
    def scattered(rank: int, size: int) -> Any:
        output, other = zeros(2, dtype=dtype), zeros(2, dtype=dtype)
        value = on_device(rank, (2 * size,), dtype)
        dist.reduce_scatter(output, list(value.chunk(size)))
        dist.reduce_scatter_tensor(other, value, dist.ReduceOp.MAX)
        return [output, other]

    def expected(rank: int, size: int) -> Any:
        tensors = of_all(size, (2 * size,), dtype)
        return [reduced(kind, tensors).chunk(size)[rank] for kind in ("sum", "max")]

    return Case(f"dist.reduce_scatter-{short(dtype)}", scattered, expected)


def _one_to_all(rank: int, size: int) -> Any:
    sent = _in_place(lambda tensor: dist.broadcast(tensor, 1), on_device(rank))
    summed = _in_place(lambda tensor: dist.reduce(tensor, 1), on_device(rank))
    parts = [zeros(*SHAPE) for _ in range(size)] if rank == 1 else None
    dist.gather(on_device(rank), parts, 1)
    part = zeros(*SHAPE)
    dist.scatter(part, [on_device(one, seed=5) for one in range(size)] if rank == 1 else None, 1)
    dist.barrier()
    return [sent, summed, parts, part]


def _one_to_all_expected(rank: int, size: int) -> Any:
    if rank == 1:
        return [data(1), total(size), of_all(size), data(rank, seed=5)]
    return [data(1), data(rank), None, data(rank, seed=5)]


def _others() -> Iterator[Case]:
    def all_to_all(rank: int, size: int) -> Any:
        parts = [zeros(2) for _ in range(size)]
        dist.all_to_all(parts, list(on_device(rank, (size, 2)).unbind(0)))
        whole = zeros(2 * size, 3)
        dist.all_to_all_single(whole, on_device(rank, (2 * size, 3)))
        return [parts, whole]

    yield Case(
        "dist.all_to_all",
        all_to_all,
        lambda rank, size: [
            [one[rank] for one in of_all(size, (size, 2))],
            torch.cat([one.chunk(size)[rank] for one in of_all(size, (2 * size, 3))]),
        ],
    )

    def pair(rank: int, size: int) -> Any:
        tensor = on_device(rank)
        if rank == 0:
            dist.send(tensor, size - 1)
        if rank == size - 1:
            dist.recv(tensor, 0)
        return tensor

    yield Case("dist.send, recv", pair, lambda rank, size: data(0) if rank == size - 1 else data(rank))

    def in_group(rank: int, size: int) -> Any:
        made = [dist.new_group(members) for members in groups(size)]
        group = made[groups(size).index(mine(rank, size))]
        tensor, parts = on_device(rank), [zeros(*SHAPE) for _ in mine(rank, size)]
        dist.all_reduce(tensor, group=group)
        dist.all_gather(parts, on_device(rank), group=group)
        return [tensor, parts]

    def expected(rank: int, size: int) -> Any:
        parts = [data(one) for one in mine(rank, size)]
        return [reduced("sum", parts), parts]

    yield grouped("dist.new_group", in_group, expected)
    yield Case("dist's world", lambda *_: [dist.get_rank(), dist.get_world_size()], lambda rank, size: [rank, size])


def _functional() -> Iterator[Case]:
    import torch.distributed._functional_collectives as fc  # what torch.compile and DTensor use (torch 2.9)

    yield Case(
        "functional collectives",
        lambda rank, size: [
            fc.all_reduce(on_device(rank), "sum", dist.group.WORLD),
            fc.all_reduce(on_device(rank), "max", dist.group.WORLD),
            fc.all_gather_tensor(on_device(rank), 0, dist.group.WORLD),
            fc.reduce_scatter_tensor(on_device(rank, (size, 2)), "sum", 0, dist.group.WORLD),
            fc.all_to_all_single(on_device(rank, (size, 2)), None, None, dist.group.WORLD),
        ],
        lambda rank, size: [
            total(size),
            reduced("max", of_all(size)),
            torch.cat(of_all(size)),
            total(size, (size, 2)).chunk(size)[rank],
            torch.cat([one.chunk(size)[rank] for one in of_all(size, (size, 2))]),
        ],
    )

    def of_kind(kind: str) -> Case:
        return refused(
            f"functional all_reduce-{kind}",
            lambda rank, _size: fc.all_reduce(on_device(rank), kind, dist.group.WORLD),
            f"'{kind}' is not an XLA reduction",
        )

    # torch_xla's own know XLA's names only (test_torch_xla_itself_refuses_what_the_rehearsal_refuses).
    yield from map(of_kind, ("avg", "product"))


# -- what is built on them --------------------------------------------------------------------------------------------


def _ddp(rank: int, _size: int) -> Any:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(on_device(rank, (4, 3), seed=step)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()
    return [p.detach() for p in model.parameters()]


def _ddp_expected(_rank: int, size: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        torch.cat([model(one) for one in of_all(size, (4, 3), seed=step)]).pow(2).mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def _built_on_them() -> Iterator[Case]:
    def saves(rank: int, _size: int) -> Any:
        folder = Path(xm.rendezvous("a folder", b"" if rank else tempfile.mkdtemp().encode())[0].decode())
        path = folder / f"rank {rank}"
        xm.save({"x": on_device(rank)}, path)
        xm.rendezvous("saved")
        return [path.exists(), torch.load(folder / "rank 0")["x"]]

    yield Case("save", saves, lambda rank, _size: [rank == 0, data(0)])

    def shards(_rank: int, size: int) -> Any:
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        dataset = TensorDataset(torch.arange(6 * size))
        sampler: Any = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal(), shuffle=False)
        loader = MpDeviceLoader(DataLoader(dataset, batch_size=2, sampler=sampler), torch_xla.device())
        return [number for (batch,) in loader for number in batch.cpu().tolist()]

    yield Case("MpDeviceLoader", shards, lambda rank, size: list(range(rank, 6 * size, size)))
