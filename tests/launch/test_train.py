"""The road of a run: values, logs and weights of several ranks come home, or nothing changes."""

from __future__ import annotations

import os
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_magics
from tests.launch.launching import (
    digest,
    failed,
    fake_notebook,
    of,
    refused,
    run,
    said,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import results, session

pytestmark = pytest.mark.usefixtures("fresh_session")


def who() -> dict[str, Any]:
    print(f"I am {os.getpid()}")
    return {"pid": os.getpid(), "parent": os.getppid(), "thread": threading.current_thread().name}


def sgd(model: Any, steps: int = 3, scale: float = 1.0) -> float:
    """Move, train, return the last loss."""
    import torch_xla

    model.to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device=torch_xla.device()) * scale).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    return float(loss)


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))


# -- values -----------------------------------------------------------------------------------------------------------


def test_three_ranks_give_three_values_and_three_logs() -> None:
    result = run(who, workers=3)
    pids = [value["pid"] for value in result.values]
    assert len(set(pids)) == 3 and os.getpid() not in pids
    assert {value["parent"] for value in result.values} == {os.getpid()}
    assert result.value == result.values[0]
    assert [result.run.log(rank).strip() for rank in range(3)] == [f"I am {pid}" for pid in pids]
    assert result.status == "done"
    assert result.run.ranks == (0, 1, 2)
    assert [worker["exit"] for worker in result.run.info["workers"]] == [0, 0, 0]
