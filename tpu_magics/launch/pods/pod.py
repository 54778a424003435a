"""A pod: the hosts that take part in a run, as `%tpu_init --hosts` found them; and what the notebook and a host
exchange besides the bundle: the host's task, its state, and the names of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tpu_magics.errors import plural
from tpu_magics.launch.plan import Plan


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
    each host; `replicas`: devices of each worker; `target`: the slice as Google writes it ("" for none);
    `notes`: sentences about the hosts."""

    address: str
    hosts: tuple[PodHost, ...]
    device: str = "CPU"
    workers: int = 1
    replicas: int = 1
    target: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.workers * self.replicas


def cpus_text(cpus: float) -> str:
    """Ray's number of CPUs, which may be a fraction: "1 CPU", "0.5 CPUs"."""
    return plural(cpus, "CPU", "g")


# -- what the notebook and a host exchange ----------------------------------------------------------------------------


TASK, BUNDLE, STATE, LOG = "task.pkl", "bundle.bin", "state.json", "host.log"
RECORDS, DISPLAYS, RESULTS = "*.jsonl", "display-*.json", "result-*"
OUTPUT = ("rank-*.log", "rank-*.stacks", "rank-*-metrics-*.txt", LOG)
STARTING, RUNNING, ENDED, REFUSED = "starting", "running", "ended", "refused"


@dataclass(frozen=True)
class HostTask:
    """One host's part of a run. `index`: of the host; `hosts`: of the run; `workers`: on this host; `plan`: of the
    whole run; `store`: where rank 0 listens in a rehearsal; `address`: where other hosts reach this one; `environment`:
    of its workers, None unsets; `arrays`: number of files with large arrays; `shell`: the notebook has an IPython
    shell."""

    index: int
    name: str
    hosts: int
    workers: int
    plan: Plan
    environment: Mapping[str, str | None] = field(default_factory=dict)
    store: tuple[str, int] | None = None
    address: str = ""
    arrays: int = 0
    shell: bool = False

    @property
    def first(self) -> int:
        """The number of its first worker."""
        return self.index * self.workers

    @property
    def world(self) -> int:
        return self.hosts * self.workers * self.plan.replicas


@dataclass
class HostState:
    """The state of a host's process, replaced atomically in `STATE`. `workers`: one object for each, as in run.json
    with `ended`, `index` and `stopped_by_us`; memory in bytes; `refused`: what, why and todo of the error that stopped
    the host before it forked workers."""

    phase: str = STARTING
    workers: list[dict[str, Any]] = field(default_factory=list)
    memory_total: int = 0
    memory_at_start: int = 0
    memory_low: int = 0
    oom_kills: int | None = None
    refused: dict[str, str] | None = None
    exit: int | None = None

    def write(self, folder: Path) -> None:
        temporary = folder / f".{STATE}.new"
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(folder / STATE)


def is_streamed_file(name: str) -> bool:
    """Whether a host may send a file of this name during the run: the notebook uses it as part of a path."""
    return "/" not in name and any(fnmatchcase(name, one) for one in (RECORDS, DISPLAYS, *OUTPUT))


def is_result_file(name: str) -> bool:
    """Whether a host sends the file at the end; it may be in a folder."""
    first, *_ = parts = name.split("/")
    return fnmatchcase(first, RESULTS) and not {"", ".", ".."} & set(parts)


def read_state(folder: Path) -> dict[str, Any]:
    """The content of `STATE`; the initial state if the file does not exist yet."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return asdict(HostState())
    return state
