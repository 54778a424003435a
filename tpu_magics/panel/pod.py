"""The tables of `%tpu_init --hosts` and `%tpu_pod`: the hosts of a pod, and the dry run."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.errors import plural
from tpu_magics.launch.pods.dry_run import DryRun
from tpu_magics.launch.pods.host_versions import versions_text
from tpu_magics.launch.pods.pod import Pod, PodHost, cpus_text
from tpu_magics.panel.formats import size as memory  # in GiB, as it is told of this host
from tpu_magics.panel.table import Row, Table

NOT_AVAILABLE = "n/a"
PAGES_TITLE = "How to create a TPU slice"
PAGES = {
    "TPU VMs": "https://cloud.google.com/tpu/docs/managing-tpus-tpu-vm",
    "Ray on GKE": "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gcp-gke-tpu-cluster.html",
}


def pod_table(pod: Pod) -> Table:
    """A row for each host."""
    same = len({tuple(sorted(host.versions.items())) for host in pod.hosts}) == 1
    columns = ("Host", "Ranks", "Address", "Has", "Memory free", *(() if same else ("Versions",)))
    rows = tuple(Row((*_host(pod, host), *(() if same else (versions_text(host.versions),)))) for host in pod.hosts)
    notes = [f"On every host: {versions_text(pod.hosts[0].versions)}."] if same and pod.hosts[0].versions else []
    return Table(f"tpu_magics: {_title(pod)}", columns, rows, (*notes, *pod.notes))


def _title(pod: Pod) -> str:
    hosts, ranks = plural(len(pod.hosts), "host"), plural(pod.ranks, "rank")
    kind = f"TPU {pod.target}" if pod.target else "a rehearsal on XLA:CPU"
    return f"{hosts}, {ranks} ({kind}), Ray cluster {pod.address}"


def _host(pod: Pod, host: PodHost) -> tuple[str, str, str, str, str]:
    has = plural(host.chips, "TPU chip") if host.chips else cpus_text(host.cpus)
    name = f"{host.name} (head)" if host.head else host.name
    free = memory(host.memory) if host.memory is not None else NOT_AVAILABLE
    return name, ranks_text(pod, host), host.address, has, free


def ranks_text(pod: Pod, host: PodHost) -> str:
    """ "0", "2-3"."""
    each = pod.workers * pod.replicas
    first, last = host.index * each, (host.index + 1) * each - 1
    return str(first) if first == last else f"{first}-{last}"


def size(count: int) -> str:
    """Bytes as people read them: "812 B", "1.4 kB", "268 MB" (powers of ten)."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 100 else f"{value:.3g} {units[0]}"


# -- the plan ----------------------------------------------------------------------------------------------------------


def outlook_table(outlook: DryRun, runs: str) -> Table:
    """What a run would do. `runs`: the folder of the notebook's run folders."""
    rows = (*_where(outlook), *_sent(outlook), *_home(outlook, runs))
    return Table(_outlook_title(outlook), None, rows, _notes(outlook))


def _outlook_title(outlook: DryRun) -> str:
    what = f" of training {outlook.load.name}" if outlook.load is not None else ""
    return f"tpu_magics: dry run{what} on {plural(outlook.hosts, 'host')}"


def _where(outlook: DryRun) -> Iterator[Row]:
    pod, kind = outlook.pod, outlook.slice
    if pod is not None:
        yield Row(("Hosts", f"{plural(len(pod.hosts), 'host')} of the Ray cluster {pod.address}"), "ok")
        for host in pod.hosts:
            ranks = ranks_text(pod, host)
            noun = "ranks" if "-" in ranks else "rank"
            yield Row((f"  {host.name}", f"{noun} {ranks}, {_host(pod, host)[3]}, {host.address}"))
    elif kind is not None:
        yield Row(("Hosts", f"{kind.text}; not there yet: the pages below say how to create it"), "unknown")
    else:
        yield Row(("Hosts", "this host only; for a Ray cluster: %tpu_init --hosts ADDRESS"))
    replicas = pod.replicas if pod is not None else kind.generation.devices if kind is not None else 1
    each = plural(outlook.workers, "worker") + (f" with {replicas} devices" if replicas > 1 else "")
    yield Row(("Ranks", f"{outlook.ranks}: {each} on each host, numbered host by host"))


def _sent(outlook: DryRun) -> Iterator[Row]:
    load = outlook.load
    if load is None:
        yield Row(("Sent", f"{NOT_AVAILABLE} (name the function: %tpu_pod FUNCTION ARG ...)"))
        return
    yield Row(("Sent to each host", f"{size(load.bundle)}: the function and its small arguments, in one bundle"))
    if load.shared:
        copied = f"{size(load.shared)}: models and large arrays, through Ray's object store, once for each host; its "
        yield Row(("", f"{copied}{plural(outlook.workers, 'worker')} get{'s' * (outlook.workers == 1)} them by fork"))
    yield Row(("Sent in all", f"{size(outlook.hosts * outlook.each)} to {plural(outlook.hosts, 'host')}"))
    yield from _room(outlook)


def _room(outlook: DryRun) -> Iterator[Row]:
    """The limits: the smallest object store, and the host with the least free memory."""
    pod, needed = outlook.pod, outlook.needed
    if pod is None or outlook.load is None or needed is None:
        return
    store = min(pod.hosts, key=lambda host: host.store)
    fits = outlook.load.shared <= store.store
    text = f"the smallest part is {size(int(store.store))}, on {store.name}"
    yield Row(("Ray's object store", text if fits else f"{text}: too small"), "ok" if fits else "broken")
    known = [host for host in pod.hosts if host.memory is not None]
    if known:
        least = min(known, key=lambda host: host.memory or 0)
        enough = needed <= (least.memory or 0)
        text = f"{memory(needed)} for each host's workers; {least.name} has {memory(least.memory or 0)} free"
        yield Row(("Memory", text), "ok" if enough else "broken")


def _home(outlook: DryRun, runs: str) -> Iterator[Row]:
    first = outlook.pod.hosts[0].name if outlook.pod is not None else "the first host"
    yield Row(("During the run", f"events, the output of each rank and the displays of rank 0 are copied into {runs}"))
    if outlook.load is not None and outlook.load.models:
        text = f"{size(outlook.load.models)}: the trained weights of rank 0 are copied from {first}"
    else:
        text = f"the trained weights of rank 0 are copied from {first}, with the value of each rank"
    yield Row(("At the end", text))


def _notes(outlook: DryRun) -> tuple[str, ...]:
    return outlook.pod.notes if outlook.pod is not None else ()


def pages_text() -> str:
    """Where to read how hosts are created."""
    return "\n".join([f"{PAGES_TITLE}:", *(f"    {name}: {page}" for name, page in PAGES.items())])


def pages_html() -> str:
    """The pages as links."""
    links = ", ".join(f'<a href="{page}" target="_blank">{name}</a>' for name, page in PAGES.items())
    return f"<div style='margin-top:.8em'>{PAGES_TITLE}: {links}</div>"
