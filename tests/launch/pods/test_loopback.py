"""The tests' clusters listen on the loopback only, so that no other machine can connect."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.launch.pods import nodes as kinds
from tests.launch.pods.clusters import Nodes
from tpu_magics.launch.pods import host_start

pytestmark = pytest.mark.process


def listening() -> Iterator[tuple[str, int, str]]:
    """The sockets of this process and its children: address, port, command line."""
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    yield one.laddr.ip.removeprefix("::ffff:"), one.laddr.port, " ".join(process.cmdline())[:120]
        except psutil.NoSuchProcess:
            pass


def test_every_server_of_a_cluster_listens_on_the_loopback(nodes: Nodes) -> None:
    """With an actor on each host, as while a run is prepared."""
    made, _ = host_start.start_actors(nodes.pod(), "probe", lambda: False)
    try:
        found = list(listening())
    finally:
        host_start.close_actors(made)
    ports = {port for _, port, _ in found}
    assert {int(one.rpartition(":")[2]) for one in (nodes.cluster.address, nodes.client)} <= ports
    assert sum("ray::HostActor" in line for _, _, line in found) == 2
    assert [one for one in found if one[0] != kinds.LOOPBACK] == []
