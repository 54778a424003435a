"""The kernel is killed while it trains: its workers die with it, and its ports are free again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from tests.forks import ended

from .kernel import LOAD, Kernel
from .samples import LOADING, MODEL, TRAIN

pytestmark = pytest.mark.process


def gone(pids: list[int], within: float = 15) -> list[int]:
    """Those of the processes that are still there after a while."""
    until = time.monotonic() + within
    while (left := [pid for pid in pids if not ended(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def test_workers_die_with_the_kernel_and_a_restart_works(own_kernel: Kernel, tmp_path: Path) -> None:
    kernel = own_kernel
    kernel.run(MODEL + TRAIN).good()
    cell = kernel.send(LOADING.format(options=""))
    kernel.wait_for(cell, "loading")
    family = [process.pid for process in kernel.descendants()]
    assert len(kernel.workers()) == 3, "a worker and its two loaders"
    kernel.kill()
    assert gone(family) == [], "processes outlive the kernel"

    # The same ports again; what was going on is told as it is.
    kernel.restart()
    kernel.run(LOAD).good()
    [info] = [json.loads(path.read_text()) for path in (tmp_path / ".tpu_runs").glob("*/run.json")]
    assert info["status"] == "running"
    told = kernel.run("%tpu_runs").good().displays[0]["text/plain"]
    assert "loads" in told and "lost" in told and "running" not in told
    kernel.run(MODEL + TRAIN).good()
    assert "train: done" in kernel.run("%tpu_train train model").good().printed

    # A kernel that ends by itself (here: its front end shuts it down) takes a background run along.
    cell = kernel.run(LOADING.format(options=" --background")).good()
    kernel.wait_until(lambda: len(kernel.workers()) == 3)
    family = [process.pid for process in kernel.descendants()]
    ports = {kernel.manager.shell_port, kernel.manager.iopub_port, kernel.manager.hb_port}
    kernel.client.shutdown()
    assert gone([kernel.pid, *family]) == []
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert not ports & listening
