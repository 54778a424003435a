"""Models that benchmarks pass to workers. Importing this imports torch, so it is done inside functions only."""

from __future__ import annotations

from typing import Any

import torch


class Blocks(torch.nn.Module):
    """A model of a given size: `count` layers of 1000 x 1000 numbers in float32, which are 4 MB (powers of ten)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1000, 1000, bias=False) for _ in range(count))


class Small(torch.nn.Module):
    """A convolutional net for 8 x 8 images in ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 10)
        )

    def forward(self, images: Any) -> Any:
        return self.body(images)
