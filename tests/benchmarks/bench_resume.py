"""What checkpoints cost: the training's time with and without them, the bytes of one, and the way back to a step."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

TITLE = "Checkpoints"
SIZES = {"10 MB": 2, "400 MB": 80}  # of the model's weights: layers of 1,100 x 1,100 float32
TARGET = 3.0  # per cent of the time, at the default of 5 minutes
STEPS, WIDTH = 12, 1100
INTERVAL = 300.0


def training(model: Any, steps: int, moments: Any = None) -> Any:
    """AdamW, so that a checkpoint has three times the weights."""
    import torch
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(4, WIDTH).to(device)
    found = []
    for _step in range(steps):
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        found.append(time.time())
    return found if moments is None else moments


def measure(rounds: int = 2) -> list[dict[str, Any]]:
    """A row for each size: runs with and without checkpoints take turns."""
    import torch

    import tpu_magics

    rows = []
    for name, layers in SIZES.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        folder = Path(tempfile.mkdtemp())
        try:
            without, beside, copied, written, sizes = [], [], [], [], []
            for _ in range(rounds):
                tpu_magics.init(checkpoints="off")
                plain = tpu_magics.train(training, model, STEPS, plain=True, timeout=600)
                without.append(_seconds(plain.value))
                shutil.rmtree(folder / "training", ignore_errors=True)
                tpu_magics.init(checkpoints=str(folder))
                saving = tpu_magics.train(training, model, STEPS, plain=True, save_every=STEPS // 2, timeout=600)
                beside.append(_seconds(saving.value))
                for one in saving.run.events("saved", 0):
                    copied.append(one.copied)  # type: ignore[attr-defined]
                    written.append(one.written)  # type: ignore[attr-defined]
                    sizes.append(one.size)  # type: ignore[attr-defined]
            began = time.time()
            back = tpu_magics.train(training, model, STEPS, plain=True, resume=True, force=True, timeout=600)
            rows.append(_row(name, without, beside, copied, written, sizes, back.value[STEPS // 2] - began))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def _seconds(moments: list[float]) -> float:
    """From the third step to the last: the first two compile."""
    return moments[-1] - moments[2]


def _row(
    name: str,
    without: list[float],
    beside: list[float],
    copied: list[float],
    written: list[float],
    sizes: list[int],
    back: float,
) -> dict[str, Any]:
    more = max(0.0, min(beside) - min(without))  # what one save costs the training, its thread's share of CPU included
    return {
        "model": name,
        "bytes of a checkpoint, MB": max(sizes) / 1e6,
        "training waits, s": sorted(copied)[len(copied) // 2],
        "thread writes, s": sorted(written)[len(written) // 2],
        "a save costs in all, s": more,
        "of 5 minutes, %": 100 * more / INTERVAL,
        "from the cell to the first resumed step, s": back,
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    from tests.benchmarks import report

    worst = max(row["of 5 minutes, %"] for row in rows)
    return [
        f"Target: at most {TARGET:.0f} % of the time at the default of a save every 5 minutes: "
        f"{report.met(worst <= TARGET)} ({worst:.2f} %). The training and the thread that writes share two cores."
    ]
