"""Training on three hosts with two ranks each, on a real cluster: as on one host with six."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launch.launching import digest, fake_notebook, run
from tests.launch.pods import trained
from tests.launch.pods.trained import net
from tpu_magics.launch import session
from tpu_magics.runs.events import Compile, Memory, Start, only

pytestmark = pytest.mark.slow


def weights(model: Any) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def counted(result: Any) -> tuple[Any, ...]:
    compiles = [(one.rank, one.nth, one.graph) for one in only(result.run.events(), Compile)]
    return result.steps, result.compiles, result.recompiles, sorted(compiles)


def test_three_hosts_with_two_ranks_train_as_one_host_with_six(pod: session.Session) -> None:
    there, here = net(), net()
    assert digest(there) != "" and weights(there) == weights(here)
    notebook = fake_notebook()
    on_hosts = run(trained.steps, there, timeout=300.0)
    assert notebook.printed == "".join(f"step {step}\n" for step in range(5))
    pod.pod = None
    on_one = run(trained.steps, here, processes=6)
    assert on_hosts.values == on_one.values and len(on_hosts.values) == 6
    assert weights(there) == weights(here) != weights(net())
    assert counted(on_hosts) == counted(on_one)


def test_the_run_folder_tells_of_every_host(pod: session.Session) -> None:
    result = run(trained.the_world, timeout=300.0)
    for rank, told in enumerate(result.values):
        assert told["rank"] == rank and told["size"] == (6, 6, 6) and told["master"] == (rank == 0, rank % 2 == 0)
        assert told["local"] == (rank % 2, rank % 2, str(rank % 2))
    assert len({told["parent"] for told in result.values}) == 3
    info = result.run.info
    assert [(one["name"], one["ranks"]) for one in info["hosts"]] == [
        ("node-0", [0, 1]),
        ("node-1", [2, 3]),
        ("node-2", [4, 5]),
    ]
    assert [(one["rank"], one["host"], one["exit"]) for one in info["workers"]] == [(r, r // 2, 0) for r in range(6)]
    assert info["plan"]["hosts"] == 3 and info["plan"]["workers"] == 6 and info["plan"]["rehearsed"] is True
    assert {start.rank for start in only(result.run.events(), Start)} == set(range(6))
    assert {one.rank for one in only(result.run.events(), Memory)} == set(range(6))
    assert info["status"] == "done" and not list(result.run.path.glob("result-*"))


def test_a_run_of_a_few_steps_leaves_the_models_alone(pod: session.Session) -> None:
    model = net()
    result = run(trained.steps, model, steps=2, timeout=300.0)
    assert (result.status, result.steps, result.value) == ("stopped", 2, None) and weights(model) == weights(net())
    assert pod.pod is not None


def test_accelerate_trains_on_hosts(pod: session.Session) -> None:
    there, here = net(), net()
    on_hosts = run(trained.accelerated, there, timeout=300.0)
    pod.pod = None
    on_one = run(trained.accelerated, here, processes=6)
    assert on_hosts.values == on_one.values and on_hosts.value[:2] == ([0, 1, 2, 3, 4, 5], 6)
    assert weights(there) == weights(here)
