"""What one notebook process remembers between cells.

What lives here: the session's defaults, the host as it was last seen, which cell did what, and the run that is going
on. What does not: any of the work.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import Backend, LocalBackend, Placed
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, inspect_host, notebook_environment
from tpu_magics.launch import tee
from tpu_magics.launch.alone import forbid_torch_xla
from tpu_magics.launch.framework import AUTO, CHOICES, TENSORFLOW, TORCH, chosen, packages_of_tree
from tpu_magics.launch.guards import Marks
from tpu_magics.launch.notebook import Notebook, PlainProgram
from tpu_magics.launch.plan import Options, cache_folder, check_choice, count_workers

if TYPE_CHECKING:
    from tpu_magics.launch.local import Here
    from tpu_magics.launch.pods.pod import Pod
    from tpu_magics.launch.pods.slices import Slice
    from tpu_magics.launch.results import TrainResult
    from tpu_magics.launch.train import Going


@dataclass
class Session:
    """One for each process. `notebook`: where output goes; `going`: the run that has not come home yet; `last`: the
    newest run's result; `framework`: as %tpu_init was told; `tpu`: the name or address that it was told, and `placed`:
    where a framework of this process trains, once that is known; `pod`: the hosts of runs (None: this one)."""

    notebook: Notebook = field(default_factory=PlainProgram)
    precision: str = ""
    processes: int | None = None
    cache: str = ""
    spmd: int | None = None
    collective_timeout: float | None = None
    framework: str = AUTO
    tpu: str = ""
    placed: Placed | None = None
    pod: Pod | None = None
    host: Host | None = None
    marks: Marks = field(default_factory=Marks)
    going: Going | Here | None = None
    last: TrainResult | None = None
    initialised: bool = False
    told_menu: bool = False
    told_unseen: set[str] = field(default_factory=set)
    _backend: Backend | None = None
    _local: LocalBackend | None = None

    @property
    def backend(self) -> Backend:
        """The framework's half; made at the first use, imports nothing of the framework yet."""
        if self._backend is None:
            from tpu_magics.backends.torch_xla import TorchXla

            self._backend = TorchXla()
        return self._backend

    @property
    def local(self) -> LocalBackend:
        """The half of the framework that trains in this process; made at the first use, imports nothing of it yet."""
        if self._local is None:
            from tpu_magics.backends.tensorflow import TensorFlow

            self._local = TensorFlow()
        return self._local

    def is_local(
        self, items: Sequence[tuple[str, Any]] = (), packages: Collection[str] = (), launcher: bool = False
    ) -> bool:
        """Whether a run is trained in this process: by what %tpu_init was told, the models among `items`, the packages
        that its code names, and what is imported. `launcher`: PyTorch's own launcher was called."""
        if self.framework != AUTO:
            return self.framework == TENSORFLOW
        kinds = {TENSORFLOW for _, value in items if self.local.is_model(value)}
        kinds |= {TORCH for _, value in items if self.backend.is_model(value)}
        if launcher and not kinds:
            return False
        return chosen(self.framework, kinds, packages) == TENSORFLOW

    def place(self, anew: bool = False) -> Placed:
        """Where this process trains; the framework is imported and connected. The first time, and `anew`, the host is
        looked at and the notes are said; `strategy` becomes a name of the notebook, unless it is one."""
        known = self.placed is not None and not anew
        if not known:
            self.host = inspect_host(framework=TENSORFLOW)
        with tee.calm():
            if not known:
                self.local.prepare()
                forbid_torch_xla()
            self.placed = placed = self.local.initialise(self.tpu, self.precision, host=self.host)
        if not known:
            self.notebook.namespace.setdefault("strategy", placed.strategy)
            for line in placed.notes:
                self.notebook.say(line)
        return placed

    @contextmanager
    def scope(self, precision: str | None, tree: ast.AST | None = None) -> Iterator[None]:
        """What code of a cell runs in before its training: the strategy's scope, where the cell is trained in this
        process. `precision`: the cell's own; `tree`: its code, for the packages that it imports."""
        packages = packages_of_tree(tree) if tree is not None else set()
        if not self.is_local(packages=packages):
            yield
            return
        self.place()
        with self.local.precision(precision) if precision else nullcontext(), self.local.scope():
            yield

    def refuse_second(self) -> None:
        """Raise TpuMagicsError while a run is going on."""
        if self.going is not None and self.going.folder.info["pid"] != os.getpid():
            raise TpuMagicsError(
                "Training was started inside a worker.",
                "The training function runs on every rank already.",
                "Take the call that trains out of the function.",
            )
        if self.going is not None and self.going.busy and not self.going.options.background:
            raise TpuMagicsError(
                f"Training was started inside the run {self.going.folder.name!r}.",
                "What a cell under %%tpu_train does is trained already.",
                "Take the call that trains out of the cell, or %%tpu_train off its top.",
            )
        if self.going is not None and self.going.busy:
            name = self.going.folder.name
            raise TpuMagicsError(
                f"The run {name!r} is still going on, and one run at a time can have the device.",
                "It was started with --background.",
                f"Wait for it with _tpu.wait(), or stop it with %tpu_stop {name}",
            )


current = Session()


def initialise(
    precision: str | None = None,
    processes: int | None = None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
    framework: str = AUTO,
    tpu: str = "",
    hosts: str = "",
    wanted: Slice | None = None,
) -> Host:
    """What `%tpu_init` does: look at the host, set the session's defaults, and this process's PJRT_DEVICE.

    For PyTorch it never initialises a runtime; for TensorFlow, which trains in this process, it connects to the TPU,
    makes the strategy and gives it to the notebook as `strategy`. Returns the host as it was found. `cache`: folder of
    the persistent compile cache, or "off"; None leaves it as it is. `spmd`: runs have one SPMD worker with so many
    devices. `framework`: "auto", "torch" or "tensorflow"; `tpu`: the name or the grpc address of a remote TPU. `hosts`:
    the Ray cluster whose hosts train ("ray", "ray://HOST:PORT", "HOST:PORT"; "" and "off": this host), and `wanted`:
    the slice of TPUs that it is asked for.
    """
    from tpu_magics.launch import local_checks
    from tpu_magics.launch.pods import host_selection

    options = Options(precision=precision, processes=processes, spmd=spmd, collective_timeout=collective_timeout)
    options.check()
    check_choice("--framework", framework, CHOICES)
    asked = Session(framework=framework)
    if asked.is_local():
        local_checks.refuse(options)
        local_checks.refuse_cache(cache)
        host_selection.require_pytorch(hosts)
        host_selection.leave_pod(current)
        return _initialise_local(framework, tpu, precision or "")
    local_checks.refuse_tpu(tpu)
    current.pod = host_selection.join_pod(current, hosts, wanted, options)  # at once: what it had before is given back
    host = _initialise_workers(options, cache, alone=current.pod is None)
    current.framework, current.placed = framework, None
    return host


def _initialise_workers(options: Options, cache: str | None = None, alone: bool = True) -> Host:
    """The same for a framework that trains in forked workers. `alone`: on this host and no other, whose devices then
    say how many workers there can be."""
    host = inspect_host()
    if alone:
        count_workers(host, options.processes, options.spmd)
    if cache is not None:
        current.cache = cache_folder(cache)
    os.environ.update(notebook_environment(host))
    current.host = host
    current.precision = options.precision or ""
    current.processes = options.processes
    current.spmd = options.spmd
    current.collective_timeout = options.collective_timeout
    current.backend.quiet_seeds()
    current.initialised = True
    return host


def _initialise_local(framework: str, tpu: str, precision: str) -> Host:
    """The same for a framework that trains in this process. Where that is refused, the session is as it was."""
    before = (current.framework, current.tpu, current.precision)
    current.framework, current.tpu, current.precision = framework, tpu, precision
    try:
        placed = current.place(anew=True)
    except BaseException:
        current.framework, current.tpu, current.precision = before
        raise
    current.notebook.namespace["strategy"] = placed.strategy
    assert current.host is not None
    return current.host


def cache_text(host: Host) -> str:
    """What becomes of the persistent compile cache on this host, in a sentence."""
    if not current.cache:
        return "the persistent compile cache is off."
    if host.device == "CPU":
        return (
            f"the persistent compile cache ({current.cache}) stays off here: on XLA:CPU torch_xla 2.9 cannot load what "
            "it has stored. On a TPU the same line turns it on."
        )
    return f"compiled programs are kept in {current.cache}, and taken from there in later runs."


def known_host() -> Host:
    """The host, looked at anew: a TPU may have been taken since. Without %tpu_init, this process is set up as it
    would."""
    if not current.initialised:
        return _initialise_workers(Options())
    current.host = inspect_host()
    return current.host
