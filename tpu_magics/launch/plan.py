"""What a run will do, decided before anything forks.

What lives here: the options of a run, how many workers there are, whether host memory and disk can take them. What does
not: doing it (train.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, free_disk
from tpu_magics.host.memory import host_memory

# Host memory that a worker takes besides models, in bytes: what it alone has written after 30 steps of a small net on
# XLA:CPU with torch 2.9, the compiled programs included (median; docs/benchmarks.md, tests/benchmarks/bench_worker.py).
PER_WORKER = 75_000_000
PRECISION_NAMES = ("fp32", "bf16", "bf16-downcast")


@dataclass(frozen=True)
class Options:
    """What a person may choose for a run; None: the session's default."""

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

    def check(self) -> None:
        """Raise TpuMagicsError for values that no run can have."""
        for name, value in (("-n", self.processes), ("--steps", self.steps)):
            if value is not None and value < 1:
                raise TpuMagicsError(
                    f"{name} {value} is not possible.", "It counts from 1.", f"Give {name} 1 or more, or leave it away."
                )
        if self.max_recompiles is not None and self.max_recompiles < 0:
            raise TpuMagicsError(
                f"--max-recompiles {self.max_recompiles} is not possible.",
                "It is how many recompiles a run may have.",
                "Give --max-recompiles 0 or more, or leave it away for no limit.",
            )
        if self.timeout is not None and not self.timeout > 0:
            raise TpuMagicsError(
                f"--timeout {self.timeout:g} is not possible.",
                "It is a number of seconds above 0.",
                "Give --timeout a number of seconds, or leave it away for no limit.",
            )
        _choice("--precision", self.precision, PRECISION_NAMES)
        _choice("--hoist", self.hoist, ("auto", "off"))


def _choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise TpuMagicsError(
            f"{option} {value} is not known.",
            f"It takes one of: {', '.join(choices)}.",
            f"Choose one of them for {option}.",
        )


@dataclass(frozen=True)
class Plan:
    """A run as it will be. `workers`: processes; `replicas`: devices in each."""

    device: str
    workers: int
    replicas: int
    precision: str
    environment: Mapping[str, str | None]
    steps: int | None
    timeout: float | None
    max_recompiles: int | None = None
    cache: str = ""

    def spec(self, index: int, scratch: Path | None = None) -> WorkerSpec:
        """What worker `index` is told; `scratch`: a folder for what the workers need for a moment."""
        return WorkerSpec(
            index=index,
            count=self.workers,
            device=self.device,
            precision=self.precision,
            environment=self.environment,
            max_steps=self.steps,
            replicas=self.replicas,
            max_recompiles=self.max_recompiles,
            scratch=None if scratch is None else scratch / f"worker-{index}",
            cache=self.cache,
        )

    @property
    def ranks(self) -> int:
        return self.workers * self.replicas

    def record(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "device": self.device,
            "workers": self.workers,
            "replicas": self.replicas,
            "precision": self.precision,
            "steps": self.steps,
            "timeout": self.timeout,
            "max_recompiles": self.max_recompiles,
            "cache": self.cache,
        }


def make_plan(host: Host, options: Options, precision: str, workers: int, cache: str = "") -> Plan:
    """The plan for `workers` processes on this host; a single one of several uses one device (v2, v3: of two)."""
    return Plan(
        device=host.device,
        workers=workers,
        replicas=host.replicas if workers == host.workers else 1,
        precision=precision,
        environment={**host.worker_environment, **options.environment},
        steps=options.steps,
        timeout=options.timeout,
        max_recompiles=options.max_recompiles,
        cache=cache,
    )


def cache_folder(text: str) -> str:
    """The folder of the persistent compile cache as an absolute path, made if need be; "" for "off".

    Raises TpuMagicsError where it cannot be written.
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
            f"Compiled programs cannot be kept in {folder}.",
            f"{error.strerror or error}.",
            "Give --cache a folder that you can write, or leave it away.",
        ) from None


def count_workers(host: Host, asked: int | None) -> int:
    """How many processes to start: one for each chip; one on XLA:CPU.

    Raises TpuMagicsError where `asked` cannot be had.
    """
    if asked is None or asked == host.workers * host.replicas:
        return host.workers
    if asked == 1:
        return 1
    if host.device == "CPU":
        raise TpuMagicsError(
            f"-n {asked} is not available on this machine yet.",
            "There is no TPU here. Rehearsing several ranks on XLA:CPU is the next thing that is being built.",
            "Leave -n away: one worker runs the same notebook.",
        )
    ranks = host.workers * host.replicas
    raise TpuMagicsError(
        f"-n {asked} is not possible on this host: it has {len(host.chips)} TPU chips.",
        "torch_xla starts one process for each chip, or a single one.",
        f"Leave -n away for {ranks} ranks, or use -n 1.",
    )


# -- what must fit ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """Host memory in bytes: one copy of the models is there already; this is what the run adds."""

    models: int
    copies: int
    workers: int

    @property
    def needed(self) -> int:
        return self.workers * PER_WORKER + self.copies * self.models

    def text(self) -> str:
        parts = f"{self.workers} x {mb(PER_WORKER)} for the workers"
        return f"{parts} and {self.copies} x {mb(self.models)} for copies of the models" if self.models else parts


def forecast(plan: Plan, models: int) -> Forecast:
    """What the run will add. Models are inherited copy-on-write; on XLA:CPU each device's copy lies in host memory; on
    a TPU one copy is in transit at a time for each worker, and a second device of it (v2, v3) trains a copy; rank 0
    makes one more to bring the weights home."""
    return Forecast(models=models, copies=plan.ranks + 1, workers=plan.workers)


def require_memory(plan: Plan, models: int, force: bool, root: Path = Path("/")) -> None:
    """Refuse a run that host memory cannot take; `force` lets it try."""
    available = host_memory(root).available
    expected = forecast(plan, models)
    if force or available is None or expected.needed <= available:
        return
    raise TpuMagicsError(
        f"This run does not fit in host memory: it needs {mb(expected.needed)}, and {mb(available)} are free.",
        f"Needed: {expected.text()}.",
        "Close what holds memory (other notebooks, large variables: del them), use a smaller model or fewer workers "
        "(-n 1), or try all the same with --force.",
    )


def require_disk(folder: Path, models: int, force: bool) -> None:
    """Refuse a run whose weights could not be brought home through the run folder."""
    free = free_disk(folder)
    if force or free is None or models <= free:
        return
    raise TpuMagicsError(
        f"The trained weights could not be brought home: they take {mb(models)}, and {mb(free)} are free on the disk.",
        f"They travel through the run folder, {folder}.",
        "Free some disk space, set TPU_MAGICS_RUNS to a folder on another disk, or train all the same with --force.",
    )


def mb(count: int) -> str:
    """Bytes as people read them: MB below 10 GB, GB above (powers of ten)."""
    return f"{count / 1e6:,.0f} MB" if count < 1e10 else f"{count / 1e9:,.1f} GB"
