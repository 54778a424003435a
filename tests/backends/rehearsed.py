"""What the tests of a rehearsal share: cases that every rank runs and what each rank must get, computed without it.

What lives here: the table of cases of torch_xla's and torch.distributed's collectives, with references in plain torch,
and one launch that runs them all. What does not: the assertions (test_rehearse.py).

A case's `run(rank, size)` runs in a worker, with tensors on its device; `expected(rank, size)` runs in the test's
process and never sees XLA. Data is whole numbers where the order of additions must not matter.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.launch.launching import run
from tpu_magics.launch import session
from tpu_magics.launch.results import TrainResult

SIZES = (2, 3, 8)
TYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.bool)
KINDS = ("sum", "mul", "min", "max", "and", "or")


@dataclass(frozen=True)
class Case:
    """`error`: words of the RuntimeError that each rank must get instead of a value; `sizes`: worlds it makes sense
    in."""

    name: str
    run: Callable[[int, int], Any]
    expected: Callable[[int, int], Any] = lambda _rank, _size: None
    error: str = ""
    sizes: tuple[int, ...] = SIZES


CASES: list[Case] = []


def case(name: str, run: Callable[[int, int], Any], expected: Callable[[int, int], Any], **more: Any) -> None:
    CASES.append(Case(name, run, expected, **more))


def refused(name: str, run: Callable[[int, int], Any], error: str, **more: Any) -> None:
    CASES.append(Case(name, run, error=error, **more))


def cases(size: int) -> list[Case]:
    return [one for one in CASES if size in one.sizes]


# -- running them -----------------------------------------------------------------------------------------------------


@contextmanager
def own_session(folder: Path) -> Iterator[None]:
    """A session and a runs folder for a fixture that lives longer than a test; as conftest's `fresh_session`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_MAGICS_RUNS", str(folder / "runs"))
        patch.setenv("PJRT_DEVICE", "CPU")
        patch.setattr(session, "current", session.Session())
        yield


def launched(function: Callable[..., Any], size: int, folder: Path, *args: Any, **options: Any) -> TrainResult:
    """One run of `function` on so many ranks, with a session of its own."""
    with own_session(folder):
        return run(function, *args, workers=size, **{"timeout": 300.0, **options})


def all_cases() -> dict[str, tuple[str, Any]]:
    """On a rank: name -> ("value", what came out) or ("error", its text)."""
    import torch.distributed as dist
    import torch_xla.runtime as xr

    dist.init_process_group("xla", init_method="xla://")
    rank, size = xr.global_ordinal(), xr.world_size()
    return {one.name: _outcome(one, rank, size) for one in cases(size)}


def _outcome(one: Case, rank: int, size: int) -> tuple[str, Any]:
    try:
        return "value", home(one.run(rank, size))
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def home(value: Any) -> Any:
    """With tensors in host memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)):
        return [home(one) for one in value]
    if isinstance(value, dict):
        return {name: home(one) for name, one in value.items()}
    return value


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """What is not as expected: types, shapes and values, exactly; floats of float32 to 1e-6."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{at}: {found}, expected {expected}"]
        pairs = zip(found, expected, strict=True)
        return [text for place, (one, other) in enumerate(pairs) for text in differences(one, other, f"{at}[{place}]")]
    if not isinstance(expected, Tensor):
        return [] if found == expected else [f"{at}: {found!r}, expected {expected!r}"]
    if not isinstance(found, Tensor):
        return [f"{at}: {found!r}, expected a tensor"]
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return [f"{at}: {found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"]
    same = torch.allclose(found, expected, 1e-6, 1e-6) if found.dtype == torch.float32 else found.equal(expected)
    return [] if same else [f"{at}: {found}, expected {expected}"]


# -- data and references ----------------------------------------------------------------------------------------------


def data(rank: int, shape: Sequence[int] = (2, 3), dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A rank's whole numbers from -2 to 2, another rank's are others."""
    generator = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    return torch.randint(-2, 3, tuple(shape), generator=generator, device="cpu").to(dtype)


def put(tensor: Tensor) -> Tensor:
    return tensor.to("xla")


def of_all(size: int, *args: Any, **kwargs: Any) -> list[Tensor]:
    return [data(rank, *args, **kwargs) for rank in range(size)]


def reduced(kind: str, tensors: Sequence[Tensor], scale: float = 1.0) -> Tensor:
    """What XLA gives for a reduction: truth values add as "or" and multiply as "and"; one rounding at the end; the
    scale has the element type."""
    dtype = tensors[0].dtype
    stacked = torch.stack(list(tensors))
    if dtype == torch.bool:
        result = stacked.any(0) if kind in ("sum", "max", "or") else stacked.all(0)
        return result & bool(scale)
    if kind in ("and", "or"):
        return functools.reduce({"and": operator.and_, "or": operator.or_}[kind], list(tensors)) * int(scale)
    wide = stacked.double() if dtype.is_floating_point else stacked
    result = {"sum": wide.sum, "mul": wide.prod, "min": wide.amin, "max": wide.amax}[kind](0).to(dtype)
    return result * torch.tensor(scale, dtype=torch.float32).to(dtype)


def halves(size: int) -> list[list[int]]:
    """The ranks in groups of the same size, which are not ranges: even and odd ones, or each for itself."""
    step = 2 if size % 2 == 0 else size
    return [list(range(first, size, step)) for first in range(step)]


def mine(rank: int, groups: Sequence[Sequence[int]]) -> list[int]:
    return next(list(group) for group in groups if rank in group)


# -- xm.all_reduce ----------------------------------------------------------------------------------------------------


def _all_reduce(kind: str, dtype: torch.dtype, scale: float = 1.0) -> None:
    import torch_xla.core.xla_model as xm

    name = f"all_reduce-{kind}-{str(dtype).removeprefix('torch.')}" + (f"-scale {scale:.3g}" if scale != 1.0 else "")

    def both(rank: int, _size: int) -> Any:
        one, listed = put(data(rank, dtype=dtype)), [put(data(rank, dtype=dtype)), put(data(rank, (4,), dtype, 1))]
        given = xm.all_reduce(kind, one, scale=scale)
        same = xm.all_reduce(kind, listed, scale=scale) is listed
        return [given, listed, same, one]

    def expected(rank: int, size: int) -> Any:
        first = reduced(kind, of_all(size, dtype=dtype), scale)
        return [first, [first, reduced(kind, of_all(size, (4,), dtype, 1), scale)], True, data(rank, dtype=dtype)]

    if kind in ("and", "or") and dtype.is_floating_point:
        refused(name, both, f"XLA has no '{kind}' for")
    else:
        case(name, both, expected)


def _fill() -> None:
    for dtype in TYPES:
        for kind in KINDS:
            _all_reduce(kind, dtype)
        for scale in (0.125, 1 / 3, 2.0):
            _all_reduce("sum", dtype, scale)
    for dtype in (torch.float64, torch.float16, torch.uint8, torch.int8, torch.int16):
        _all_reduce("sum", dtype)
        _all_reduce("max", dtype, 0.5)
    for add in (_reductions, _shapes, _moved, _scattered, _messages, _gradients, _graphs, _others, _distributed):
        add()


def _reductions() -> None:
    import torch_xla.core.xla_model as xm

    mixed = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float32, torch.int32)

    def of_mixed(rank: int) -> list[Tensor]:
        return [data(rank, (2, place + 1), dtype, place) for place, dtype in enumerate(mixed)]

    def many(rank: int, _size: int) -> Any:
        tensors = [put(one) for one in of_mixed(rank)]
        xm.all_reduce(xm.REDUCE_SUM, tensors, scale=2.0)
        return tensors

    case(
        "all_reduce-a list of many types",
        many,
        lambda _rank, size: [reduced("sum", list(same), 2.0) for same in zip(*map(of_mixed, range(size)), strict=True)],
    )
    for pin in (True, False):
        case(
            f"all_reduce-groups-pin_layout {pin}",
            lambda rank, size, pin=pin: [
                xm.all_reduce("sum", put(data(rank)), groups=halves(size), pin_layout=pin),
                *xm.all_reduce("max", [put(data(rank))], 0.5, halves(size), pin),
            ],
            lambda rank, size: [
                reduced("sum", [data(one) for one in mine(rank, halves(size))]),
                reduced("max", [data(one) for one in mine(rank, halves(size))], 0.5),
            ],
        )
    case(
        "all_reduce-real numbers",
        lambda rank, size: xm.all_reduce("sum", put(_real(rank)), scale=1 / size),
        lambda _rank, size: torch.stack([_real(one) for one in range(size)]).mean(0),
    )
    case(
        "all_reduce-complex",
        lambda rank, _size: xm.all_reduce("sum", put(torch.complex(data(rank), data(rank, seed=1)))),
        lambda _rank, size: torch.complex(
            reduced("sum", of_all(size)), reduced("sum", [data(rank, seed=1) for rank in range(size)])
        ),
    )
    refused("all_reduce-no such kind", lambda rank, _size: xm.all_reduce("xor", put(data(rank)), 2.0), "xor")
    refused(
        "all_reduce-groups without this rank",
        lambda rank, size: xm.all_reduce("sum", put(data(rank)), groups=[[size, size + 1]]),
        "is in none of the groups",
    )


def _real(rank: int) -> Tensor:
    return torch.randn(3, 5, generator=torch.Generator("cpu").manual_seed(rank), device="cpu")


def _shapes() -> None:
    import torch_xla.core.xla_model as xm

    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "of no dimensions": lambda tensor: tensor.sum(),
        "empty": lambda tensor: tensor[:0],
        "of three dimensions": lambda tensor: tensor.reshape(2, 1, 3),
        "transposed": lambda tensor: tensor.t(),
        "every second column": lambda tensor: tensor[:, ::2],
        "expanded": lambda tensor: tensor[:1].expand(4, 3),
        "not yet computed": lambda tensor: tensor * 3 + 1,
    }

    def both(form: Callable[[Tensor], Tensor], rank: int) -> Any:
        listed = [form(put(data(rank))).clone(), form(put(data(rank, seed=1)))]
        xm.all_reduce("sum", listed[:1], scale=2.0)
        return [xm.all_reduce("sum", form(put(data(rank)))), listed[0], listed[1]]

    for name, form in forms.items():
        case(
            f"all_reduce-{name}",
            lambda rank, _size, form=form: both(form, rank),
            lambda rank, size, form=form: [
                reduced("sum", [form(one) for one in of_all(size)]),
                reduced("sum", [form(one) for one in of_all(size)], 2.0),
                form(data(rank, seed=1)),
            ],
        )
    for name in ("of three dimensions", "transposed", "every second column", "empty", "not yet computed"):
        case(
            f"all_gather-{name}",
            lambda rank, _size, form=forms[name]: [
                xm.all_gather(form(put(data(rank))), dim=-1, pin_layout=pin) for pin in (True, False)
            ],
            lambda _rank, size, form=forms[name]: [torch.cat([form(one) for one in of_all(size)], -1)] * 2,
        )
    case("all_reduce-an empty list", lambda _rank, _size: xm.all_reduce("sum", []), lambda _rank, _size: [])


# -- what is only moved -------------------------------------------------------------------------------------------------


def _moved() -> None:
    import torch_xla.core.xla_model as xm

    for dtype in TYPES:
        for dim in (0, 1):
            case(
                f"all_gather-{str(dtype).removeprefix('torch.')}-dim {dim}",
                lambda rank, _size, dtype=dtype, dim=dim: [
                    xm.all_gather(put(data(rank, dtype=dtype)), dim, pin_layout=pin) for pin in (True, False)
                ],
                lambda _rank, size, dtype=dtype, dim=dim: [torch.cat(of_all(size, dtype=dtype), dim)] * 2,
            )
    case(
        "all_gather-groups",
        lambda rank, size: [
            xm.all_gather(put(data(rank)), 1, halves(size), pin_layout=True),
            xm.all_gather(put(data(rank)), 1, halves(size), pin_layout=False),
            xm.all_gather([put(data(rank)), put(data(rank, (4,)))], 0, halves(size), pin_layout=False),
        ],
        lambda rank, size: [
            *[torch.cat([data(one) for one in mine(rank, halves(size))], 1)] * 2,
            [torch.cat([data(one, shape) for one in mine(rank, halves(size))]) for shape in ((2, 3), (4,))],
        ],
    )

    def into(rank: int, size: int) -> Any:
        output = torch.zeros(2 * size, 3, device="xla")
        outputs = [torch.zeros(2 * size, 3, device="xla"), torch.zeros(4 * size, device="xla", dtype=torch.int64)]
        values = [put(data(rank)), put(data(rank, (4,), torch.int64))]
        same = xm.all_gather(values[0], output=output) is output
        xm.all_gather(values, output=outputs, pin_layout=False)
        return [output, outputs, same]

    def into_expected(_rank: int, size: int) -> Any:
        first = torch.cat(of_all(size))
        return [first, [first, torch.cat(of_all(size, (4,), torch.int64))], True]

    case("all_gather-output", into, into_expected)
    case(
        "all_gather-lists, bucketized",
        lambda rank, _size: [
            xm.all_gather([put(data(rank)), put(data(rank, (4,), torch.bool))], pin_layout=False),
            xm.all_gather_bucketized([put(data(rank)), put(data(rank, (4,)))]),
            xm.all_gather_bucketized([put(data(rank)), put(data(rank, (4,)))], bucket_cap_mb=0),
        ],
        lambda _rank, size: [
            [torch.cat(of_all(size)), torch.cat(of_all(size, (4,), torch.bool))],
            *[[torch.cat(of_all(size)), torch.cat(of_all(size, (4,)))]] * 2,
        ],
    )
    for dtype in TYPES:
        for split, concat in ((0, 0), (0, 1), (1, 0), (1, 1)):
            case(
                f"all_to_all-{str(dtype).removeprefix('torch.')}-{split} to {concat}",
                lambda rank, size, dtype=dtype, split=split, concat=concat: xm.all_to_all(
                    put(data(rank, (2 * size, size), dtype)), split, concat, size
                ),
                lambda rank, size, dtype=dtype, split=split, concat=concat: torch.cat(
                    [one.chunk(size, split)[rank] for one in of_all(size, (2 * size, size), dtype)], concat
                ),
                sizes=SIZES if dtype == torch.float32 else (3,),
            )
    case(
        "all_to_all-groups",
        lambda rank, size: xm.all_to_all(
            put(data(rank, (size, 2))), 0, 1, len(halves(size)[0]), groups=halves(size), pin_layout=False
        ),
        lambda rank, size: torch.cat(
            [
                data(one, (size, 2)).chunk(len(halves(size)[0]))[mine(rank, halves(size)).index(rank)]
                for one in mine(rank, halves(size))
            ],
            1,
        ),
    )
    refused(
        "all_to_all-not a multiple",
        lambda rank, size: xm.all_to_all(put(data(rank, (size + 1,))), 0, 0, size),
        "is no multiple of",
    )
    for dtype in TYPES:
        case(
            f"collective_permute-a ring-{str(dtype).removeprefix('torch.')}",
            lambda rank, size, dtype=dtype: xm.collective_permute(
                put(data(rank, dtype=dtype)), [[one, (one + 1) % size] for one in range(size)]
            ),
            lambda rank, size, dtype=dtype: data((rank - 1) % size, dtype=dtype),
        )
    case(
        "collective_permute-one pair",
        lambda rank, size: xm.collective_permute(put(data(rank)), [[0, size - 1]]),
        lambda rank, size: data(0) if rank == size - 1 else torch.zeros(2, 3),
    )
    for root in (0, 1):

        def broadcast(rank: int, _size: int, root: int = root) -> Any:
            tensors = [put(data(rank, dtype=dtype, seed=place)) for place, dtype in enumerate(TYPES)]
            xm.collective_broadcast(tensors, root)
            return tensors

        case(
            f"collective_broadcast-from {root}",
            broadcast,
            lambda _rank, _size, root=root: [data(root, dtype=t, seed=place) for place, t in enumerate(TYPES)],
        )

    def parameters(rank: int, _size: int) -> Any:
        torch.manual_seed(rank)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to("xla")
        xm.broadcast_master_param(model)
        return [*model.parameters()]

    def parameters_expected(_rank: int, _size: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [
                p.detach() for p in torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).parameters()
            ]

    case("broadcast_master_param", parameters, parameters_expected)
    refused("send", lambda rank, _size: xm.send(put(data(rank)), 1), "cannot be rehearsed")
    refused("recv", lambda rank, _size: xm.recv(put(data(rank)), 1), "cannot be rehearsed")


def _scattered() -> None:
    import torch_xla.core.xla_model as xm

    def part(rank: int, size: int, tensors: Sequence[Tensor], kind: str, scale: float, dim: int) -> Tensor:
        return reduced(kind, tensors, scale).chunk(size, dim)[rank].contiguous()

    for dtype in TYPES:
        for kind, scale, dim in (("sum", 1.0, 0), ("max", 0.5, 1), ("mul", 1.0, 0)):
            case(
                f"reduce_scatter-{str(dtype).removeprefix('torch.')}-{kind}-dim {dim}",
                lambda rank, size, dtype=dtype, kind=kind, scale=scale, dim=dim: xm.reduce_scatter(
                    kind, put(data(rank, (2 * size, size), dtype)), scale, dim, size
                ),
                lambda rank, size, dtype=dtype, kind=kind, scale=scale, dim=dim: part(
                    rank, size, of_all(size, (2 * size, size), dtype), kind, scale, dim
                ),
            )

    def lists(rank: int, size: int) -> Any:
        values = [put(data(rank, (size, 2))), put(data(rank, (2 * size,), torch.int32))]
        output = torch.zeros(1, 2, device="xla")
        outputs = [torch.zeros(1, 2, device="xla"), torch.zeros(2, dtype=torch.int32, device="xla")]
        given = xm.reduce_scatter("sum", values, 2.0, 0, size)
        xm.reduce_scatter("sum", values, 2.0, 0, size, output=outputs)
        xm.reduce_scatter("sum", values[0], 2.0, 0, size, output=output)
        buckets = xm.reduce_scatter_bucketized("sum", values, 2.0, 0, size)
        small = xm.reduce_scatter_bucketized("sum", values, 2.0, 0, size, bucket_cap_mb=0)
        return [given, outputs, output, buckets, small]

    def lists_expected(rank: int, size: int) -> Any:
        parts = [
            part(rank, size, of_all(size, shape, dtype), "sum", 2.0, 0)
            for shape, dtype in (((size, 2), torch.float32), ((2 * size,), torch.int32))
        ]
        return [parts, parts, parts[0], parts, parts]

    case("reduce_scatter-lists, output, bucketized", lists, lists_expected)
    case(
        "reduce_scatter-groups",
        lambda rank, size: xm.reduce_scatter(
            "sum", put(data(rank, (size, 2))), 1.0, 0, len(halves(size)[0]), groups=halves(size)
        ),
        lambda rank, size: part(
            mine(rank, halves(size)).index(rank),
            len(halves(size)[0]),
            [data(one, (size, 2)) for one in mine(rank, halves(size))],
            "sum",
            1.0,
            0,
        ),
    )
    refused(
        "reduce_scatter-not a multiple",
        lambda rank, size: xm.reduce_scatter("sum", put(data(rank, (size + 1,))), 1.0, 0, size),
        "is no multiple of",
    )
    refused(
        "reduce_scatter-not as many shards as ranks",
        lambda rank, size: xm.reduce_scatter("sum", put(data(rank, (2 * size,))), 1.0, 0, 2 * size),
        "shard_count",
    )
    # XLA counts dimensions from the first only (a test holds it to that); xm.all_gather turns them itself.
    refused(
        "reduce_scatter-dimension -1",
        lambda rank, size: xm.reduce_scatter("sum", put(data(rank, (size,))), 1.0, -1, size),
        "dimension",
    )
    refused(
        "all_to_all-dimension -1",
        lambda rank, size: xm.all_to_all(put(data(rank, (size, size))), 0, -1, size),
        "dimension",
    )


# -- rendezvous and what is built on it ----------------------------------------------------------------------------------


def _messages() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    case(
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
    case(
        "mesh_reduce",
        lambda rank, _size: [
            xm.mesh_reduce("a sum", rank + 1, sum),
            xm.mesh_reduce("tensors", put(data(rank)), lambda all_of: torch.stack(all_of).sum(0)),
            xm.mesh_reduce("many", {"loss": float(rank), "text": "x" * rank}, list),
        ],
        lambda _rank, size: [
            size * (size + 1) // 2,
            reduced("sum", of_all(size)),
            [{"loss": float(one), "text": "x" * one} for one in range(size)],
        ],
    )
    case(
        "do_on_ordinals",
        lambda rank, _size: [
            xm.do_on_ordinals(lambda tensor: float(tensor.sum()), (put(data(rank)),), (1,)),
            xm.do_on_ordinals(lambda: rank, (), (0, 1)),
        ],
        lambda rank, _size: [float(data(1).sum()) if rank == 1 else None, rank if rank < 2 else None],
    )

    def world(_rank: int, _size: int) -> Any:
        import torch.distributed as dist

        return [
            *(xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), dist.get_rank()),
            *(xr.world_size(), xr.process_count(), xr.local_process_count(), dist.get_world_size()),
            *(xr.global_device_count(), xr.global_runtime_device_count(), xr.addressable_device_count()),
            *(xm.is_master_ordinal(), xm.is_master_ordinal(local=False), xr.device_type()),
        ]

    case(
        "the world",
        world,
        lambda rank, size: [*[rank] * 4, *[size] * 4, size, size, 1, rank == 0, rank == 0, "CPU"],
    )


# -- gradients and optimizers --------------------------------------------------------------------------------------------


def _gradients() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    def net() -> torch.nn.Module:
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)
        )
        for place, parameter in enumerate(model.parameters()):
            with torch.no_grad():
                parameter.copy_(0.1 * data(place, tuple(parameter.shape), seed=7))
        return model

    def loss(model: torch.nn.Module, rank: int, device: str) -> Tensor:
        result: Tensor = model[:3](data(rank, (6, 3), seed=3).to(device)).pow(2).mean()
        return result

    def steps(megabytes: int) -> Callable[[int, int], Any]:
        def train(rank: int, _size: int) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", str(megabytes))
                model = net().to("xla")
                optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
                for _ in range(3):
                    optimizer.zero_grad()
                    loss(model, rank, "xla").backward()
                    xm.optimizer_step(optimizer, barrier=True)
                return [p.detach() for p in model.parameters()]

        return train

    def trained(_rank: int, size: int) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            for one in range(size):
                (loss(model, one, "cpu") / size).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for megabytes in (0, 1):
        case(f"optimizer_step-buckets of {megabytes} MB", steps(megabytes), trained)

    def gradients(rank: int, size: int) -> Any:
        model = net().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss(model, rank, "xla").backward()
        xm.reduce_gradients(optimizer, groups=halves(size))
        return [p.grad for p in model.parameters()]

    def gradients_expected(rank: int, size: int) -> Any:
        model = net()
        for one in mine(rank, halves(size)):
            (loss(model, one, "cpu") / size).backward()
        return [p.grad for p in model.parameters()]

    case("reduce_gradients-groups", gradients, gradients_expected)

    def on_grad(rank: int, size: int) -> Any:
        parameter = torch.nn.Parameter(put(data(rank)))
        (parameter * (rank + 1)).sum().backward()
        assert parameter.grad is not None
        xm.all_reduce("sum", [parameter.grad], scale=1 / size)
        with torch.no_grad():
            total = xm.all_reduce("sum", parameter)
            xm.all_reduce("sum", [parameter])
        return [parameter.grad, parameter, total, parameter.requires_grad, total.requires_grad]

    case(
        "all_reduce-a parameter and its gradient",
        on_grad,
        lambda _rank, size: [
            torch.full((2, 3), (size + 1) / 2),
            *[reduced("sum", of_all(size))] * 2,
            True,
            False,
        ],
    )

    def needs_gradient(rank: int, size: int) -> Any:
        """Which results of a tensor that needs a gradient need one: as torch_xla's own say on one rank."""
        parameter = torch.nn.Parameter(put(data(rank, (size, size))))
        results = {
            "all_reduce": xm.all_reduce("sum", parameter, scale=2.0),
            "all_gather": xm.all_gather(parameter, pin_layout=False),
            "reduce_scatter": xm.reduce_scatter("sum", parameter, 1.0, 0, size),
            "all_to_all": xm.all_to_all(parameter, 0, 0, size),
            "collective_permute": xm.collective_permute(parameter, [[0, 1]]),
        }
        return {name: (one.requires_grad, one.grad_fn is None) for name, one in results.items()}

    case(
        "what needs a gradient",
        needs_gradient,
        lambda _rank, _size: {
            name: (name != "all_gather", True)
            for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
        },
    )

    def differentiable(rank: int, _size: int) -> Any:
        from torch_xla.core import functions

        one, other = (torch.nn.Parameter(put(data(rank))) for _ in range(2))
        (functions.all_reduce("sum", one) * (rank + 1)).sum().backward()
        (functions.all_gather(other) * (rank + 1)).sum().backward()
        torch_xla.sync()
        return [one.grad, other.grad]

    case(
        "torch_xla.core.functions",
        differentiable,
        lambda rank, _size: [torch.full((2, 3), rank + 1.0)] * 2,  # the backward of torch_xla's has no collective
    )


# -- the graph around it ---------------------------------------------------------------------------------------------------


def _graphs() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    def goes_on(rank: int, _size: int) -> Any:
        x = put(data(rank))
        y = x * 2 + 1
        before = y * 10
        xm.all_reduce("sum", [y])
        after = y * 10
        x += y
        torch_xla.sync()
        y.mul_(2)
        return [before, after, x, y]

    def goes_on_expected(rank: int, size: int) -> Any:
        total = reduced("sum", [data(one) * 2 + 1 for one in range(size)])
        return [(data(rank) * 2 + 1) * 10, total * 10, data(rank) + total, total * 2]

    case("all_reduce-the step goes on from the reduced value", goes_on, goes_on_expected)

    def of_a_view(rank: int, _size: int) -> Any:
        x = put(data(rank))
        xm.all_reduce("sum", [x[0]])
        view = x[1]
        xm.all_reduce("sum", [view])
        return [x, view]

    def of_a_view_expected(_rank: int, size: int) -> Any:
        total = reduced("sum", of_all(size))
        return [total, total[1]]

    case("all_reduce-a view of a tensor", of_a_view, of_a_view_expected)
    case(
        "all_reduce-twice the same tensor in a list",
        lambda rank, _size: xm.all_reduce("sum", [tensor := put(data(rank)), tensor * 2]),
        lambda _rank, size: [reduced("sum", of_all(size)), reduced("sum", of_all(size)) * 2],
    )

    def under(rank: int, mode: Any) -> Any:
        with mode:
            listed = [put(data(rank)) * 2]
            xm.all_reduce("sum", listed, scale=0.5)
            return [xm.all_reduce("sum", put(data(rank)), scale=0.5), *listed, xm.all_gather(put(data(rank)))]

    def under_expected(_rank: int, size: int) -> Any:
        total = reduced("sum", of_all(size))
        return [total * 0.5, total, torch.cat(of_all(size))]

    modes: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("xla", torch.bfloat16),
        "a default device": lambda: torch.device("xla"),
        "a default type": _default_type,
    }
    for name, mode in modes.items():
        case(f"under {name}", lambda rank, _size, mode=mode: under(rank, mode()), under_expected)

    def many(rank: int, _size: int) -> Any:
        x = put(data(rank))
        for _ in range(20):
            x = xm.all_reduce("max", x + 1)
        return x

    case("twenty in a row", many, lambda _rank, size: reduced("max", of_all(size)) + 20)


@contextmanager
def _default_type() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _others() -> None:
    """What is built on the collectives."""

    def saved(rank: int, _size: int) -> Any:
        import tempfile

        import torch_xla.core.xla_model as xm

        folder = Path(xm.rendezvous("a folder", b"" if rank else tempfile.mkdtemp().encode())[0].decode())
        path = folder / f"rank {rank}"
        xm.save({"x": put(data(rank))}, path)
        xm.rendezvous("saved")
        return [path.exists(), torch.load(folder / "rank 0")["x"]]

    case("save", saved, lambda rank, _size: [rank == 0, data(0)])

    def sharded(rank: int, _size: int) -> Any:
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.parallel_loader as pl
        import torch_xla.runtime as xr
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        dataset = TensorDataset(torch.arange(48))
        sampler: Any = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal(), shuffle=False)
        seen: list[int] = []
        for (batch,) in pl.MpDeviceLoader(DataLoader(dataset, batch_size=2, sampler=sampler), xm.xla_device()):
            seen += batch.cpu().tolist()
        return seen

    case("MpDeviceLoader", sharded, lambda rank, size: list(range(rank, 48, size)))


# -- torch.distributed -----------------------------------------------------------------------------------------------------


def _distributed() -> None:
    import torch.distributed as dist

    operations = {
        "sum": dist.ReduceOp.SUM,
        "mul": dist.ReduceOp.PRODUCT,
        "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX,
    }

    def in_place(call: Callable[[Tensor], Any], tensor: Tensor) -> Tensor:
        call(tensor)
        return tensor

    for kind, operation in operations.items():
        for dtype in TYPES:
            case(
                f"dist.all_reduce-{kind}-{str(dtype).removeprefix('torch.')}",
                lambda rank, _size, operation=operation, dtype=dtype: in_place(
                    lambda tensor: dist.all_reduce(tensor, operation), put(data(rank, dtype=dtype))
                ),
                lambda _rank, size, kind=kind, dtype=dtype: reduced(kind, of_all(size, dtype=dtype)),
                sizes=SIZES if kind == "sum" else (3,),
            )
    case(
        "dist.all_reduce-band, bor",
        lambda rank, _size: [
            in_place(lambda t, op=op: dist.all_reduce(t, op), put(data(rank, dtype=torch.int32)))
            for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR)
        ],
        lambda _rank, size: [reduced(kind, of_all(size, dtype=torch.int32)) for kind in ("and", "or")],
    )
    # torch_xla's own process group has no average, on a TPU as here.
    refused(
        "dist.all_reduce-avg",
        lambda rank, _size: dist.all_reduce(put(data(rank)), dist.ReduceOp.AVG),
        "Invalid reduce op",
    )
    for dtype in TYPES:

        def gathered(rank: int, size: int, dtype: torch.dtype = dtype) -> Any:
            parts = [torch.zeros(2, 3, dtype=dtype, device="xla") for _ in range(size)]
            whole, stacked = (torch.zeros(shape, dtype=dtype, device="xla") for shape in ((2 * size, 3), (size, 2, 3)))
            dist.all_gather(parts, put(data(rank, dtype=dtype)))
            dist.all_gather_into_tensor(whole, put(data(rank, dtype=dtype)))
            dist.all_gather_into_tensor(stacked, put(data(rank, dtype=dtype)))
            return [parts, whole, stacked]

        def gathered_expected(_rank: int, size: int, dtype: torch.dtype = dtype) -> Any:
            parts = of_all(size, dtype=dtype)
            return [parts, torch.cat(parts), torch.stack(parts)]

        case(f"dist.all_gather-{str(dtype).removeprefix('torch.')}", gathered, gathered_expected)

        def scattered(rank: int, size: int, dtype: torch.dtype = dtype) -> Any:
            output, other = (torch.zeros(2, dtype=dtype, device="xla") for _ in range(2))
            value = put(data(rank, (2 * size,), dtype))
            dist.reduce_scatter(output, list(value.chunk(size)))
            dist.reduce_scatter_tensor(other, value, dist.ReduceOp.MAX)
            return [output, other]

        def scattered_expected(rank: int, size: int, dtype: torch.dtype = dtype) -> Any:
            tensors = of_all(size, (2 * size,), dtype)
            return [reduced(kind, tensors).chunk(size)[rank] for kind in ("sum", "max")]

        case(f"dist.reduce_scatter-{str(dtype).removeprefix('torch.')}", scattered, scattered_expected)

    def one_to_all(rank: int, size: int) -> Any:
        sent = in_place(lambda tensor: dist.broadcast(tensor, 1), put(data(rank)))
        total = in_place(lambda tensor: dist.reduce(tensor, 1), put(data(rank)))
        parts = [torch.zeros(2, 3, device="xla") for _ in range(size)] if rank == 1 else None
        dist.gather(put(data(rank)), parts, 1)
        part = torch.zeros(2, 3, device="xla")
        dist.scatter(part, [put(data(one, seed=5)) for one in range(size)] if rank == 1 else None, 1)
        dist.barrier()
        return [sent, total, parts, part]

    case(
        "dist.broadcast, reduce, gather, scatter, barrier",
        one_to_all,
        lambda rank, size: [
            data(1),
            reduced("sum", of_all(size)) if rank == 1 else data(rank),
            of_all(size) if rank == 1 else None,
            data(rank, seed=5),
        ],
    )

    def all_to_all(rank: int, size: int) -> Any:
        parts = [torch.zeros(2, device="xla") for _ in range(size)]
        dist.all_to_all(parts, list(put(data(rank, (size, 2))).unbind(0)))
        whole = torch.zeros(2 * size, 3, device="xla")
        dist.all_to_all_single(whole, put(data(rank, (2 * size, 3))))
        return [parts, whole]

    case(
        "dist.all_to_all",
        all_to_all,
        lambda rank, size: [
            [one[rank] for one in of_all(size, (size, 2))],
            torch.cat([one.chunk(size)[rank] for one in of_all(size, (2 * size, 3))]),
        ],
    )

    def pair(rank: int, size: int) -> Any:
        tensor = put(data(rank))
        if rank == 0:
            dist.send(tensor, size - 1)
        if rank == size - 1:
            dist.recv(tensor, 0)
        return tensor

    case("dist.send, recv", pair, lambda rank, size: data(0) if rank == size - 1 else data(rank))

    def grouped(rank: int, size: int) -> Any:
        groups = [dist.new_group(members) for members in halves(size)]
        group = groups[halves(size).index(mine(rank, halves(size)))]
        total = in_place(lambda tensor: dist.all_reduce(tensor, group=group), put(data(rank)))
        parts = [torch.zeros(2, 3, device="xla") for _ in mine(rank, halves(size))]
        dist.all_gather(parts, put(data(rank)), group=group)
        return [total, parts]

    case(
        "dist.new_group",
        grouped,
        lambda rank, size: [
            reduced("sum", [data(one) for one in mine(rank, halves(size))]),
            [data(one) for one in mine(rank, halves(size))],
        ],
    )
    _functional()
    case("DistributedDataParallel", _ddp, _ddp_expected)


def _functional() -> None:
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc  # what torch.compile and DTensor use (torch 2.9)

    case(
        "functional collectives",
        lambda rank, size: [
            fc.all_reduce(put(data(rank)), "sum", dist.group.WORLD),
            fc.all_reduce(put(data(rank)), "max", dist.group.WORLD),
            fc.all_gather_tensor(put(data(rank)), 0, dist.group.WORLD),
            fc.reduce_scatter_tensor(put(data(rank, (size, 2))), "sum", 0, dist.group.WORLD),
            fc.all_to_all_single(put(data(rank, (size, 2))), None, None, dist.group.WORLD),
        ],
        lambda rank, size: [
            reduced("sum", of_all(size)),
            reduced("max", of_all(size)),
            torch.cat(of_all(size)),
            reduced("sum", of_all(size, (size, 2))).chunk(size)[rank],
            torch.cat([one.chunk(size)[rank] for one in of_all(size, (size, 2))]),
        ],
    )
    # torch_xla's own know XLA's kinds only (a test holds it to that).
    for kind in ("avg", "product"):
        refused(
            f"functional all_reduce-{kind}",
            lambda rank, _size, kind=kind: fc.all_reduce(put(data(rank)), kind, dist.group.WORLD),
            kind,
        )


def _ddp(rank: int, _size: int) -> Any:
    import torch_xla

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(put(data(rank, (4, 3), seed=step))).pow(2).mean().backward()
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
        torch.cat([model(data(rank, (4, 3), seed=step)) for rank in range(size)]).pow(2).mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


_fill()
assert math.prod(SIZES) == 48  # MpDeviceLoader's dataset is shared evenly
