"""A run's data is sent once for each host, through an object store that may be full. On a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.launch.launching import refused, run
from tests.launch.pods import nodes as kinds
from tests.launch.pods import trained
from tests.launch.pods.clusters import Nodes
from tpu_magics.launch import session

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Nodes whose object stores can be full: Ray would move objects to the disk, but considers the disk full too (by
    default from 95 %)."""
    settings: dict[str, Any] = {
        "automatic_object_spilling_enabled": False,
        "object_store_full_delay_ms": 50,
        "local_fs_capacity_threshold": 0.01,
        "local_fs_monitor_interval_ms": 100,
    }
    hosts = [{"node_name": name} for name in ("alpha", "beta")]
    with (
        kinds.started([{"num_cpus": 0, "_system_config": settings}, *hosts]) as running,
        Nodes(running).connected() as own,
    ):
        yield own


def large(megabytes: int) -> Any:
    import torch

    model = torch.nn.Linear(1000, megabytes * 250, bias=False)  # 4 bytes each
    with torch.no_grad():
        model.weight.zero_()
    return model


def first_weight(model: Any) -> tuple[float, int]:
    import torch

    with torch.no_grad():
        model.weight[0, 0] += 1  # every rank's own copy
    return float(model.weight[0, 0].detach()), model.weight.untyped_storage().nbytes()


def test_a_large_model_is_sent_once_for_each_host(nodes: Nodes, fresh_session: session.Session) -> None:
    fresh_session.pod = nodes.pod()
    without = run(trained.the_world, timeout=300.0).run.info["sent"]  # this process's own modules, mostly
    result = run(first_weight, large(20), timeout=300.0)
    assert result.values == [(1.0, 20_000_000)] * 4
    assert 20_000_000 < result.run.info["sent"] - without < 20_100_000


def test_a_full_object_store_is_an_error_and_nothing_is_left(nodes: Nodes, fresh_session: session.Session) -> None:
    fresh_session.pod = nodes.pod()
    error = refused(first_weight, large(200))
    assert re.search(r"object store of the cluster is too full .* \(20\d\.\d MB\)", error.what)
    assert "--object-store-memory" in error.todo and "ray memory" in error.todo
    assert fresh_session.active_run is None
    assert len(run(trained.the_world, timeout=300.0).values) == 4
