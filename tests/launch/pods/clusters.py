"""A real Ray cluster of several nodes on this machine, pods on its nodes, and the processes of runs on it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from tests.launch.pods import nodes
from tpu_magics.launch.pods.pod import Pod, PodHost

GONE = 15.0  # seconds, in which the processes of a run must end after it


class Nodes:
    """The cluster, and this process's connection to it. `nodes`: those of pods, by name, without the head, where the
    notebook is."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        named = {node._ray_params.node_name: node for node in cluster.worker_nodes}
        self.nodes = dict(sorted(named.items()))

    @property
    def client(self) -> str:
        """The address for a notebook outside the cluster."""
        return f"ray://{nodes.LOOPBACK}:{self.cluster.head_node._ray_params.ray_client_server_port}"

    @contextmanager
    def added(self, name: str) -> Iterator[str]:
        """One more node, for a test that kills it."""
        with nodes.starting():
            self.nodes[name] = self.cluster.add_node(**{**nodes.NODE, "num_cpus": 2, "node_name": name})
        try:
            yield name
        finally:
            if name in self.nodes:
                self.kill(name)

    def connect(self) -> None:
        import ray

        with nodes.starting():
            ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def pod(self, *names: str, **more: Any) -> Pod:
        """A pod over these nodes, or all; with two ranks on each."""
        chosen = [(name, self.nodes[name]) for name in names or self.nodes]
        named = tuple(PodHost(i, name, node.node_id, node.node_ip_address) for i, (name, node) in enumerate(chosen))
        return Pod(self.cluster.address, named, **{"workers": 2, **more})

    def kill(self, name: str) -> None:
        """Kill all processes of a node at once, without a shutdown."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def wait_dead(self) -> None:
        """Until the cluster has noticed which nodes were killed."""
        import ray

        until = time.monotonic() + GONE
        while len([one for one in ray.nodes() if one["Alive"]]) > len(self.nodes) + 1 and time.monotonic() < until:
            time.sleep(0.1)

    @contextmanager
    def connected(self) -> Iterator[Nodes]:
        import ray

        self.connect()
        try:
            yield self
        finally:
            ray.shutdown()


def ours() -> list[psutil.Process]:
    """The processes of this test's runs on any node: actors, host processes and workers (which have a host process's
    command line), without those of other tests."""
    return [process for process in psutil.process_iter() if _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
        known = "tpu_magics.launch.pods.host_process" in line or line.startswith("ray::HostActor")
        return known and process.status() != "zombie" and process.environ().get(nodes.MARK) == str(os.getpid())
    except psutil.Error:
        return False


def wait_gone() -> list[str]:
    """The processes of runs that are left after GONE seconds."""
    until = time.monotonic() + GONE
    while (left := ours()) and time.monotonic() < until:
        time.sleep(0.1)
    return [f"{process.pid} {process.status()}" for process in left]
