"""The time from the start of a cell to the first line of its training function: cells in a real shell, by `%%tpu_train`
and by `xmp.spawn`, in turns in one notebook.

torch_xla is imported in the notebook before (`%tpu_init` does that), and the notebook's process never starts a runtime.
The worker writes the time of the first line into a file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "From the start of a cell to the first line of its training function"
SLOWER = 0.3  # seconds that %%tpu_train may take over a bare fork
FASTER = 15  # how many times faster than spawn it must be

FORK, SPAWN = 'xmp.spawn, start_method="fork"', 'xmp.spawn, start_method="spawn"'
PASSED, BUILT = "%%tpu_train, model passed", "%%tpu_train, model built in the function (hoisted)"

SETUP = """
import time
import torch_xla.distributed.xla_multiprocessing as xmp
from tests.benchmarks.bench_launch import first_line, stamp
from tests.benchmarks.models import Small
"""
CELLS: Mapping[str, str] = {
    FORK: "xmp.spawn(first_line, args=(model, path), start_method='fork')",
    PASSED: """%%tpu_train model path
def training_function(model, path):
    stamp(path)
""",
    BUILT: """%%tpu_train path
def training_function(path):
    now = time.time()
    model = Small()
    stamp(path, now)
""",
    SPAWN: "xmp.spawn(first_line, args=(model, path), start_method='spawn')",
}


# -- what the workers run; importable, for spawn -------------------------------------------------------------------


def stamp(path: str, now: float | None = None) -> None:
    """Leave the time of this moment."""
    moment = time.time() if now is None else now
    Path(path).write_text(repr(moment))


def first_line(index: int, model: Any, path: str) -> None:
    """A training function as xmp.spawn takes it."""
    stamp(path)


# -- the notebook --------------------------------------------------------------------------------------------------


def notebook(rounds: int, spawns: int) -> dict[str, list[float]]:
    """In a fresh process: the seconds of each way, round for round. Only the first `spawns` rounds have a spawn."""
    shell = timing.shell(SETUP)
    seconds: dict[str, list[float]] = {way: [] for way in CELLS}
    for number in range(rounds):
        ways = [way for way in CELLS if way != SPAWN or number < spawns]
        # The first round keeps the order, later ones begin elsewhere: nothing always comes after the same thing.
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            seconds[way].append(_time_cell(shell, way))
    return seconds


def _time_cell(shell: Any, way: str) -> float:
    """Seconds from the start of the cell to the first line in the worker."""
    import torch_xla

    from tests.benchmarks.models import Small

    path = Path("first_line").absolute()
    path.unlink(missing_ok=True)
    shell.user_ns.update(model=Small(), path=str(path))
    start = time.time()
    timing.run_cell(shell, CELLS[way])
    assert not torch_xla._XLAC._xla_runtime_is_initialized(), "the notebook's own process started a runtime"
    if way == BUILT:
        assert "model" in shell.user_ns["_tpu"].models, "the model was not hoisted"
    return float(path.read_text()) - start


# -- the table -----------------------------------------------------------------------------------------------------


def measure(notebooks: int = 3, rounds: int = 6, spawns: int = 1) -> list[dict[str, Any]]:
    """A row for each way: the notebook's first such cell apart from the later ones."""
    runs = [fresh.call(__name__, "notebook", rounds, spawns) for _ in range(notebooks)]
    first = {way: [run[way][0] for run in runs] for way in CELLS if runs[0][way]}
    later = {way: [each for run in runs for each in run[way][1:]] for way in CELLS}
    bare = {"first": median(first[FORK]), "later": median(later[FORK])}
    spawned = median([*first.get(SPAWN, []), *later[SPAWN]]) if spawns else None
    return [
        _row(way, which, times[way], bare[which], spawned)
        for which, times in (("first", first), ("later", later))
        for way in CELLS
        if times.get(way)
    ]


def _row(way: str, which: str, times: list[float], bare: float, spawned: float | None) -> dict[str, Any]:
    took = median(times)
    return {
        "way": way,
        "cell of its notebook": which,
        "cells": len(times),
        "s, median": took,
        "s, slowest": max(times),
        "s over the bare fork": took - bare,
        "times faster than spawn": spawned / took if spawned is not None else None,
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met: by the first cell of a notebook and by the later ones."""
    ours = [row for row in rows if row["way"] in (PASSED, BUILT)]
    over = max(row["s over the bare fork"] for row in ours)
    lines = [f"Target: at most {SLOWER} s over the bare fork: {report.met(over <= SLOWER)} (at most {over:.2f} s)."]
    faster = [row["times faster than spawn"] for row in ours if row["times faster than spawn"] is not None]
    if faster:
        verdict = f"{report.met(min(faster) >= FASTER)} (at least {min(faster):.0f} times)"
        lines.append(f"Target: at least {FASTER} times faster than spawn: {verdict}.")
    return lines
