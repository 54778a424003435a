"""A worker on XLA:CPU that traces a request and writes its graphs, for preflight/."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tpu_magics.backends.base import STEPS, TraceSpec, WorkerSpec
from tpu_magics.backends.lowered import READS
from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import plan, process, results, session, worker
from tpu_magics.launch.inherited_threads import InheritedThreads
from tpu_magics.launch.options import Options
from tpu_magics.launch.plan import Plan
from tpu_magics.launch.request import Request
from tpu_magics.launch.run import TrainingRun, prepare
from tpu_magics.launch.strategies.forked import ForkedStrategy
from tpu_magics.launch.streams import NoScreen, Screen
from tpu_magics.runs import temporary_folders
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run

_DATA = re.compile(r"^VmData:\s+(\d+) kB", re.MULTILINE)
VALUES_READ = "Values that the function read (they are zero while it is traced):"  # a line of an error's details
LEFT = 0.05  # share of the free host memory that is left for other processes


@dataclass(frozen=True)
class TracingOptions:
    """What to trace for. `world`: ranks of the TPU; `devices`: of one SPMD worker (None: no SPMD); `steps`: the maximum
    number of steps; `changes`: of the function (backends/torch_xla/trace/step_changes.py)."""

    world: int = 1
    devices: int | None = None
    steps: int = STEPS
    changes: tuple[str, ...] = ()


@contextmanager
def traced(request: Request, options: Options, tracing_options: TracingOptions) -> Iterator[tuple[Path, Run]]:
    """Yields the folder of the graphs that the worker wrote, and the run's records; both are deleted after the block.

    Raises:
        TpuMagicsError: the request cannot run.
        TrainingFailed: the function failed while it was traced.
    """
    options.check()
    session.current.refuse_second()
    process.require_main_thread()
    temporary: temporary_folders.LockedFolder | None = None
    try:
        with process.interrupts_held():
            temporary = temporary_folders.make_locked()
        strategy = TracingStrategy(tracing_options, temporary.path)
        options = replace(options, spmd=tracing_options.devices, processes=None, steps=None, background=False)
        run = prepare(request, options, strategy)
        try:
            run.execute()
        except TrainingFailed as error:
            error.details = (*error.details, *_values_read(strategy.graphs))
            raise
        yield strategy.graphs, Run(run.folder.path)
    finally:
        if temporary is not None:
            with process.interrupts_held():
                temporary.remove()


def _values_read(folder: Path) -> Iterator[str]:
    """The values that the function had read when it failed."""
    path = folder / READS
    if path.is_file() and path.stat().st_size:
        yield VALUES_READ
        yield from (f"  {line}" for line in path.read_text().splitlines())


def at_home(host: Host) -> Host:
    """The host as if it had no TPU: tracing uses none, but takes libraries to their TPU branch."""
    return replace(host, device="CPU", branch="TPU", workers=1, replicas=1, variable_changes=())


def _run_with_memory_limit(task: worker.WorkerTask, spec: WorkerSpec) -> int:
    """Run the worker with a limit on its memory: else the kernel's OOM killer may end it, or the notebook.

    RLIMIT_DATA counts writable memory (getrlimit(2)), including what is inherited from the notebook."""
    available, now = host_memory(Path("/")).available, _DATA.search(Path("/proc/self/status").read_text())
    if available is not None and now is not None:
        bound = int(now[1]) * 1024 + int(available * (1 - LEFT))
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        with contextlib.suppress(OSError, ValueError):  # not everywhere
            resource.setrlimit(resource.RLIMIT_DATA, (bound if most < 0 else min(bound, most), most))
    return worker.main(task, spec)


class TracingStrategy(ForkedStrategy):
    """A forked worker traces instead of training; no results are loaded. `root`: the folder of all its files."""

    hoists = False
    saves = False
    can_spawn = False
    says_tpu_menu = False

    def __init__(self, options: TracingOptions, root: Path) -> None:
        super().__init__()
        self._options = options
        self._root = root
        self.graphs = root / "graphs"
        self._stand_in = False

    def plan(self, options: Options) -> tuple[Host, Plan]:
        host = at_home(session.known_host())
        self._stand_in = session.has_stand_in(host)
        return host, plan.make_plan(host, options, session.current.precision, 1)

    def create_folder(self, name: str) -> RunFolder:  # noqa: ARG002
        return RunFolder.create("preflight", self._root)

    def require_disk(self, folder: Path, request: Request, models_bytes: int, force: bool) -> None:
        pass

    def attach(self, run: TrainingRun) -> None:
        super().attach(run)
        run.models = {}

    def start(self, run: TrainingRun) -> None:
        self.start_workers(run)  # without a panel

    def notebook_threads(self, run: TrainingRun) -> InheritedThreads:
        threads = super().notebook_threads(run)
        threads.tracing = True
        return threads

    def fork_worker(self, run: TrainingRun, task: worker.WorkerTask, index: int, scratch: Path) -> int:  # noqa: ARG002
        world, devices = self._options.world, self._options.devices
        ranks, steps = 1 if devices else world, self._options.steps
        tracing = TraceSpec(self.graphs, ranks, devices or 1, steps, self._options.changes, self._stand_in)
        spec = replace(run.plan.spec(index), tracing=tracing)
        return process.fork_worker(lambda: _run_with_memory_limit(task, spec), run.folder.stacks_path(index))

    def screen(self, run: TrainingRun) -> Screen:  # noqa: ARG002
        return NoScreen()  # values printed while tracing are zeros

    def load(self, run: TrainingRun, ranks: int) -> results.RunResults:  # noqa: ARG002
        raise TpuMagicsError(
            "A traced run has no results.", "Nothing was run.", "This is a bug in tpu_magics; please report it."
        )
