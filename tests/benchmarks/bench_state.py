"""A second run that changes a 100 MB optimizer state, beside one plain torch.save + torch.load of that state.

Whole cells in one notebook, in turns. What the state costs is a run that changes it and the weights, less one that
takes the same step with a copy of the optimizer, which stays in the worker. What weights cost is in bench_weights.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "100 MB of an optimizer's state"
TIMES = 3  # the plain save + load that it may take
NUMBERS = 12_500_000  # float32, twice: 100 MB

PLAIN = "torch.save + torch.load of the state"
BOTH = "%%tpu_train: a step of the notebook's optimizer"
WEIGHTS = "%%tpu_train: a step of a copy in the worker"
SETUP = f"""
import copy
import torch
model = torch.nn.ParameterList([torch.zeros({NUMBERS})])
optimizer = torch.optim.Adam(model.parameters())
model[0].grad = torch.ones({NUMBERS})
optimizer.step()
"""
CELLS: Mapping[str, str] = {
    PLAIN: 'torch.save(optimizer.state_dict(), "plain.pt")\nstate = torch.load("plain.pt")',
    BOTH: "%%tpu_train --plain\ndef training_function():\n    optimizer.step()",
    WEIGHTS: """%%tpu_train --plain
def training_function():
    own = torch.optim.Adam(model.parameters())
    own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    own.step()""",
}


def measure(rounds: int = 7) -> list[dict[str, Any]]:
    """A row for each cell, and one for the state alone. The first round is left out; the ratio compares within each
    round, and is their median."""
    taken: dict[str, list[float]] = fresh.call(__name__, "notebook", rounds + 1)
    seconds = {way: times[1:] for way, times in taken.items()}
    state = [both - weights for both, weights in zip(seconds[BOTH], seconds[WEIGHTS], strict=True)]
    ratio = median(ours / plain for ours, plain in zip(state, seconds[PLAIN], strict=True))
    rows = [{"what": way, "seconds": round(median(times), 3), "ratio": None} for way, times in seconds.items()]
    return [*rows, {"what": "the difference of the two", "seconds": round(median(state), 3), "ratio": round(ratio, 2)}]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the table should be read with."""
    ratio = rows[-1]["ratio"]
    return [f"Target: at most {TIMES} times the plain save and load: {report.met(ratio <= TIMES)} ({ratio} measured)."]


def notebook(rounds: int) -> dict[str, list[float]]:
    """Seconds of each cell in each round, in a process of its own."""
    shell = timing.shell(SETUP)
    taken: dict[str, list[float]] = {way: [] for way in CELLS}
    for _ in range(rounds):
        for way, cell in CELLS.items():
            before = shell.user_ns["optimizer"].state[shell.user_ns["model"][0]]["step"].item()
            taken[way].append(timing.seconds(lambda: timing.run_cell(shell, cell)))
            after = shell.user_ns["optimizer"].state[shell.user_ns["model"][0]]["step"].item()
            assert after - before == (way == BOTH), "the state did not come home"
    Path("plain.pt").unlink()
    return taken
