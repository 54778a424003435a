"""What the workers of a slice's host are told of it.

What lives here: the variables that torch_xla and libtpu read. What does not: what a single host needs
(host/repairs.py), and setting them (the workers do, after their fork).

torch_xla 2.9.0, _internal/tpu.py: with TPU_SKIP_MDS_QUERY it asks no metadata server and reads TPU_ACCELERATOR_TYPE,
TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, and the bounds in TPU_HOST_BOUNDS and TPU_CHIPS_PER_HOST_BOUNDS where the newer
names (TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS) are not set; on v2 and v3 it has a table of the bounds.
From these `configure_topology` makes each process's own, by `setdefault`: whatever is set already stays, so that
leftovers of another start are unset here. TPU_TOPOLOGY is none of torch_xla's: Ray and host/places.py read it as GKE
sets it; here it is set so that it cannot contradict the rest. The coordinator of a slice is named by no variable:
torch_xla takes the host of TPU 0 among TPU_WORKER_HOSTNAMES (`discover_master_worker_ip`). A run has one slice: what
several need (MEGASCALE_*, Ray's `get_tpu_coordinator_env_vars`) is not set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpu_magics.launch.pods.slices import Slice

# What configure_topology sets for each process, and what Ray sets for an actor that has a part of a host's chips.
UNSET_VARIABLES = (
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT",
    "TPU_VISIBLE_CHIPS",
)


def slice_environments(kind: Slice, addresses: Sequence[str]) -> list[Mapping[str, str | None]]:
    """For each host of a slice, by worker id: what its workers' environment gets; None unsets. `addresses`: where the
    hosts reach each other, by worker id."""
    common: dict[str, str | None] = {
        **dict.fromkeys(UNSET_VARIABLES, None),
        "PJRT_DEVICE": "TPU",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": kind.name,
        "TPU_TOPOLOGY": kind.topology,
        "TPU_HOST_BOUNDS": _bounds(kind.mesh_of_hosts),
        "TPU_CHIPS_PER_HOST_BOUNDS": _bounds(kind.host_bounds),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
    }
    return [{**common, "TPU_WORKER_ID": str(index)} for index in range(len(addresses))]


def _bounds(bounds: Sequence[int]) -> str:
    return ",".join(map(str, bounds))
