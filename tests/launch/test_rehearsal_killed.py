"""One of eight ranks is killed at a random step, twenty times: it is named, nothing is left, nothing is spoilt, and the
next run works. Real workers that train together, real signals."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from tests.launch.launching import alive, digest, failed, of, run, said, wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session"), pytest.mark.timeout(240)]

RANKS = 8
STEPS = 12
GONE_WITHIN = 5.0  # seconds
SIGNALS = ("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM")
MOMENTS = ("before the backward", "before the collective", "after the collective", "from outside")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def trains(model: Any, culprit: int, step: int, moment: str, name: str, folder: Path) -> None:
    """Train; the culprit dies at its moment of its step, or says which process it is and goes on."""
    rank = xr.global_ordinal()

    def dies(at: str, now: int) -> None:
        if (rank, at, now) == (culprit, moment, step):
            note(folder, os.getpid())
            if moment != MOMENTS[-1]:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(60)

    model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for now in range(10**6 if moment == MOMENTS[-1] else STEPS):
        optimizer.zero_grad()
        loss = model(torch.full((4, 8), rank + 1.0).to("xla")).pow(2).mean()
        dies(MOMENTS[0], now)
        loss.backward()
        dies(MOMENTS[1], now)
        dies(MOMENTS[3], now)
        xm.reduce_gradients(optimizer)
        dies(MOMENTS[2], now)
        optimizer.step()
        torch_xla.sync()


def note(folder: Path, pid: int) -> None:
    (folder / "new").write_text(f"{pid} {time.time()}")
    (folder / "new").rename(folder / "culprit")


def kill_from_outside(name: str, wait: float, folder: Path) -> None:
    """Wherever that rank is then: most of the time it waits for the others in a collective."""
    if wait_until((folder / "culprit").exists, 120):
        time.sleep(wait)
        pid = int((folder / "culprit").read_text().split()[0])
        note(folder, pid)
        os.kill(pid, getattr(signal, name))


def works_together() -> list[float]:
    values: list[float] = xm.all_reduce("sum", torch.ones(2, device="xla") * (xr.global_ordinal() + 1)).tolist()
    return values


@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(20) if n != 1)])
def test_one_of_eight_is_killed(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    culprit, step, name = chance.randrange(RANKS), chance.randrange(STEPS), chance.choice(SIGNALS)
    moment, wait = MOMENTS[number % len(MOMENTS)], chance.random() * 0.3
    print(f"seed {number}: rank {culprit} gets {name} in step {step}, {moment}")
    model = net()
    before = digest(model)

    killer = threading.Thread(target=kill_from_outside, args=(name, wait, tmp_path))
    if moment == MOMENTS[-1]:
        killer.start()
    error = failed(trains, model, culprit, step, moment, name, tmp_path, workers=RANKS, timeout=150.0)
    gone = time.time()
    if killer.ident is not None:
        killer.join()

    pid, killed = (tmp_path / "culprit").read_text().split()
    assert gone - float(killed) < GONE_WITHIN
    workers = of(error).info["workers"]
    assert workers[culprit]["pid"] == int(pid) and not any(alive(worker["pid"]) for worker in workers)
    assert error.rank == culprit and f"Rank {culprit}" in error.what and name in error.what, said(error)
    assert workers[culprit]["signal"] == getattr(signal, name) and of(error).info["status"] == "failed"
    assert digest(model) == before
    assert run(works_together, workers=2).values == [[3.0, 3.0]] * 2
