"""The `--hosts` option: selects the hosts of later runs and the number of ranks on each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.launch.options import Options
from tpu_magics.launch.plan import PER_WORKER, mb
from tpu_magics.launch.pods import cluster, host_versions, slices
from tpu_magics.launch.pods.address import Address, is_off, parse_address
from tpu_magics.launch.pods.cluster import ClusterNode
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.pods.slices import Slice

if TYPE_CHECKING:
    from tpu_magics.launch.session import Session

DEAD_NODE_SECONDS = 45.0  # after which Ray counts a node that does not answer as dead
COME_BACK_SECONDS = 600.0  # in which lost hosts may come back, for a run that starts again
COME_BACK_POLL = 5.0

# -- the session's pod -------------------------------------------------------------------------------------------------


def join_pod(current: Session, hosts: str, wanted: Slice | None, options: Options) -> Pod | None:
    """The pod that `hosts` names; None, after leaving the old pod, if it names none. If this fails the session keeps
    its pod, unless that was released for the new one."""
    if is_off(hosts):
        leave_pod(current)
        return None
    _require_idle(current)
    if options.spmd is not None:
        raise TpuMagicsError(
            "--spmd and --hosts cannot be combined.",
            "An SPMD run has one worker, which uses the devices of its own host only.",
            "Remove one of the two options.",
        )
    before = (cluster.Connection.address, slices.Reservation.group)
    try:
        return find_pod(hosts, wanted, options.processes)
    except BaseException:
        if (cluster.Connection.address, slices.Reservation.group) != before:
            current.pod = None
        raise


def leave_pod(current: Session) -> None:
    """Release the slice and close the connection."""
    if current.pod is None and cluster.Connection.address is None and slices.Reservation.group is None:
        return
    _require_idle(current)
    current.pod = None
    slices.release()
    cluster.disconnect()


def require_pytorch(hosts: str) -> None:
    """Raise TpuMagicsError if a cluster is named; for a framework that trains in the notebook's own process."""
    if not is_off(hosts):
        raise TpuMagicsError(
            "--hosts is for PyTorch/XLA only.",
            "TensorFlow trains in this notebook's own process, and a TPUStrategy connects to the TPU's hosts itself.",
            "Omit --hosts, or choose --framework torch.",
        )


def _require_idle(current: Session) -> None:
    if current.active_run is not None and current.active_run.busy and current.pod is not None:
        name, result = current.active_run.folder.name, current.active_run.options.output
        raise TpuMagicsError(
            f"The run {name!r} is still running on the hosts of the cluster.",
            "It was started with --background.",
            f"Wait for it with {result}.wait(), or stop it with %tpu_stop {name}",
        )


# -- finding hosts -----------------------------------------------------------------------------------------------------


def find_pod(hosts: str, wanted: Slice | None = None, processes: int | None = None) -> Pod:
    """Connect to the cluster that `hosts` names, and select its hosts: those of a TPU slice, or for a rehearsal all
    that have CPUs. `processes`: ranks of all hosts together. Raises TpuMagicsError if a run is not possible there, and
    then closes the connection that it opened."""
    address = cluster.notebook_connection(hosts) or parse_address(hosts)
    assert address is not None, "the caller checks that hosts are named"
    opened, reserved = not cluster.is_connected(), slices.Reservation.group
    before = cluster.Connection.address
    cluster.connect(address)
    if cluster.Connection.address != before:
        slices.forget_reservation()
    try:
        pod = _pod_of_alive_nodes(address, wanted, processes)
        require_memory(pod)
    except BaseException:
        if slices.Reservation.group is not reserved:
            slices.release()
        if opened:
            cluster.disconnect()
        raise
    return pod


def find_again(before: Pod, ranks: int, wanted: Slice | None, say: Callable[[str], None]) -> Pod:
    """The pod for a run whose host was lost: with this number of ranks, or the next lower one that is possible. Waits
    for hosts to come back if too few are left. Raises TpuMagicsError if none do."""
    until, told = time.monotonic() + COME_BACK_SECONDS, False
    while True:
        try:
            return _with_most_ranks(_find_same(before, wanted), ranks, say)
        except TpuMagicsError as error:
            if time.monotonic() > until:
                raise
            if not told:
                told = True
                say(f"{error.what} Waiting up to {COME_BACK_SECONDS / 60:.0f} minutes for hosts to come back.")
        time.sleep(COME_BACK_POLL)


def _find_same(before: Pod, wanted: Slice | None) -> Pod:
    """A pod of the same cluster and kind of device."""
    own = cluster.notebook_connection("ray")
    pod = find_pod(before.address if own is None else "ray", wanted)
    if pod.device != before.device:
        raise TpuMagicsError(
            f"This cluster has no {before.target or before.device} any more.",
            "All hosts of its TPU slice have left.",
            "Run %tpu_init --hosts again when they have joined, and the cell again with --resume.",
        )
    return pod


def _with_most_ranks(pod: Pod, ranks: int, say: Callable[[str], None]) -> Pod:
    """The pod with as many of these ranks as each of its hosts can have the same number of."""
    if pod.device != "CPU":
        return pod
    more = replace(pod, workers=max(ranks // len(pod.hosts), 1))
    try:
        require_memory(more)
    except TpuMagicsError as error:
        say(f"{error.what} Each host gets one rank.")
        return pod
    return more


def _pod_of_alive_nodes(address: Address, wanted: Slice | None, processes: int | None) -> Pod:
    """The pod, without nodes that Ray still counts as alive but that do not answer."""
    while True:
        try:
            return _select(address, wanted, processes)
        except host_versions.HostsSilentError as silent:
            if not cluster.any_dead(silent.nodes, DEAD_NODE_SECONDS):
                raise


def _select(address: Address, wanted: Slice | None, processes: int | None) -> Pod:
    alive = cluster.nodes()
    chosen = slices.choose_slice(alive, wanted)
    if chosen is None:
        slices.release()
        members = _hosts_with_cpus(alive)
        pod = Pod(address.url, _pod_hosts(members))
    else:
        with_ranks(_slice_pod(address, chosen.slice, chosen.nodes), processes)  # raises before anything is reserved
        members = _reserve(chosen.slice, alive)
        pod = _slice_pod(address, chosen.slice, members)
    return with_ranks(_with_host_reports(pod, members), processes)


def _pod_hosts(members: Sequence[ClusterNode]) -> tuple[PodHost, ...]:
    return tuple(
        PodHost(index, node.name, node.id, node.address, cpus=node.cpus, head=node.head, store=node.store)
        for index, node in enumerate(members)
    )


def _hosts_with_cpus(alive: Sequence[ClusterNode]) -> list[ClusterNode]:
    """The hosts of a rehearsal. Nodes with 0 CPUs, as head nodes often are, take no work."""
    members = [node for node in alive if node.cpus > 0]
    if members:
        return members
    names = ", ".join(f"the head node {node.name}" if node.head else node.name for node in alive) or "none"
    raise TpuMagicsError(
        "No host of this cluster has a CPU for a rank.",
        f"Alive: {names}, with 0 CPUs{' each' if len(alive) > 1 else ''}. Ray starts no work on a node with 0 CPUs.",
        "Add hosts (`ray start --address=HEAD:6379` on each), or start the head with CPUs (`ray start --head "
        "--num-cpus=2`).",
    )


# -- on a slice --------------------------------------------------------------------------------------------------------


def _reserve(kind: Slice, alive: Sequence[ClusterNode]) -> list[ClusterNode]:
    """Reserve a slice of this kind; its nodes in the order of the placement group's bundles."""
    reserved = slices.reserve(kind)
    known = {node.id: node for node in (*alive, *cluster.nodes())}  # Ray may use a node that joined meanwhile
    return [known[node] for node in reserved]


def _slice_pod(address: Address, kind: Slice, members: Sequence[ClusterNode]) -> Pod:
    """Hosts are ordered by their worker id in the slice, which may differ from their bundle index."""
    bundles = {node.id: bundle for bundle, node in enumerate(members)}
    ordered = sorted(members, key=lambda node: (slices.worker_id(node), node.id))
    environments = slices.slice_environments(kind, [node.address for node in ordered])
    hosts = tuple(
        replace(host, chips=kind.chips, bundle_index=bundles[host.node], environment=environments[host.index])
        for host in _pod_hosts(ordered)
    )
    return Pod(
        address=address.url,
        hosts=hosts,
        device="TPU",
        workers=kind.chips,
        replicas=kind.generation.devices,
        target=kind.name,
    )


def _with_host_reports(pod: Pod, members: Sequence[ClusterNode]) -> Pod:
    """The pod with each host's versions and free memory."""
    known = {node.id: node for node in members}
    reports = host_versions.query_hosts([known[host.node] for host in pod.hosts])
    notes = host_versions.require_same_versions(
        [host.name for host in pod.hosts], reports, host_versions.own_versions()
    )
    hosts = tuple(
        replace(host, versions=report.versions, memory=report.memory)
        for host, report in zip(pod.hosts, reports, strict=True)
    )
    return replace(pod, hosts=hosts, notes=tuple(notes))


# -- ranks and memory --------------------------------------------------------------------------------------------------


def with_ranks(pod: Pod, processes: int | None) -> Pod:
    """The pod with this number of ranks on all hosts together (None: unchanged). Raises TpuMagicsError if that is not
    possible."""
    if processes is None or processes == pod.ranks:
        return pod
    count = len(pod.hosts)
    if pod.device != "CPU":
        raise TpuMagicsError(
            f"-n {processes} is not possible on {pod.target}: it has {plural(pod.ranks, 'rank')}.",
            "torch_xla starts one process for each chip of a slice, and all of them must take part.",
            f"Remove -n to use {pod.ranks} ranks, or choose another slice with --target.",
        )
    if processes < 1 or processes % count:
        near = sorted({max(processes // count, 1) * count, (processes // count + 1) * count})
        raise TpuMagicsError(
            f"-n {processes} is not possible on {plural(count, 'host')}.",
            "-n counts the ranks of all hosts together, and each host has the same number of them.",
            f"Use -n {' or '.join(map(str, near))}, or remove -n for {count}: one on each host.",
        )
    return replace(pod, workers=processes // count)


def require_memory(pod: Pod, models: int = 0, force: bool = False) -> None:
    """Raise TpuMagicsError if a host does not have enough memory. `models`: bytes; each rank of a rehearsal has a copy
    of them, and their gradients. Nodes of one machine share its memory."""
    for address in dict.fromkeys(host.address for host in pod.hosts):
        hosts = [host for host in pod.hosts if host.address == address]
        free = [host.memory for host in hosts if host.memory is not None]
        if force or not free:
            continue
        needed = len(hosts) * memory_per_host(pod, models)
        if needed > min(free):
            raise _not_enough_memory(pod, hosts, needed, min(free), models)


def memory_per_host(pod: Pod, models: int) -> int:
    """Bytes of memory that a run needs on one host: workers, the received models, and the copies of the ranks."""
    copies = 2 * pod.workers if pod.device == "CPU" else pod.workers * (pod.replicas - 1) + 1
    return pod.workers * PER_WORKER + (copies + 1) * models


def _not_enough_memory(pod: Pod, hosts: Sequence[PodHost], needed: int, free: int, models: int) -> TpuMagicsError:
    names = ", ".join(f"the head node {host.name}" if host.head else host.name for host in hosts)
    count = pod.workers * pod.replicas * len(hosts)
    return TpuMagicsError(
        f"Not enough memory on {names}: {plural(count, 'rank')} need{'s' * (count == 1)} {mb(needed)}, and {mb(free)} "
        "is free (estimate).",
        f"{mb(PER_WORKER)} for each worker" + (f", and copies of the models ({mb(models)})." if models else "."),
        "Use fewer ranks (-n), a smaller model or hosts with more memory. `ray start --head --num-cpus=0` keeps runs "
        "off a head node. To run anyway: --force.",
    )
