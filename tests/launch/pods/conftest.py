"""Fixtures of the tests on a cluster (clusters.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.pods import clusters
from tests.launch.pods import nodes as kinds
from tests.launch.pods.clusters import Nodes
from tpu_magics.launch import session
from tpu_magics.launch.pods import cluster, slices

HERE = Path(__file__).resolve().parent
LONG = 900  # seconds
os.environ.update(kinds.HERE_ONLY)  # before Ray is imported


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The cluster of all tests of this folder: a head without CPUs, which also listens for ray://, a host like this
    process, and one with another patch version of torch. No process is connected. A test that kills a node adds its
    own."""
    other = kinds.other_versions(tmp_path_factory.mktemp("other"), torch="2.9.1")
    head = {"node_name": "head", "num_cpus": 0, "ray_client_server_port": kinds.free_port()}
    hosts = [{"node_name": "alpha", "num_cpus": 2}, {"node_name": "beta", "num_cpus": 3, "env_vars": other}]
    with kinds.started([head, *hosts]) as running:
        yield Nodes(running)


@pytest.fixture(scope="package")
def of_slice() -> Iterator[str]:
    """The address of another cluster: a head, and the two hosts of a v4-16 that joined in the wrong order."""
    hosts = kinds.fake_tpu_nodes("my-slice", "v4-16", "2x2x2", 4, 2)
    with kinds.started([{"node_name": "head"}, *reversed(hosts)]) as running:
        yield running.address
        slices.release()
        cluster.disconnect()


@pytest.fixture(scope="module")
def nodes(shared: Nodes) -> Iterator[Nodes]:
    """The cluster, with this process connected to it."""
    with shared.connected():
        yield shared


@pytest.fixture
def pod(nodes: Nodes, fresh_session: session.Session) -> session.Session:
    """A session whose runs go to two hosts with two ranks each."""
    fresh_session.pod = nodes.pod()
    return fresh_session


@pytest.fixture(autouse=True)
def _launchers_leave_nothing() -> Iterator[None]:
    """In place of the fixture for all tests: Ray starts and ends its own processes at any time, but no process of a run
    may be left on any node."""
    yield
    left = clusters.wait_gone()
    assert not left, f"processes left: {left}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A longer timeout for tests without their own: a cluster of three nodes has a dozen processes, which are slow
    beside other tests."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG))
