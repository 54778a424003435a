"""TPU slices of a Ray cluster: what they are, which the cluster has, reserving one, and the environment of its workers.

Ray labels each node of a slice (ray/_private/accelerators/tpu.py, 2.60) with its pod type ("v5litepod-16"), topology
("4x4"), slice name and worker id; worker 0 has the resource "TPU-v5litepod-16-head". `ray.util.tpu` (2.60) reserves a
slice of several hosts by that resource first, so that two runs never get halves of it. It accepts only the topologies
in VALID_TPU_TOPOLOGY, which lacks v2-8, v3-8, v4-4096 and tpu7x-8192.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.host.chips import GENERATIONS, Generation
from tpu_magics.launch.pods import cluster
from tpu_magics.launch.pods.pod import cpus_text

if TYPE_CHECKING:
    from tpu_magics.launch.pods.cluster import ClusterNode
    from tpu_magics.launch.pods.pod import Pod, PodHost

POD_TYPE, TOPOLOGY = "ray.io/tpu-pod-type", "ray.io/tpu-topology"
SLICE_NAME, WORKER_ID = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
RESERVE_TIMEOUT = 10.0  # seconds

Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Slice:
    """A TPU slice. `bounds`: chips in each direction, as in the topology ((4, 4) is "4x4"); `host_bounds`: those of one
    host, in three directions."""

    generation: Generation
    bounds: tuple[int, ...]
    host_bounds: Bounds

    @property
    def name(self) -> str:
        """The name in Google's words: "v5litepod-16"."""
        return self.generation.type_string(self.all_chips)

    @property
    def version(self) -> str:
        """The generation as Ray writes it: "v5litepod", "v7x"."""
        return self.generation.prefix.replace("tpu", "v")

    @property
    def pod_type(self) -> str:
        """The slice as Ray writes it: "v7x-16" where Google has "tpu7x-16"."""
        return self.name.replace(self.generation.prefix, self.version)

    @property
    def topology(self) -> str:
        return "x".join(map(str, self.bounds))

    @property
    def all_chips(self) -> int:
        return math.prod(self.bounds)

    @property
    def chips(self) -> int:
        """The chips of one host."""
        return math.prod(self.host_bounds)

    @property
    def hosts(self) -> int:
        return self.all_chips // self.chips

    @property
    def mesh_of_hosts(self) -> Bounds:
        """How many hosts there are in each direction."""
        x, y, z = (*self.bounds, 1, 1)[:3]
        return x // self.host_bounds[0], y // self.host_bounds[1], z // self.host_bounds[2]

    @property
    def text(self) -> str:
        return f"{self.name} ({self.topology}): {plural(self.hosts, 'host')} with {plural(self.chips, 'chip')} each"


def slice_from_labels(pod_type: str, topology: str, chips: float) -> Slice | None:
    """The slice that a node's labels describe; None for an unknown generation, or if the shapes do not match."""
    prefix = pod_type.rpartition("-")[0]
    kind = next((one for one in GENERATIONS if prefix in (one.prefix, one.prefix.replace("tpu", "v"))), None)
    parts = topology.split("x")
    if kind is None or not all(part.isdigit() and int(part) for part in parts):
        return None
    bounds = tuple(map(int, parts))
    host_bounds = _host_bounds(bounds, int(chips))
    return Slice(kind, bounds, host_bounds) if math.prod(bounds) % max(math.prod(host_bounds), 1) == 0 else None


def _host_bounds(bounds: tuple[int, ...], chips: int) -> Bounds:
    """The bounds of a host with so many chips: the slice if it has one host, else 2x2, on v5e and v6e also 2x4."""
    if chips >= math.prod(bounds):
        x, y, z = (*bounds, 1, 1)[:3]
        return x, y, z
    return (2, 4, 1) if chips == 8 else (2, 2, 1) if chips == 4 else (chips, 1, 1)


# -- the slices of a cluster -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterSlice:
    """A slice in a cluster, with its nodes by worker id. `whole`: all of its nodes are alive."""

    slice: Slice
    name: str
    nodes: tuple[ClusterNode, ...]

    @property
    def whole(self) -> bool:
        return len(self.nodes) == self.slice.hosts

    @property
    def text(self) -> str:
        alive = "" if self.whole else f", {len(self.nodes)} of {plural(self.slice.hosts, 'host')} alive"
        return f"{self.slice.text}{alive}"


def cluster_slices(nodes: Sequence[ClusterNode]) -> tuple[ClusterSlice, ...]:
    """The slices by their nodes' labels: whole ones first, then the larger ones."""
    groups: dict[tuple[str, str, str], list[ClusterNode]] = {}
    for node in nodes:
        pod_type, topology = node.labels.get(POD_TYPE, ""), node.labels.get(TOPOLOGY, "")
        if pod_type and topology and node.chips:
            kind = slice_from_labels(pod_type, topology, node.chips)
            # The name does not identify a slice of one host: each such node is its own slice.
            name = node.id if kind is not None and kind.hosts == 1 else node.labels.get(SLICE_NAME, "")
            groups.setdefault((pod_type, topology, name), []).append(node)
    slices = [_cluster_slice(pod_type, topology, members) for (pod_type, topology, _), members in groups.items()]
    return tuple(
        sorted((one for one in slices if one), key=lambda one: (not one.whole, -one.slice.all_chips, one.name))
    )


def _cluster_slice(pod_type: str, topology: str, members: list[ClusterNode]) -> ClusterSlice | None:
    kind = slice_from_labels(pod_type, topology, members[0].chips)
    if kind is None:
        return None
    ordered = sorted(members, key=lambda node: (worker_id(node), node.id))
    return ClusterSlice(kind, ordered[0].labels.get(SLICE_NAME, ordered[0].name), tuple(ordered))


def worker_id(node: ClusterNode) -> int:
    """The node's number among the hosts of its slice."""
    text = node.labels.get(WORKER_ID, "0")
    return int(text) if text.isdigit() else 0


def choose_slice(nodes: Sequence[ClusterNode], wanted: Slice | None) -> ClusterSlice | None:
    """The slice to train on: the wanted one, else the largest whole one; None if the cluster has no TPU and none is
    wanted. Raises TpuMagicsError that lists what the cluster has instead."""
    available = cluster_slices(nodes)
    whole = [one for one in available if one.whole and (wanted is None or one.slice.pod_type == wanted.pod_type)]
    if whole:
        return whole[0]
    if wanted is None and not any(node.chips for node in nodes):
        return None
    raise _no_such_slice(nodes, available, wanted)


def _no_such_slice(
    nodes: Sequence[ClusterNode], available: Sequence[ClusterSlice], wanted: Slice | None
) -> TpuMagicsError:
    name = wanted.name if wanted is not None else "complete TPU slice"
    same = next((one for one in available if wanted is not None and one.slice.pod_type == wanted.pod_type), None)
    if same is not None:
        todo = "Check the missing hosts (`ray status`), and run %tpu_init again when they have joined."
    elif available:
        todo = f"Use a slice that the cluster has: --target {available[0].slice.name}, or remove --target."
    else:
        todo = "Remove --target for a rehearsal on the hosts' CPUs, or get the slice: %tpu_pod --target " + (
            wanted.name if wanted is not None else "v5litepod-16"
        )
    return TpuMagicsError(f"This cluster has no {name}.", f"It has: {_describe_cluster(nodes, available)}.", todo)


def _describe_cluster(nodes: Sequence[ClusterNode], available: Sequence[ClusterSlice]) -> str:
    counted = Counter(one.text for one in available)
    parts = [text if count == 1 else f"{count} times {text}" for text, count in counted.items()]
    in_slices = {node.id for one in available for node in one.nodes}
    unlabelled = [node for node in nodes if node.chips and node.id not in in_slices]
    parts += [f"{node.name} with {node.chips:g} TPU and no slice label ({POD_TYPE})" for node in unlabelled]
    without = [node for node in nodes if not node.chips]
    if without:
        cpus = cpus_text(sum(node.cpus for node in without))
        parts.append(f"{plural(len(without), 'host')} without a TPU ({cpus})")
    return "; ".join(parts) or "nothing"


# -- reserving one -----------------------------------------------------------------------------------------------------


class Reservation:
    """The slice that this process has reserved. `group`: Ray's SlicePlacementGroup, None for none."""

    group: Any = None


def reserve(wanted: Slice) -> list[str]:
    """Reserve a slice, in place of an earlier one; the ids of its nodes by bundle index. Raises TpuMagicsError if it is
    in use."""
    import ray
    from ray.util.tpu import slice_placement_group

    release()
    try:
        Reservation.group = slice_placement_group(
            topology=wanted.topology,
            accelerator_version=wanted.version,
            chips_per_vm=wanted.chips,
            strategy="STRICT_SPREAD",
            head_reservation_timeout_s=RESERVE_TIMEOUT,
        )
        ray.get(Reservation.group.placement_group.ready(), timeout=RESERVE_TIMEOUT)
    except BaseException as error:
        release()
        if isinstance(error, (TimeoutError, RuntimeError, ValueError)):
            raise _reservation_error(wanted, error) from None
        raise
    Reservation.group.release_head_pgs()
    return _node_ids(Reservation.group.placement_group)


def _node_ids(group: Any) -> list[str]:
    from ray.util import placement_group_table

    placed: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [placed[index] for index in sorted(placed)]


def _reservation_error(wanted: Slice, error: Exception) -> TpuMagicsError:
    message = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, ValueError):
        return TpuMagicsError(
            f"This version of Ray cannot reserve a {wanted.name} ({wanted.topology}).",
            f"Ray reports: {message}",
            "Choose another slice with --target, or update Ray."
            if wanted.hosts > 1
            else "It has one host: run %tpu_init there, without --hosts.",
        )
    return TpuMagicsError(
        f"Ray could not reserve the slice {wanted.name} within {RESERVE_TIMEOUT:.0f} s.",
        f"Another job uses it, or its hosts have no free CPU. Ray reports: {message}",
        "Find the job with `ray status` and `ray list placement-groups`, end it, and run %tpu_init again.",
    )


def release() -> None:
    """Release the reserved slice. If the connection or the cluster's head is gone, Ray has already released it."""
    group, Reservation.group = Reservation.group, None
    if group is not None and cluster.is_alive():
        group.shutdown()


def forget_reservation() -> None:
    """For a new connection: the reservation ended with the old one."""
    Reservation.group = None


def actor_options(pod: Pod, host: PodHost) -> dict[str, Any]:
    """Ray's options for an actor that runs on this host only, with the host's TPU chips if the slice is reserved."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    if pod.device == "CPU" or Reservation.group is None or host.bundle_index is None:
        return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(host.node, soft=False)}
    group = PlacementGroupSchedulingStrategy(
        placement_group=Reservation.group.placement_group, placement_group_bundle_index=host.bundle_index
    )
    return {"num_cpus": 0, "resources": {"TPU": host.chips}, "scheduling_strategy": group}


# -- the environment of a slice's workers ------------------------------------------------------------------------------

# With TPU_SKIP_MDS_QUERY torch_xla (2.9.0, _internal/tpu.py) queries no metadata server. It reads TPU_ACCELERATOR_TYPE,
# TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, and the bounds in TPU_HOST_BOUNDS and TPU_CHIPS_PER_HOST_BOUNDS if the newer
# names (TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS) are not set; for v2 and v3 it has a table of bounds. From
# these `configure_topology` sets each process's own variables with `setdefault`, so values that another start left
# behind must be unset here. torch_xla does not read TPU_TOPOLOGY; Ray and %tpu_init do (GKE sets it), and it must match
# the rest. No variable names the slice's coordinator: torch_xla uses the host of TPU 0 in TPU_WORKER_HOSTNAMES
# (`discover_master_worker_ip`). A run has one slice, so the variables for several (MEGASCALE_*, Ray's
# `get_tpu_coordinator_env_vars`) are not set.

# Set by `configure_topology` for each process, and by Ray for an actor with some of a host's chips.
UNSET_VARIABLES = (
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT",
    "TPU_VISIBLE_CHIPS",
)


def slice_environments(kind: Slice, addresses: Sequence[str]) -> list[Mapping[str, str | None]]:
    """For each host of a slice, by worker id: the environment of its workers; None unsets a variable. `addresses`:
    where the hosts reach each other, by worker id."""
    common: dict[str, str | None] = {
        **dict.fromkeys(UNSET_VARIABLES, None),
        "PJRT_DEVICE": "TPU",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": kind.name,
        "TPU_TOPOLOGY": kind.topology,
        "TPU_HOST_BOUNDS": _bounds_text(kind.mesh_of_hosts),
        "TPU_CHIPS_PER_HOST_BOUNDS": _bounds_text(kind.host_bounds),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
    }
    return [{**common, "TPU_WORKER_ID": str(index)} for index in range(len(addresses))]


def _bounds_text(bounds: Sequence[int]) -> str:
    return ",".join(map(str, bounds))
