"""Operations that torch_xla lowers otherwise for a TPU: what they compute in a run, and their graphs in a trace."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.traced import same, steady, traced
from tests.launch.launching import run
from tpu_magics.backends.torch_xla.trace.placeholders import VALUE
from tpu_magics.launch import session

pytestmark = [pytest.mark.process, pytest.mark.timeout(280), pytest.mark.usefixtures("fresh_session", "libraries")]


def resizes(mode: str, factor: int, **options: Any) -> None:
    import torch_xla

    device = torch_xla.device()
    convolution = torch.nn.Conv2d(3, 3, 1).to(device)
    optimizer = torch.optim.SGD(convolution.parameters(), lr=0.1)
    for _ in range(4):
        images = torch.zeros(2, 3, 4, 6).to(device)
        resized = torch.nn.functional.interpolate(convolution(images), scale_factor=factor, mode=mode, **options)
        resized.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


@pytest.mark.parametrize(
    ("mode", "factor", "options", "calls"),
    [
        ("nearest", 2, {}, ["ResizeNearest", "ResizeNearestGrad"]),
        ("bilinear", 2, {"align_corners": True}, ["ResizeBilinear", "ResizeBilinearGrad"]),
        # a large factor is undone in one direction after the other
        ("nearest", 4, {}, ["ResizeNearest", "ResizeNearestGrad", "ResizeNearestGrad"]),
        ("nearest", 1, {}, []),
    ],
)
def test_an_interpolation_is_a_custom_call(mode: str, factor: int, options: dict[str, Any], calls: list[str]) -> None:
    found = traced(resizes, mode, factor, **options)
    targets = re.findall(rb"Resize(?:Nearest|Bilinear)(?:Grad)?", steady(found).module)
    assert sorted(targets) == [one.encode() for one in calls]
    assert found.refused == () and not found.reads


def reads_a_resized_mask() -> None:
    import torch_xla

    device = torch_xla.device()
    for _ in range(4):
        mask = torch.nn.functional.interpolate(torch.ones(1, 1, 2, 2).to(device), scale_factor=2)
        if mask.sum().item() == 0:
            mask = mask + 1
        torch_xla.sync()


def test_what_only_a_tpu_computes_is_not_known() -> None:
    [read] = traced(reads_a_resized_mask).reads
    assert read.what == VALUE and not read.known


# -- what a run computes -----------------------------------------------------------------------------------------------
functional = torch.nn.functional
X = torch.tensor([[-5.0, 2.0, 3.0, -1.0, 4.0], [1.0, -2.0, 6.0, 0.5, -3.0]])
SOURCE = torch.tensor([[-1.0, -2.0, -3.0, -4.0], [5.0, 6.0, 7.0, 8.0]])
TWICE = torch.tensor([[1, 1, 0, 3], [2, 2, 2, 4]])  # some places are named more than once
FEW = torch.tensor([[4], [0]])
Computing = Callable[[Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]  # the argument moves to the device
COMPUTING: dict[str, Computing] = {
    "a value that is written twice": lambda to: to(X).scatter(1, to(TWICE), 7.0),
    "the last dimension but one": lambda to: to(X).scatter(0, to(TWICE).clamp(max=1), 7.0),
    "indices of 32 bits": lambda to: to(X.int()).scatter(1, to(FEW).expand(2, 2).int().long(), 7),
    "a row only": lambda to: to(X).scatter(1, to(TWICE[:1]), 1.0),
    "added": lambda to: to(X).scatter_add(1, to(TWICE), to(SOURCE)),
    "added, a row only": lambda to: to(X).scatter_add(1, to(TWICE[:1]), to(SOURCE)),
    "multiplied": lambda to: to(X).scatter(1, to(TWICE), to(SOURCE), reduce="multiply"),
    "multiplied by a number": lambda to: to(X).scatter(1, to(TWICE), 2.0, reduce="multiply"),
    **{
        f"{kind} {'with' if own else 'without'} the input": (
            lambda to, kind=kind, own=own: to(X).scatter_reduce(1, to(TWICE), to(SOURCE), kind, include_self=own)
        )
        for kind in ("sum", "prod", "amax", "amin", "mean")
        for own in (True, False)
    },
    "whole numbers": lambda to: to(X.int()).scatter_reduce(1, to(TWICE), to(SOURCE.int()), "amax"),
    "put": lambda to: to(X).put_(to(TWICE), torch.full_like(to(SOURCE), 3.0)),
    "a bag of words": lambda to: to(torch.zeros(2, 5)).scatter_(1, to(TWICE), 1.0),
    "a single value": lambda to: to(X[0]).scatter(0, to(torch.tensor(1)), to(torch.tensor(5.0))),
    "a single factor": lambda to: to(X[0]).scatter(0, to(torch.tensor(1)), to(torch.tensor(5.0)), reduce="multiply"),
    **{
        f"{kind} of booleans": (
            lambda to, kind=kind: (
                to(X > 0).scatter_reduce(1, to(TWICE), to(SOURCE > 0), kind) | to(X.new_zeros((), dtype=torch.bool))
            )
        )
        for kind in ("prod", "amin", "amax")
    },
    **{
        f"{kind} of NaN": (
            lambda to, kind=kind: to(X).scatter_reduce(1, to(TWICE), to(SOURCE * math.nan), kind).nan_to_num(77.0)
        )
        for kind in ("amin", "amax")
    },
    "a mask of infinities": lambda to: functional.interpolate(to((X * math.inf).reshape(1, 1, 2, 5)), size=(4, 10)),
    "an image of bytes": lambda to: functional.interpolate(
        to((X * X * 3).byte().reshape(1, 1, 2, 5)), size=(2, 5), mode="bilinear"
    ),
    "gathered": lambda to: to(X).gather(1, to(TWICE)),
    "gathered from rows": lambda to: to(X).gather(0, to(FEW).clamp(max=1)),
    "booleans": lambda to: to(X > 0).gather(1, to(TWICE)),
    **{
        f"{mode} {size} {align}": (
            lambda to, mode=mode, size=size, align=align: functional.interpolate(
                to(X.reshape(1, 1, 2, 5)), size=size, mode=mode, **align
            )
        )
        for mode, align in (("nearest", {}), ("bilinear", {}), ("bilinear", {"align_corners": True}))
        for size in ((4, 10), (3, 7), (1, 2), (1, 1))
    },
}


NOT_ON_A_CPU = {"a single value", "a single factor", "amin of NaN", "amax of NaN"}  # torch_xla's own program is kept


def computed(move: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
    """What each gives, and the gradient of its input."""
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    for name, compute in COMPUTING.items():
        if name in NOT_ON_A_CPU and not session.current.tpu_branch:
            continue
        inputs: list[torch.Tensor] = []

        def to(tensor: torch.Tensor, inputs: list[torch.Tensor] = inputs) -> torch.Tensor:
            moved = move(tensor)
            if not inputs and tensor.is_floating_point():
                inputs.append(moved.requires_grad_())
                return moved * 1
            return moved

        result = compute(to)
        if result.requires_grad and not re.search(" twice|prod|multipl|single factor|NaN|infinities", name):
            result.square().sum().backward()
        found[name] = tuple(one.detach().cpu() for one in (result, *(x.grad for x in inputs)) if one is not None)
    return found


def on_the_device() -> dict[str, tuple[torch.Tensor, ...]]:
    import torch_xla

    return computed(lambda tensor: tensor.to(torch_xla.device()))


def test_they_compute_what_they_compute_on_the_cpu() -> None:
    session.initialise()
    expected, found = computed(torch.clone), run(on_the_device).value
    assert found.keys() == expected.keys() and COMPUTING.keys() - found.keys() <= NOT_ON_A_CPU
    wrong = {
        name: (found[name], values)
        for name, values in expected.items()
        if len(values) != len(found[name])
        or not all(torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(values, found[name], strict=True))
    }
    assert wrong == {}


# -- their graphs ------------------------------------------------------------------------------------------------------
def gathers_and_scatters(count: int) -> None:
    import torch_xla

    device = torch_xla.device()
    layer = torch.nn.Linear(4, count).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        labels = torch.zeros(2, 1, dtype=torch.long).to(device)
        chances = layer(torch.ones(2, 4).to(device)).log_softmax(-1)
        spread = torch.zeros_like(chances).scatter_add(1, labels, chances[:, :1])
        spread = spread.scatter_reduce(1, labels, chances[:, :1], "sum")
        (spread.mean() - chances.gather(1, labels).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def opcodes(module: bytes) -> set[bytes]:
    """Those of interest, as HloInstructionProto has them (field 2, a string)."""
    return {name for name in (b"gather", b"scatter") if b"\x12" + bytes([len(name)]) + name in module}


@pytest.mark.parametrize("stand_in", [True, False])
@pytest.mark.parametrize(("count", "expected"), [(8, set()), (90_000, {b"gather", b"scatter"})])
def test_they_are_dense_as_on_a_tpu(
    count: int, expected: set[bytes], stand_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 81,920 places for `gather`, and a hundred for each index of `scatter`."""
    if not stand_in:
        monkeypatch.setattr(session, "has_stand_in", lambda _host: False)
    assert opcodes(steady(traced(gathers_and_scatters, count)).module) == expected


def test_the_graphs_of_a_run_are_those_of_a_trace() -> None:
    same(gathers_and_scatters, 8, tpu=True)
