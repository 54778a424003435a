"""Training on two hosts with two ranks each, on a real cluster: as on one host with four."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launch.launching import digest, fake_notebook, run
from tests.launch.pods import trained
from tests.launch.pods.trained import net
from tpu_magics.launch import session
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.events import Compile, Memory, Start, only

pytestmark = pytest.mark.process


def weights(model: Any) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def counted(result: Any) -> tuple[Any, ...]:
    compiles = [(one.rank, one.nth, one.graph) for one in only(result.run.events(), Compile)]
    return result.steps, result.compiles, result.recompiles, sorted(compiles)


def trains_and_describes_the_world(model: Any) -> tuple[list[float], dict[str, Any]]:
    return trained.steps(model), trained.the_world()


def test_two_hosts_with_two_ranks_train_as_one_host_with_four(pod: session.Session) -> None:
    there, here = net(), net()
    assert digest(there) != "" and weights(there) == weights(here)
    notebook = fake_notebook()
    on_hosts = run(trains_and_describes_the_world, there, timeout=300.0)
    assert notebook.printed == "".join(f"step {step}\n" for step in range(5))
    pod.pod = None
    session.initialise(tpu_branch=False)  # hosts of a cluster have no other branch
    on_one = run(trains_and_describes_the_world, here, processes=4)
    assert [losses for losses, _ in on_hosts.values] == [losses for losses, _ in on_one.values]
    assert weights(there) == weights(here) != weights(net())
    assert counted(on_hosts) == counted(on_one)
    require_all_hosts(on_hosts)


def require_all_hosts(result: TrainResult) -> None:
    """In the ranks' answers, and in the run folder."""
    worlds = [told for _, told in result.values]
    for rank, told in enumerate(worlds):
        assert told["removed names"] == (rank, 4)
        assert told["rank"] == rank and told["size"] == (4, 4, 4) and told["master"] == (rank == 0, rank % 2 == 0)
        assert told["local"] == (rank % 2, rank % 2, str(rank % 2))
    assert len(worlds) == 4 and len({told["parent"] for told in worlds}) == 2
    info = result.run.info
    assert [(one["name"], one["ranks"]) for one in info["hosts"]] == [("alpha", [0, 1]), ("beta", [2, 3])]
    assert [(one["rank"], one["host"], one["exit"]) for one in info["workers"]] == [(r, r // 2, 0) for r in range(4)]
    assert info["plan"]["hosts"] == 2 and info["plan"]["workers"] == 4 and info["plan"]["rehearsed"] is True
    assert {start.rank for start in only(result.run.events(), Start)} == set(range(4))
    assert {one.rank for one in only(result.run.events(), Memory)} == set(range(4))
    assert info["status"] == "done" and not list(result.run.path.glob("result-*"))


@pytest.mark.long
def test_a_run_of_a_few_steps_leaves_the_models_unchanged(pod: session.Session) -> None:
    model = net()
    result = run(trained.steps, model, steps=2, timeout=300.0)
    assert (result.status, result.steps, result.value) == ("stopped", 2, None) and weights(model) == weights(net())
    assert pod.pod is not None


@pytest.mark.long
def test_accelerate_trains_on_hosts(pod: session.Session) -> None:
    there, here = net(), net()
    on_hosts = run(trained.accelerated, there, timeout=300.0)
    pod.pod = None
    on_one = run(trained.accelerated, here, processes=4)
    assert on_hosts.values == on_one.values and on_hosts.value[:2] == ([0, 1, 2, 3], 4)
    assert weights(there) == weights(here)
