"""Real Ray clusters whose nodes differ: TPU hosts, hosts without CPUs, hosts with other versions.

A TPU node is a fake: it has the resources, labels and environment that Ray 2.60 gives a host of such a slice
(ray/_private/accelerators/tpu.py), but no chip.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[3]
STORE = 80_000_000  # bytes of each node's object store; Ray takes no less than 75 MB
LOOPBACK = "127.0.0.1"
# Whatever this machine's system is: Ray's address of it is the loopback's, which Ray would replace by one that others
# reach, also where it connects. Ray reads it at its import, here and in each process that connects (see conftest.py).
HERE_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
MARK = "TEST_OF_TPU_MAGICS"  # in the environment of all that a cluster of this process starts
QUIET = {
    **HERE_ONLY,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PJRT_DEVICE": "CPU",
    # The server of ray:// forks a process for each client; gRPC's handlers of a fork sometimes end it at once.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # No workers before they are needed: each is a Python process that imports Ray.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000",
}
NODE = {"num_cpus": 1, "object_store_memory": STORE, "node_ip_address": LOOPBACK}
HEAD = {**NODE, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}


@contextmanager
def starting() -> Iterator[None]:
    """Sets the environment for starting nodes, and restores the handler of SIGTERM, which Ray replaces."""
    own = signal.getsignal(signal.SIGTERM)
    try:
        with mock.patch.dict(os.environ, {**QUIET, MARK: str(os.getpid())}):
            yield
    finally:
        signal.signal(signal.SIGTERM, own)


@contextmanager
def started(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """A cluster of these nodes; the first is its head. No process is connected. All of its processes end with the
    block."""
    with starting():
        import ray
        from ray.cluster_utils import Cluster

        head, *others = nodes
        cluster = Cluster(initialize_head=True, head_node_args={**HEAD, **head})
    try:
        with starting():
            for node in others:
                cluster.add_node(**{**NODE, **node})
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


_ELSEWHERE = """
import json, sys
from tests.launch.pods.nodes import started
with started(json.loads(sys.argv[1])) as running:
    print(running.address, flush=True)
    sys.stdin.read()
"""


@contextmanager
def started_elsewhere(nodes: Sequence[Mapping[str, Any]], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The address of a cluster that another process starts. This process's connection stays as it is."""
    command = [sys.executable, "-c", _ELSEWHERE, json.dumps(list(nodes))]
    running = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdin is not None and running.stdout is not None
    try:
        address = running.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield address
    finally:
        running.stdin.close()
        running.wait(timeout=60)


def fake_tpu_nodes(slice_name: str, pod_type: str, topology: str, chips: int, hosts: int) -> list[dict[str, Any]]:
    """Nodes of one slice, worker 0 with the resource by which Ray reserves the slice."""
    return [_fake_tpu_node(slice_name, pod_type, topology, chips, worker) for worker in range(hosts)]


def _fake_tpu_node(slice_name: str, pod_type: str, topology: str, chips: int, worker: int) -> dict[str, Any]:
    head = {f"TPU-{pod_type}-head": 1} if worker == 0 else {}
    return {
        "node_name": f"{slice_name}-w-{worker}",
        "resources": {"TPU": chips, slice_name: 1, **head},
        "labels": fake_tpu_labels(slice_name, pod_type, topology, worker),
        # KubeRay's webhook sets these on GKE; Ray reads the slice's name from the first.
        "env_vars": {"TPU_NAME": slice_name, "TPU_WORKER_ID": str(worker), "TPU_TOPOLOGY": topology},
    }


def fake_tpu_labels(slice_name: str, pod_type: str, topology: str, worker: int) -> dict[str, str]:
    return {
        "ray.io/accelerator-type": f"TPU-{pod_type.split('-')[0].upper()}",
        "ray.io/tpu-slice-name": slice_name,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-topology": topology,
        "ray.io/tpu-pod-type": pod_type,
    }


def other_versions(folder: Path, **versions: str) -> dict[str, str]:
    """The environment of a node on which these packages have other versions, as far as their metadata says."""
    for name, version in versions.items():
        metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mute() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield int(listener.getsockname()[1])
