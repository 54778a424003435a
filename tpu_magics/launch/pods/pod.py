"""A pod: the hosts that take part in a run, as `%tpu_init --hosts` found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PodHost:
    """One host. `index`: its position in the pod, from 0; `name`: unique in the pod; `node`: Ray's node id;
    `address`: where the other hosts reach it; `memory`: free bytes (None: not available); `versions`: distribution ->
    version, with "python"; `chips`: TPU chips; `bundle_index`: its bundle in the placement group of a slice (None: no
    placement group); `environment`: variables for its workers (None: unset); `head`: it is the cluster's head node;
    `store`: bytes of its part of Ray's object store."""

    index: int
    name: str
    node: str
    address: str
    cpus: float = 1.0
    memory: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    chips: int = 0
    bundle_index: int | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    head: bool = False
    store: float = 0.0


@dataclass(frozen=True)
class Pod:
    """The hosts of a run. `address`: of the cluster; `device`: "TPU" or "CPU" (a rehearsal); `workers`: processes on
    each host; `replicas`: devices of each worker; `target`: the slice as Google writes it ("" for none); `client`: the
    notebook is outside the cluster (ray://); `notes`: sentences about the hosts."""

    address: str
    hosts: tuple[PodHost, ...]
    device: str = "CPU"
    workers: int = 1
    replicas: int = 1
    target: str = ""
    client: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.workers * self.replicas

    def host_of(self, rank: int) -> PodHost:
        """The host of a rank: ranks are numbered host by host."""
        return self.hosts[rank // (self.workers * self.replicas)]


def cpus_text(cpus: float) -> str:
    """Ray's number of CPUs, which may be a fraction: "1 CPU", "0.5 CPUs"."""
    return f"{cpus:g} CPU{'s' * (cpus != 1)}"
