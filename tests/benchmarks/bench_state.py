"""A second run with a 100 MB optimizer state, beside one plain torch.save + torch.load of that state.

What lives here: both in turns, in one process. What does not: weights (bench_weights.py), which such a run brings home
as well; the function here trains none.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks import fresh

TITLE = "Bringing home 100 MB of an optimizer's state"
TIMES = 3  # the plain save + load that it may take
NUMBERS = 12_500_000  # float32, twice: 100 MB

PLAIN = "torch.save + torch.load"
OURS = "collect + load"


def measure(rounds: int = 7) -> list[dict[str, Any]]:
    """One row for each way. The first round is left out; the ratio compares within each round, and is their median."""
    taken: dict[str, list[float]] = fresh.call(__name__, "take_turns", rounds + 1)
    seconds = {way: times[1:] for way, times in taken.items()}
    ratio = median(ours / plain for ours, plain in zip(seconds[OURS], seconds[PLAIN], strict=True))
    return [
        {"what": PLAIN, "seconds": round(median(seconds[PLAIN]), 3), "ratio": 1.0},
        {"what": OURS, "seconds": round(median(seconds[OURS]), 3), "ratio": round(ratio, 2)},
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the table should be read with."""
    return [f"Target: at most {TIMES} times the plain save and load ({rows[1]['ratio']} measured)."]


def take_turns(rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, in a process of its own."""
    import torch

    from tpu_magics.backends.torch_xla.state import TorchState
    from tpu_magics.launch.state import collect, restore, walk

    model = torch.nn.ParameterList([torch.zeros(NUMBERS)])
    optimizer = torch.optim.Adam(model.parameters())
    model[0].grad = torch.ones(NUMBERS)
    optimizer.step()
    adapter, taken = TorchState(), {PLAIN: [], OURS: []}  # type: ignore[var-annotated]
    with TemporaryDirectory() as folder:
        for _ in range(rounds):
            begun = time.perf_counter()
            torch.save(optimizer.state_dict(), Path(folder) / "plain.pt")
            torch.load(Path(folder) / "plain.pt")
            taken[PLAIN].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            snapshot = walk.take([("optimizer", optimizer)], adapter, {"model": model})
            taken[OURS].append(time.perf_counter() - begun)
            optimizer.step()
            begun = time.perf_counter()
            collector = collect.Collector(snapshot, {"model": model}, adapter)
            collector.write(collector.changes(), Path(folder))
            restore.stage(snapshot, adapter, Path(folder)).apply()
            taken[OURS][-1] += time.perf_counter() - begun
    return taken
