"""How much host memory one worker takes besides models (bench_memory.py has the models), during a small training.
`PER_WORKER` in tpu_magics/launch/plan.py, with which a run's memory is estimated, comes from here.

A worker begins with the pages of the notebook's process; a page becomes its own when either of the two writes to it.
Private pages that were written are counted (Private_Dirty); those of files can be read again and are left out.
"""

from __future__ import annotations

import gc
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, timing

TITLE = "Host memory of one worker besides models"
WORKERS = 8
STEPS = 30
INSIDE, FIRST, LAST, COLLECTED = (
    "inside the function, runtime up",
    "after the first training step",
    f"after {STEPS} steps",
    "after a garbage collection",
)


def private() -> int:
    """Bytes of written pages that belong to this process alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))


def training_function(model: Any) -> dict[str, int]:
    """Train a small convolutional net on noise; private bytes at each moment."""
    found = {INSIDE: private()}
    import torch
    import torch_xla

    device = torch_xla.device()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(STEPS):
        images, labels = torch.randn(32, 1, 8, 8).to(device), torch.randint(0, 10, (32,)).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        loss.item()
        if number == 0:
            found[FIRST] = private()
    found[LAST] = private()
    gc.collect()
    found[COLLECTED] = private()
    return found


def notebook(workers: int) -> list[dict[str, int]]:
    """In a fresh process: a run of `workers` workers, and what each of them saw."""
    from tests.benchmarks.models import Small

    timing.notebook_session()
    return list(timing.train(training_function, (Small(),), workers).values)


def measure(workers: int = WORKERS, rounds: int = 3) -> list[dict[str, Any]]:
    """A row for each moment, over all workers of all rounds and of single workers."""
    many = [each for _ in range(rounds) for each in fresh.call(__name__, "notebook", workers)]
    alone = [each for _ in range(rounds) for each in fresh.call(__name__, "notebook", 1)]
    return [
        {
            "moment": moment,
            f"private MB, median of {workers} workers": median(each[moment] for each in many) / 1e6,
            "most": max(each[moment] for each in many) / 1e6,
            "a single worker": median(each[moment] for each in alone) / 1e6,
        }
        for moment in (INSIDE, FIRST, LAST, COLLECTED)
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the forecast of a run's memory counts with."""
    from tpu_magics.launch.plan import PER_WORKER

    return [f"The forecast before a run counts {PER_WORKER / 1e6:.0f} MB for each worker besides models."]
