"""The plan of a run, made before anything forks: options, number of workers, host memory and disk."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import CheckpointPlan, WorkerOptions, WorkerSpec
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.host import Host, free_disk
from tpu_magics.host.memory import host_memory
from tpu_magics.launch.options import Options

# Host memory of a worker without models, in bytes: its private memory after 30 steps of a small net on XLA:CPU with
# torch 2.9, compiled programs included (median; docs/benchmarks.md, tests/benchmarks/bench_worker.py).
PER_WORKER = 75_000_000
SPMD_DEVICES = 8  # virtual devices of an SPMD worker on XLA:CPU by default


@dataclass(frozen=True)
class Plan(WorkerOptions):
    """The plan of a run. `branch`: as in WorkerSpec; `workers`: processes; `replicas`: devices of each."""

    device: str
    workers: int
    replicas: int
    precision: str
    environment: Mapping[str, str | None]
    timeout: float | None = None
    cache: str = ""
    spmd: int | None = None
    checkpoints: CheckpointPlan | None = None
    branch: str = ""

    @classmethod
    def from_options(
        cls, options: Options, precision: str, collective_timeout: float | None = None, **fields: Any
    ) -> Plan:
        """A plan with these options. `precision`, `collective_timeout`: the session's, used if the options have
        none."""
        session = {} if collective_timeout is None else {"collective_timeout": collective_timeout}
        own = {**session, **options.for_workers()}
        return cls(precision=options.precision or precision, timeout=options.timeout, **own, **fields)

    @property
    def rehearsed(self) -> bool:
        """Whether workers on XLA:CPU act as the ranks of a TPU."""
        return self.device == "CPU" and self.workers > 1 and self.replicas == 1

    def spec(self, index: int, scratch: Path | None = None) -> WorkerSpec:
        """The specification of worker `index`; `scratch`: a folder for temporary files of the workers."""
        return WorkerSpec(
            index=index,
            count=self.workers,
            device=self.device,
            branch=self.branch,
            precision=self.precision,
            environment=self.environment,
            replicas=self.replicas,
            scratch=None if scratch is None else scratch / f"worker-{index}",
            cache=self.cache,
            meeting=scratch if self.rehearsed else None,
            spmd=self.spmd,
            checkpoints=self.checkpoints,
            **self.options(),
        )

    @property
    def ranks(self) -> int:
        return self.workers * self.replicas

    def record(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "device": self.device,
            "branch": self.branch,
            "workers": self.workers,
            "replicas": self.replicas,
            "precision": self.precision,
            "steps": self.steps,
            "timeout": self.timeout,
            "max_recompiles": self.max_recompiles,
            "cache": self.cache,
            "checkpoints": self.checkpoints.record() if self.checkpoints is not None else None,
            "rehearsed": self.rehearsed,
            "spmd": self.spmd,
            "collective_timeout": self.collective_timeout if self.rehearsed else None,
        }


def make_plan(
    host: Host,
    options: Options,
    precision: str,
    workers: int,
    cache: str = "",
    collective_timeout: float | None = None,
) -> Plan:
    """The plan for `workers` processes on this host. A single process uses one device (on v2 and v3, one of two).
    `precision`, `cache` and `collective_timeout`: the session's."""
    meeting = meeting_environment() if host.device == "CPU" and workers > 1 else {}
    return Plan.from_options(
        options,
        precision,
        collective_timeout,
        device=host.device,
        branch=host.branch,
        workers=workers,
        replicas=host.replicas if workers == host.workers and options.spmd is None else 1,
        environment={**host.worker_environment, **meeting, **options.environment},
        cache=cache,
        spmd=options.spmd,
    )


def spmd_devices(host: Host, requested: int | None, session: int | None) -> int | None:
    """How many devices an SPMD worker drives: the cell's number `requested` (0: none given, None: no SPMD), else the
    session's; on a TPU 0 for all."""
    if requested is None:
        return None
    return requested or session or (SPMD_DEVICES if host.device == "CPU" else 0)


def meeting_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The address of torch.distributed's store in a rehearsal: torch_xla's default port may be in use.

    Raises TpuMagicsError if MASTER_PORT is set and in use.
    """
    own = environ.get("MASTER_PORT", "")
    if own and not (own.isdigit() and 0 < int(own) < 65536):
        raise TpuMagicsError(
            f"MASTER_PORT is {own!r}, which is not a valid port.",
            "torch.distributed's rank 0 listens there for the other ranks.",
            "Unset it (del os.environ['MASTER_PORT']); a free port is then chosen.",
        )
    if own and _free_port(own) is None:
        raise TpuMagicsError(
            f"MASTER_PORT is {own}, but that port is in use.",
            "torch.distributed's rank 0 must listen there for the other ranks.",
            "Unset it (del os.environ['MASTER_PORT']); a free port is then chosen. Or end the program that uses the "
            f"port (find it with `ss -ltnp | grep :{own}`).",
        )
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": own or str(_free_port("0"))}


def _free_port(text: str) -> int | None:
    """The port if it is free (for "0", one that the system chooses), else None."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(text)))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def cache_folder(text: str) -> str:
    """The absolute path of the persistent compile cache, created if needed; "" for "off".

    Raises TpuMagicsError if the folder is not writable.
    """
    if text == "off":
        return ""
    folder = Path(text).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise TpuMagicsError(
            f"The compile cache cannot be written to {folder}.",
            f"{error.strerror or error}.",
            "Use --cache with a folder that you can write to, or omit it.",
        ) from None


def count_workers(host: Host, requested: int | None, spmd: int | None = None) -> int:
    """How many processes to start: one for each chip; one on XLA:CPU (more are a rehearsal); one for SPMD.

    Raises TpuMagicsError if this host does not support `requested` processes or `spmd` devices.
    """
    if spmd is not None:
        return _one_spmd_worker(host, spmd)
    if requested is None or requested == host.workers * host.replicas:
        return host.workers
    if requested == 1 or host.device == "CPU":
        return requested
    ranks = host.workers * host.replicas
    raise TpuMagicsError(
        f"-n {requested} is not supported on this host: it has {plural(len(host.chips), 'TPU chip')}.",
        "torch_xla starts either one process for each chip or a single process.",
        f"Omit -n for {ranks} ranks, or use -n 1.",
    )


def _one_spmd_worker(host: Host, spmd: int) -> int:
    ranks = host.workers * host.replicas
    if host.device != "CPU" and spmd not in (0, ranks):
        raise TpuMagicsError(
            f"--spmd {spmd} is not supported on this host: it has {ranks} TPU devices.",
            "An SPMD worker drives all devices of its host.",
            f"Use --spmd {ranks}.",
        )
    return 1


# -- memory and disk --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """Host memory that a run adds, in bytes. One copy of the models exists already."""

    models: int
    copies: int
    workers: int

    @property
    def needed(self) -> int:
        return self.workers * PER_WORKER + self.copies * self.models

    def text(self) -> str:
        parts = f"{self.workers} x {mb(PER_WORKER)} for the workers"
        return f"{parts} and {self.copies} x {mb(self.models)} for copies of the models" if self.models else parts


def forecast(plan: Plan, models: int, saves: bool = False) -> Forecast:
    """The host memory that the run adds.

    Workers inherit models copy-on-write. On XLA:CPU each device's copy is in host memory. On a TPU each worker has one
    copy in transit at a time, and its second device (v2, v3) trains a copy. Rank 0 makes one more copy to return the
    weights, and one while a checkpoint is written (`saves`). In a rehearsal the gradients of each rank are in host
    memory too. Unknown before the run: the optimizer state (Adam: two more copies), and how much of a model an SPMD
    worker shards; it counts as whole on each device.
    """
    devices = max(plan.ranks, plan.spmd or 1) if plan.device == "CPU" else plan.ranks
    each = 2 if plan.rehearsed else 1
    return Forecast(models=models, copies=each * devices + 1 + saves, workers=plan.workers)


_SHARDED = "; a model that is sharded over the devices (FSDP) needs less"


def require_memory(plan: Plan, models: int, force: bool, root: Path = Path("/"), saves: bool = False) -> None:
    """Raise TpuMagicsError if the run does not fit in host memory, unless `force`. `saves`: checkpoints."""
    available = host_memory(root).available
    expected = forecast(plan, models, saves)
    if force or available is None or expected.needed <= available:
        return
    raise TpuMagicsError(
        f"Not enough host memory (estimate): the run needs {mb(expected.needed)}, but {mb(available)} are free.",
        f"Needed: {expected.text()}.",
        "Free memory (close other notebooks, `del` large variables), use a smaller model or fewer workers (-n 1), or "
        f"skip this check with --force{_SHARDED if plan.spmd else ''}.",
    )


def require_disk(folder: Path, models: int, force: bool) -> None:
    """Raise TpuMagicsError if the trained weights do not fit on the disk of the run folder, unless `force`."""
    free = free_disk(folder)
    if force or free is None or models <= free:
        return
    raise TpuMagicsError(
        f"Not enough disk space: the trained weights take {mb(models)}, but {mb(free)} are free.",
        f"The workers return them through the run folder, {folder}.",
        "Free disk space, set TPU_MAGICS_RUNS to a folder on another disk, or skip this check with --force.",
    )


def mb(count: int) -> str:
    """Bytes as text: MB below 10 GB, GB above (powers of ten)."""
    return f"{count / 1e6:,.0f} MB" if count < 1e10 else f"{count / 1e9:,.1f} GB"
