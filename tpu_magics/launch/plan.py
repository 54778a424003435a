"""What a run will do, decided before anything forks.

What lives here: the options of a run, how many workers there are, whether host memory and disk can take them. What does
not: doing it (train.py).
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import COLLECTIVE_TIMEOUT, WorkerSpec
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, free_disk
from tpu_magics.host.memory import host_memory

# Host memory that a worker takes besides models, in bytes: what it alone has written after 30 steps of a small net on
# XLA:CPU with torch 2.9, the compiled programs included (median; docs/benchmarks.md, tests/benchmarks/bench_worker.py).
PER_WORKER = 75_000_000
LONGEST = 1e9  # seconds
ALL_DEVICES, NO_SPMD = 0, -1  # as Options.spmd: all devices, or the session's number; none, whatever the session has
SPMD_DEVICES = 8  # virtual devices of an SPMD worker on XLA:CPU where no number was given
PRECISION_NAMES = ("fp32", "bf16", "bf16-downcast")


@dataclass(frozen=True)
class Options:
    """What a person may choose for a run; None: the session's default. `gate`: asked with the request before
    anything is forked; what it raises ends it. `jit`: of a TensorFlow run (launch/in_process_run.py)."""

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

    def check(self) -> None:
        """Raise TpuMagicsError for values that no run can have."""
        devices = self.spmd if self.spmd not in (NO_SPMD, ALL_DEVICES) else None
        for name, value in (("-n", self.processes), ("--steps", self.steps), ("--spmd", devices)):
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
        for name, seconds in (("--timeout", self.timeout), ("--collective-timeout", self.collective_timeout)):
            if seconds is not None and not 0 < seconds < LONGEST:
                raise TpuMagicsError(
                    f"{name} {seconds:g} is not possible.",
                    f"It is a number of seconds above 0 and below {LONGEST:,.0f}.",
                    f"Give {name} a number of seconds, or leave it away.",
                )
        if self.spmd not in (None, NO_SPMD) and self.processes is not None:
            raise TpuMagicsError(
                f"-n {self.processes} and --spmd cannot be had together.",
                "-n starts a process for each rank; --spmd drives all devices from a single process.",
                "Leave one of them away.",
            )
        check_choice("--precision", self.precision, PRECISION_NAMES)
        check_choice("--hoist", self.hoist, ("auto", "off"))
        check_choice("--jit", self.jit, ("auto", "keep"))


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Raise TpuMagicsError for a value that an option does not take."""
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
    spmd: int | None = None
    collective_timeout: float = COLLECTIVE_TIMEOUT
    keep_partial: bool = False
    strict: bool = False

    @property
    def rehearsed(self) -> bool:
        """Whether workers on XLA:CPU act as the ranks of a TPU."""
        return self.device == "CPU" and self.workers > 1 and self.replicas == 1

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
            meeting=scratch if self.rehearsed else None,
            collective_timeout=self.collective_timeout,
            spmd=self.spmd,
            keep_partial=self.keep_partial,
            strict=self.strict,
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
    """The plan for `workers` processes on this host; a single one of several uses one device (v2, v3: of two). The
    session's `cache` and `collective_timeout` hold where the options have none."""
    meeting = meeting_environment() if host.device == "CPU" and workers > 1 else {}
    return Plan(
        device=host.device,
        workers=workers,
        replicas=host.replicas if workers == host.workers and options.spmd is None else 1,
        precision=precision,
        environment={**host.worker_environment, **meeting, **options.environment},
        steps=options.steps,
        timeout=options.timeout,
        max_recompiles=options.max_recompiles,
        cache=cache,
        spmd=options.spmd,
        collective_timeout=options.collective_timeout or collective_timeout or COLLECTIVE_TIMEOUT,
        keep_partial=options.keep_partial,
        strict=options.strict,
    )


def spmd_option(spmd: int | bool | None) -> int | None:
    """What `tpu_magics.train(spmd=...)` was given, as Options has it. Raises TpuMagicsError for numbers below 1."""
    if spmd is None or isinstance(spmd, bool):
        return None if spmd is None else ALL_DEVICES if spmd else NO_SPMD
    if spmd < 1:
        raise TpuMagicsError(
            f"--spmd {spmd} is not possible.", "It counts from 1.", "Give --spmd 1 or more, or leave it away."
        )
    return spmd


def spmd_devices(host: Host, asked: int | None, session: int | None) -> int | None:
    """How many devices an SPMD worker drives: `asked` by the cell (0: no number, None: not SPMD), else the session's
    number; on a TPU 0 for all of them."""
    if asked is None:
        return None
    return asked or session or (SPMD_DEVICES if host.device == "CPU" else 0)


def meeting_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Where torch.distributed's own store of a rehearsal listens: torch_xla's default port may be taken.

    Raises TpuMagicsError where the person's own MASTER_PORT is in use.
    """
    own = environ.get("MASTER_PORT", "")
    if own and not (own.isdigit() and 0 < int(own) < 65536):
        raise TpuMagicsError(
            f"MASTER_PORT is {own!r}, which is no port.",
            "torch.distributed's rank 0 listens there for the other ranks.",
            "Unset it (del os.environ['MASTER_PORT']): a free port is then chosen.",
        )
    if own and _free_port(own) is None:
        raise TpuMagicsError(
            f"Port {own} is in use, and MASTER_PORT names it.",
            "torch.distributed's rank 0 has to listen there for the other ranks.",
            "Unset it (del os.environ['MASTER_PORT']): a free port is then chosen; or end "
            f"the program that holds it (`ss -ltnp | grep :{own}` names it).",
        )
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": own or str(_free_port("0"))}


def _free_port(text: str) -> int | None:
    """The port where it can be listened on (for "0" one that the system chooses), else None."""
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(text)))
        except OSError:
            return None
        return int(probe.getsockname()[1])


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


def count_workers(host: Host, asked: int | None, spmd: int | None = None) -> int:
    """How many processes to start: one for each chip; one on XLA:CPU, where more are a rehearsal; one for SPMD.

    Raises TpuMagicsError where `asked` or so many devices cannot be had.
    """
    if spmd is not None:
        return _one_for_all(host, spmd)
    if asked is None or asked == host.workers * host.replicas:
        return host.workers
    if asked == 1 or host.device == "CPU":
        return asked
    ranks = host.workers * host.replicas
    raise TpuMagicsError(
        f"-n {asked} is not possible on this host: it has {len(host.chips)} TPU chips.",
        "torch_xla starts one process for each chip, or a single one.",
        f"Leave -n away for {ranks} ranks, or use -n 1.",
    )


def _one_for_all(host: Host, spmd: int) -> int:
    ranks = host.workers * host.replicas
    if host.device != "CPU" and spmd not in (0, ranks):
        raise TpuMagicsError(
            f"--spmd {spmd} is not possible on this host: it has {ranks} TPU devices.",
            "An SPMD worker drives all devices of its host.",
            f"Give --spmd {ranks}.",
        )
    return 1


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
    makes one more to bring the weights home. In a rehearsal each rank's gradients lie in host memory, too. Not known
    beforehand is what an optimizer keeps (Adam: two copies more), and how much of a model an SPMD worker splits over
    its virtual devices: it is taken to lie whole on each."""
    devices = max(plan.ranks, plan.spmd or 1) if plan.device == "CPU" else plan.ranks
    each = 2 if plan.rehearsed else 1
    return Forecast(models=models, copies=each * devices + 1, workers=plan.workers)


_SPLIT = ": a model that is split over the devices (FSDP) takes less"


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
        f"(-n 1), or try all the same with --force{_SPLIT if plan.spmd else ''}.",
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
