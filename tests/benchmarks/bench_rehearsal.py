"""What a rehearsal of N ranks costs on this machine: start, training of a tiny model, and memory; runs of 1, 2, 4 and 8
ranks in turns in one notebook, each on both branches of torch_xla: as a CPU, and with XLA:CPU in a TPU's place.

The start is from the first fork until the last rank enters its function: its runtime is up, and it has met the others.
A step ends when the device has done it. The collectives' share is the time that rank 0 spends in them, mostly waiting:
with more ranks than cores, others compute meanwhile. Memory is the proportional set size (Pss) of the notebook's
process and all workers after the last step, without pages of files, as in bench_memory.py.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any
from unittest import mock

from tests.benchmarks import fresh, report, timing
from tests.benchmarks.bench_memory import proportional

TITLE = "A rehearsal of eight ranks"
RANKS = (1, 2, 4, 8)
STEPS = 50
SLOPE = 0.3  # seconds that start-up may take longer for each rank more
LINEAR = 1.2  # how many times more a rank may take beyond four than below
TPU_BRANCH = 1.1  # how many times as long a cell's start and a step may take with XLA:CPU in a TPU's place


# -- on a rank --------------------------------------------------------------------------------------------------------


def training_function(steps: int) -> dict[str, float]:
    """Train a small convolutional net on noise; seconds of the first step and of the others, and the collectives'."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    from tests.benchmarks.models import Small
    from tpu_magics.backends.torch_xla.rehearse.join import carried

    model = Small().to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    moments, before = [time.perf_counter()], carried()
    for number in range(steps):
        images, labels = torch.randn(32, 1, 8, 8).to("xla"), torch.randint(0, 10, (32,)).to("xla")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync(wait=True)
        if number in (1, steps - 1):  # AdamW makes its state in the first step: the second is another graph
            moments.append(time.perf_counter())
            before = carried() if number == 1 else before
    count, seconds = (after - old for after, old in zip(carried(), before, strict=True))
    pids = [int(pid) for pid in xm.rendezvous("all have trained", str(os.getpid()).encode())]
    memory = sum(proportional(pid) for pid in [os.getppid(), *pids]) if xm.is_master_ordinal() else 0
    xm.rendezvous("memory was looked at")
    compiling, training = moments[1] - moments[0], moments[2] - moments[1]
    return {"first": compiling, "rest": training, "carrying": seconds, "collectives": count, "memory": memory}


# -- the notebook -----------------------------------------------------------------------------------------------------


def notebook(ranks: Sequence[int], steps: int, rounds: int) -> list[dict[str, float]]:
    """In a fresh process: rounds of runs with each number of ranks in turn; what was measured in each."""
    from tpu_magics.launch import process, session

    timing.notebook_session()
    assert session.initialise(tpu_branch=True).branch == "TPU"  # its plugin is loaded once in a notebook
    forks: list[float] = []
    fork = process.fork_worker

    def noting(*args: Any) -> Any:
        forks.append(time.time())
        return fork(*args)

    with mock.patch.object(process, "fork_worker", noting):
        _run(ranks[0], False, 3, forks)  # what only the first run of a notebook does
        return [
            _run(number, branch, steps, forks)
            for _ in range(rounds)
            for number in ranks
            for branch in random.sample([False, True], 2)
        ]


def _run(ranks: int, branch: bool, steps: int, forks: list[float]) -> dict[str, float]:
    from tpu_magics.launch import session
    from tpu_magics.runs.events import Phase, only

    session.initialise(tpu_branch=branch)
    forks.clear()
    result = timing.train(training_function, (steps,), ranks, hoist="off")
    entered = [event.t for event in only(result.run.events(), Phase) if event.name == "training"]
    assert len(entered) == len(forks) == ranks
    return {"ranks": ranks, "branch": branch, "start": max(entered) - forks[0], **result.value}


# -- the table --------------------------------------------------------------------------------------------------------


def measure(rounds: int = 5, steps: int = STEPS, ranks: Sequence[int] = RANKS) -> list[dict[str, Any]]:
    """A row for each number of ranks, medians over all rounds."""
    found = fresh.call(__name__, "notebook", list(ranks), steps, rounds, timeout=1800)
    return [_row(number, steps, [each for each in found if each["ranks"] == number]) for number in ranks]


def _row(ranks: int, steps: int, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    def middle(get: Callable[[dict[str, float]], float], branch: bool = False) -> float:
        return median(get(run) for run in runs if run["branch"] == branch)

    def times(get: Callable[[dict[str, float]], float]) -> float:
        return middle(get, branch=True) / middle(get)

    return {
        "ranks": ranks,
        "start-up s, median": middle(lambda run: run["start"]),
        "slowest": max(run["start"] for run in runs if not run["branch"]),
        f"{steps} steps, s": middle(lambda run: run["first"] + run["rest"]),
        "of it the first two (they compile)": middle(lambda run: run["first"]),
        "share of collectives in the others, %": middle(lambda run: 100 * run["carrying"] / run["rest"]),
        "collectives a step": middle(lambda run: run["collectives"] / (steps - 2)),
        "memory of all processes, MB": middle(lambda run: run["memory"] / 1e6),
        "TPU branch: start-up, times": times(lambda run: run["start"]),
        "until the second step is done, times": times(lambda run: run["start"] + run["first"]),
        "a later step, times": times(lambda run: run["rest"]),
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope of y over x."""
    x, y = fmean(one for one, _ in points), fmean(two for _, two in points)
    return sum((one - x) * (two - y) for one, two in points) / sum((one - x) ** 2 for one, _ in points)


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    points = [(float(row["ranks"]), float(row["start-up s, median"])) for row in rows]
    grows = slope(points)
    below, beyond = slope(points[:-1]), slope(points[-2:])
    more = slope([(float(row["ranks"]), row["memory of all processes, MB"]) for row in rows])
    slowest = max(row[name] for row in rows for name in ("until the second step is done, times", "a later step, times"))
    return [
        f"Target: with XLA:CPU in a TPU's place, the start of a cell and its steps take at most {TPU_BRANCH} times as "
        "long: "
        f"{report.met(slowest <= TPU_BRANCH)} (at most {slowest:.2f}).",
        f"Target: start-up takes less than {SLOPE} s more for each rank: {report.met(grows < SLOPE)} "
        f"({grows:.2f} s, least squares over the medians).",
        f"Target: start-up grows at most linearly: {report.met(beyond <= LINEAR * below)} ({below:.2f} s a rank up to "
        f"{rows[-2]['ranks']} ranks, {beyond:.2f} s beyond; {LINEAR} times as much is taken for the same).",
        f"Each rank more takes {more:.0f} MB. A single rank has no collectives that the host carries.",
    ]
