"""A host that is lost during a run: on a real cluster, with nodes that are killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch.launching import failed, refused, run, said
from tests.launch.pods import clusters, trained
from tests.launch.pods.clusters import Nodes
from tests.launch.pods.test_training import weights
from tests.launch.pods.trained import net
from tpu_magics.launch import session

pytestmark = [pytest.mark.process, pytest.mark.long]

SEED, TIMES = 20261122, 5
NAMED_WITHIN = 30.0  # seconds


def marks_steps(model: Any, folder: str) -> None:
    """Trains without end, and leaves a file for each step of rank 0."""
    import torch_xla.runtime as xr

    for step in range(10_000):
        trained.steps(model, 1)
        if xr.global_ordinal() == 0:
            Path(folder, f"step-{step}").touch()


class Killer(threading.Thread):
    """Kills a node as soon as a step is done. `killed`: when that was."""

    def __init__(self, nodes: Nodes, name: str, mark: Path) -> None:
        super().__init__()
        self.nodes, self.victim, self.mark = nodes, name, mark
        self.killed = 0.0

    def run(self) -> None:
        until = time.monotonic() + 90
        while not self.mark.exists() and time.monotonic() < until:
            time.sleep(0.02)
        self.killed = time.monotonic()
        self.nodes.kill(self.victim)


def lose(nodes: Nodes, victim: str, step: int, folder: Path) -> tuple[float, str]:
    """Train until a node is killed after this step: seconds until the error, and its text."""
    folder.mkdir()
    model = net()
    killer = Killer(nodes, victim, folder / f"step-{step}")
    killer.start()
    error = failed(marks_steps, model, str(folder), timeout=300.0)
    seconds = time.monotonic() - killer.killed
    killer.join()
    assert killer.mark.exists() and weights(model) == weights(net())
    return seconds, said(error)


def left_is_said(nodes: Nodes, victim: str) -> None:
    """Before a run on the same hosts, and at once."""
    nodes.wait_dead()
    started = time.monotonic()
    error = refused(trained.the_world)
    assert f"Host {victim} left the cluster since %tpu_init." in error.what and "%tpu_init --hosts" in error.todo
    assert time.monotonic() - started < 10


def test_a_lost_host_is_named_and_the_next_cell_trains(
    nodes: Nodes, fresh_session: session.Session, tmp_path: Path
) -> None:
    """The next run on these hosts is refused at once: one of them is known to have left."""
    chance = random.Random(SEED)
    took = []
    for number in range(TIMES):
        with nodes.added(f"gamma-{number}") as victim:
            fresh_session.pod = nodes.pod("alpha", victim)
            step = chance.randrange(30)
            seconds, text = lose(nodes, victim, step, tmp_path / str(number))
            print(f"seed {SEED}, {number}: killed after step {step}, named after {seconds:.1f} s", flush=True)
            assert f"Host {victim} (ranks " in text and "lost during the run" in text, text
            assert seconds < NAMED_WITHIN and not clusters.wait_gone()
            took.append(seconds)
            left_is_said(nodes, victim)
    print(f"named after {min(took):.1f} to {max(took):.1f} s, median {sorted(took)[TIMES // 2]:.1f} s")
    fresh_session.pod = nodes.pod()
    assert len(run(trained.the_world, timeout=300.0).values) == 4


def test_a_host_that_falls_silent_is_lost(nodes: Nodes, fresh_session: session.Session, tmp_path: Path) -> None:
    """Its processes run but do not answer, as after a network failure."""
    fresh_session.pod = nodes.pod()
    silenced: list[psutil.Process] = []
    since: list[float] = []

    def silence() -> None:
        while not (tmp_path / "step-3").exists():
            time.sleep(0.05)
        actors = [one for one in clusters.ours() if one.cmdline()[0].startswith("ray::HostActor")]
        silenced.append(max(actors, key=lambda one: one.pid))
        silenced[0].suspend()
        since.append(time.monotonic())

    thread = threading.Thread(target=silence)
    thread.start()
    try:
        text = said(failed(marks_steps, net(), str(tmp_path), timeout=300.0))
        took = time.monotonic() - since[0]
    finally:
        thread.join()
        silenced[0].resume()
    assert "lost during the run" in text and "did not answer for 20 s" in text, text
    print(f"named after {took:.1f} s")
    assert took < NAMED_WITHIN
    assert not clusters.wait_gone()
