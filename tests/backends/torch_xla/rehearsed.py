"""A case that every rank of a rehearsal runs, the launch of many cases, their data, and references in plain torch.

A case's `run(rank, size)` runs in a worker, with tensors on its device; `expected(rank, size)` runs in the test's
process and never sees XLA. Data are whole numbers, so that the order of additions does not matter.
"""

from __future__ import annotations

import functools
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
SHAPE = (2, 3)


@dataclass(frozen=True)
class Case:
    """`error`: words of the exception that each rank must get instead of a value; `sizes`: the worlds it is run in;
    `tolerance`: of float32."""

    name: str
    run: Callable[[int, int], Any]
    expected: Callable[[int, int], Any]
    error: str = ""
    sizes: tuple[int, ...] = SIZES
    tolerance: float = 1e-6


def refused(name: str, run: Callable[[int, int], Any], error: str) -> Case:
    return Case(name, run, lambda _rank, _size: None, error)


def grouped(name: str, run: Callable[[int, int], Any], expected: Callable[[int, int], Any]) -> Case:
    return Case(name, run, expected, sizes=(*SIZES, 4))  # with 2 or 3 ranks each is a group of its own


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        return run(function, *args, workers=size, **{"timeout": 400.0, **options})


def outcomes(cases: Sequence[Case]) -> dict[str, tuple[str, Any]]:
    """On a rank: name -> ("value", what came out) or ("error", its text)."""
    import torch.distributed as dist
    import torch_xla.runtime as xr

    dist.init_process_group("xla", init_method="xla://")
    rank, size = xr.global_ordinal(), xr.world_size()
    return {case.name: _outcome(case, rank, size) for case in cases}


def _outcome(case: Case, rank: int, size: int) -> tuple[str, Any]:
    try:
        return "value", home(case.run(rank, size))
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def home(value: Any) -> Any:
    """With tensors in host memory, and lists for tuples."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)):
        return [home(one) for one in value]
    if isinstance(value, dict):
        return {name: home(one) for name, one in value.items()}
    return value


def differences(found: Any, expected: Any, tolerance: float, at: str = "") -> list[str]:
    """What is not as expected: types and shapes, and values exactly, but for those of float32."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{at}: {found}, expected {expected}"]
        pairs = zip(found, expected, strict=True)
        return [
            text
            for place, (one, other) in enumerate(pairs)
            for text in differences(one, other, tolerance, f"{at}[{place}]")
        ]
    if not isinstance(expected, Tensor):
        return [] if found == expected else [f"{at}: {found!r}, expected {expected!r}"]
    if not isinstance(found, Tensor):
        return [f"{at}: {found!r}, expected a tensor"]
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return [f"{at}: {found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"]
    same = (
        torch.allclose(found, expected, tolerance, tolerance) if found.dtype == torch.float32 else found.equal(expected)
    )
    return [] if same else [f"{at}: {found}, expected {expected}"]


# -- data and references ----------------------------------------------------------------------------------------------


def data(
    rank: int, shape: Sequence[int] = SHAPE, dtype: torch.dtype = torch.float32, *, seed: int = 0, xla: bool = False
) -> Tensor:
    """A rank's whole numbers from -2 to 2, another rank's are others. `xla`: on this rank's device."""
    generator = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    tensor = torch.randint(-2, 3, tuple(shape), generator=generator, device="cpu").to(dtype)
    return tensor.to("xla") if xla else tensor


on_device = functools.partial(data, xla=True)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A place for a result on this rank's device."""
    return torch.zeros(shape, dtype=dtype, device="xla")


def of_all(size: int, *args: Any, **kwargs: Any) -> list[Tensor]:
    """The data of all ranks."""
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


def total(size: int, *args: Any, **kwargs: Any) -> Tensor:
    """The sum of the data of all ranks."""
    return reduced("sum", of_all(size, *args, **kwargs))


def groups(size: int) -> list[list[int]]:
    """The ranks in groups of the same size that are no ranges: even and odd ones, or each rank for itself."""
    step = 2 if size % 2 == 0 else size
    return [list(range(first, size, step)) for first in range(step)]


def mine(rank: int, size: int) -> list[int]:
    """The group of a rank."""
    return next(group for group in groups(size) if rank in group)
