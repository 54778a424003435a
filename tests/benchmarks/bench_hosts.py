"""What more hosts cost: time to the first step, traffic, and time until the notebook sees an event. Rehearsals of one
rank on each of 1, 2, 4 and 8 nodes of a real Ray cluster on this machine.

All nodes share the cores of this machine: what each of them does by itself (importing torch_xla, starting its process)
is as many times slower here as there are nodes for each core. The lag of an event is from its own time to the time at
which a reader of the notebook's run folder has its line. docs/many_hosts.md estimates a real network.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.benchmarks import fresh
from tests.benchmarks.models import Small

TITLE = "What more hosts cost (rehearsals, one rank on each host)"
HOSTS = (1, 2, 4, 8)
STEPS = 60
PAUSE = 0.05  # seconds between steps: events come one after the other, as in a real training
LOOK = 0.005  # seconds between two looks at the run folder
STORE = 80_000_000


# -- what the workers run ----------------------------------------------------------------------------------------------


def train(model: Any, steps: int, pause: float) -> float:
    """A few steps, each with an event; the moment at which the first one was done."""
    import time

    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    import tpu_magics

    device = torch_xla.device()
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(8, 1, 8, 8, device=device)
    first = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync(wait=True)
        first = first or time.time()
        tpu_magics.log(step=step)
        time.sleep(pause)
    return first


# -- the notebook ------------------------------------------------------------------------------------------------------


class Arrivals(threading.Thread):
    """Reads the folder of the run to come as a panel does, and notes when each `value` event was there."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root, self.lags, self.done = root, list[float](), threading.Event()
        self._read: dict[Path, int] = {}
        self._earlier = set(root.glob("*"))

    def run(self) -> None:
        while not self.done.wait(LOOK):
            for path in self.root.glob("*/rank-*.jsonl"):
                if path.parent not in self._earlier:
                    self._look(path)

    def _look(self, path: Path) -> None:
        with open(path, "rb") as file:
            file.seek(self._read.get(path, 0))
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self._read[path] = self._read.get(path, 0) + whole
        now = time.time()
        events = (json.loads(line) for line in new[:whole].splitlines())
        self.lags += [now - event["t"] for event in events if event["kind"] == "value"]


def notebook(hosts: int, rounds: int) -> list[dict[str, Any]]:
    """In a fresh process: a cluster of so many nodes, and runs on it."""
    # As Ray is imported: no statistics, and all that listens does so on 127.0.0.1 alone (tests/launch/pods/nodes.py).
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    import ray
    from ray.cluster_utils import Cluster

    import tpu_magics

    settings = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **settings})
    try:
        for _ in range(hosts - 1):
            cluster.add_node(**settings)
        began = time.time()
        tpu_magics.init(hosts=cluster.address)
        joined = time.time() - began
        return [{"joining": joined, **_one_run()} for _ in range(rounds)]
    finally:
        tpu_magics.init()
        ray.shutdown()
        cluster.shutdown()


def _one_run() -> dict[str, Any]:
    import tpu_magics
    from tpu_magics.runs.files import runs_root

    arrivals = Arrivals(runs_root())
    arrivals.start()
    began = time.time()
    result = tpu_magics.train(train, Small(), STEPS, PAUSE)
    arrivals.done.set()
    arrivals.join()
    return {"first": max(result.values) - began, "lags": arrivals.lags, "sent": result.run.info["sent"]}


# -- the table ---------------------------------------------------------------------------------------------------------


def measure(hosts: tuple[int, ...] = HOSTS, rounds: int = 2) -> list[dict[str, Any]]:
    """A row for each number of hosts."""
    return [_row(count, fresh.call(__name__, "notebook", count, rounds)) for count in hosts]


def _row(hosts: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    lags = [lag for run in runs for lag in run["lags"]]
    return {
        "hosts": hosts,
        "s to join (%tpu_init)": runs[0]["joining"],
        "s from cell to first step, median": median(run["first"] for run in runs),
        "kB sent to each host": runs[-1]["sent"] / 1e3,
        "events": len(lags),
        "ms of event lag, median": 1e3 * median(lags) if lags else None,
        "ms of event lag, 90th percentile": 1e3 * quantiles(lags, n=10)[8] if len(lags) > 1 else None,
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """What each further host adds here."""
    first, last = rows[0], rows[-1]
    if last["hosts"] == first["hosts"]:
        return []
    name = "s from cell to first step, median"
    each = (last[name] - first[name]) / (last["hosts"] - first["hosts"])
    return [
        f"Each further host adds {each:.1f} s until the first step here, where all hosts share the same "
        f"{os.cpu_count()} cores; on hosts of their own they start side by side.",
        "Bytes sent do not grow with the hosts: each gets the same parcel, once.",
    ]
