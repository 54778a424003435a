"""The state of a notebook process between cells: defaults of %tpu_init, the host, and the active run."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import Placement
from tpu_magics.backends.frameworks import (
    AUTO,
    CHOICES,
    DEFAULT,
    LOCAL,
    TorchChoice,
    choose_framework,
    choose_torch,
    new_backend,
    new_local_backend,
)
from tpu_magics.backends.protocols import Backend, LocalBackend
from tpu_magics.backends.torch_xla.import_guard import forbid_torch_xla
from tpu_magics.checkpoints.store import tried_place
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, VariableChange, inspect_host, notebook_environment
from tpu_magics.host.environments import ACCELERATOR_TYPE
from tpu_magics.launch import preconditions, tee
from tpu_magics.launch.notebook import NotebookInterface, PlainProgram
from tpu_magics.launch.options import Options, check_choice, checked
from tpu_magics.launch.plan import cache_folder, count_workers
from tpu_magics.launch.preconditions import ForkBlockers
from tpu_magics.launch.used_packages import packages_of_tree

if TYPE_CHECKING:
    from tpu_magics.launch.pods.pod import Pod
    from tpu_magics.launch.pods.slices import Slice
    from tpu_magics.launch.results import TrainResult
    from tpu_magics.launch.run import TrainingRun


@dataclass
class Session:
    """One for each process. `notebook`: where output goes; `active_run`: the run whose results are not loaded yet;
    `last`: the newest run's result; `framework`: as given to %tpu_init; `placed`: where a framework trains
    that runs in this process (None: not connected yet); `pod`: the hosts of runs (None: this host); `spawns`: workers
    are new processes, because forks could not use the device; `checkpoints`: where those of runs are ("": nowhere);
    `slice`: the TPU slice that was requested for `pod`; `tpu_branch`: XLA:CPU is in a TPU's place in workers;
    `stands_for`: the TPU that is rehearsed (None: one with as many chips as ranks)."""

    notebook: NotebookInterface = field(default_factory=PlainProgram)
    precision: str = ""
    processes: int | None = None
    cache: str = ""
    spmd: int | None = None
    collective_timeout: float | None = None
    framework: str = AUTO
    placed: Placement | None = None
    pod: Pod | None = None
    spawns: bool = False
    checkpoints: str = ""
    slice: Slice | None = None
    tpu_branch: bool = False
    stands_for: Slice | None = None
    host: Host | None = None
    fork_blockers: ForkBlockers = field(default_factory=ForkBlockers)
    active_run: TrainingRun | None = None
    last: TrainResult | None = None
    initialised: bool = False
    menu_shown: bool = False
    unseen_reported: set[str] = field(default_factory=set)
    _torch: TorchChoice | None = None
    _backend: Backend | None = None
    _local: LocalBackend | None = None

    @property
    def backend(self) -> Backend:
        """The backend of forked workers; created at first use, does not import the framework yet."""
        if self._backend is None or self._backend.name != self.torch.package:
            self._backend = new_backend(self.torch.package)
        return self._backend

    @property
    def torch(self) -> TorchChoice:
        """Which framework of PyTorch trains: by what is installed, and the notebook's code as soon as it shows one."""
        if self._torch is None or not self._torch.certain:
            self._torch = choose_torch(map(str, self.notebook.namespace.get("In", ())))
        return self._torch

    @property
    def local(self) -> LocalBackend:
        """The backend that trains in this process; created at first use, does not import the framework yet."""
        if self._local is None:
            self._local = new_local_backend()
        return self._local

    def is_local(
        self, items: Sequence[tuple[str, Any]] = (), packages: Collection[str] = (), launcher: bool = False
    ) -> bool:
        """Whether a run trains in this process, by --framework, the models among `items`, the packages that its code
        names, and the imported frameworks. `launcher`: a launcher of PyTorch was called."""
        if self.framework != AUTO:
            return self.framework == LOCAL.name
        kinds = {LOCAL.name for _, value in items if self.local.is_model(value)}
        kinds |= {DEFAULT.name for _, value in items if self.backend.models.is_model(value)}
        if launcher and not kinds:
            return False
        cells = map(str, self.notebook.namespace.get("In", ()))
        return choose_framework(self.framework, kinds, packages, cells) == LOCAL.name

    def place(self, anew: bool = False) -> Placement:
        """Import the framework, connect it to its devices, and return where this process trains. The first time, and if
        `anew`, inspect the host, show notes, and define `strategy` in the notebook unless it exists."""
        known = self.placed is not None and not anew
        if not known:
            self.host = inspect_host(framework=LOCAL.name)
        with tee.filtered():
            if not known:
                self.local.prepare()
                forbid_torch_xla()
            self.placed = placed = self.local.initialise(self.precision, host=self.host)
        if not known:
            self.notebook.namespace.setdefault("strategy", placed.strategy)
            for line in placed.notes:
                self.notebook.say(line)
        return placed

    @contextmanager
    def scope(self, precision: str | None, tree: ast.AST | None = None) -> Iterator[None]:
        """The context for a cell's code before its training: the strategy's scope, if the cell trains in this process.
        `precision`: the cell's option; `tree`: its code, for the packages that it imports."""
        packages = packages_of_tree(tree) if tree is not None else set()
        if not self.is_local(packages=packages):
            yield
            return
        self.place()
        with self.local.precision(precision) if precision else nullcontext(), self.local.scope():
            yield

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker, forked from the notebook's during a run."""
        return self.active_run is not None and self.active_run.folder.info["pid"] != os.getpid()

    def refuse_in_worker(self, magic: str, todo: str = "") -> None:
        """Raise TpuMagicsError in a worker, where `magic` would change nothing of the notebook's."""
        if self.in_worker:
            raise TpuMagicsError(
                f"{magic} was used inside a worker.",
                "The training function runs in its own process on every rank; the session belongs to the notebook.",
                todo or f"Remove {magic} from the function, and use it in a cell of its own.",
            )

    def refuse_second(self) -> None:
        """Raise TpuMagicsError while a run is active."""
        if self.in_worker:
            raise TpuMagicsError(
                "Training was started inside a worker.",
                "The training function already runs on every rank.",
                "Remove the call that starts training from the function.",
            )
        if self.active_run is not None and self.active_run.busy and not self.active_run.options.background:
            raise TpuMagicsError(
                f"Training was started inside the run {self.active_run.folder.name!r}.",
                "A cell with %%tpu_train is already trained as a whole.",
                "Remove either that call or %%tpu_train from the cell.",
            )
        if self.active_run is not None and self.active_run.busy:
            name = self.active_run.folder.name
            raise TpuMagicsError(
                f"The run {name!r} is still running, and only one run at a time can use the device.",
                "It was started with --background.",
                f"Wait for it with {self.active_run.options.output}.wait(), or stop it with %tpu_stop {name}",
            )


current = Session()


def initialise(
    precision: str | None = None,
    processes: int | None = None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
    framework: str = AUTO,
    hosts: str = "",
    wanted: Slice | None = None,
    checkpoints: str | None = None,
    tpu_branch: bool | None = None,
    stands_for: Slice | None = None,
) -> Host:
    """Set up the session, as `%tpu_init` does: inspect the host, set the defaults and this process's PJRT_DEVICE.

    For PyTorch no runtime is initialized. For TensorFlow, which trains in this process, the TPU is connected and its
    strategy becomes `strategy` in the notebook.

    Args:
        cache: folder of the persistent compile cache, or "off"; None keeps the current one.
        spmd: number of devices of the single SPMD worker of a run.
        framework: "auto", "torch" or "tensorflow".
        hosts: the Ray cluster to train on ("ray", "ray://HOST:PORT", "HOST:PORT"; "" and "off": this host).
        wanted: the TPU slice to request from the cluster.
        checkpoints: where those of runs are kept, a folder or an address, or "off"; None keeps what the session has.
        tpu_branch: whether, without a TPU, XLA:CPU takes its place, so that libraries take their TPU branch; None:
            where its plugin is installed.
        stands_for: the TPU that is rehearsed without one: its ranks, and what libraries are told of it.
    """
    from tpu_magics.launch.pods import host_selection

    current.refuse_in_worker("%tpu_init")
    given = {"precision": precision, "processes": processes, "spmd": spmd, "collective_timeout": collective_timeout}
    options = Options(**checked(Options, "tpu_magics.init", given))
    options.check()
    check_choice("--framework", framework, CHOICES)
    if checkpoints is not None:
        current.checkpoints = "" if checkpoints == "off" else tried_place(checkpoints).name
    new = Session(framework=framework)
    if new.is_local():
        preconditions.refuse_forked_options(options)
        preconditions.refuse_cache(cache)
        preconditions.refuse_tpu_branch("--as" if stands_for is not None else "--tpu-branch" if tpu_branch else "")
        host_selection.require_pytorch(hosts)
        host_selection.leave_pod(current)
        return _initialise_local(framework, precision or "")
    current.backend.refuse(options.precision or "", options.spmd, cache or "", hosts)
    if stands_for is not None:
        preconditions.refuse_other_ranks(stands_for.name, _ranks_of(stands_for), options, tpu_branch)
    current.pod = host_selection.join_pod(current, hosts, wanted, options)  # releases what the session had before
    current.slice = wanted
    current.stands_for = stands_for
    host = _initialise_workers(options, cache, alone=current.pod is None, tpu_branch=tpu_branch)
    current.framework, current.placed = framework, None
    return host


def _initialise_workers(
    options: Options, cache: str | None = None, alone: bool = True, tpu_branch: bool | None = None
) -> Host:
    """`initialise` for a framework that trains in forked workers. `alone`: on this host only, whose devices limit the
    number of workers."""
    host = inspect_host()
    likeness = None if host.chips else current.stands_for
    if likeness is not None and options.processes is None and options.spmd is None:
        options = replace(options, processes=_ranks_of(likeness))
    if alone:
        count_workers(host, options.processes, options.spmd)
    if cache is not None:
        current.cache = cache_folder(cache)
    current.tpu_branch = tpu_branch is not False and _takes_tpus_place(
        host, alone, asked=bool(tpu_branch) or current.stands_for is not None
    )
    os.environ.update(notebook_environment(host))
    current.host = host = _on_branch(host)
    current.precision = options.precision or ""
    current.processes = options.processes
    current.spmd = options.spmd
    current.collective_timeout = options.collective_timeout
    current.backend.prepare_notebook()
    current.initialised = True
    return host


def _ranks_of(tpu: Slice) -> int:
    return tpu.all_chips * tpu.generation.devices


def _on_branch(host: Host) -> Host:
    """The host as libraries in the workers see it."""
    if not current.tpu_branch:
        return host
    likeness, changes = current.stands_for, host.variable_changes
    if likeness is not None:
        before = os.environ.get(ACCELERATOR_TYPE, "")
        changes = (*changes, VariableChange(ACCELERATOR_TYPE, likeness.name, "it is rehearsed (--as)", before))
    return replace(host, branch="TPU", variable_changes=changes)


def _takes_tpus_place(host: Host, alone: bool, asked: bool) -> bool:
    """Whether XLA:CPU can take a TPU's place on this host, or, not `alone`, on others. If not, the notebook says why if
    that was `asked` for, or what is installed does not fit."""
    why = "this host has a TPU" if host.chips else "" if alone else "it is for runs on this host, without --hosts"
    try:
        if not why and not current.backend.load_stand_in(asked):
            why = f"{current.backend.name} has no other"
    except TpuMagicsError as error:
        current.notebook.say(f"Libraries do not take their TPU branch in this rehearsal. {error}")
        return False
    if why and asked:
        option = "--tpu-branch" if current.stands_for is None else "--as"
        current.notebook.say(f"{option} has no effect: {why}.")
    return not why


def has_stand_in(host: Host) -> bool:
    """Whether what takes a TPU's place is loaded: never on a host with a TPU."""
    try:
        return not host.chips and current.backend.load_stand_in(asked=False)
    except TpuMagicsError:
        return False


def _initialise_local(framework: str, precision: str) -> Host:
    """`initialise` for a framework that trains in this process. The session is unchanged if it fails."""
    before = (current.framework, current.precision)
    current.framework, current.precision = framework, precision
    try:
        placed = current.place(anew=True)
    except BaseException:
        current.framework, current.precision = before
        raise
    current.notebook.namespace["strategy"] = placed.strategy
    assert current.host is not None
    return current.host


def cache_text(host: Host) -> str:
    """A sentence about the persistent compile cache on this host."""
    if not current.cache:
        return "the persistent compile cache is off."
    if host.device == "CPU":
        return (
            f"the persistent compile cache ({current.cache}) is off here: on XLA:CPU torch_xla 2.9 cannot load what it "
            "stored. On a TPU it is used."
        )
    return f"compiled programs are stored in {current.cache} and reused in later runs."


def known_host() -> Host:
    """Inspect the host again: another process may use the TPU by now. Without %tpu_init, set up the session first."""
    if not current.initialised:
        return _initialise_workers(Options())
    current.host = _on_branch(inspect_host())
    return current.host
