"""A real Ray cluster of several nodes on this machine, and pods on it.

What lives here: starting and ending it, a pod made by hand over its nodes, and which processes of ours are on it. What
does not: what is trained there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import psutil

from tests.launch.pods import nodes
from tpu_magics.launch.pods.pod import Pod, PodHost

STORE = 100 * 2**20  # bytes of each node's object store; Ray takes no less than 75 MB
MARK = "TPU_MAGICS_TEST"  # in the environment of all that a cluster of this process starts
QUIET = {**nodes.QUIET, "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000"}
GONE = 15.0  # seconds in which processes of a run that has ended are gone


class Nodes:
    """The cluster, and this process's connection to it."""

    started = 1

    def __init__(self, count: int, **settings: Any) -> None:
        from ray.cluster_utils import Cluster

        self.settings = {"num_cpus": 2, "object_store_memory": STORE, **settings}
        head = {**self.settings, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = {"node-0": self.cluster.head_node}
        for _ in range(count - 1):
            self.add()

    def add(self) -> None:
        own = {name: value for name, value in self.settings.items() if not name.startswith("_")}
        self.nodes[f"node-{self.started}"] = self.cluster.add_node(wait=True, **own)
        self.started += 1

    def connect(self) -> None:
        import ray

        ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def pod(self, workers: int = 2, hosts: int | None = None, **more: Any) -> Pod:
        """A pod over the nodes that are alive, in the order in which they were started."""
        chosen = list(self.nodes.items())[:hosts]
        named = tuple(PodHost(i, name, node.node_id, node.node_ip_address) for i, (name, node) in enumerate(chosen))
        return Pod(self.cluster.address, named, workers=workers, **more)

    def kill(self, name: str) -> None:
        """As a node dies: all that Ray has on it at once, without a word."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def wait_dead(self) -> None:
        """Until the cluster has noticed which nodes were killed."""
        import ray

        until = time.monotonic() + GONE
        while len([one for one in ray.nodes() if one["Alive"]]) > len(self.nodes) and time.monotonic() < until:
            time.sleep(0.1)

    def end(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@contextmanager
def cluster(count: int, **settings: Any) -> Iterator[Nodes]:
    with mock.patch.dict(os.environ, {**QUIET, MARK: str(os.getpid())}):
        nodes = Nodes(count, **settings)
        try:
            nodes.connect()
            yield nodes
        finally:
            nodes.end()


def ours() -> list[psutil.Process]:
    """What this test's runs have on any node: carriers, host processes and workers (which have a host process's command
    line). Another test's at the same time are not among them."""
    return [process for process in psutil.process_iter() if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
        known = "tpu_magics.launch.pods.host_process" in line or line.startswith("ray::Carrier")
        return known and process.status() != "zombie" and process.environ().get(MARK) == str(os.getpid())
    except psutil.Error:
        return False


def wait_gone() -> list[str]:
    """What of ours is still there after the patience."""
    until = time.monotonic() + GONE
    while (left := ours()) and time.monotonic() < until:
        time.sleep(0.1)
    return [f"{process.pid} {process.status()}" for process in left]
