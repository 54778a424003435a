"""Slices by a cluster's labels, the errors if there is none, and the environment of its workers, which torch_xla's own
code reads in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.launch.launching import error_of
from tests.launch.pods.nodes import fake_tpu_labels
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods import slices
from tpu_magics.launch.pods.cluster import ClusterNode
from tpu_magics.magics.pod import slice_of


def fake_hosts(name: str, pod_type: str, topology: str, chips: int, workers: Sequence[int]) -> list[ClusterNode]:
    return [
        ClusterNode(
            f"{name}{i}", f"{name}-{i}", f"10.0.0.{i}", 8, chips, labels=fake_tpu_labels(name, pod_type, topology, i)
        )
        for i in workers
    ]


PLAIN = ClusterNode("h", "head", "10.0.1.1", cpus=4, head=True)
V5E = fake_hosts("a", "v5litepod-16", "4x4", 4, [3, 1, 0, 2])
V4 = fake_hosts("b", "v4-16", "2x2x2", 4, [0, 1])


@pytest.mark.parametrize(
    ("target", "hosts", "chips", "mesh", "pod_type"),
    [
        ("v5litepod-16", 4, 4, (2, 2, 1), "v5litepod-16"),
        ("v5e-8", 1, 8, (1, 1, 1), "v5litepod-8"),
        ("v6e-256", 64, 4, (8, 8, 1), "v6e-256"),
        ("v4-32", 4, 4, (1, 1, 4), "v4-32"),
        ("v5p-16", 2, 4, (1, 1, 2), "v5p-16"),
        ("tpu7x-16", 2, 4, (1, 1, 2), "v7x-16"),
        ("v3-32", 4, 4, (2, 2, 1), "v3-32"),
    ],
)
def test_a_slice_by_its_name(target: str, hosts: int, chips: int, mesh: tuple[int, ...], pod_type: str) -> None:
    found = slice_of(target)
    assert (found.hosts, found.chips, found.mesh_of_hosts, found.pod_type) == (hosts, chips, mesh, pod_type)
    assert slices.slice_from_labels(found.pod_type, found.topology, found.chips) == found


@pytest.mark.parametrize("target", ["v5litepod-16", "v4-32", "v5p-16", "v6e-8", "v3-32", "v2-32"])
def test_ray_names_them_in_the_same_way(target: str) -> None:
    """ray.util.tpu has its own tables; our names must be in them."""
    from ray._private.accelerators.tpu import infer_tpu_pod_type_from_topology
    from ray.util.tpu import get_tpu_version_from_type, get_tpu_worker_resources

    found = slice_of(target)
    assert get_tpu_version_from_type(found.version) == found.version
    assert infer_tpu_pod_type_from_topology(found.topology, f"TPU-{found.version.upper()}") == found.pod_type
    number, each = get_tpu_worker_resources(found.topology, found.version, chips_per_vm=found.chips)
    assert (number, each["TPU"]) == (found.hosts, found.chips)


def test_the_slices_of_a_cluster_by_their_labels() -> None:
    large, small = slices.cluster_slices([PLAIN, *V4, *V5E])
    assert (large.name, large.slice.name, large.whole) == ("a", "v5litepod-16", True)
    assert [node.name for node in large.nodes] == ["a-0", "a-1", "a-2", "a-3"]
    assert (small.slice.name, small.whole) == ("v4-16", True)


def test_hosts_that_are_slices_of_their_own() -> None:
    found = slices.cluster_slices(
        fake_hosts("x", "v5litepod-8", "2x4", 8, [0]) + fake_hosts("y", "v6e-4", "2x2", 4, [0])
    )
    assert [(one.slice.name, one.slice.hosts) for one in found] == [("v5litepod-8", 1), ("v6e-4", 1)]


def test_the_largest_whole_slice_is_chosen_or_the_wanted_one() -> None:
    chosen = slices.choose_slice([PLAIN, *V4, *V5E], None)
    assert chosen is not None and chosen.slice.name == "v5litepod-16"
    chosen = slices.choose_slice([PLAIN, *V4, *V5E], slice_of("v4-16"))
    assert chosen is not None and chosen.slice.name == "v4-16"


def test_a_cluster_without_a_tpu_is_a_rehearsal() -> None:
    assert slices.choose_slice([PLAIN], None) is None


def refused(nodes: Sequence[ClusterNode], target: str = "") -> TpuMagicsError:
    return error_of(slices.choose_slice, nodes, slice_of(target) if target else None)


def test_another_slice_than_the_cluster_has() -> None:
    error = refused([PLAIN, *V4, *V4], "v5litepod-16")
    assert error.what == "This cluster has no v5litepod-16."
    error = refused([PLAIN, *V4], "v5litepod-16")
    assert error.why == ("It has: v4-16 (2x2x2): 2 hosts with 4 chips each; 1 host without a TPU (4 CPUs).")
    assert error.todo == "Use a slice that the cluster has: --target v4-16, or remove --target."


def test_a_slice_that_has_lost_a_host() -> None:
    error = refused(V5E[:3], "v5litepod-16")
    assert "3 of 4 hosts alive" in error.why
    assert error.todo.startswith("Check the missing hosts (`ray status`)")


def test_a_slice_is_wanted_but_there_is_no_tpu() -> None:
    error = refused([PLAIN], "v5e-16")
    assert error.why == "It has: 1 host without a TPU (4 CPUs)."
    assert "for a rehearsal" in error.todo and error.todo.endswith("%tpu_pod --target v5litepod-16")


def test_chips_without_labels_are_named() -> None:
    error = refused([ClusterNode("n", "bare", "10.0.0.1", 4, 4)])
    assert error.what == "This cluster has no complete TPU slice."
    assert error.why == "It has: bare with 4 TPU and no slice label (ray.io/tpu-pod-type)."


@pytest.mark.parametrize(("target", "todo"), [("v4-4096", "Choose another slice"), ("v3-8", "It has one host")])
def test_a_slice_that_ray_does_not_know(target: str, todo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own check, which needs no cluster: `slice_placement_group` would start one first."""
    from ray.util import tpu

    monkeypatch.setattr(tpu, "slice_placement_group", tpu.SlicePlacementGroup)
    error = error_of(slices.reserve, slice_of(target))
    assert error.what.startswith(f"This version of Ray cannot reserve a {target} (")
    assert "Invalid accelerator topology" in error.why and error.todo.startswith(todo)


# -- the environment of a slice's workers ------------------------------------------------------------------------------

# Without a chip torch_xla cannot start; but what it would tell its runtime is made of the environment alone.
READ = """
import json, os, sys
import torch_xla
from torch_xla._internal import tpu
slices, plain = json.loads(sys.argv[1]), json.loads(sys.argv[2])
seen = {}
for target, told in slices.items():
    seen[target] = []
    for host in told:
        for local in range(4):
            os.environ.clear()
            os.environ.update(plain)
            for name, value in host.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            read = {"worker": tpu.worker_id(), "hosts": tpu.num_tpu_workers(), "version": tpu.version()}
            tpu.configure_topology(local, 4)
            read.update({name: os.environ[name] for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU"))})
            seen[target].append(read)
print(json.dumps(seen))
"""
# Left over from another start on these hosts, as facts of Kaggle's image and of Ray's actors.
LEFTOVERS = {"TPU_PROCESS_ADDRESSES": "local", "CLOUD_TPU_TASK_ID": "0", "TPU_VISIBLE_CHIPS": "0,1,2,3"}
SLICES = {  # target -> torch_xla's version, the processes in each direction, hosts
    "v5litepod-16": (5, "4,4,1", 4),
    "v4-32": (4, "2,2,4", 4),
    "v5p-16": (5, "2,2,2", 2),
    "v6e-16": (6, "4,4,1", 4),
    "v3-32": (3, "4,4,1", 4),
    "tpu7x-16": (7, "2,2,2,2", 2),
}


def addresses(hosts: int) -> list[str]:
    return [f"10.0.0.{index + 1}" for index in range(hosts)]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What torch_xla makes of the environment in each process of each slice."""
    told = {
        target: slices.slice_environments(slice_of(target), addresses(hosts))
        for target, (_, _, hosts) in SLICES.items()
    }
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-c", READ, json.dumps(told), json.dumps({**plain, **LEFTOVERS})]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("read"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.process
@pytest.mark.parametrize("target", SLICES)
def test_torch_xla_reads_the_slice_from_it(target: str, read: dict[str, list[dict[str, Any]]]) -> None:
    version, bounds, hosts = SLICES[target]
    seen = read[target]
    assert [one["worker"] for one in seen] == [rank // 4 for rank in range(hosts * 4)]
    assert [one["CLOUD_TPU_TASK_ID"] for one in seen] == [str(rank) for rank in range(hosts * 4)]
    assert {(one["hosts"], one["version"], one["TPU_PROCESS_BOUNDS"]) for one in seen} == {(hosts, version, bounds)}
    everyone = ",".join(f"{address}:{8476 + local}" for address in addresses(hosts) for local in range(4))
    assert {one["TPU_PROCESS_ADDRESSES"] for one in seen} == {everyone}
    assert [one["TPU_VISIBLE_CHIPS"] for one in seen] == [str(rank % 4) for rank in range(hosts * 4)]


def test_old_variables_are_unset_and_no_metadata_server_is_queried() -> None:
    first, second = slices.slice_environments(slice_of("v5p-16"), ["10.0.0.1", "10.0.0.2"])
    assert all(first[name] is None for name in slices.UNSET_VARIABLES)
    assert (first["TPU_SKIP_MDS_QUERY"], first["TPU_WORKER_HOSTNAMES"]) == ("1", "10.0.0.1,10.0.0.2")
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("0", "1")
    assert not any(name.startswith("MEGASCALE") for name in first)
