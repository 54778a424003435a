"""Published step times of TPUs beside the bound and the compiler's estimate of a preflight of the same program.

Each program is written as its source describes it, traced for that TPU, and compiled; nothing runs on a TPU. Rows whose
programs cannot be rebuilt from public sources are left out (kernels, or settings that are not told).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import fresh, steady
from tpu_magics.preflight.compile_cache import Store, default_folder

TITLE = "Published step times, the bound, and the compiler's estimate"
DOCUMENT = "profile.md"
TIMEOUT = 3000.0  # seconds for one program


@dataclass(frozen=True)
class Published:
    """A measurement. `published`: milliseconds of a step, the least and the most that are told; `source`: where."""

    program: str
    function: Callable[[], None]
    target: str
    published: tuple[float, float]
    source: str


def resnet50() -> None:
    """torch_xla's test/test_train_mp_imagenet.py with --fake_data: ResNet-50 in f32, 128 images of 224 x 224 for each
    device, SGD with momentum."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from transformers import ResNetConfig, ResNetForImageClassification

    device = torch_xla.device()
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(5):
        images, labels = torch.zeros(128, 3, 224, 224).to(device), torch.zeros(128, dtype=torch.long).to(device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


PUBLISHED = (
    Published("ResNet-50, f32, 128 images per chip", resnet50, "v4-8", (71.1, 73.1), "pytorch/xla#6658, #6026, #7131"),
    Published("ResNet-50, f32, 128 images per chip", resnet50, "v4-8", (88.0, 88.4), "pytorch/xla#5720"),
    Published("ResNet-50, f32, 128 images per core", resnet50, "v3-8", (220.7, 232.7), "pytorch/xla#4030, #4324"),
)


def one(number: int) -> dict[str, Any]:
    """The row of that number."""
    os.environ["XDG_CACHE_HOME"] = str(Path.home() / ".cache")
    row = PUBLISHED[number]
    found = steady.compiled(steady.traced(row.function, target=row.target), row.target, Store(default_folder()))
    least, estimate = found.least, found.profile.seconds
    if not least or estimate is None:
        raise RuntimeError(f"{row.program} on {row.target}: {found.status}, {found.profile.missing}")
    middle = sum(row.published) / 2
    unknown = len(found.profile.whole.unknown)
    return {
        "program": row.program,
        "TPU": row.target,
        "published ms": " to ".join(f"{value:g}" for value in row.published),
        "bound ms": 1000 * least,
        "estimate ms": 1000 * estimate,
        "bound / published": 1000 * least / middle,
        "estimate / published": 1000 * estimate / middle,
        "operations without an estimate": unknown,
        "source": row.source,
    }


def measure() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        fresh.call(__name__, "one", number, timeout=TIMEOUT) for number in range(len(PUBLISHED))
    ]
    return found


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    shares = [row["estimate / published"] for row in rows]
    bounds = [row["bound / published"] for row in rows]
    return [
        f"The estimate is {min(shares):.2f} to {max(shares):.2f} of what was published, the bound {min(bounds):.2f} to "
        f"{max(bounds):.2f}.",
    ]
