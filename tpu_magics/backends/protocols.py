"""The seam between the launcher and a framework: `Backend` trains in forked workers (torch_xla, TorchTPU),
`LocalBackend` in the notebook's process (TensorFlow). A part of a backend, such as `Models`, may be a module. Imports
no framework."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.backends.base import ObserverConfig, Placement, TrainingProblem, WorkerSpec
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult
    from tpu_magics.runs.writer import EventWriter

Label = tuple[str, Any]
"""The position of a part: ("item", key), ("attribute", name), ("name", name) or ("", "")."""
Undo = Callable[[], None]
OnReady = Callable[[int, int, str], None]
"""(rank, number of ranks, device)"""
Trained = Callable[[int, int], Any]
"""(rank, replica) -> what the function returns"""


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

    # -- its parts ------------------------------------------------------------------------------------------------
    @property
    def models(self) -> Models: ...

    @property
    def randomness(self) -> Randomness: ...

    @property
    def results(self) -> Results: ...

    def object_state(self) -> NotebookState:
        """How the notebook's objects are compared with a worker's, and sent."""

    def checkpoint_store(self) -> StateStore:
        """In a worker: how tensors get into checkpoints and back."""

    def loop_random_states(self, objects: Iterable[Any]) -> LoopRandomStates:
        """In a worker: the random generators of this rank and those among `objects`."""

    # -- the worker -----------------------------------------------------------------------------------------------
    def follow_library_loops(self, loops: LibraryLoops, folder: Path) -> None:
        """In a worker: let `loops` know of the loops of libraries. `folder`: for files that they read."""

    def follow_optimizers(self, items: Sequence[tuple[str, Any]]) -> None:
        """In every worker, before the function: the optimizers among `items` follow their parameters to a device."""

    def run_worker(self, spec: WorkerSpec, on_ready: OnReady, function: Trained) -> Mapping[int, Any]:
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

    def failed_collective(self) -> BaseException | None:
        """What ended a collective of a rehearsal, in any thread of this rank; None if none failed."""


class Models(Protocol):
    """What is a model. Imports no framework: what was never imported has no instances."""

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

    def tensor_content(self, value: object) -> tuple[Any, ...] | None:
        """The content of a tensor in host memory, for comparison; None for anything else."""

    def replace_reference(self, model: Any, old: object, new: object) -> None:
        """Make every module of `model` that refers to `old` (its config) refer to `new`."""


class Randomness(Protocol):
    """The random states and seeds of this process, and what a forked worker inherits besides objects."""

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

    def process_state(self) -> Any:
        """What a forked worker would inherit besides objects: random states, seeds, modes. Can be pickled."""

    def set_process_state(self, state: Any) -> None:
        """Make this process like the one that `process_state` was called in, before it forks workers."""

    def deferral_problems(self) -> Sequence[str]:
        """What `prepare_notebook` could not do with the installed versions, in sentences."""


class Results(Protocol):
    """How trained weights, and other values, come home."""

    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        """In every worker, after the function: rank 0 writes the weights of `models` into `folder`, complete or not at
        all; other ranks write their shards, if any."""

    def splits_weights(self, models: Mapping[str, Any]) -> bool:
        """In a worker: whether weights of `models` are sharded over the ranks, so that all ranks must collect them."""

    def structure(self, model: Any) -> frozenset[Any]:
        """Names and shapes of a model's parameters and buffers, for comparison; of a sharded one those of the whole."""

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


class LocalBackend(Protocol):
    """What launch/strategies/in_process.py uses of a framework that trains in the notebook's process."""

    name: str

    def prepare(self) -> None:
        """Import the framework. Raises TpuMagicsError where it cannot be imported."""

    def initialise(self, precision: str = "", host: Any = None) -> Placement:
        """Connect to the TPU of `host`, the detected Host, if it has one, create the strategy, and set the precision of
        models created from now on ("", "fp32" or "bf16"). A second call with the same arguments returns the same.
        Raises TpuMagicsError if it cannot connect."""

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

    def data_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[TrainingProblem]:
        """Input pipelines among `items` with a short last batch, and output paths that cannot be written."""

    def saving_problems(self, tree: ast.AST, names: Mapping[str, Any]) -> Sequence[TrainingProblem]:
        """Paths in the code's own calls (`model.save("gs://...")`) that cannot be saved to. `tree`: of a cell, or a
        module with the trained function; `names`: the notebook's and the arguments."""

    def watching_data(
        self, tell: Callable[[TrainingProblem], None], items: Sequence[tuple[str, Any]]
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

    def checkpoint_store(self) -> StateStore:
        """What `Backend` has under this name."""

    def object_state(self) -> StateAdapter:
        """How the program's objects are compared."""

    def loop_random_states(self, objects: Iterable[Any]) -> LoopRandomStates:
        """What `Backend` has under this name."""

    def following_libraries(self, loops: LibraryLoops) -> AbstractContextManager[None]:
        """Within it, `loops` knows of the loops of libraries."""

    def explained(self, error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
        """The explanation of a framework's error: the user's line, the rule, the rewrite; None if unknown. `cells`:
        file names of cells -> "In [n]"."""


class SavedState(Protocol):
    """The state before a run, as `LocalBackend.save_state` returns it."""

    @property
    def models(self) -> Mapping[str, Any]:
        """The models among what was kept, outermost ones, by name."""

    def holds(self, value: object) -> bool:
        """Whether the state of `value` was saved."""

    def put_back(self) -> Sequence[str]:
        """Restore all of it; what was created since is forgotten. Can be called again. Returns what could not be
        restored, one per line."""

    def drop(self) -> None:
        """Remove what was written. Afterwards nothing can be restored."""


# -- the program's objects --------------------------------------------------------------------------------------------


class Kind(Protocol):
    """One kind of object. `named`: a description for an object that can never be updated, else ""."""

    named: str

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        """The objects that it contains."""

    def mark(self, value: Any) -> Any:
        """What `changed` compares with: a shallow copy or a checksum."""

    def changed(self, value: Any, mark: Any) -> bool:
        """Whether the object differs from its mark."""

    def content(self, value: Any, mark: Any) -> Any:
        """The new content, for `put`."""

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        """The parts of a content that can be left out separately."""

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:
        """The content without the pieces of these labels; None if nothing is left."""

    def put(self, value: Any, content: Any) -> Undo:
        """Change `value` in place. Returns a function that undoes the change."""


class StateAdapter(Protocol):
    """How the program's objects are compared. `rules`: the fields of a TypeRule (launch/state/type_rules.py) by the
    full name of a type."""

    rules: Mapping[str, Mapping[str, Any]]

    def kind(self, kind: type) -> Kind | None:
        """The kind for the framework's own objects, else None."""

    def weight(self, value: Any) -> Kind | None:
        """The kind for a tensor of `named`; weights are returned separately."""

    def named(self, models: Mapping[str, Any]) -> Mapping[tuple[str, str], Any]:
        """The tensors of models, by model and name."""

    def modules(self, models: Mapping[str, Any]) -> Mapping[tuple[str, str], Any]:
        """The modules of models, by model and name."""

    def tables(self, module: Any) -> Any:
        """What a module of `modules` consists of: its class, and the modules and tensors in it."""

    def own_tensors(self, module: Any, name: str) -> Iterator[tuple[str, Any]]:
        """The tensors directly in a module that is called `name`, by the names that `named` gives them."""

    def is_rebuilt(self, model: Any, before: Any, now: Any) -> bool:
        """Whether a model has other parts than `before`; both as `Backend.structure` returns them."""

    def is_reordered(self, module: Any, before: Any) -> bool:
        """Whether a module has the same tensors as in `tables`, in another order."""

    def changed_tables(self, module: Any, before: Any) -> Any:
        """What it consists of now, to be pickled; None if that is as before."""

    def set_tables(self, module: Any, content: Any) -> Callable[[], None]:
        """In the notebook; returns how to undo it."""

    def put_weight(self, value: Any, data: Any) -> Callable[[], None]:
        """Write the values of a tensor that is in no model any more; returns how to undo it."""

    def versions(self, models: Mapping[str, Any], *, contents: bool = False) -> Mapping[tuple[str, str], Any]:
        """Versions of the tensors of `named`: equal for one that was not written to; with `contents` also in ways that
        the framework does not count, which takes as long as reading them."""

    def more_parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Parts of an object that are not attributes."""

    def extra_state(self, kind: type) -> tuple[str, str] | None:
        """The names of the methods that get and set an extra state; None if there are none."""

    def has_fields(self, kind: type) -> bool:
        """Whether values of a class that `kind` knows have attributes that are followed too."""

    def own_dicts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The dicts of an object that other objects refer to, and that are not numbered."""

    def own_dict(self, value: Any, name: str) -> Any:
        """One of them."""

    def random_state(self) -> Any:
        """All random states of this process."""

    def gradient(self, value: Any) -> Any:
        """The gradient of a tensor; None for none."""

    def reduced(self, value: Any) -> tuple[Any, ...] | None:
        """How a constant that only a worker can use is pickled for the notebook, else None."""


class NotebookState(StateAdapter, Protocol):
    """Besides: what a worker sends, and how the notebook is brought up to date."""

    # -- in the worker
    def settle(self) -> None:
        """Run what is pending on the device."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor."""

    def is_of_user(self, value: Any) -> bool:
        """Whether a tensor's class is not the framework's."""

    def on_device(self, value: Any) -> bool:
        """Whether a tensor is on an accelerator."""

    def tensor_bytes(self, value: Any) -> int:
        """Bytes of its values."""

    def fetch(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors in host memory, with the flags of those on the device."""

    def describe(self, value: Any) -> Any:
        """What the ranks compare of a tensor, without fetching it."""

    def compact(self, value: Any) -> Any:
        """A tensor without its graph, and in its own memory, if it is a small part of a larger one; None for others."""

    def storage(self, value: Any) -> tuple[Any, str, int] | None:
        """The bytes of a storage in host memory, how to recreate it, and its address; None for anything else."""

    def is_unchanged_on_device(self, value: Any, mark: Any, content: Any, fetched: Mapping[int, Any]) -> bool:
        """Whether a tensor that moved to the device has the same values."""

    def random_changes(self, before: Any) -> Any:
        """The states of the generators that were used since `before`; None if none was."""

    def recipe(self, value: Any) -> Any:
        """How an object that belongs to the worker is created in the notebook; None for others."""

    # -- in the notebook
    def set_random_state(self, state: Any) -> Undo:
        """Continue with what `random_changes` returned; returns how to restore the previous states."""

    def set_gradient(self, value: Any, gradient: Any) -> None:
        """After the tensor has its new values."""

    def begin(self) -> None:
        """Before the results of a run are read."""

    def finish(self, values: Iterable[Any]) -> list[tuple[Any, str]]:
        """After all changes are applied: complete what `recipe` described. `values`: the notebook's objects. Returns
        the objects for which that failed, with the reason."""

    def make_storage(self, content: Any, dtype: str) -> Any:
        """A writable storage of these bytes."""


# -- a training that can be resumed -----------------------------------------------------------------------------------


class StateStore(Protocol):
    """The framework's part (backends/torch/checkpoints.py)."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor."""

    def describe(self, tensor: Any) -> Mapping[str, Any]:
        """Where a tensor is and what it is, for `make`."""

    def make(self, content: Any, described: Mapping[str, Any]) -> Any:
        """A new tensor of this content, where the old one was."""

    def put(self, tensor: Any, content: Any, described: Mapping[str, Any]) -> None:
        """Give a tensor of the program another content, in place."""

    def plain(self, value: Any) -> tuple[str, Any] | None:
        """What json cannot write of the framework's small values, as a name and JSON or a tensor; None for others."""

    def from_plain(self, name: str, value: Any) -> Any:
        """The opposite of `plain`."""

    def tables(self, value: Any) -> Iterable[tuple[str, dict[str, Any]]]:
        """The dicts of a module's tensors, by attribute."""

    def wrapped(self, value: Any) -> Any:
        """What is in a wrapper that a run of several ranks has around it, and one of a single rank has not; None for
        other objects."""

    def gradients(self, values: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        """The gradients of the tensors among these, with their keys."""

    def set_gradient(self, tensor: Any, gradient: Any) -> None:
        """Set a tensor's gradient."""

    def new_steps(self, observed: int) -> tuple[int, bool]:
        """Steps since the last call, and whether none is half done. `observed`: all steps of the run, as the observer
        counts them."""

    def following_steps(self, watcher: Watcher, call: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it, `call` is called after each step."""

    def replicated(self, values: Iterable[Any]) -> set[int]:
        """The ids of the tensors among these objects that are the same on all ranks."""

    def fetch(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tensors in host memory of their own. Waits for the device."""

    def write(self, path: Path, tensors: Mapping[str, Any]) -> list[Path]:
        """Write fetched tensors into files that begin with this path; returns them."""

    def read(self, path: Path) -> dict[str, Any]:
        """What `write` wrote, by key."""


class LoopRandomStates(Protocol):
    """The random generators of a rank (backends/torch/checkpoints.py)."""

    def read(self, device: bool = True) -> Any:
        """Their states, and the numbers of passes that loaders have counted. `device`: also those that are there."""

    def write(self, states: Any) -> None:
        """Set them."""

    def write_unmoved(self, states: Any, before: Any) -> None:
        """Set those that are as in `before`: nothing has drawn from them since."""

    def moved(self, before: Any, now: Any) -> set[str]:
        """The generators of the process ("python", "numpy", ...) that something has drawn from in between."""

    def loader_state(self, loader: Any) -> Any:
        """Where a loader that can tell it is in its items, for `set_loader_state`; None for others."""

    def set_loader_state(self, loader: Any, state: Any) -> None:
        """Its next pass begins there."""


class LibraryLoops(Protocol):
    """What a library's loop tells (launch/resume/loops.py)."""

    def begin_library(self, key: str, more: Any, *objects: tuple[str, Any]) -> None:
        """A pass over the data begins. `more`: read when the run is saved; `objects`: what it trains, all attributes of
        which are saved."""

    def library_item(self, items: Any) -> None:
        """An item was taken, and its work is about to begin."""

    def end_library(self) -> None:
        """A pass has ended."""

    def library_call(self, key: str) -> AbstractContextManager[Any]:
        """Around all passes. Yields what `more` returned when the run was saved in one; None if it does not go on in
        one. Raises TpuMagicsError where it cannot."""
