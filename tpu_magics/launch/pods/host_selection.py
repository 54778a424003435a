"""The hosts of the runs to come, decided before anything is sent: which they are, and how many ranks each has.

What lives here: from a cluster to a Pod, and what it must have room for. What does not: a run's own plan
(launch/plan.py), and sending it (going.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.problem import plural
from tpu_magics.launch.plan import PER_WORKER, mb
from tpu_magics.launch.pods import address as addresses
from tpu_magics.launch.pods import cluster, host_versions, slice_environment, slices
from tpu_magics.launch.pods.cluster import ClusterNode
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.pods.slices import Slice

DEAD_NODE_SECONDS = 45.0  # seconds in which Ray counts a node that does not answer as dead


def find_pod(hosts: str, wanted: Slice | None = None, processes: int | None = None) -> Pod:
    """Connect to the cluster that `hosts` names, and choose its hosts: those of a slice of TPUs, else, for a rehearsal,
    all that have CPUs. `processes`: ranks of all hosts together. Raises TpuMagicsError where a run could not go there;
    what was connected for it is left again."""
    found = cluster.notebook_connection(hosts) or addresses.parse_address(hosts)
    assert found is not None, "the caller has seen to it that hosts were asked for"
    opened, held = not cluster.is_connected(), slices.Reservation.group
    before = cluster.Connection.address
    cluster.connect(found)
    if cluster.Connection.address != before:
        slices.forget_reservation()
    try:
        pod = _pod_of_alive_nodes(found, wanted, processes)
        require_memory(pod)
    except BaseException:
        if slices.Reservation.group is not held:
            slices.release()
        if opened:
            cluster.disconnect()
        raise
    return pod


def _pod_of_alive_nodes(found: addresses.Address, wanted: Slice | None, processes: int | None) -> Pod:
    """The pod; without the nodes that turn out to be dead while they are asked, which Ray still counts for a while."""
    while True:
        try:
            return _select(found, wanted, processes)
        except host_versions.HostsSilentError as silent:
            if not cluster.any_dead(silent.nodes, DEAD_NODE_SECONDS):
                raise


def _select(found: addresses.Address, wanted: Slice | None, processes: int | None) -> Pod:
    alive = cluster.nodes()
    chosen = slices.choose_slice(alive, wanted)
    if chosen is None:
        slices.release()
        members = _hosts_with_cpus(alive)
        pod = Pod(found.url, _pod_hosts(members), client=found.client)
    else:
        with_ranks(_slice_pod(found, chosen.slice, chosen.nodes), processes)  # refused before anything is held
        members = _reserve(chosen.slice, alive)
        pod = _slice_pod(found, chosen.slice, members)
    return with_ranks(_with_host_reports(pod, members), processes)


def _pod_hosts(members: Sequence[ClusterNode]) -> tuple[PodHost, ...]:
    return tuple(
        PodHost(index, node.name, node.id, node.address, cpus=node.cpus, head=node.head, store=node.store)
        for index, node in enumerate(members)
    )


def _hosts_with_cpus(alive: Sequence[ClusterNode]) -> list[ClusterNode]:
    """The hosts of a rehearsal. A node that was started with 0 CPUs (as heads often are) is there for no work."""
    members = [node for node in alive if node.cpus > 0]
    if members:
        return members
    names = ", ".join(f"the head node {node.name}" if node.head else node.name for node in alive) or "none"
    raise TpuMagicsError(
        "No host of this cluster has room for a rank.",
        f"Alive: {names}, with 0 CPUs{' each' if len(alive) > 1 else ''}: Ray is told so to keep work off a node.",
        "Add hosts (`ray start --address=HEAD:6379` on each), or start the head with CPUs (`ray start --head "
        "--num-cpus=2`).",
    )


# -- on a slice --------------------------------------------------------------------------------------------------------


def _reserve(kind: Slice, alive: Sequence[ClusterNode]) -> list[ClusterNode]:
    """Reserve a slice of this kind: its nodes, by their place in the placement group."""
    held = slices.reserve(kind)
    known = {node.id: node for node in (*alive, *cluster.nodes())}  # Ray may choose one that has joined since
    return [known[node] for node in held]


def _slice_pod(found: addresses.Address, kind: Slice, members: Sequence[ClusterNode]) -> Pod:
    """Hosts are counted by their worker id in the slice, which need not be their place in the placement group."""
    bundles = {node.id: bundle for bundle, node in enumerate(members)}
    ordered = sorted(members, key=lambda node: (slices.worker_id(node), node.id))
    told = slice_environment.slice_environments(kind, [node.address for node in ordered])
    hosts = tuple(
        replace(host, chips=kind.chips, bundle=bundles[host.node], environment=told[host.index])
        for host in _pod_hosts(ordered)
    )
    return Pod(
        address=found.url,
        hosts=hosts,
        device="TPU",
        workers=kind.chips,
        replicas=kind.generation.devices,
        target=kind.name,
        client=found.client,
    )


def _with_host_reports(pod: Pod, members: Sequence[ClusterNode]) -> Pod:
    """The same with what the hosts say of themselves."""
    known = {node.id: node for node in members}
    answers = host_versions.query_hosts([known[host.node] for host in pod.hosts])
    notes = host_versions.require_same_versions(
        [host.name for host in pod.hosts], answers, host_versions.own_versions()
    )
    hosts = tuple(
        replace(host, versions=answer.versions, memory=answer.memory)
        for host, answer in zip(pod.hosts, answers, strict=True)
    )
    return replace(pod, hosts=hosts, notes=tuple(notes))


# -- ranks and room ----------------------------------------------------------------------------------------------------


def with_ranks(pod: Pod, processes: int | None) -> Pod:
    """The pod with so many ranks on all hosts together (None: as it is). Raises TpuMagicsError where that cannot be."""
    if processes is None or processes == pod.ranks:
        return pod
    count = len(pod.hosts)
    if pod.device != "CPU":
        raise TpuMagicsError(
            f"-n {processes} is not possible on {pod.target}: it has {plural(pod.ranks, 'rank')}.",
            "torch_xla starts one process for each chip of a slice, and all of them must take part.",
            f"Leave -n away for {pod.ranks} ranks, or ask for another slice with --target.",
        )
    if processes < 1 or processes % count:
        near = sorted({max(processes // count, 1) * count, (processes // count + 1) * count})
        raise TpuMagicsError(
            f"-n {processes} is not possible on {plural(count, 'host')}.",
            "-n counts the ranks of all hosts together, and each host has the same number of them.",
            f"Give -n {' or '.join(map(str, near))}, or leave it away for {count}: one on each host.",
        )
    return replace(pod, workers=processes // count)


def require_memory(pod: Pod, models: int = 0, force: bool = False) -> None:
    """Refuse a run that the memory of a host cannot take: `models` bytes, of which each rank of a rehearsal has a copy,
    and its gradients. Nodes of one machine share its memory."""
    for address in dict.fromkeys(host.address for host in pod.hosts):
        hosts = [host for host in pod.hosts if host.address == address]
        free = [host.memory for host in hosts if host.memory is not None]
        if force or not free:
            continue
        needed = len(hosts) * memory_per_host(pod, models)
        if needed > min(free):
            raise _not_enough_memory(pod, hosts, needed, min(free), models)


def memory_per_host(pod: Pod, models: int) -> int:
    """Bytes of memory that a run takes on one host: workers, the models as they arrive, and the ranks' copies."""
    copies = 2 * pod.workers if pod.device == "CPU" else pod.workers * (pod.replicas - 1) + 1
    return pod.workers * PER_WORKER + (copies + 1) * models


def _not_enough_memory(pod: Pod, hosts: Sequence[PodHost], needed: int, free: int, models: int) -> TpuMagicsError:
    names = ", ".join(f"the head node {host.name}" if host.head else host.name for host in hosts)
    ranks = plural(pod.workers * pod.replicas * len(hosts), "rank")
    return TpuMagicsError(
        f"There is no room on {names}: {ranks} need {mb(needed)} of memory there, and {mb(free)} are free.",
        f"{mb(PER_WORKER)} for each worker" + (f", and copies of the models ({mb(models)})." if models else "."),
        "Use fewer ranks (-n), a smaller model or hosts with more memory; a head node is kept free with `ray start "
        "--head --num-cpus=0`. To try all the same: --force.",
    )
