"""How much host memory workers and one model take. Forked workers wait inside their function while it is measured; the
model has not moved to the device yet.

Extra memory is the proportional set size (Pss: a page that n processes share counts 1/n in each) of the notebook's
process and all workers, less what the notebook's process had before it made a model. So one model is part of it,
however it is shared. Pages of files (libraries) are left out: they are there once for all processes, and their share
changes with whatever else runs on the machine. Two sizes of the model separate what grows with it from what does not.

Then every worker runs Python's garbage collector once, as it does by itself now and then: it writes into every object
that it looks at, and a page that was written is no longer shared.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "Host memory of 8 workers and one model"
WORKERS = 8
LAYER = 4  # MB of one layer of models.Blocks
SIZES = (200, 400)  # MB (powers of ten) of the model's parameters
TIMEOUT = 300.0  # seconds until all workers are where they are waited for

FORK, SPAWN = "by hand: os.fork, model passed", "by hand: model passed as xmp.spawn does it (fork, process pool)"
BUILT = "by hand: os.fork, each worker builds its own"
PASSED, HOISTED = "%%tpu_train, model passed", "%%tpu_train, model built in the function (hoisted)"
OURS = (PASSED, HOISTED)


# -- inside the function -------------------------------------------------------------------------------------------


def hold(model: Any, folder: str) -> None:
    """Tell that this worker is inside its function and has its model; wait; collect garbage, tell; wait."""
    import torch_xla

    assert torch_xla._XLAC._xla_runtime_is_initialized(), "the worker has no runtime"
    size = sum(parameter.nbytes for parameter in model.parameters())
    _tell_and_wait(Path(folder), "inside", size)
    gc.collect()
    _tell_and_wait(Path(folder), "collected", size)


def _tell_and_wait(folder: Path, moment: str, size: int) -> None:
    path = folder / f"{moment}-{os.getpid()}"
    path.with_suffix(".new").write_text(str(size))
    path.with_suffix(".new").rename(path)
    notebook = os.getppid()
    while not (folder / f"after-{moment}").exists():
        if os.getppid() != notebook:
            os._exit(1)  # the benchmark was stopped
        time.sleep(0.02)


# -- the notebooks, each in a fresh process ------------------------------------------------------------------------


def fork(count: int, workers: int, folder: str) -> None:
    """What a person writes without us: fork, and in a new thread of each child bring the runtime up and train."""
    from tests.benchmarks.models import Blocks

    _note_before(folder)
    model = Blocks(count)
    _fork_all(workers, lambda: _with_runtime(hold, model, folder))


def fork_and_build(count: int, workers: int, folder: str) -> None:
    """The same, with the model made in the function."""
    from tests.benchmarks.models import Blocks

    _note_before(folder)
    _fork_all(workers, lambda: _with_runtime(lambda: hold(Blocks(count), folder)))


def spawn(count: int, workers: int, folder: str) -> None:
    """What xmp.spawn(start_method="fork") does with its arguments (torch_xla 2.9, run_multiprocess): they go through
    the queue of a pool of forked processes, where torch puts tensors into shared memory. On XLA:CPU it starts one
    process, so the pool is made here."""
    from concurrent.futures import ProcessPoolExecutor

    import torch

    from tests.benchmarks.models import Blocks

    _note_before(folder)
    model = Blocks(count)
    with ProcessPoolExecutor(workers, mp_context=torch.multiprocessing.get_context("fork")) as pool:
        for call in [pool.submit(_with_runtime, hold, model, folder) for _ in range(workers)]:
            call.result()


def _with_runtime(function: Callable[..., Any], *args: Any) -> None:
    import torch_xla

    torch_xla.device()
    function(*args)


def _fork_all(workers: int, function: Callable[[], None]) -> None:
    codes = [os.waitpid(pid, 0)[1] for pid in [_fork(function) for _ in range(workers)]]
    assert not any(codes), f"workers ended with {codes}"


def _fork(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    done: list[bool] = []

    def body() -> None:
        function()
        done.append(True)

    try:
        thread = threading.Thread(target=body)  # OpenMP's pool does not survive the fork; a new thread gets a new one
        thread.start()
        thread.join()
    finally:
        os._exit(0 if done else 1)


def ours(count: int, workers: int, folder: str) -> None:
    """The same through the launcher."""
    from tests.benchmarks.models import Blocks

    space = _session(folder, count)
    _launch(space["takes"], (Blocks(count),), workers)


def ours_hoisted(count: int, workers: int, folder: str) -> None:
    """The model made in the function, and hoisted out of it."""
    _launch(_session(folder, count)["builds"], (), workers)


_FUNCTIONS = """
def takes(model):
    hold(model, folder)

def builds():
    model = Blocks(count)
    hold(model, folder)
"""


def _session(folder: str, count: int) -> dict[str, Any]:
    """A notebook's names after `%tpu_init`; the functions come from a file, because hoisting reads their source."""
    from tests.benchmarks.models import Blocks

    space = timing.notebook_session().notebook.namespace
    source = Path("functions.py").absolute()
    source.write_text(_FUNCTIONS)
    space.update(Blocks=Blocks, hold=hold, count=count, folder=folder)
    exec(compile(_FUNCTIONS, str(source), "exec"), space)
    _note_before(folder)
    return space


def _launch(function: Callable[..., Any], args: tuple[Any, ...], workers: int) -> None:
    result = timing.train(function, args, workers)
    assert len(result.models) == 1, f"the run knew these models: {list(result.models)}"


def _note_before(folder: str) -> None:
    """Import what all ways need, and note this process's memory as it is before there is a model."""
    import torch_xla.runtime  # noqa: F401

    gc.collect()
    Path(folder, "before").write_text(str(proportional(os.getpid())))


NOTEBOOKS: Mapping[str, Callable[[int, int, str], None]] = {
    FORK: fork,
    SPAWN: spawn,
    BUILT: fork_and_build,
    PASSED: ours,
    HOISTED: ours_hoisted,
}


# -- looking from outside ------------------------------------------------------------------------------------------


def proportional(pid: int) -> int:
    """The proportional set size of a process in bytes, without pages of files."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    found = [int(line[1]) * 1024 for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:")]
    if len(found) != 2:
        raise RuntimeError("/proc/PID/smaps_rollup does not tell Pss_Anon and Pss_Shmem: Linux 5.9 or newer is needed")
    return sum(found)


def observe(way: str, size: int, workers: int) -> dict[str, float] | None:
    """Run one notebook and look at all its processes. Extra MB while they are inside, and after they collected garbage;
    None where this machine cannot run it."""
    if way == SPAWN and shutil.disk_usage("/dev/shm").free < 2 * size * 1_000_000:
        return None
    with (
        fresh.scratch_folder() as folder,
        fresh.Fresh(__name__, NOTEBOOKS[way].__name__, size // LAYER, workers, str(folder)) as notebook,
    ):
        found = {moment: _look(folder, moment, size, workers, notebook) for moment in ("inside", "collected")}
        notebook.result(TIMEOUT)
        before = int((folder / "before").read_text())
    return {moment: (whole - before) / 1e6 for moment, whole in found.items()}


def _look(folder: Path, moment: str, size: int, workers: int, notebook: fresh.Fresh) -> int:
    """Wait until all workers have come to `moment`, look at the memory of all processes, and let the workers go on."""
    told = _wait_for(folder, moment, workers, notebook)
    models = {int(path.read_text()) for path in told}
    assert models == {size * 1_000_000}, f"the workers' models have {models} bytes"
    pids = [notebook.process.pid, *(int(path.name.partition("-")[2]) for path in told)]
    whole = sum(proportional(pid) for pid in pids)
    (folder / f"after-{moment}").touch()
    return whole


def _wait_for(folder: Path, moment: str, workers: int, notebook: fresh.Fresh) -> list[Path]:
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until and notebook.process.poll() is None:
        told = [path for path in folder.glob(f"{moment}-*") if path.suffix != ".new"]
        if len(told) == workers:
            return told
        time.sleep(0.05)
    raise RuntimeError(f"{notebook.name}: not all {workers} workers were {moment}:\n{notebook.output()}")


# -- the table -----------------------------------------------------------------------------------------------------


def measure(workers: int = WORKERS, sizes: tuple[int, int] = SIZES, rounds: int = 3) -> list[dict[str, Any]]:
    """A row for each way. Every round looks at all ways and sizes in turn."""
    found: dict[tuple[str, int], list[Any]] = {(way, size): [] for way in NOTEBOOKS for size in sizes}
    for _ in range(rounds):
        for way, size in found:
            found[way, size].append(observe(way, size, workers))
    return [row(way, sizes, [found[way, size] for size in sizes]) for way in NOTEBOOKS]


def row(way: str, sizes: tuple[int, int], found: Sequence[Sequence[Mapping[str, float] | None]]) -> dict[str, Any]:
    """Medians of one way in MB. `found`: for each of the two sizes, what `observe` saw in every round."""
    small, large = (_median(rounds, "inside") for rounds in found)
    grows = (large - small) / (sizes[1] - sizes[0]) if small is not None and large is not None else None
    return {
        "way": way,
        f"extra MB, {sizes[0]} MB model": small,
        f"extra MB, {sizes[1]} MB model": large,
        "grows by (models)": grows,
        "of it not the model's, MB": small - grows * sizes[0] if small is not None and grows is not None else None,
        f"extra MB after a garbage collection, {sizes[1]} MB model": _median(found[1], "collected"),
    }


def _median(rounds: Sequence[Mapping[str, float] | None], moment: str) -> float | None:
    seen = [each[moment] for each in rounds if each is not None]
    return median(seen) if seen else None


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met: by the worse of the two ways of ours."""
    by_way = {each["way"]: each for each in rows}
    inside, collected = [column for column in rows[0] if column.startswith("extra MB")][1:]
    lines = [
        f'Target: no more than "{hand}"{when}: {_compared(by_way, column, hand)}.'
        for hand in (FORK, SPAWN)
        for column, when in ((inside, ""), (collected, ", after a garbage collection"))
        if by_way[hand][column] is not None
    ]
    grows = max(by_way[way]["grows by (models)"] for way in OURS)
    one = f"Target: grows by one model, not by {WORKERS}: {report.met(grows < 1.1)} (at most {grows:.2f} models)."
    return [*lines, one]


def _compared(by_way: Mapping[str, Mapping[str, Any]], column: str, hand: str) -> str:
    mine, theirs = max(by_way[way][column] for way in OURS), by_way[hand][column]
    return f"{report.met(mine <= theirs)} ({mine:.0f} MB, by hand {theirs:.0f} MB)"
