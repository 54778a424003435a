"""What crosses the seam between the launcher and a framework (protocols.py): how a worker runs, and what ends it.
Imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

COLLECTIVE_TIMEOUT = 60.0  # seconds
STEPS = 5  # the most steps to trace


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a run that its workers follow (launch/options.py declares them). `steps`: stop cleanly after this
    many; `max_recompiles`: fail at the first recompile above it (None: no limit; expected ones are not counted);
    `collective_timeout`: seconds that a rank of a rehearsal waits for the others in a collective; `keep_partial`: after
    a failure, the changes so far are returned; `strict`: training only on the host is an error."""

    steps: int | None = None
    max_recompiles: int | None = None
    collective_timeout: float = COLLECTIVE_TIMEOUT
    keep_partial: bool = False
    strict: bool = False

    def options(self) -> dict[str, Any]:
        """These alone, for another one."""
        return {one.name: getattr(self, one.name) for one in fields(WorkerOptions)}


@dataclass(frozen=True)
class WorkerSpec(WorkerOptions):
    """What one worker needs to become a rank.

    `index`: number of the worker on this host, from 0; `count`: workers on this host; `device`: "CPU" or "TPU";
    `branch`: what the framework and other libraries take the device for, "TPU" also where XLA:CPU is in a TPU's place
    (backends/pjrt_stand_in.py); `precision`: "", "fp32", "bf16" or "bf16-downcast"; `environment`: variables to set
    (or, if None, to unset) in the worker only; `replicas`: devices of one worker;
    `scratch`: a folder for temporary files of this worker; `cache`: the folder of the persistent compile cache ("":
    none). `meeting`: the folder in which the ranks of a rehearsal find each other (None: no rehearsal); `first`: the
    rank of this host's first worker, `world`: ranks of all hosts (0: those of this one), `store`: where rank 0 listens
    for the other hosts of a rehearsal, `address`: where they reach this one ("": this is the only host); `spmd`:
    devices of one SPMD worker (None: not SPMD; 0: all devices of the host). `tracing`: nothing runs, the graphs are
    written (None: a run); `checkpoints`: how the state is saved meanwhile (None: it is not).
    """

    index: int
    count: int
    device: str
    precision: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    replicas: int = 1
    scratch: Path | None = None
    cache: str = ""
    meeting: Path | None = None
    first: int = 0
    world: int = 0
    store: tuple[str, int] | None = None
    address: str = ""
    spmd: int | None = None
    tracing: TraceSpec | None = None
    checkpoints: CheckpointPlan | None = None
    branch: str = ""

    def __post_init__(self) -> None:
        if not self.branch:
            object.__setattr__(self, "branch", self.device)

    @property
    def in_tpus_place(self) -> bool:
        """Whether XLA:CPU is in a TPU's place."""
        loaded = self.tracing is None or self.tracing.stand_in
        return self.device == "CPU" and self.branch == "TPU" and loaded

    @property
    def number(self) -> int:
        """The number of this worker among those of all hosts: its rank, until the runtime reports another."""
        return self.first + self.index

    @property
    def ranks(self) -> int:
        """The ranks of all hosts."""
        return self.world or self.count * self.replicas


# What changes of a traced function begin with, and values of the first (backends/torch_xla/trace/step_changes.py).
REMAT, PAD, BF16, MESH, VECTORS = "remat", "pad", "bf16", "mesh", "vectors"
HEADS, TRANSPOSE, FLASH = "heads", "transpose", "flash"
ON, OFF = "on", "off"
DATA, FSDP, MODEL = MESH_AXES = ("data", "fsdp", "model")  # of a mesh (backends/torch_xla/trace/mesh.py)


@dataclass(frozen=True)
class TraceSpec:
    """How a worker traces its function instead of running it. `folder`: where it writes the graphs; `world`: the number
    of ranks, although the others do not exist; `devices`: of an SPMD worker; `steps`: the most steps to trace;
    `changes`: of the function, as backends/torch_xla/trace/step_changes.py has them; `stand_in`: what takes a TPU's
    place is loaded (Backend.load_stand_in)."""

    folder: Path
    world: int = 1
    devices: int = 1
    steps: int = STEPS
    changes: tuple[str, ...] = ()
    stand_in: bool = False


@dataclass(frozen=True)
class CheckpointPlan:
    """How a run saves its state. `place`: a folder or an address (checkpoints/store.py); `seconds`, `steps`: between
    saves, the one that is not None; `keep`: how many checkpoints are kept; `resume`: the folder with the files to go on
    from (None: from the beginning); `force`: also if the training was changed; `about`: what the manifest says of the
    run; `exchange`: on several hosts, the name of their board in the place ("": one host), and `resume` is not there
    yet; `token`: of the run's lock on the place."""

    place: str
    seconds: float | None = 300.0
    steps: int | None = None
    keep: int = 2
    resume: Path | None = None
    force: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = ""
    token: str = ""

    def record(self) -> dict[str, Any]:
        """For run.json."""
        return {"place": self.place, "seconds": self.seconds, "steps": self.steps, "keep": self.keep}


class StepLimit(BaseException):
    """Raised inside a worker when `--steps` is reached; a BaseException, so that `except Exception` lets it pass."""


class StopRequested(BaseException):
    """Raised inside a worker at the end of a step after a stop request (--keep-partial); see `StepLimit`."""


class HostTrainingError(Exception):
    """Raised inside a worker at the end of a run with `--strict` that trained only on the host."""


class RecompileLimit(BaseException):
    """Raised inside a worker at recompile number `limit` + 1; a BaseException like `StepLimit`."""

    def __init__(self, recompiles: int, limit: int) -> None:
        super().__init__(f"recompile {recompiles}; --max-recompiles allows {limit}")


@dataclass(frozen=True)
class ObserverConfig(WorkerOptions):
    """How a rank is observed. `device`: "CPU" or "TPU"; `ranks`: world size; `precision`, `cache`: as in WorkerSpec;
    `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the front end's id of that cell; `rehearsed`:
    collectives run on the host and split the graphs; `spmd`: one worker drives several devices; `tracing`: as in
    WorkerSpec; `steps_before`: of the run that this one goes on from; `stop_requested`: whether the run must end with
    this step."""

    device: str = "CPU"
    ranks: int = 1
    precision: str = ""
    cache: str = ""
    cell_names: Mapping[str, str] = field(default_factory=dict)
    cell_ids: Mapping[str, str] = field(default_factory=dict)
    rehearsed: bool = False
    spmd: bool = False
    tracing: TraceSpec | None = None
    steps_before: int = 0
    stop_requested: Callable[[], bool] = bool


class CollectiveTimeout(BaseException):
    """A rank of a rehearsal waited too long for another one; a BaseException like `StepLimit`."""


class CollectiveBroken(BaseException):
    """A collective of a rehearsal failed: another rank has left, or is in another collective."""


# -- a framework that trains in the notebook's own process ------------------------------------------------------------

DEFAULT, TPU_LOCAL = "default", "tpu-local"  # Placement.kind


@dataclass(frozen=True)
class TrainingProblem:
    """A problem with what is about to be trained. `what`, `why`, `todo`: as in TpuMagicsError; `refuses`: training
    cannot work; otherwise it is a warning."""

    what: str
    why: str = ""
    todo: str = ""
    refuses: bool = True


@dataclass(frozen=True)
class Placement:
    """Where a LocalBackend trains. `kind`: "tpu-local" (chips of this host) or "default" (no TPU); `strategy`: the
    framework's own object, for the notebook; `replicas`: devices that train in sync; `topology`: in words, or "";
    `notes`: lines for the user."""

    kind: str
    strategy: Any
    replicas: int = 1
    topology: str = ""
    notes: Sequence[str] = ()

    @property
    def device(self) -> str:
        """ "CPU" or "TPU", as in ObserverConfig."""
        return "CPU" if self.kind == DEFAULT else "TPU"
