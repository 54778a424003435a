"""The plan of a run, made before anything forks: options, number of workers, host memory and disk."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import COLLECTIVE_TIMEOUT, CheckpointPlan, WorkerSpec
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.host import Host, free_disk
from tpu_magics.host.memory import host_memory

if TYPE_CHECKING:
    from tpu_magics.launch.notebook import RunObserver
    from tpu_magics.runs.files import RunFiles

# Host memory of a worker without models, in bytes: its private memory after 30 steps of a small net on XLA:CPU with
# torch 2.9, compiled programs included (median; docs/benchmarks.md, tests/benchmarks/bench_worker.py).
PER_WORKER = 75_000_000
LONGEST = 1e9  # seconds
# Values of Options.spmd: all devices, or the session's number; no SPMD, whatever the session has.
ALL_DEVICES, NO_SPMD = 0, -1
SPMD_DEVICES = 8  # virtual devices of an SPMD worker on XLA:CPU by default
PRECISION_NAMES = ("fp32", "bf16", "bf16-downcast")


@dataclass(frozen=True)
class Options:
    """Options of a run; None: the session's default. `gate`: called with the request before anything forks; an
    exception stops the run. `observe`: makes one more observer of the run, besides the panel. `jit`: only for
    TensorFlow (launch/strategies/in_process.py). `resume`, `save_every`, `keep`: launch/resume/notebook.py;
    `retries`: how often a run that was killed starts again; `output`: the name that gets the result."""

    processes: int | None = None
    precision: str | None = None
    hoist: str = "auto"
    background: bool = False
    steps: int | None = None
    timeout: float | None = None
    force: bool = False
    run_name: str | None = None
    plain: bool = False
    max_recompiles: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    spmd: int | None = None
    collective_timeout: float | None = None
    strict: bool = False
    gate: Callable[[Any, Options], None] | None = None
    jit: str = "auto"
    keep_partial: bool = False
    observe: Callable[[RunFiles], RunObserver] | None = None
    resume: bool = False
    save_every: str | int | None = None
    keep: int | None = None
    retries: int = 0
    output: str = "_tpu"

    def check(self) -> None:
        """Raise TpuMagicsError for invalid values."""
        devices = self.spmd if self.spmd not in (NO_SPMD, ALL_DEVICES) else None
        for name, value in (("-n", self.processes), ("--steps", self.steps), ("--spmd", devices)):
            if value is not None and value < 1:
                raise TpuMagicsError(
                    f"{name} {value} is not valid.", "The smallest value is 1.", f"Use {name} 1 or more, or omit it."
                )
        if self.max_recompiles is not None and self.max_recompiles < 0:
            raise TpuMagicsError(
                f"--max-recompiles {self.max_recompiles} is not valid.",
                "It is the number of recompiles that a run may have.",
                "Use --max-recompiles 0 or more, or omit it for no limit.",
            )
        for name, seconds in (("--timeout", self.timeout), ("--collective-timeout", self.collective_timeout)):
            if seconds is not None and not 0 < seconds < LONGEST:
                raise TpuMagicsError(
                    f"{name} {seconds:g} is not valid.",
                    f"It must be a number of seconds above 0 and below {LONGEST:,.0f}.",
                    f"Use {name} with a number of seconds, or omit it.",
                )
        if self.retries < 0 or (self.retries and self.background):
            raise TpuMagicsError(
                f"--retries {self.retries} is not valid{' with --background' if self.background else ''}.",
                "It is how often a run that was killed starts again, in the cell that waits for it.",
                "Use --retries 1 or more in a cell that waits, or omit it.",
            )
        if self.spmd not in (None, NO_SPMD) and self.processes is not None:
            raise TpuMagicsError(
                f"-n {self.processes} and --spmd cannot be combined.",
                "-n starts one process for each rank; --spmd drives all devices from a single process.",
                "Use only one of them.",
            )
        check_choice("--precision", self.precision, PRECISION_NAMES)
        check_choice("--hoist", self.hoist, ("auto", "off"))
        check_choice("--jit", self.jit, ("auto", "keep"))


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Raise TpuMagicsError if the option has no such choice."""
    if value is not None and value not in choices:
        raise TpuMagicsError(
            f"{option} {value} is not valid.",
            f"The choices are: {', '.join(choices)}.",
            f"Use one of them for {option}.",
        )


@dataclass(frozen=True)
class Plan:
    """The plan of a run. `branch`: as in WorkerSpec; `workers`: processes; `replicas`: devices of each."""

    device: str
    workers: int
    replicas: int
    precision: str
    environment: Mapping[str, str | None]
    steps: int | None
    timeout: float | None
    max_recompiles: int | None = None
    cache: str = ""
    spmd: int | None = None
    collective_timeout: float = COLLECTIVE_TIMEOUT
    keep_partial: bool = False
    strict: bool = False
    checkpoints: CheckpointPlan | None = None
    branch: str = ""

    @classmethod
    def from_options(
        cls, options: Options, precision: str, collective_timeout: float | None = None, **fields: Any
    ) -> Plan:
        """A plan with these options. `precision`, `collective_timeout`: the session's, used if the options have
        none."""
        return cls(
            precision=options.precision or precision,
            steps=options.steps,
            timeout=options.timeout,
            max_recompiles=options.max_recompiles,
            collective_timeout=options.collective_timeout or collective_timeout or COLLECTIVE_TIMEOUT,
            keep_partial=options.keep_partial,
            strict=options.strict,
            **fields,
        )

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
            max_steps=self.steps,
            replicas=self.replicas,
            max_recompiles=self.max_recompiles,
            scratch=None if scratch is None else scratch / f"worker-{index}",
            cache=self.cache,
            meeting=scratch if self.rehearsed else None,
            collective_timeout=self.collective_timeout,
            spmd=self.spmd,
            keep_partial=self.keep_partial,
            strict=self.strict,
            checkpoints=self.checkpoints,
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


def spmd_option(spmd: int | bool | None) -> int | None:
    """The value of Options.spmd for `tpu_magics.train(spmd=...)`. Raises TpuMagicsError for numbers below 1."""
    if spmd is None or isinstance(spmd, bool):
        return None if spmd is None else ALL_DEVICES if spmd else NO_SPMD
    if spmd < 1:
        raise TpuMagicsError(
            f"--spmd {spmd} is not valid.", "The smallest value is 1.", "Use --spmd 1 or more, or omit it."
        )
    return spmd


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
