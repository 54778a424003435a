"""Slices of TPUs in a cluster: which there are, and holding one.

What lives here: a slice as a run needs it, what the nodes of a cluster say of theirs, and the reservation. What does
not: names as people write them (preflight/targets.py), and what a host's workers are told (environment.py).

Ray labels each node of a slice (ray/_private/accelerators/tpu.py, 2.60): its pod type ("v5litepod-16"), topology
("4x4"), name of the slice and worker id; worker 0 has the resource "TPU-v5litepod-16-head". `ray.util.tpu` (2.60) holds
a slice of several hosts by that resource first, so that two runs never get halves of it. It knows topologies by a list
(VALID_TPU_TOPOLOGY); v2-8, v3-8, v4-4096 and tpu7x-8192 are not in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.chips import GENERATIONS, Generation
from tpu_magics.host.problem import plural
from tpu_magics.launch.pods import cluster
from tpu_magics.launch.pods.pod import cpus_text

if TYPE_CHECKING:
    from tpu_magics.launch.pods.cluster import ClusterNode
    from tpu_magics.launch.pods.pod import Pod, PodHost

POD_TYPE, TOPOLOGY = "ray.io/tpu-pod-type", "ray.io/tpu-topology"
SLICE_NAME, WORKER_ID = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
RESERVE_TIMEOUT = 10.0  # seconds in which a slice that is free must be held

Bounds = tuple[int, int, int]


@dataclass(frozen=True)
class Slice:
    """A slice of TPUs. `bounds`: its chips in each direction, as Google writes the topology ((4, 4) is "4x4");
    `host_bounds`: those of one host, in three directions."""

    generation: Generation
    bounds: tuple[int, ...]
    host_bounds: Bounds

    @property
    def name(self) -> str:
        """As Google writes it: "v5litepod-16"."""
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
        """Of one host."""
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
    """The slice that a node's labels name; None for a generation that is not known, or shapes that do not fit."""
    prefix = pod_type.rpartition("-")[0]
    kind = next((one for one in GENERATIONS if prefix in (one.prefix, one.prefix.replace("tpu", "v"))), None)
    parts = topology.split("x")
    if kind is None or not all(part.isdigit() and int(part) for part in parts):
        return None
    bounds = tuple(map(int, parts))
    each = _host_bounds(bounds, int(chips))
    return Slice(kind, bounds, each) if math.prod(bounds) % max(math.prod(each), 1) == 0 else None


def _host_bounds(bounds: tuple[int, ...], chips: int) -> Bounds:
    """Of a host with so many chips: all of a slice of one host, else 2x2 chips, of v5e and v6e also 2x4."""
    if chips >= math.prod(bounds):
        x, y, z = (*bounds, 1, 1)[:3]
        return x, y, z
    return (2, 4, 1) if chips == 8 else (2, 2, 1) if chips == 4 else (chips, 1, 1)


# -- what a cluster has ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterSlice:
    """A slice in a cluster, with its nodes by worker id. `whole`: whether all of them are there."""

    slice: Slice
    name: str
    nodes: tuple[ClusterNode, ...]

    @property
    def whole(self) -> bool:
        return len(self.nodes) == self.slice.hosts

    @property
    def text(self) -> str:
        here = "" if self.whole else f", of which {len(self.nodes)} of {plural(self.slice.hosts, 'host')} are alive"
        return f"{self.slice.text}{here}"


def cluster_slices(nodes: Sequence[ClusterNode]) -> tuple[ClusterSlice, ...]:
    """The slices that the nodes' labels tell of, whole ones first, larger ones before smaller ones."""
    groups: dict[tuple[str, str, str], list[ClusterNode]] = {}
    for node in nodes:
        pod_type, topology = node.labels.get(POD_TYPE, ""), node.labels.get(TOPOLOGY, "")
        if pod_type and topology and node.chips:
            kind = slice_from_labels(pod_type, topology, node.chips)
            # A slice of one host has no name that counts: each such node is a slice of its own.
            name = node.id if kind is not None and kind.hosts == 1 else node.labels.get(SLICE_NAME, "")
            groups.setdefault((pod_type, topology, name), []).append(node)
    found = [_cluster_slice(pod_type, topology, members) for (pod_type, topology, _), members in groups.items()]
    return tuple(sorted((one for one in found if one), key=lambda one: (not one.whole, -one.slice.all_chips, one.name)))


def _cluster_slice(pod_type: str, topology: str, members: list[ClusterNode]) -> ClusterSlice | None:
    kind = slice_from_labels(pod_type, topology, members[0].chips)
    if kind is None:
        return None
    ordered = sorted(members, key=lambda node: (worker_id(node), node.id))
    return ClusterSlice(kind, ordered[0].labels.get(SLICE_NAME, ordered[0].name), tuple(ordered))


def worker_id(node: ClusterNode) -> int:
    """Its number among the hosts of its slice."""
    text = node.labels.get(WORKER_ID, "0")
    return int(text) if text.isdigit() else 0


def choose_slice(nodes: Sequence[ClusterNode], wanted: Slice | None) -> ClusterSlice | None:
    """The slice to train on: the one that was asked for, else the largest whole one; None where the cluster has no TPU
    and none was asked for. Raises TpuMagicsError, with what there is instead."""
    there = cluster_slices(nodes)
    whole = [one for one in there if one.whole and (wanted is None or one.slice.pod_type == wanted.pod_type)]
    if whole:
        return whole[0]
    if wanted is None and not any(node.chips for node in nodes):
        return None
    raise _no_such_slice(nodes, there, wanted)


def _no_such_slice(nodes: Sequence[ClusterNode], there: Sequence[ClusterSlice], wanted: Slice | None) -> TpuMagicsError:
    name = wanted.name if wanted is not None else "whole slice of TPUs"
    same = next((one for one in there if wanted is not None and one.slice.pod_type == wanted.pod_type), None)
    if same is not None:
        todo = "Look at the hosts that are missing (`ray status`), and run %tpu_init again once they have joined."
    elif there:
        todo = f"Ask for what it has: --target {there[0].slice.name}, or leave --target away."
    else:
        todo = "Leave --target away for a rehearsal on the hosts' CPUs, or get the slice: %tpu_pod --target " + (
            wanted.name if wanted is not None else "v5litepod-16"
        )
    return TpuMagicsError(
        f"This cluster cannot give a {name}.", f"What it has instead: {_describe_cluster(nodes, there)}.", todo
    )


def _describe_cluster(nodes: Sequence[ClusterNode], there: Sequence[ClusterSlice]) -> str:
    """What a cluster has, in words."""
    counted = Counter(one.text for one in there)
    parts = [text if count == 1 else f"{count} times {text}" for text, count in counted.items()]
    labelled_nodes = {node.id for one in there for node in one.nodes}
    bare = [node for node in nodes if node.chips and node.id not in labelled_nodes]
    parts += [f"{node.name} with {node.chips:g} TPU and no label of a slice ({POD_TYPE})" for node in bare]
    without = [node for node in nodes if not node.chips]
    if without:
        cpus = cpus_text(sum(node.cpus for node in without))
        parts.append(f"{plural(len(without), 'host')} without a TPU ({cpus})")
    return "; ".join(parts) or "nothing"


# -- holding one -------------------------------------------------------------------------------------------------------


class Reservation:
    """The slice that this process holds. `group`: Ray's handle of it (a SlicePlacementGroup), None for none."""

    group: Any = None


def reserve(wanted: Slice) -> list[str]:
    """Reserve a slice: the ids of its nodes, by their place in the placement group. What was held is released first.
    Raises TpuMagicsError where others have it."""
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
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, ValueError):
        return TpuMagicsError(
            f"This version of Ray does not hold a {wanted.name} ({wanted.topology}).",
            f"It says: {said}",
            "Ask for another slice with --target, or update Ray."
            if wanted.hosts > 1
            else "Use its one host alone: %tpu_init there, without --hosts.",
        )
    return TpuMagicsError(
        f"The slice {wanted.name} is there, and Ray did not get it within {RESERVE_TIMEOUT:.0f} s.",
        f"Something else holds it, or its hosts have no CPU free. Ray says: {said}",
        "Look who has it with `ray status` and `ray list placement-groups`, end that job, and run %tpu_init again.",
    )


def release() -> None:
    """Give the held slice back; with the connection, or the cluster's head, it went by itself."""
    group, Reservation.group = Reservation.group, None
    if group is not None and cluster.is_alive():
        group.shutdown()


def forget_reservation() -> None:
    """What was held went with the connection that it was held through."""
    Reservation.group = None


def actor_options(pod: Pod, host: PodHost) -> dict[str, Any]:
    """The options of an actor that has to run on this host: on its node and nowhere else, with the host's TPU chips
    where the slice is held."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    if pod.device == "CPU" or Reservation.group is None or host.bundle is None:
        return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(host.node, soft=False)}
    group = PlacementGroupSchedulingStrategy(
        placement_group=Reservation.group.placement_group, placement_group_bundle_index=host.bundle
    )
    return {"num_cpus": 0, "resources": {"TPU": host.chips}, "scheduling_strategy": group}
