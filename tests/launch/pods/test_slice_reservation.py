"""Reserving a slice in a real cluster with fake TPU hosts, and what an actor there sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.launch.launching import error_of
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods import host_selection, slices
from tpu_magics.magics.pod import slice_of

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
def address(of_slice: str) -> str:
    return of_slice


def refused(address: str, target: str, processes: int | None = None) -> TpuMagicsError:
    return error_of(host_selection.find_pod, address, slice_of(target), processes)


def looker() -> Any:
    """A nested function, which is pickled by value: the hosts do not have this module."""

    def what_an_actor_sees() -> tuple[str, Mapping[str, str]]:
        import os

        import ray

        return ray.get_runtime_context().get_node_id(), {k: v for k, v in os.environ.items() if k.startswith("TPU")}

    return what_an_actor_sees


def test_the_slice_is_reserved_and_its_hosts_are_in_their_own_order(address: str) -> None:
    import ray

    pod = host_selection.find_pod(address)
    assert (pod.device, pod.target, pod.workers, pod.replicas, pod.ranks) == ("TPU", "v4-16", 4, 1, 8)
    assert [host.name for host in pod.hosts] == ["my-slice-w-0", "my-slice-w-1"]
    assert [host.environment["TPU_WORKER_ID"] for host in pod.hosts] == ["0", "1"]
    assert sorted(host.bundle_index for host in pod.hosts if host.bundle_index is not None) == [0, 1]
    assert pod.hosts[0].environment["TPU_HOST_BOUNDS"] == "1,1,2"
    assert ray.available_resources().get("TPU", 0) == 0, "others could take a part of it"
    task: Any = ray.remote(looker())
    for host in pod.hosts:
        node, seen = ray.get(task.options(**slices.actor_options(pod, host)).remote(), timeout=60)
        assert node == host.node
        inherited = {"TPU_NAME", "TPU_LIBRARY_PATH"}  # the second by torch_xla, where a test has imported it
        assert set(seen) <= set(host.environment) | inherited, "the workers would inherit what is not overruled"


def test_a_second_search_reserves_it_again(address: str) -> None:
    assert (
        host_selection.find_pod(address).target == host_selection.find_pod(address, slice_of("v4-16")).target == "v4-16"
    )


def test_another_slice_is_not_there(address: str) -> None:
    error = refused(address, "v5litepod-16")
    assert error.what == "This cluster has no v5litepod-16."
    assert error.why == "It has: v4-16 (2x2x2): 2 hosts with 4 chips each; 1 host without a TPU (1 CPU)."


def test_all_chips_take_part(address: str) -> None:
    held = slices.Reservation.group
    error = refused(address, "v4-16", 4)
    assert error.what == "-n 4 is not possible on v4-16: it has 8 ranks."
    assert slices.Reservation.group is held


def test_a_slice_that_another_job_uses(address: str) -> None:
    import ray
    from ray.util import placement_group, remove_placement_group

    slices.release()
    others = placement_group([{"TPU": 4}])
    ray.get(others.ready(), timeout=30)
    error = refused(address, "v4-16")
    assert error.what == "Ray could not reserve the slice v4-16 within 10 s."
    assert "`ray list placement-groups`" in error.todo
    remove_placement_group(others)
    assert host_selection.find_pod(address).target == "v4-16"
