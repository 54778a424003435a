"""Cases of torch_xla's own collectives: `xm.*`, as a user calls them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor

from tests.backends.torch_xla.rehearsed import (
    KINDS,
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

OTHER_TYPES = (torch.float64, torch.float16, torch.uint8, torch.int8, torch.int16)


def cases() -> Iterator[Case]:
    for add in (_all_reduces, _all_reduce_more, _all_reduce_forms, _all_gathers, _all_to_alls, _permutes, _broadcasts):
        yield from add()
    for add in (_reduce_scatters, _messages, _gradients, _autograd, _graphs, _modes):
        yield from add()
    for add in (_compiled, _computed_again, _of_several_threads, _not_numbers):
        yield from add()


# -- xm.all_reduce ----------------------------------------------------------------------------------------------------


def _all_reduces() -> Iterator[Case]:
    for dtype in TYPES:
        yield from (_all_reduce(kind, dtype) for kind in KINDS)
        yield from (_all_reduce("sum", dtype, scale) for scale in (0.125, 1 / 3, 2.0))
    for dtype in OTHER_TYPES:
        yield from (_all_reduce("sum", dtype), _all_reduce("max", dtype, 0.5))


def _all_reduce(kind: str, dtype: torch.dtype, scale: float = 1.0) -> Case:
    """A single tensor, of which a new one is made, and a list, which is reduced in its place."""
    name = f"all_reduce-{kind}-{short(dtype)}" + (f"-scale {scale:.3g}" if scale != 1.0 else "")

    def both(rank: int, _size: int) -> Any:
        one = on_device(rank, dtype=dtype)
        listed = [on_device(rank, dtype=dtype), on_device(rank, (4,), dtype, seed=1)]
        given = xm.all_reduce(kind, one, scale=scale)
        same = xm.all_reduce(kind, listed, scale=scale) is listed
        return [given, listed, same, one]

    def expected(rank: int, size: int) -> Any:
        first = reduced(kind, of_all(size, dtype=dtype), scale)
        return [first, [first, reduced(kind, of_all(size, (4,), dtype, seed=1), scale)], True, data(rank, dtype=dtype)]

    if kind in ("and", "or") and dtype.is_floating_point:
        return refused(name, both, f"XLA has no '{kind}' reduction for {short(dtype)}")
    return Case(name, both, expected)


def _all_reduce_more() -> Iterator[Case]:
    mixed = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float32, torch.int32)

    def of_mixed(rank: int, xla: bool = False) -> list[Tensor]:
        return [data(rank, (2, place + 1), dtype, seed=place, xla=xla) for place, dtype in enumerate(mixed)]

    yield Case(
        "all_reduce-a list of many types",
        lambda rank, _size: xm.all_reduce(xm.REDUCE_SUM, of_mixed(rank, xla=True), scale=2.0),
        lambda _rank, size: [reduced("sum", same, 2.0) for same in zip(*map(of_mixed, range(size)), strict=True)],
    )
    yield from (_all_reduce_groups(pin) for pin in (True, False))
    yield Case(
        "all_reduce-real numbers",
        lambda rank, size: xm.all_reduce("sum", _real(rank).to("xla"), scale=1 / size),
        lambda _rank, size: torch.stack([_real(one) for one in range(size)]).mean(0),
    )
    yield Case(
        "all_reduce-complex",
        lambda rank, _size: xm.all_reduce("sum", torch.complex(data(rank), data(rank, seed=1)).to("xla")),
        lambda _rank, size: torch.complex(total(size), total(size, seed=1)),
    )
    yield Case(
        "all_reduce-integers that wrap around",
        lambda _rank, _size: xm.all_reduce("sum", torch.tensor([2**31 - 1], dtype=torch.int32).to("xla")),
        lambda _rank, size: torch.tensor([size * (2**31 - 1)]).to(torch.int32),
    )
    yield Case("all_reduce-an empty list", lambda _rank, _size: xm.all_reduce("sum", []), lambda _rank, _size: [])
    yield refused("all_reduce-no such kind", lambda rank, _size: xm.all_reduce("xor", on_device(rank), 2.0), "'xor'")
    yield refused(
        "all_reduce-groups without this rank",
        lambda rank, size: xm.all_reduce("sum", on_device(rank), groups=[[size, size + 1]]),
        "is in none of its groups",
    )


def _real(rank: int) -> Tensor:
    return torch.randn(3, 5, generator=torch.Generator("cpu").manual_seed(rank), device="cpu")


def _all_reduce_groups(pin: bool) -> Case:
    return grouped(
        f"all_reduce-groups-pin_layout {pin}",
        lambda rank, size: [
            xm.all_reduce("sum", on_device(rank), groups=groups(size), pin_layout=pin),
            *xm.all_reduce("max", [on_device(rank)], 0.5, groups(size), pin),
        ],
        lambda rank, size: [
            reduced("sum", [data(one) for one in mine(rank, size)]),
            reduced("max", [data(one) for one in mine(rank, size)], 0.5),
        ],
    )


# -- forms of a tensor ------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "of no dimensions": lambda tensor: tensor.sum(),
    "empty": lambda tensor: tensor[:0],
    "of three dimensions": lambda tensor: tensor.reshape(2, 1, 3),
    "transposed": lambda tensor: tensor.t(),
    "every second column": lambda tensor: tensor[:, ::2],
    "expanded": lambda tensor: tensor[:1].expand(4, 3),
    "not yet computed": lambda tensor: tensor * 3 + 1,
}


def _all_reduce_forms() -> Iterator[Case]:
    for name, form in FORMS.items():
        yield _formed(name, form)
        if name != "of no dimensions":
            yield _gathered_form(name, form)


def _formed(name: str, form: Callable[[Tensor], Tensor]) -> Case:
    def both(rank: int, _size: int) -> Any:
        listed = [form(on_device(rank)).clone(), form(on_device(rank, seed=1))]
        xm.all_reduce("sum", listed[:1], scale=2.0)
        return [xm.all_reduce("sum", form(on_device(rank))), *listed]

    def expected(rank: int, size: int) -> Any:
        tensors = [form(one) for one in of_all(size)]
        return [reduced("sum", tensors), reduced("sum", tensors, 2.0), form(data(rank, seed=1))]

    return Case(f"all_reduce-{name}", both, expected)


def _gathered_form(name: str, form: Callable[[Tensor], Tensor]) -> Case:
    return Case(
        f"all_gather-{name}",
        lambda rank, _size: [xm.all_gather(form(on_device(rank)), dim=-1, pin_layout=pin) for pin in (True, False)],
        lambda _rank, size: [torch.cat([form(one) for one in of_all(size)], -1)] * 2,
    )


# -- what is only moved -----------------------------------------------------------------------------------------------


def _all_gathers() -> Iterator[Case]:
    yield from (_all_gather(dtype, dim) for dtype in TYPES for dim in (0, 1))
    yield grouped(
        "all_gather-groups",
        lambda rank, size: [
            xm.all_gather(on_device(rank), 1, groups(size), pin_layout=True),
            xm.all_gather(on_device(rank), 1, groups(size), pin_layout=False),
            xm.all_gather([on_device(rank), on_device(rank, (4,))], 0, groups(size), pin_layout=False),
        ],
        lambda rank, size: [
            *[torch.cat([data(one) for one in mine(rank, size)], 1)] * 2,
            [torch.cat([data(one, shape) for one in mine(rank, size)]) for shape in (SHAPE, (4,))],
        ],
    )

    def into(rank: int, size: int) -> Any:
        output, outputs = zeros(2 * size, 3), [zeros(2 * size, 3), zeros(4 * size, dtype=torch.int64)]
        values = [on_device(rank), on_device(rank, (4,), torch.int64)]
        same = xm.all_gather(values[0], output=output) is output
        xm.all_gather(values, output=outputs, pin_layout=False)
        return [output, outputs, same]

    def into_expected(_rank: int, size: int) -> Any:
        first = torch.cat(of_all(size))
        return [first, [first, torch.cat(of_all(size, (4,), torch.int64))], True]

    yield Case("all_gather-output", into, into_expected)
    yield Case(
        "all_gather-lists, bucketized",
        lambda rank, _size: [
            xm.all_gather([on_device(rank), on_device(rank, (4,), torch.bool)], pin_layout=False),
            xm.all_gather_bucketized([on_device(rank), on_device(rank, (4,))]),
            xm.all_gather_bucketized([on_device(rank), on_device(rank, (4,))], bucket_cap_mb=0),
        ],
        lambda _rank, size: [
            [torch.cat(of_all(size)), torch.cat(of_all(size, (4,), torch.bool))],
            *[[torch.cat(of_all(size)), torch.cat(of_all(size, (4,)))]] * 2,
        ],
    )


def _all_gather(dtype: torch.dtype, dim: int) -> Case:
    return Case(
        f"all_gather-{short(dtype)}-dim {dim}",
        lambda rank, _size: [xm.all_gather(on_device(rank, dtype=dtype), dim, pin_layout=pin) for pin in (True, False)],
        lambda _rank, size: [torch.cat(of_all(size, dtype=dtype), dim)] * 2,
    )


def _all_to_alls() -> Iterator[Case]:
    for dtype in TYPES:
        for split, concat in ((0, 0), (0, 1), (1, 0), (1, 1)):
            yield _all_to_all(dtype, split, concat)

    def of_my_group(rank: int, size: int) -> Any:
        members = mine(rank, size)
        parts = [data(one, (size, 2)).chunk(len(members))[members.index(rank)] for one in members]
        return torch.cat(parts, 1)

    yield grouped(
        "all_to_all-groups",
        lambda rank, size: xm.all_to_all(
            on_device(rank, (size, 2)), 0, 1, len(groups(size)[0]), groups=groups(size), pin_layout=False
        ),
        of_my_group,
    )
    yield refused(
        "all_to_all-not a multiple",
        lambda rank, size: xm.all_to_all(on_device(rank, (size + 1,)), 0, 0, size),
        "is not a multiple of",
    )
    yield refused(
        "all_to_all-dimension -1",
        lambda rank, size: xm.all_to_all(on_device(rank, (size, size)), 0, -1, size),
        "has no dimension -1",
    )


def _all_to_all(dtype: torch.dtype, split: int, concat: int) -> Case:
    return Case(
        f"all_to_all-{short(dtype)}-{split} to {concat}",
        lambda rank, size: xm.all_to_all(on_device(rank, (2 * size, size), dtype), split, concat, size),
        lambda rank, size: torch.cat(
            [one.chunk(size, split)[rank] for one in of_all(size, (2 * size, size), dtype)], concat
        ),
        sizes=SIZES if split != concat else (2, 3),
    )


def _permutes() -> Iterator[Case]:
    yield from map(_ring, TYPES)
    yield Case(
        "collective_permute-one pair",
        lambda rank, size: xm.collective_permute(on_device(rank), [[0, size - 1]]),
        lambda rank, size: data(0) if rank == size - 1 else torch.zeros(SHAPE),
    )
    for name in ("send", "recv"):
        yield _channel(name)


def _ring(dtype: torch.dtype) -> Case:
    return Case(
        f"collective_permute-a ring-{short(dtype)}",
        lambda rank, size: xm.collective_permute(
            on_device(rank, dtype=dtype), [[one, (one + 1) % size] for one in range(size)]
        ),
        lambda rank, size: data((rank - 1) % size, dtype=dtype),
    )


def _channel(name: str) -> Case:
    return refused(name, lambda rank, _size: getattr(xm, name)(on_device(rank), 1), "cannot be rehearsed on XLA:CPU")


def _broadcasts() -> Iterator[Case]:
    yield from map(_broadcast, (0, 1))

    def parameters(seed: int, device: str) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(device)
        if device == "xla":
            xm.broadcast_master_param(model)
        return [*model.parameters(), *model.buffers()]

    yield Case("broadcast_master_param", lambda rank, _: parameters(rank, "xla"), lambda *_: parameters(0, "cpu"))


def _broadcast(root: int) -> Case:
    def broadcast(rank: int, _size: int) -> Any:
        tensors = [on_device(rank, dtype=dtype, seed=place) for place, dtype in enumerate(TYPES)]
        xm.collective_broadcast(tensors, root)
        return tensors

    return Case(
        f"collective_broadcast-from {root}",
        broadcast,
        lambda _rank, _size: [data(root, dtype=dtype, seed=place) for place, dtype in enumerate(TYPES)],
    )


# -- xm.reduce_scatter ------------------------------------------------------------------------------------------------


def _part(rank: int, size: int, tensors: Sequence[Tensor], kind: str = "sum", scale: float = 1.0, dim: int = 0) -> Any:
    return reduced(kind, tensors, scale).chunk(size, dim)[rank].contiguous()


def _reduce_scatters() -> Iterator[Case]:
    for dtype in TYPES:
        for kind, scale, dim in (("sum", 1.0, 0), ("max", 0.5, 1), ("mul", 1.0, 0)):
            yield _reduce_scatter(dtype, kind, scale, dim)
    yield Case("reduce_scatter-lists, output, bucketized", _scattered_lists, _scattered_lists_expected)
    yield Case("outputs of other sizes", _other_sizes, _other_sizes_expected)
    yield grouped(
        "reduce_scatter-groups",
        lambda rank, size: xm.reduce_scatter(
            "sum", on_device(rank, (size, 2)), 1.0, 0, len(groups(size)[0]), groups=groups(size)
        ),
        lambda rank, size: _part(
            mine(rank, size).index(rank), len(groups(size)[0]), [data(one, (size, 2)) for one in mine(rank, size)]
        ),
    )
    for name, length, dim, shards, error in (
        ("not a multiple", lambda size: size + 1, 0, lambda size: size, "is not a multiple of"),
        ("not as many shards as ranks", lambda size: 2 * size, 0, lambda size: 2 * size, "shard_count="),
        ("dimension -1", lambda size: size, -1, lambda size: size, "has no dimension -1"),
    ):
        yield _scatter_refused(name, length, dim, shards, error)


def _reduce_scatter(dtype: torch.dtype, kind: str, scale: float, dim: int) -> Case:
    return Case(
        f"reduce_scatter-{short(dtype)}-{kind}-dim {dim}",
        lambda rank, size: xm.reduce_scatter(kind, on_device(rank, (2 * size, size), dtype), scale, dim, size),
        lambda rank, size: _part(rank, size, of_all(size, (2 * size, size), dtype), kind, scale, dim),
    )


def _scatter_refused(
    name: str, length: Callable[[int], int], dim: int, shards: Callable[[int], int], error: str
) -> Case:
    return refused(
        f"reduce_scatter-{name}",
        lambda rank, size: xm.reduce_scatter("sum", on_device(rank, (length(size),)), 1.0, dim, shards(size)),
        error,
    )


def _scattered_lists(rank: int, size: int) -> Any:
    values = [on_device(rank, (size, 2)), on_device(rank, (2 * size,), torch.int32)]
    output, outputs = zeros(1, 2), [zeros(1, 2), zeros(2, dtype=torch.int32)]
    given = xm.reduce_scatter("sum", values, 2.0, 0, size)
    xm.reduce_scatter("sum", values, 2.0, 0, size, output=outputs)
    xm.reduce_scatter("sum", values[0], 2.0, 0, size, output=output)
    buckets = [xm.reduce_scatter_bucketized("sum", values, 2.0, 0, size, bucket_cap_mb=cap) for cap in (160, 0)]
    return [given, outputs, output, *buckets]


def _scattered_lists_expected(rank: int, size: int) -> Any:
    first = _part(rank, size, of_all(size, (size, 2)), scale=2.0)
    second = _part(rank, size, of_all(size, (2 * size,), torch.int32), scale=2.0)
    return [[first, second], [first, second], first, [first, second], [first, second]]


def _other_sizes(rank: int, size: int) -> Any:
    """torch_xla gives an output of another shape the new one."""
    output, outputs = zeros(3, dtype=torch.int32), [zeros(5, 5)]
    xm.reduce_scatter("sum", on_device(rank, (size, 2)), 1.0, 0, size, output=output)
    xm.reduce_scatter("sum", [on_device(rank, (2 * size,))], 1.0, 0, size, output=outputs)
    gathered = zeros(1)
    xm.all_gather(on_device(rank, (2, 2)), output=gathered, pin_layout=False)
    return [output, list(output.shape), *outputs, gathered]


def _other_sizes_expected(rank: int, size: int) -> Any:
    first = _part(rank, size, of_all(size, (size, 2))).to(torch.int32)
    return [first, [1, 2], _part(rank, size, of_all(size, (2 * size,))), torch.cat(of_all(size, (2, 2)))]


# -- rendezvous and what is built on it -------------------------------------------------------------------------------


def _messages() -> Iterator[Case]:
    yield Case(
        "rendezvous",
        lambda rank, _size: [
            xm.rendezvous("different lengths", b"x" * (3 * rank) + bytes([rank, 0, 255])),
            xm.rendezvous("empty"),
            xm.rendezvous("some are empty", b"" if rank else b"only the first"),
        ],
        lambda _rank, size: [
            [b"x" * (3 * one) + bytes([one, 0, 255]) for one in range(size)],
            [b""] * size,
            [b"only the first", *[b""] * (size - 1)],
        ],
    )
    yield Case(
        "mesh_reduce",
        lambda rank, _size: [
            xm.mesh_reduce("a sum", rank + 1, sum),
            xm.mesh_reduce("tensors", on_device(rank), lambda tensors: torch.stack(tensors).sum(0)),
            xm.mesh_reduce("many", {"loss": float(rank), "text": "x" * rank}, list),
        ],
        lambda _rank, size: [
            size * (size + 1) // 2,
            total(size),
            [{"loss": float(one), "text": "x" * one} for one in range(size)],
        ],
    )
    yield Case(
        "do_on_ordinals",
        lambda rank, _size: [
            xm.do_on_ordinals(lambda tensor: float(tensor.sum()), (on_device(rank),), (1,)),
            xm.do_on_ordinals(lambda: rank, (), (0, 1)),
        ],
        lambda rank, _size: [float(data(1).sum()) if rank == 1 else None, rank if rank < 2 else None],
    )
    yield Case(
        "the world",
        lambda _rank, _size: [
            *(xr.global_ordinal(), xr.local_ordinal(), xr.process_index()),
            *(xr.world_size(), xr.process_count(), xr.local_process_count()),
            *(xr.global_device_count(), xr.global_runtime_device_count(), xr.addressable_device_count()),
            *(xm.is_master_ordinal(), xm.is_master_ordinal(local=False)),
        ],
        lambda rank, size: [rank, rank, rank, size, size, size, size, size, 1, rank == 0, rank == 0],
    )


# -- gradients and optimizers -----------------------------------------------------------------------------------------


def _net() -> torch.nn.Sequential:
    """A model whose last layer is not used: its parameters have no gradients."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(0.1 * data(place, tuple(parameter.shape), seed=7))
    return model


def _loss(model: torch.nn.Sequential, rank: int, xla: bool = False) -> Tensor:
    result: Tensor = model[:3](data(rank, (6, 3), seed=3, xla=xla)).pow(2).mean()
    return result


def _gradients() -> Iterator[Case]:
    yield from (_optimizer_steps(megabytes) for megabytes in (0, 1))

    def reduces(rank: int, size: int) -> Any:
        model = _net().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        _loss(model, rank, xla=True).backward()
        xm.reduce_gradients(optimizer, groups=groups(size))
        return [p.grad for p in model.parameters()]

    def expected(rank: int, size: int) -> Any:
        model = _net()
        for one in mine(rank, size):
            (_loss(model, one) / size).backward()  # type: ignore[no-untyped-call]
        return [p.grad for p in model.parameters()]

    yield grouped("reduce_gradients-groups", reduces, expected)

    def on_grad(rank: int, size: int) -> Any:
        parameter = torch.nn.Parameter(on_device(rank))
        (parameter * (rank + 1)).sum().backward()
        assert parameter.grad is not None
        xm.all_reduce("sum", [parameter.grad], scale=1 / size)
        with torch.no_grad():
            reduced_copy = xm.all_reduce("sum", parameter)
            xm.all_reduce("sum", [parameter])
        return [parameter.grad, parameter, reduced_copy, parameter.requires_grad]

    yield Case(
        "all_reduce-a parameter and its gradient",
        on_grad,
        lambda _rank, size: [torch.full(SHAPE, (size + 1) / 2), total(size), total(size), True],
    )


def _optimizer_steps(megabytes: int) -> Case:
    def train(rank: int, _size: int) -> Any:
        with mock.patch.dict(os.environ, ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB=str(megabytes)):
            model = _net().to("xla")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for _ in range(3):
                optimizer.zero_grad()
                _loss(model, rank, xla=True).backward()
                xm.optimizer_step(optimizer, barrier=True)
            return [p.detach() for p in model.parameters()]

    def trained(_rank: int, size: int) -> Any:
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            for one in range(size):
                (_loss(model, one) / size).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    return Case(f"optimizer_step-buckets of {megabytes} MB", train, trained)


def _autograd() -> Iterator[Case]:
    def needs_gradient(rank: int, size: int) -> Any:
        parameter = torch.nn.Parameter(on_device(rank, (size, size)))
        results = (
            xm.all_reduce("sum", parameter, scale=2.0),
            xm.reduce_scatter("sum", parameter, 1.0, 0, size),
            xm.all_to_all(parameter, 0, 0, size),
            xm.collective_permute(parameter, [[0, 1]]),
            xm.all_gather(parameter, pin_layout=False),
        )
        return [one.requires_grad for one in results]

    # As torch_xla's own results do (test_torch_xla_itself_says_what_needs_a_gradient); no gradient flows through them.
    yield Case("what needs a gradient", needs_gradient, lambda *_: [True, True, True, True, False])

    def differentiable(rank: int, _size: int) -> Any:
        from torch_xla.core import functions

        one, other = (torch.nn.Parameter(on_device(rank)) for _ in range(2))
        (functions.all_reduce("sum", one) * (rank + 1)).sum().backward()
        (functions.all_gather(other) * (rank + 1)).sum().backward()
        return [one.grad, other.grad]

    # Their backward has no collective, in torch_xla.
    yield Case("torch_xla.core.functions", differentiable, lambda rank, _size: [torch.full(SHAPE, rank + 1.0)] * 2)


# -- the graph around it ----------------------------------------------------------------------------------------------


def _graphs() -> Iterator[Case]:
    def goes_on(rank: int, _size: int) -> Any:
        x = on_device(rank)
        y = x * 2 + 1
        before = y * 10
        xm.all_reduce("sum", [y])
        after = y * 10
        x += y
        torch_xla.sync()
        y.mul_(2)
        return [before, after, x, y]

    def goes_on_expected(rank: int, size: int) -> Any:
        reached = reduced("sum", [data(one) * 2 + 1 for one in range(size)])
        return [(data(rank) * 2 + 1) * 10, reached * 10, data(rank) + reached, reached * 2]

    yield Case("all_reduce-the step goes on from the reduced value", goes_on, goes_on_expected)

    def of_a_view(rank: int, _size: int) -> Any:
        x = on_device(rank)
        xm.all_reduce("sum", [x[0]])
        view = x[1]
        xm.all_reduce("sum", [view])
        return [x, view]

    yield Case("all_reduce-a view of a tensor", of_a_view, lambda _rank, size: [total(size), total(size)[1]])
    yield Case(
        "all_reduce-a tensor and what is made of it",
        lambda rank, _size: xm.all_reduce("sum", [tensor := on_device(rank), tensor * 2]),
        lambda _rank, size: [total(size), total(size) * 2],
    )

    def many(rank: int, _size: int) -> Any:
        x = on_device(rank)
        for _ in range(20):
            x = xm.all_reduce("max", x + 1)
        return x

    yield Case("all_reduce-twenty in a row", many, lambda _rank, size: reduced("max", of_all(size)) + 20)


def _of_several_threads() -> Iterator[Case]:
    """One after the other, if they come in the same order on all ranks."""

    def run(rank: int, _size: int) -> Any:
        found: list[Any] = [None] * 4
        turn = threading.Condition()

        def reduce(number: int) -> None:
            with turn:
                turn.wait_for(lambda: number == 0 or found[number - 1] is not None)
                found[number] = xm.all_reduce("sum", on_device(rank, seed=number)) + number
                turn.notify_all()

        threads = [threading.Thread(target=reduce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    yield Case("threads", run, lambda _rank, size: [total(size, seed=number) + number for number in range(4)])


def _not_numbers() -> Iterator[Case]:
    def of(rank: int, size: int) -> Tensor:
        return torch.tensor([math.nan if rank == size - 1 else 1.0, float(rank), math.nan if rank == 0 else 2.0])

    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("min", "max", "sum"):
            yield Case(
                f"all_reduce-NaN-{kind}-{short(dtype)}",
                lambda rank, size, kind=kind, dtype=dtype: torch.isnan(
                    xm.all_reduce(kind, of(rank, size).to(dtype).to("xla"))
                ),
                lambda _rank, _size: torch.tensor([True, False, True]),
            )


def _computed_again() -> Iterator[Case]:
    """A collective that checkpoint runs a second time, in the backward pass."""

    class AllReduce(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return xm.all_reduce("sum", x)

        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    def run(_rank: int, _size: int) -> Any:
        from torch.utils.checkpoint import checkpoint

        x = torch.full((3,), 2.0, device="xla", requires_grad=True)
        y = checkpoint(lambda x: AllReduce.apply(x * x) ** 2, x, use_reentrant=False).sum()
        y.backward()
        return [y, x.grad]

    def expected(_rank: int, size: int) -> Any:
        whole = torch.full((3,), 4.0 * size)
        return [(whole**2).sum(), 2 * whole * 4.0]

    yield Case("autograd-a collective that checkpoint computes again", run, expected)


def _compiled() -> Iterator[Case]:
    def compiled(rank: int, _size: int) -> Any:
        """Two pieces: what is before the collective, and what is after it."""
        reduce = torch.compile(lambda x: xm.all_reduce("sum", x * 2) + 1, backend="openxla")
        gather = torch.compile(lambda x: xm.all_gather(x * 2) + 1, backend="openxla")
        return [reduce(on_device(rank)), gather(on_device(rank))]

    def expected(_rank: int, size: int) -> Any:
        return [total(size) * 2 + 1, torch.cat(of_all(size)) * 2 + 1]

    yield Case("torch.compile splits at collectives", compiled, expected)
    yield refused(
        "torch.compile of one graph",
        lambda rank, _size: torch.compile(lambda x: xm.all_gather(x), backend="openxla", fullgraph=True)(
            on_device(rank)
        ),
        "A collective inside a torch.compile",
    )


def _modes() -> Iterator[Case]:
    modes: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("xla", torch.bfloat16),
        "a default device": lambda: torch.device("xla"),
        "a default type": _default_type,
    }
    yield from (_under(name, mode) for name, mode in modes.items())


def _under(name: str, mode: Callable[[], Any]) -> Case:
    def under(rank: int, _size: int) -> Any:
        with mode():
            listed = [on_device(rank) * 2]
            xm.all_reduce("sum", listed, scale=0.5)
            return [xm.all_reduce("sum", on_device(rank), scale=0.5), *listed, xm.all_gather(on_device(rank))]

    return Case(f"under {name}", under, lambda _rank, size: [total(size) * 0.5, total(size), torch.cat(of_all(size))])


@contextmanager
def _default_type() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
