"""Slices: what a cluster's labels tell of them, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

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
    """ray.util.tpu works with its own tables; what it is asked for must be in them."""
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


def test_the_largest_whole_slice_is_chosen_or_the_one_that_was_asked_for() -> None:
    chosen = slices.choose_slice([PLAIN, *V4, *V5E], None)
    assert chosen is not None and chosen.slice.name == "v5litepod-16"
    chosen = slices.choose_slice([PLAIN, *V4, *V5E], slice_of("v4-16"))
    assert chosen is not None and chosen.slice.name == "v4-16"


def test_a_cluster_without_a_tpu_is_a_rehearsal() -> None:
    assert slices.choose_slice([PLAIN], None) is None


def refused(nodes: Sequence[ClusterNode], target: str = "") -> TpuMagicsError:
    with pytest.raises(TpuMagicsError) as error:
        slices.choose_slice(nodes, slice_of(target) if target else None)
    return error.value


def test_another_slice_than_the_cluster_has() -> None:
    error = refused([PLAIN, *V4, *V4], "v5litepod-16")
    assert error.what == "This cluster cannot give a v5litepod-16."
    error = refused([PLAIN, *V4], "v5litepod-16")
    assert error.why == (
        "What it has instead: v4-16 (2x2x2): 2 hosts with 4 chips each; 1 host without a TPU (4 CPUs)."
    )
    assert error.todo == "Ask for what it has: --target v4-16, or leave --target away."


def test_a_slice_that_has_lost_a_host() -> None:
    error = refused(V5E[:3], "v5litepod-16")
    assert "of which 3 of 4 hosts are alive" in error.why
    assert error.todo.startswith("Look at the hosts that are missing (`ray status`)")


def test_a_slice_is_asked_for_where_there_is_no_tpu() -> None:
    error = refused([PLAIN], "v5e-16")
    assert error.why == "What it has instead: 1 host without a TPU (4 CPUs)."
    assert "for a rehearsal" in error.todo and error.todo.endswith("%tpu_pod --target v5litepod-16")


def test_chips_without_labels_are_named() -> None:
    error = refused([ClusterNode("n", "bare", "10.0.0.1", 4, 4)])
    assert error.what == "This cluster cannot give a whole slice of TPUs."
    assert error.why == "What it has instead: bare with 4 TPU and no label of a slice (ray.io/tpu-pod-type)."


@pytest.mark.parametrize(("target", "todo"), [("v4-4096", "Ask for another slice"), ("v3-8", "Use its one host alone")])
def test_a_slice_that_ray_does_not_know(target: str, todo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own check, which needs no cluster: `slice_placement_group` would start one first."""
    from ray.util import tpu

    monkeypatch.setattr(tpu, "slice_placement_group", tpu.SlicePlacementGroup)
    with pytest.raises(TpuMagicsError) as error:
        slices.reserve(slice_of(target))
    assert error.value.what.startswith(f"This version of Ray does not hold a {target} (")
    assert "Invalid accelerator topology" in error.value.why and error.value.todo.startswith(todo)
