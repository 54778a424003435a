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
from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.host.memory import host_memory
from tpu_magics.launch import object_graph, plan, preconditions, process, results, session, supervisor, worker
from tpu_magics.launch.forked_run import ForkedRun
from tpu_magics.launch.plan import Options
from tpu_magics.launch.relay import NoScreen, Screen
from tpu_magics.launch.request import Request
from tpu_magics.runs import locked_folders
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run

_DATA = re.compile(r"^VmData:\s+(\d+) kB", re.MULTILINE)
LEFT = 0.05  # share of the free host memory that is left for other processes
READS = "reads.txt"  # in the folder of the graphs; a backend writes it while it traces


@dataclass(frozen=True)
class TracingOptions:
    """What to trace for. `world`: ranks of the TPU; `devices`: of one SPMD worker (None: no SPMD); `steps`: the maximum
    number of steps."""

    world: int = 1
    devices: int | None = None
    steps: int = STEPS


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
    temporary: locked_folders.LockedFolder | None = None
    try:
        with process.interrupts_held():
            temporary = locked_folders.make()
        run = _prepare(request, options, tracing_options, temporary.path)
        session.current.active_run = run
        try:
            run.fork()
            run.watch_until_end()
            run.finish()
        except BaseException as error:
            run.abandon(error)
            if isinstance(error, TrainingFailed):
                error.details = (*error.details, *_values_read(run.graphs))
            raise
        yield run.graphs, Run(run.folder.path)
    finally:
        if temporary is not None:
            with process.interrupts_held():
                temporary.remove()


def _values_read(folder: Path) -> Iterator[str]:
    """The values that the function had read when it failed."""
    path = folder / READS
    if path.is_file() and path.stat().st_size:
        yield "Values that the function read (they are zero while it is traced):"
        yield from (f"  {line}" for line in path.read_text().splitlines())


def _prepare(request: Request, options: Options, tracing_options: TracingOptions, root: Path) -> _TracingRun:
    current = session.current
    host = at_home(session.known_host())
    backend = current.backend
    precision = options.precision or current.precision
    options = replace(options, spmd=tracing_options.devices, processes=None, steps=None)
    made = plan.make_plan(host, options, precision, 1)
    preconditions.require_alone()
    backend.prepare()
    models = object_graph.find_models(iter(request.items), backend.is_model)
    preconditions.check(
        preconditions.LaunchContext(backend, host, current.fork_blockers, request.items, models, request.source)
    )
    size = sum(backend.model_bytes(model) for model in models.values())
    plan.require_memory(made, size, options.force)
    folder = RunFolder.create("preflight", root)
    tracing = TraceSpec(
        root / "graphs",
        1 if tracing_options.devices else tracing_options.world,
        tracing_options.devices or 1,
        tracing_options.steps,
    )
    work = request.make(models, None)
    return _TracingRun(request, options, made, host, folder, work, {}, size, None, tracing=tracing)


def at_home(host: Host) -> Host:
    """The host as if it had no TPU: tracing uses none."""
    return replace(host, device="CPU", workers=1, replicas=1, variable_changes=())


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


@dataclass
class _TracingRun(ForkedRun):
    """A run whose worker traces instead of training."""

    tracing: TraceSpec | None = None

    @property
    def graphs(self) -> Path:
        assert self.tracing is not None
        return self.tracing.folder

    def _fork_one(self, task: worker.WorkerTask, index: int, scratch: Path) -> supervisor.WorkerProcess:  # noqa: ARG002
        spec = replace(self.plan.spec(index), tracing=self.tracing)
        pid = process.fork_worker(lambda: _run_with_memory_limit(task, spec), self.folder.stacks_path(index))
        return supervisor.WorkerProcess(index, pid, index)

    def _screen(self) -> Screen:
        return NoScreen()  # values printed while tracing are zeros

    def _load(self, ranks: int | None = None) -> results.RunResults:  # noqa: ARG002
        raise TpuMagicsError(
            "A traced run has no results.", "Nothing was run.", "This is a bug in tpu_magics; please report it."
        )
