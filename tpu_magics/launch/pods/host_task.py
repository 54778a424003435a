"""What a host is told besides the parcel, and what it tells back.

What lives here: the two records, and the names of the files through which a carrier and its host's process talk. What
does not: the run's own records (runs/), and the parcel (parcel.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

TASK, BUNDLE, STATE, LOG = "task.pkl", "parcel.bin", "state.json", "host.log"
RECORDS, DISPLAYS, RESULTS = "*.jsonl", "display-*.json", "result-*"
OUTPUT = ("rank-*.log", "rank-*.stacks", "rank-*-metrics-*.txt", LOG)
STARTING, RUNNING, ENDED, REFUSED = "starting", "running", "ended", "refused"


@dataclass(frozen=True)
class HostTask:
    """One host's share. `index`: of the host; `workers`, `replicas`: here; `hosts`: of the run; `store`: where rank 0
    listens in a rehearsal; `address`: where the others reach this host; `environment`: of its workers, None unsets;
    `arrays`: files of large arrays; `shell`: the notebook has one of IPython's; the rest as in launch/plan.py."""

    index: int
    name: str
    hosts: int
    workers: int
    replicas: int
    device: str
    precision: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    steps: int | None = None
    max_recompiles: int | None = None
    strict: bool = False
    cache: str = ""
    rehearsed: bool = False
    store: tuple[str, int] | None = None
    address: str = ""
    collective_timeout: float = 60.0
    arrays: int = 0
    shell: bool = False

    @property
    def first(self) -> int:
        """The number of its first worker."""
        return self.index * self.workers

    @property
    def world(self) -> int:
        return self.hosts * self.workers * self.replicas


@dataclass
class HostState:
    """How a host's process is, replaced whole in `STATE`. `workers`: one object for each, as in run.json with
    `ended`, `index` and `stopped_by_us`; memory in bytes; `refused`: what, why and todo of what was refused before
    anything was forked."""

    phase: str = STARTING
    reason: str = ""
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
    """Whether a host may send what comes into a file of this name: it becomes part of a path at the notebook."""
    return "/" not in name and any(fnmatchcase(name, one) for one in (RECORDS, DISPLAYS, *OUTPUT))


def is_result_file(name: str) -> bool:
    """The same of what a host sends at the end, which may lie in folders."""
    first, *_ = parts = name.split("/")
    return fnmatchcase(first, RESULTS) and not {"", ".", ".."} & set(parts)


def read_state(folder: Path) -> dict[str, Any]:
    """What stands in `STATE`; that of a beginning where there is none yet."""
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return asdict(HostState())
    return found
