"""On the hosts of a cluster: a run saves through its place, and starts again after a worker was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import tpu_magics
from tests.launch.launching import run
from tpu_magics.launch import session

pytestmark = [pytest.mark.process, pytest.mark.timeout(280)]


def trains(model: Any, folder: str, dies: bool) -> Any:
    """Ranks that average their gradients; rank 3 is killed at its 13th step, once."""
    rank, device = xr.global_ordinal(), torch_xla.device()
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    total = 0.0
    for step in range(20):
        optimizer.zero_grad()
        loss = model(torch.rand(4, 8, generator=generator).to(device)).pow(2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        total += loss.item()
        tpu_magics.log(loss=loss.item())
        killed = Path(folder, "killed")
        if dies and rank == 3 and step == 12 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return total


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def test_a_killed_worker_is_made_up_for(pod: session.Session, tmp_path: Path) -> None:
    untouched, model = net(), net()
    whole = run(trains, untouched, str(tmp_path), False, processes=4)
    pod.checkpoints = str(tmp_path / "place")
    again = run(trains, model, str(tmp_path), True, save_every=5, retries=1, processes=4)
    assert again.values == whole.values
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))
    [resumed] = again.run.events("resumed", 0)
    assert resumed.step in (5, 10)  # type: ignore[attr-defined]
    assert len(again.run.events("saved", 0)) >= 1
    names = sorted(one.name for one in (tmp_path / "place" / "trains").glob("step-*"))
    assert len(names) == 2
    assert (tmp_path / "place" / "trains" / names[-1] / "rank-3.json").exists()
