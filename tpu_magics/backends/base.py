"""The seam between the launcher and a framework.

What lives here: the protocols that a framework's folder implements (`Backend`: trained in forked workers, torch_xla;
`LocalBackend`: trained in the notebook's own process, tensorflow), and what travels over them.
What does not: any import of a framework. launch/ knows models only through this protocol.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import Traced
    from tpu_magics.runs.writer import EventWriter


COLLECTIVE_TIMEOUT = 60.0  # seconds
STEPS = 5  # that are traced at most


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker needs to become a rank.

    `index`: which worker on this host, from 0; `count`: workers on this host; `device`: "CPU" or "TPU";
    `precision`: "", "fp32", "bf16" or "bf16-downcast"; `environment`: set (or, where None, unset) in the worker only;
    `max_steps`: stop cleanly after so many steps, `max_recompiles`: fail at the first recompile above it (None: no
    limit); `replicas`: devices of one worker; `scratch`: a folder of this worker's own for what need not be kept;
    `cache`: the folder of the persistent compile cache ("": none).
    `meeting`: where the ranks of a rehearsal find each other, a folder they share (None: no rehearsal);
    `first`: the rank of this host's first worker, `world`: ranks of all hosts (0: those of this one), `store`: where
    rank 0 listens for the other hosts of a rehearsal, `address`: where they reach this one ("": this is the only host);
    `collective_timeout`: seconds that a rank of a rehearsal waits in a collective for the others;
    `spmd`: devices of one SPMD worker (None: not SPMD; 0: all that the host has).
    `tracing`: nothing is run, the graphs are written (None: a run). `keep_partial`: what was learned until a failure
    goes home; `strict`: training on the host alone is an error.
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
    tracing: Tracing | None = None
    keep_partial: bool = False
    strict: bool = False

    @property
    def number(self) -> int:
        """This worker among those of all hosts: its rank, until the runtime tells another."""
        return self.first + self.index

    @property
    def ranks(self) -> int:
        """The ranks of all hosts."""
        return self.world or self.count * self.replicas


@dataclass(frozen=True)
class Tracing:
    """What a worker does that traces its function instead of running it. `folder`: where it writes the graphs; `world`:
    ranks that it is told of, with none of the others there; `devices`: of an SPMD worker; `steps`: at most so many."""

    folder: Path
    world: int = 1
    devices: int = 1
    steps: int = STEPS


class StepLimit(BaseException):
    """Raised inside a worker when `--steps` is reached; a BaseException, so that `except Exception` lets it pass."""


class StopRequested(BaseException):
    """Raised inside a worker at the end of a step when it was asked to stop (--keep-partial); as `StepLimit`."""


class HostTraining(Exception):
    """Raised inside a worker at the end of a run with `--strict` that trained on the host alone."""


class RecompileLimit(BaseException):
    """Raised inside a worker at recompile number `limit` + 1; a BaseException as `StepLimit` is."""

    def __init__(self, recompiles: int, limit: int) -> None:
        super().__init__(f"recompile {recompiles}, where --max-recompiles allows {limit}")
        self.recompiles = recompiles
        self.limit = limit


@dataclass(frozen=True)
class Watching:
    """How a rank is watched. `device`: "CPU" or "TPU"; `ranks`: world size; `precision`, `cache`: as in WorkerSpec;
    `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the front end's id of that cell; `rehearsed`:
    collectives are carried by the host, and cut the graphs; `spmd`: one worker drives several devices; `tracing`: as in
    WorkerSpec; `stop_requested`: whether the run is to end with this step."""

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
    tracing: Tracing | None = None
    stop_requested: Callable[[], bool] = bool


class CollectiveTimeout(BaseException):
    """A rank of a rehearsal has waited too long for another one; a BaseException as `StepLimit` is."""


class CollectiveBroken(BaseException):
    """A collective of a rehearsal has come to nothing: another rank has left, or does something else."""


class Backend(Protocol):
    """What launch/ may ask of a framework. Nothing here initialises a runtime in the notebook's process."""

    name: str

    # -- the notebook's process -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Import what the workers need, before the fork. Raises TpuMagicsError where it cannot be imported."""

    def rehearsal_problem(self) -> str:
        """Why several ranks cannot be rehearsed on XLA:CPU with what is installed; "" where they can."""

    def runtime_initialized(self) -> bool:
        """Whether the accelerator's runtime is up in this process. Never brings it up, imports nothing."""

    def other_states(self) -> Sequence[str]:
        """What else in this process forbids a fork: "accelerator" (one was built on an accelerator), "cuda"."""

    def device_holder(self) -> str:
        """What that accelerator was built by ("A Trainer", "An Accelerator"), for a sentence. Imports nothing."""

    def quiet_seeds(self) -> None:
        """Make calls that would initialise the runtime for no need harmless in this process (idempotent)."""

    def quiet_problems(self) -> Sequence[str]:
        """What of that could not be done with the installed versions, in sentences."""

    # -- models ---------------------------------------------------------------------------------------------------
    def is_model(self, value: object) -> bool:
        """Whether `value` is a model. Imports nothing: what was never imported cannot be an instance."""

    def builds_model(self, function: object) -> bool:
        """Whether calling `function` (a class, a classmethod, an annotated function) yields a model."""

    def builds_weightless(self, function: object) -> bool:
        """Whether calling `function` yields a module without parameters (a loss, an activation)."""

    def builds_config(self, function: object) -> bool:
        """Whether calling `function` yields a model's configuration: plain data, the same each time."""

    def touches_device(self, value: object) -> bool:
        """Whether `value` is, or gives, something that lives on an accelerator."""

    def model_bytes(self, model: Any) -> int:
        """Bytes of parameters and buffers, tied ones counted once."""

    def model_device(self, model: Any) -> str:
        """Device type of the first parameter or buffer that is not on "cpu"; "cpu" where all are."""

    def shares_memory(self, model: Any, value: object) -> bool:
        """Whether a tensor of `model` lies in the memory of `value`."""

    def structure(self, model: Any) -> tuple[Any, ...]:
        """Names and shapes of a model's parameters and buffers, for comparing."""

    def tensor_content(self, value: object) -> tuple[Any, ...] | None:
        """What a tensor in host memory holds, for comparing; None for what is no such tensor."""

    def replace_reference(self, model: Any, old: object, new: object) -> None:
        """Make every module of `model` that refers to `old` (its config) refer to `new`."""

    # -- random states --------------------------------------------------------------------------------------------
    def random_state(self) -> Any:
        """All random states of this process that a model's build can read (Python, NumPy, torch) and the modes that
        change a build (default dtype, default device, grad mode)."""

    def set_random_state(self, state: Any) -> None:
        """Put back the random states (not the modes) taken by `random_state`."""

    def same_modes(self, left: Any, right: Any) -> bool:
        """Whether the modes of both are the same."""

    def drawn(self, before: Any, after: Any) -> tuple[Any, Any] | None:
        """The states of those generators that were drawn from between two random states; None where none was."""

    def same_drawn(self, before: Any, now: Any) -> bool:
        """Whether the generators that `before` names are now as they were there."""

    def is_seed_call(self, function: object) -> bool:
        """Whether `function` is a library's seeding function (torch.manual_seed, accelerate's and transformers'
        set_seed, ...)."""

    def seeds_device_only(self, function: object) -> bool:
        """Whether it is one that seeds nothing but the accelerator."""

    def seeds_without_runtime(self) -> AbstractContextManager[None]:
        """Within it seeding calls set Python, NumPy and torch but not the accelerator."""

    # -- another host's process that stands for the notebook's ------------------------------------------------------
    def process_state(self) -> Any:
        """What a forked worker would inherit besides objects: random states, seeds, modes. Can be pickled."""

    def set_process_state(self, state: Any) -> None:
        """Make this process like the one that `process_state` was called in, before it forks workers."""

    # -- results --------------------------------------------------------------------------------------------------
    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        """In every worker, after the function: rank 0 writes the weights of `models` into `folder`, complete or not at
        all; other ranks give their shards, where there are any."""

    def splits_weights(self, models: Mapping[str, Any]) -> bool:
        """In a worker: whether weights of `models` are split over the ranks, so that all must collect them."""

    def digests(self, models: Mapping[str, Any]) -> Mapping[str, str]:
        """In every worker of a rehearsal, after the function: a checksum of each model's trained parameters, for
        comparing the ranks; without those that are split over the ranks."""

    def check_weights(self, models: Mapping[str, Any], folder: Path) -> Any:
        """In the notebook: read what `collect_weights` wrote and check that it fits. Returns what `load_weights`
        takes."""

    def load_weights(self, staged: Any) -> None:
        """In the notebook: put the checked weights into the models, in place."""

    def dumps(self, value: Any) -> bytes:
        """Pickle with device tensors turned into CPU tensors. Raises what pickle raises."""

    def object_state(self) -> Any:
        """What the framework knows of its own objects, for comparing those of the notebook with those of a worker
        (launch/state/snapshot.py, StateAdapter)."""

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

    def renew(self, items: Sequence[tuple[str, Any]], replicas: int) -> None:
        """On the first rank's thread, before the function: objects of the notebook among `items` that belong to one
        process (an Accelerator, a Trainer) become this rank's own. `replicas`: devices of this worker."""

    def observing(self, writer: EventWriter, watching: Watching) -> AbstractContextManager[WorkerWatcher]:
        """Record steps, compiles, reads and logged values of this process until the block ends."""

    def finish(self) -> bool:
        """Run what is pending on the device and wait for it. Returns whether anything was."""


class Watcher(Protocol):
    """What `Backend.observing` gives."""

    @property
    def total_steps(self) -> int:
        """Steps so far."""

    @property
    def compiles(self) -> int | None:
        """Compiles so far, of logical graphs in a rehearsal; None where that is not known."""

    @property
    def recompiles(self) -> int | None:
        """Recompiles so far; None where that is not known."""

    def ended(self) -> None:
        """The user's function has ended: write what was counted."""

    def close(self, read: bool = True) -> None:
        """Write what is left; `read`: also the logged tensors that wait on the device."""


class WorkerWatcher(Watcher, Protocol):
    """What it gives in a worker."""

    def trained_on_host(self) -> str:
        """What there is to say of a run that trained, and ran nothing on the device; "" for any other."""


# -- a framework that trains in the notebook's own process ------------------------------------------------------------

DEFAULT, TPU_LOCAL, TPU_REMOTE = "default", "tpu-local", "tpu-remote"  # Placed.kind


@dataclass(frozen=True)
class Problem:
    """What is wrong with what is about to be trained. `what`, `why`, `todo`: as in TpuMagicsError; `refuses`: training
    cannot work with it, else it is said and the run goes on."""

    what: str
    why: str = ""
    todo: str = ""
    refuses: bool = True


@dataclass(frozen=True)
class Placed:
    """Where a LocalBackend trains. `kind`: "tpu-local" (chips of this host), "tpu-remote" (a TPU node, by name or
    address) or "default" (no TPU); `strategy`: the framework's own object, for the notebook; `replicas`: devices that
    train in step; `topology`: in words, "" where there is nothing to say; `notes`: lines for the person; `problems`:
    what will not work here."""

    kind: str
    strategy: Any
    replicas: int = 1
    topology: str = ""
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()

    @property
    def device(self) -> str:
        """ "CPU" or "TPU", as in Watching."""
        return "CPU" if self.kind == DEFAULT else "TPU"


class LocalBackend(Protocol):
    """What launch/local.py may ask of a framework whose training goes on in the notebook's own process."""

    name: str

    def prepare(self) -> None:
        """Import the framework. Raises TpuMagicsError where it cannot be imported."""

    def initialise(self, asked: str = "", precision: str = "", host: Any = None) -> Placed:
        """Connect to what there is (`asked`: a TPU's name or grpc address, "" for what is found), make the strategy,
        set the precision of models built from now on ("", "fp32" or "bf16"). `host`: the Host as it was found. Again
        it gives what it gave, unless other things are asked. Raises TpuMagicsError where it cannot be had."""

    def scope(self) -> AbstractContextManager[None]:
        """The strategy's scope, in which models, variables and metrics are made and trained."""

    def is_model(self, value: object) -> bool:
        """Whether `value` is a model. Imports nothing: what was never imported cannot be an instance."""

    def state_bytes(self, items: Sequence[tuple[str, Any]]) -> int:
        """Bytes that `kept` will write for `items`."""

    def kept(self, items: Sequence[tuple[str, Any]], folder: Path) -> Kept:
        """Write what training can change of `items` (weights, optimizers, metrics, variables, random states) into
        `folder`, which it makes. Nothing is left of it where it cannot be written (OSError)."""

    def precision(self, asked: str) -> AbstractContextManager[None]:
        """Within it models are built with this precision ("": with the session's)."""

    def precision_notes(self, models: Mapping[str, Any], asked: str) -> Sequence[str]:
        """What is to be said of models that were built earlier, with another precision, a line each."""

    def jit(self, how: str, cells: Mapping[str, str]) -> AbstractContextManager[Callable[[], Sequence[str]]]:
        """Within it steps are compiled by XLA at home, and without `jit_compile` on a TPU ("auto"), or left as they
        are ("keep"). Gives a function that tells what was changed so far, a line each. `cells`: file names of cells ->
        "In [n]"."""

    def placement_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[Problem]:
        """Models and variables among `items` that were made outside the strategy's scope."""

    def data_problems(self, items: Sequence[tuple[str, Any]], cells: Mapping[str, str]) -> Sequence[Problem]:
        """What of the input pipelines, and of the paths to write to, among `items` cannot work where the training goes
        on. `cells`: file names of cells -> "In [n]"."""

    def saving_problems(self, tree: ast.AST, names: Mapping[str, Any]) -> Sequence[Problem]:
        """What of the places that the code names in its own calls (`model.save("gs://...")`) cannot be saved to.
        `tree`: of a cell, or a module with the function that is trained; `names`: the notebook's and the arguments."""

    def watching_data(
        self, tell: Callable[[Problem], None], items: Sequence[tuple[str, Any]], cells: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Within it data that the code makes itself is looked at before the first step with it: TpuMagicsError for what
        cannot work, `tell` for the rest. `items`: what `data_problems` has seen already."""

    def before_first_step(
        self, ask: Callable[[Traced], None], precision: str, cells: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Within it `ask` is given the program of the first training step before that is executed; what it raises ends
        the run. Gives a function that tells whether there was such a step."""

    def observing(self, writer: EventWriter, watching: Watching) -> AbstractContextManager[Watcher]:
        """Record steps, compiles, reads and logged values of this process until the block ends."""

    def cancelling(self) -> AbstractContextManager[Callable[[], None]]:
        """Within it what the framework executes can be given up: the function that it gives does that, from any
        thread."""

    def explained(self, error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
        """The framework's error in words: the person's line, the rule, the rewrite; None for what it does not know.
        `cells`: file names of cells -> "In [n]"."""


class Kept(Protocol):
    """What `LocalBackend.kept` gives: the state before a run."""

    models: Mapping[str, Any]
    """The models among what was kept, outermost ones, by name."""

    def holds(self, value: object) -> bool:
        """Whether the state of `value` was kept."""

    def put_back(self) -> Sequence[str]:
        """Make all of it as it was; what has been made since is forgotten. Can be called again. Returns what could not
        be put back, a line each."""

    def drop(self) -> None:
        """Remove what was written. Nothing can be put back then."""
