"""Fixtures of the tests on a cluster. What does not live here: the cluster itself (clusters.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.pods import clusters
from tests.launch.pods.clusters import Nodes
from tpu_magics.launch import session

HERE = Path(__file__).resolve().parent
LONG = 900  # seconds


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Three nodes with two CPUs each, on this machine, for all tests of a file."""
    with clusters.cluster(3) as started:
        yield started


@pytest.fixture
def pod(nodes: Nodes, fresh_session: session.Session) -> session.Session:
    """A session whose runs go to three hosts with two ranks each."""
    fresh_session.pod = nodes.pod()
    return fresh_session


@pytest.fixture(autouse=True)
def _launchers_leave_nothing() -> Iterator[None]:
    """In the place of the one that holds elsewhere: Ray starts and ends processes of its own as it likes. Of ours none
    may be left, on any node."""
    yield
    left = clusters.wait_gone()
    assert not left, f"processes left: {left}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster of three nodes is a dozen processes, and beside other tests each waits for its turn: these have longer
    than others, where they do not say it themselves."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG))
