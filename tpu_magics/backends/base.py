"""The interface between the launcher and a framework: `Backend` trains in forked workers (torch_xla), `LocalBackend` in
the notebook's process (tensorflow). Imports no framework."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult
    from tpu_magics.runs.writer import EventWriter


COLLECTIVE_TIMEOUT = 60.0  # seconds
STEPS = 5  # the most steps to trace


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker needs to become a rank.

    `index`: number of the worker on this host, from 0; `count`: workers on this host; `device`: "CPU" or "TPU";
    `branch`: what the framework and other libraries take the device for, "TPU" also where XLA:CPU is in a TPU's place
    (backends/pjrt_stand_in.py); `precision`: "", "fp32", "bf16" or "bf16-downcast"; `environment`: variables to set
    (or, if None, to unset) in the worker only; `max_steps`: stop cleanly after this many steps, `max_recompiles`: fail
    at the first recompile above it (None: no limit; expected ones are not counted); `replicas`: devices of one worker;
    `scratch`: a folder for temporary files of this worker; `cache`: the folder of the persistent compile cache ("":
    none). `meeting`: the folder in which the ranks of a rehearsal find each other (None: no rehearsal); `first`: the
    rank of this host's first worker, `world`: ranks of all hosts (0: those of this one), `store`: where rank 0 listens
    for the other hosts of a rehearsal, `address`: where they reach this one ("": this is the only host);
    `collective_timeout`: seconds that a rank of a rehearsal waits for the others in a collective; `spmd`: devices of
    one SPMD worker (None: not SPMD; 0: all devices of the host). `tracing`: nothing runs, the graphs are written (None:
    a run). `keep_partial`: after a failure, the changes so far are returned; `strict`: training only on the host is an
    error; `checkpoints`: how the state is saved meanwhile (None: it is not).
    """

    index: int
    count: int
    device: str
    precision: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    max_steps: int | None = None
    replicas: int = 1
    max_recompiles: int | None = None
    scratch: Path | None = None
    cache: str = ""
    meeting: Path | None = None
    first: int = 0
    world: int = 0
    store: tuple[str, int] | None = None
    address: str = ""
    collective_timeout: float = COLLECTIVE_TIMEOUT
    spmd: int | None = None
    tracing: TraceSpec | None = None
    keep_partial: bool = False
    strict: bool = False
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
        self.recompiles = recompiles
        self.limit = limit


@dataclass(frozen=True)
class ObserverConfig:
    """How a rank is observed. `device`: "CPU" or "TPU"; `ranks`: world size; `precision`, `cache`: as in WorkerSpec;
    `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the front end's id of that cell; `rehearsed`:
    collectives run on the host and split the graphs; `spmd`: one worker drives several devices; `tracing`: as in
    WorkerSpec; `steps_before`: of the run that this one goes on from; `stop_requested`: whether the run must end with
    this step."""

    device: str = "CPU"
    ranks: int = 1
    precision: str = ""
    max_steps: int | None = None
    max_recompiles: int | None = None
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


class Backend(Protocol):
    """What launch/ uses of a framework. Nothing here initializes a runtime in the notebook's process.

    For sentences: `runtime`: its name; `fork_error`: what a forked worker says that finds it running; `starts_it`: code
    that does; `device`: the expression for a rank's device; `no_step`: a function ran, and no step was counted.
    `spawns`: where no fork can start its runtime, new processes are tried.
    """

    name: str
    runtime: str
    fork_error: str
    starts_it: str
    device: str
    no_step: str
    spawns: bool

    # -- the notebook's process -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Import what the workers need, before the fork. Raises TpuMagicsError if it cannot be imported."""

    def refuse(self, precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> None:
        """Raise TpuMagicsError for what it does not support: a precision, a number of SPMD devices, the folder of a
        compile cache (WorkerSpec); a cluster of hosts."""

    def rehearsal_problem(self) -> str:
        """Why the installed packages cannot rehearse several ranks on XLA:CPU; "" if they can."""

    def load_stand_in(self, asked: bool) -> bool:
        """In the notebook's process, on a host without a TPU: load what takes its place in workers of the TPU branch
        (WorkerSpec.branch). No runtime starts. False if there is none; if it was `asked` for, or is there and cannot be
        loaded, TpuMagicsError."""

    def runtime_initialized(self) -> bool:
        """Whether the accelerator's runtime is running in this process. Never starts it, imports nothing."""

    def other_states(self) -> Sequence[str]:
        """What else in this process prevents a fork: "accelerator" (one was created on an accelerator), "cuda"."""

    def device_holder(self) -> str:
        """What created that accelerator ("A Trainer", "An Accelerator"), for a sentence. Imports nothing."""

    def prepare_notebook(self) -> None:
        """Before cells use the framework: keep calls that would start the runtime without need from doing so, and
        restore what old code calls and the framework has removed (idempotent)."""

    def deferral_problems(self) -> Sequence[str]:
        """What `prepare_notebook` could not do with the installed versions, in sentences."""

    # -- models ---------------------------------------------------------------------------------------------------
    def is_model(self, value: object) -> bool:
        """Whether `value` is a model. Imports nothing: without the import, there can be no instance."""

    def builds_model(self, function: object) -> bool:
        """Whether calling `function` (a class, a classmethod, an annotated function) returns a model."""

    def builds_weightless(self, function: object) -> bool:
        """Whether calling `function` returns a module without parameters (a loss, an activation)."""

    def builds_config(self, function: object) -> bool:
        """Whether calling `function` returns a model's configuration: plain data, the same each time."""

    def touches_device(self, value: object) -> bool:
        """Whether `value` is, or returns, something on an accelerator."""

    def model_bytes(self, model: Any) -> int:
        """Bytes of parameters and buffers; tied ones count once."""

    def model_device(self, model: Any) -> str:
        """Device type of the first parameter or buffer that is not on "cpu"; "cpu" if all are."""

    def shares_memory(self, model: Any, value: object) -> bool:
        """Whether a tensor of `model` shares memory with `value`."""

    def structure(self, model: Any) -> frozenset[Any]:
        """Names and shapes of a model's parameters and buffers, for comparison; of a sharded one those of the whole."""

    def tensor_content(self, value: object) -> tuple[Any, ...] | None:
        """The content of a tensor in host memory, for comparison; None for anything else."""

    def replace_reference(self, model: Any, old: object, new: object) -> None:
        """Make every module of `model` that refers to `old` (its config) refer to `new`."""

    # -- random states --------------------------------------------------------------------------------------------
    def random_state(self) -> Any:
        """All random states of this process that a model's build can read (Python, NumPy, torch) and the modes that
        change a build (default dtype, default device, grad mode)."""

    def set_random_state(self, state: Any) -> None:
        """Restore the random states (not the modes) that `random_state` returned."""

    def same_modes(self, left: Any, right: Any) -> bool:
        """Whether the modes of both are the same."""

    def drawn(self, before: Any, after: Any) -> tuple[Any, Any] | None:
        """The states of the generators that were used between two random states; None if none was."""

    def same_drawn(self, before: Any, now: Any) -> bool:
        """Whether the generators in `before` have the same state now."""

    def is_seed_call(self, function: object) -> bool:
        """Whether `function` is a library's seeding function (torch.manual_seed, accelerate's and transformers'
        set_seed, ...)."""

    def seeds_device_only(self, function: object) -> bool:
        """Whether it seeds only the accelerator."""

    def seeds_without_runtime(self) -> AbstractContextManager[None]:
        """Within it, seeding calls seed Python, NumPy and torch, but not the accelerator."""

    # -- another host's process that stands for the notebook's ------------------------------------------------------
    def process_state(self) -> Any:
        """What a forked worker would inherit besides objects: random states, seeds, modes. Can be pickled."""

    def set_process_state(self, state: Any) -> None:
        """Make this process like the one that `process_state` was called in, before it forks workers."""

    # -- results --------------------------------------------------------------------------------------------------
    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        """In every worker, after the function: rank 0 writes the weights of `models` into `folder`, complete or not at
        all; other ranks write their shards, if any."""

    def splits_weights(self, models: Mapping[str, Any]) -> bool:
        """In a worker: whether weights of `models` are sharded over the ranks, so that all ranks must collect them."""

    def digests(self, models: Mapping[str, Any]) -> Mapping[str, str]:
        """In every worker of a rehearsal, after the function: a checksum of each model's trained parameters, to compare
        the ranks; without models that are sharded over the ranks."""

    def trained_elsewhere(self, models: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
        """In every worker, after the function: what it trained that is in none of `models`, by the class of the
        optimizer: a checksum, and "NaN" or "Inf" if it contains such values, else ""."""

    def check_weights(self, models: Mapping[str, Any], folder: Path, rebuilt: Collection[str] = ()) -> Any:
        """In the notebook: read what `collect_weights` wrote and check that it matches; tensors of `rebuilt` models may
        have other shapes. Returns the argument of `load_weights`."""

    def load_weights(self, staged: Any) -> list[str]:
        """In the notebook: copy the checked weights into the models, in place. Returns the names of those that have
        other values now."""

    def dumps(self, value: Any) -> bytes:
        """Pickle with device tensors turned into CPU tensors. Raises what pickle raises."""

    def object_state(self) -> Any:
        """The framework's part in comparing the notebook's objects with a worker's: a StateAdapter of
        launch/state/snapshot.py."""

    def checkpoint_store(self) -> Any:
        """In a worker: how tensors get into checkpoints and back; a StateStore of launch/resume/objects.py."""

    def follow_library_loops(self, loops: Any, folder: Path) -> None:
        """In a worker: let `loops` (launch/resume/loops.py) know of the loops of libraries. `folder`: for files that
        they read."""

    def random_states(self, objects: Iterable[Any]) -> Any:
        """In a worker: the random generators of this rank and those among `objects`; LoopRandomStates of
        launch/resume/loops.py."""

    def follow_optimizers(self, items: Sequence[tuple[str, Any]]) -> None:
        """In every worker, before the function: the optimizers among `items` follow their parameters to a device."""

    # -- the worker -----------------------------------------------------------------------------------------------
    def run_worker(
        self,
        spec: WorkerSpec,
        on_ready: Callable[[int, int, str], None],
        function: Callable[[int, int], Any],
    ) -> Mapping[int, Any]:
        """Become rank(s) and call `function(ordinal, replica)` on each device of this worker, in threads of its own.

        `on_ready(ordinal, world_size, device)` is called once, before the function, on the first device's thread.
        Returns {ordinal: value}; what a thread raises is raised here.
        """

    def rebuild(self, items: Sequence[tuple[str, Any]], replicas: int) -> None:
        """On the first rank's thread, before the function: objects of the notebook among `items` that belong to one
        process (an Accelerator, a Trainer) are rebuilt for this rank. `replicas`: devices of this worker."""

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[WorkerWatcher]:
        """Record steps, compiles, reads and logged values of this process until the block ends."""

    def finish(self) -> bool:
        """Run pending operations on the device and wait for them. Returns whether there were any."""


class Watcher(Protocol):
    """What `Backend.observing` yields. `after_steps`: called when steps were counted."""

    after_steps: Callable[[], None]

    @property
    def total_steps(self) -> int:
        """Steps so far."""

    @property
    def compiles(self) -> int | None:
        """Compiles so far (of logical graphs in a rehearsal); None if unknown."""

    @property
    def recompiles(self) -> int | None:
        """Recompiles so far; None if unknown."""

    def go_on_from(self, steps: int) -> None:
        """A checkpoint was loaded, of a run that had done so many steps."""

    def write_all(self) -> None:
        """Between two steps: write the steps and logged values so far."""

    def ended(self) -> None:
        """The user's function has ended: write the counts."""

    def close(self, read: bool = True) -> None:
        """Write the rest; `read`: also logged tensors that are still on the device."""


class WorkerWatcher(Watcher, Protocol):
    """What it yields in a worker. `unsynced`: steps of an optimizer so far that no sync ended; 0 where one ever did."""

    @property
    def unsynced(self) -> int: ...

    def trained_on_host(self) -> str:
        """The message for a run that trained, but ran nothing on the device; "" for any other."""


# -- a framework that trains in the notebook's own process ------------------------------------------------------------

DEFAULT, TPU_LOCAL, TPU_REMOTE = "default", "tpu-local", "tpu-remote"  # Placement.kind


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
    """Where a LocalBackend trains. `kind`: "tpu-local" (chips of this host), "tpu-remote" (a TPU node, by name or
    address) or "default" (no TPU); `strategy`: the framework's own object, for the notebook; `replicas`: devices that
    train in sync; `topology`: in words, or ""; `notes`: lines for the user; `problems`: what will not work here."""

    kind: str
    strategy: Any
    replicas: int = 1
    topology: str = ""
    notes: Sequence[str] = ()
    problems: Sequence[TrainingProblem] = ()

    @property
    def device(self) -> str:
        """ "CPU" or "TPU", as in ObserverConfig."""
        return "CPU" if self.kind == DEFAULT else "TPU"


class LocalBackend(Protocol):
    """What launch/strategies/in_process.py uses of a framework that trains in the notebook's process."""

    name: str

    def prepare(self) -> None:
        """Import the framework. Raises TpuMagicsError where it cannot be imported."""

    def initialise(self, asked: str = "", precision: str = "", host: Any = None) -> Placement:
        """Connect to the TPU (`asked`: its name or grpc address, "" to find one), create the strategy, and set the
        precision of models created from now on ("", "fp32" or "bf16"). `host`: the detected Host. A second call with
        the same arguments returns the same. Raises TpuMagicsError if it cannot connect."""

    def scope(self) -> AbstractContextManager[None]:
        """The strategy's scope, in which models, variables and metrics are created and trained."""

    def is_model(self, value: object) -> bool:
        """Whether `value` is a model. Imports nothing: what was never imported cannot be an instance."""

    def state_bytes(self, items: Sequence[tuple[str, Any]]) -> int:
        """Bytes that `save_state` will write for `items`."""

    def save_state(self, items: Sequence[tuple[str, Any]], folder: Path) -> SavedState:
        """Write what training can change of `items` (weights, optimizers, metrics, variables, random states) into
        `folder`, which it creates. On OSError nothing is left there."""

    def precision(self, asked: str) -> AbstractContextManager[None]:
        """Within it, models are created with this precision ("": the session's)."""

    def precision_notes(self, models: Mapping[str, Any], asked: str) -> Sequence[str]:
        """Notes about models that were created earlier with another precision, one per line."""

    def not_finite(self, models: Mapping[str, Any]) -> str:
        """A sentence about trained weights with NaN or Inf; "" without any."""

    def jit(self, how: str, cells: Mapping[str, str]) -> AbstractContextManager[Callable[[], Sequence[str]]]:
        """Within it, XLA compiles steps locally, and without `jit_compile` on a TPU ("auto"), or they stay as they are
        ("keep"). Yields a function that lists the changes so far, one per line. `cells`: file names of cells -> "In
        [n]"."""

    def placement_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[TrainingProblem]:
        """Models and variables among `items` that were created outside the strategy's scope."""

    def data_problems(self, items: Sequence[tuple[str, Any]], cells: Mapping[str, str]) -> Sequence[TrainingProblem]:
        """Input pipelines and output paths among `items` that cannot work where the training runs. `cells`: file names
        of cells -> "In [n]"."""

    def saving_problems(self, tree: ast.AST, names: Mapping[str, Any]) -> Sequence[TrainingProblem]:
        """Paths in the code's own calls (`model.save("gs://...")`) that cannot be saved to. `tree`: of a cell, or a
        module with the trained function; `names`: the notebook's and the arguments."""

    def watching_data(
        self, tell: Callable[[TrainingProblem], None], items: Sequence[tuple[str, Any]], cells: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Within it, data that the code creates itself is checked before its first step: TpuMagicsError for what cannot
        work, `tell` for warnings. `items`: what `data_problems` already checked."""

    def before_first_step(
        self, ask: Callable[[TraceResult], None], precision: str, cells: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Within it, `ask` gets the program of the first training step before it runs; an exception it raises ends the
        run. Yields a function that returns whether there was such a step."""

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[Watcher]:
        """Record steps, compiles, reads and logged values of this process until the block ends."""

    def cancelling(self) -> AbstractContextManager[Callable[[], None]]:
        """Within it, running operations can be cancelled: the yielded function does that, from any thread."""

    def checkpoint_store(self) -> Any:
        """As of a Backend."""

    def object_state(self) -> Any:
        """How the program's objects are compared: a StateAdapter of launch/state/snapshot.py."""

    def random_states(self, objects: Iterable[Any]) -> Any:
        """As of a Backend."""

    def following_libraries(self, loops: Any) -> AbstractContextManager[None]:
        """Within it, `loops` (launch/resume/loops.py) knows of the loops of libraries."""

    def explained(self, error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
        """The explanation of a framework's error: the user's line, the rule, the rewrite; None if unknown. `cells`:
        file names of cells -> "In [n]"."""


class SavedState(Protocol):
    """The state before a run, as `LocalBackend.save_state` returns it."""

    models: Mapping[str, Any]
    """The models among what was kept, outermost ones, by name."""

    def holds(self, value: object) -> bool:
        """Whether the state of `value` was saved."""

    def put_back(self) -> Sequence[str]:
        """Restore all of it; what was created since is forgotten. Can be called again. Returns what could not be
        restored, one per line."""

    def drop(self) -> None:
        """Remove what was written. Afterwards nothing can be restored."""
