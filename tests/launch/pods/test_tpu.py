"""The workers of a TPU slice get the environment that torch_xla reads. On a real cluster with fake TPU hosts.

The hosts have no chip (nodes.py), so the workers are those of a rehearsal; their environment and
the actors' place are as on a slice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.launch.launching import run
from tpu_magics.launch import session
from tpu_magics.launch.pods import cluster, host_selection, slices
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.strategies import ray as ray_strategy

pytestmark = [pytest.mark.process, pytest.mark.long]


def what_torch_xla_reads() -> dict[str, Any]:
    """In a worker, by torch_xla's own functions (2.9.0, _internal/tpu.py)."""
    from torch_xla._internal import tpu

    names = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY")
    return {"worker": tpu.worker_id(), "ips": tpu.get_worker_ips(), **{name: os.environ.get(name) for name in names}}


def without_chips(host: PodHost) -> PodHost:
    """Computes on XLA:CPU, because there is no chip; the rest as on the slice."""
    assert host.environment["PJRT_DEVICE"] == "TPU"
    return replace(host, environment={**host.environment, "PJRT_DEVICE": "CPU"})


@pytest.fixture(scope="module")
def slice_pod(of_slice: str) -> Iterator[Pod]:
    yield host_selection.find_pod(of_slice)
    slices.release()
    cluster.disconnect()


def test_the_workers_of_a_slice_know_it(
    slice_pod: Pod, fresh_session: session.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (slice_pod.device, len(slice_pod.hosts), slice_pod.workers) == ("TPU", 2, 4)
    fresh_session.pod = replace(slice_pod, hosts=tuple(map(without_chips, slice_pod.hosts)))
    planned = ray_strategy.pod_plan
    monkeypatch.setattr(ray_strategy, "pod_plan", lambda *args: replace(planned(*args), device="CPU"))
    result = run(what_torch_xla_reads, timeout=300.0)
    addresses = [host.address for host in slice_pod.hosts]
    for rank, told in enumerate(result.values):
        assert told["worker"] == rank // 4 and told["TPU_WORKER_ID"] == str(rank // 4), told
        assert told["ips"] == addresses, told


def test_an_actor_has_the_chips_of_its_host(slice_pod: Pod, fresh_session: session.Session) -> None:
    """It is in the placement group's bundle with all chips of the host, so that no other program of Ray gets them."""
    del fresh_session
    import ray

    from tpu_magics.launch.pods import host_start

    made, told = host_start.start_actors(slice_pod, "probe", lambda: False)
    try:
        assert len(told) == 2 and len({one["pid"] for one in told}) == 2
        assert ray.available_resources().get("TPU", 0.0) == 0.0
    finally:
        host_start.close_actors(made)
