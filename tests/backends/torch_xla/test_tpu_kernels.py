"""Operations that become custom calls of libtpu's on a TPU, and run in another way on XLA:CPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.traced import steady, traced
from tpu_magics.backends.torch_xla.trace.placeholders import VALUE

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
