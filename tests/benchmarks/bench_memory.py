"""How much host memory workers and models take.

What lives here: forked workers that stand still inside their function, and the memory of all processes at that moment.
What does not: the device's memory; the models have not been moved to it yet. On XLA:CPU that would be host memory, too.

Extra memory is the proportional set size (Pss: a page that n processes share counts 1/n in each) of the notebook's
process and all workers, while all are inside the function and have their runtime up, less what the notebook's process
had before it made a model. So one model is part of it, however it comes to be shared. Two sizes tell what grows with
the model from what does not.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh

TITLE = "Host memory of 8 workers and one model"
WORKERS = 8
SIZES = (200, 400)  # MB (powers of ten) of a model's parameters
LAYER = 4  # MB: 1000 x 1000 numbers in float32
TIMEOUT = 300.0  # seconds until all workers are inside the function

HAND_PASSED, HAND_BUILT = "by hand, model passed", "by hand, each worker builds its own"
PASSED, HOISTED = "tpu_magics, model passed", "tpu_magics, model built in the function (hoisted)"


# -- inside the function -------------------------------------------------------------------------------------------


def hold(model: Any, folder: str) -> None:
    """Tell that this worker is inside its function and has its model, and wait to be let go."""
    import torch_xla

    assert torch_xla._XLAC._xla_runtime_is_initialized(), "the worker has no runtime"
    Path(folder, f"inside-{os.getpid()}").write_text(str(sum(p.nbytes for p in model.parameters())))
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def blocks_class() -> type:
    """A model of so many blocks; a function makes the class, because torch is not imported yet."""
    import torch

    class Blocks(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1000, 1000, bias=False) for _ in range(count))

    return Blocks


# -- the notebooks, each in a fresh process ------------------------------------------------------------------------


def by_hand(count: int, workers: int, folder: str, each_its_own: bool) -> None:
    """What a person writes without us: fork, and in a new thread of each child bring the runtime up and train."""
    Blocks = blocks_class()
    _note_before(folder)
    model = None if each_its_own else Blocks(count)

    def body() -> None:
        import torch_xla

        torch_xla.device()
        hold(Blocks(count) if model is None else model, folder)

    children = [_fork(body) for _ in range(workers)]
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(codes), f"workers ended with {codes}"


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            thread = threading.Thread(target=body)  # OpenMP's pool does not survive the fork, a new thread gets a new one
            thread.start()
            thread.join()
            code = 0
        finally:
            os._exit(code)
    return pid


def ours(count: int, workers: int, folder: str, hoisted: bool) -> None:
    """The same through the launcher, with as many workers as asked for."""
    from tpu_magics.launch import session, train
    from tpu_magics.launch.plan import Options

    session.initialise()
    session.current.backend.prepare()
    space = session.current.notebook.namespace
    space.update(Blocks=blocks_class(), hold=hold, count=count, folder=folder)
    exec(compile(_FUNCTIONS, str(_write(_FUNCTIONS)), "exec"), space)
    _note_before(folder)
    function, args = (space["builds"], ()) if hoisted else (space["takes"], (space["Blocks"](count),))
    result = train.start(train.function_request(function, args), Options(), workers=workers)
    assert len(result.models) == 1, f"the run knew these models: {list(result.models)}"


_FUNCTIONS = """
def takes(model):
    hold(model, folder)

def builds():
    model = Blocks(count)
    hold(model, folder)
"""


def _write(text: str) -> Path:
    """The functions' source as a file: hoisting reads it."""
    path = Path("functions.py").absolute()
    path.write_text(text)
    return path


_NOTEBOOKS: Mapping[str, tuple[str, bool]] = {
    HAND_PASSED: ("by_hand", False),
    HAND_BUILT: ("by_hand", True),
    PASSED: ("ours", False),
    HOISTED: ("ours", True),
}


def _note_before(folder: str) -> None:
    """Import what all ways need, and note this process's memory as it is before there is a model."""
    import torch_xla.runtime  # noqa: F401

    gc.collect()
    Path(folder, "before").write_text(str(memory(os.getpid())["pss"]))


# -- looking from outside ------------------------------------------------------------------------------------------


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: proportional (`pss`) and its own alone (`private`)."""
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        fields[name.rstrip(":")] = int(amount) * 1024
    return {"pss": fields["Pss"], "private": fields["Private_Clean"] + fields["Private_Dirty"]}


def observe(way: str, size: int, workers: int) -> dict[str, Any]:
    """Run one notebook; look at all its processes when every worker is inside the function. Sizes in bytes."""
    function, flag = _NOTEBOOKS[way]
    with fresh.scratch_folder() as folder, fresh.Fresh(__name__, function, size // LAYER, workers, str(folder), flag) as notebook:
        inside = _wait_inside(folder, workers, notebook)
        models = {int(path.read_text()) for path in inside}
        assert models == {size * 1_000_000}, f"the models have {models} bytes"
        pids = [int(path.name.partition("-")[2]) for path in inside]
        measured = [memory(pid) for pid in pids]
        whole = memory(notebook.process.pid)["pss"] + sum(each["pss"] for each in measured)
        (folder / "go").touch()
        notebook.result(TIMEOUT)
        before = int((folder / "before").read_text())
    return {"extra": whole - before, "private": [each["private"] for each in measured]}


def _wait_inside(folder: Path, workers: int, notebook: fresh.Fresh) -> list[Path]:
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until and notebook.process.poll() is None:
        inside = list(folder.glob("inside-*"))
        if len(inside) == workers:
            time.sleep(0.3)  # the last one is on its way to its first sleep
            return inside
        time.sleep(0.05)
    raise RuntimeError(f"not all {workers} workers came into the function:\n{notebook.output()}")


# -- the table -----------------------------------------------------------------------------------------------------


def measure(workers: int = WORKERS, sizes: tuple[int, int] = SIZES, rounds: int = 3) -> list[dict[str, Any]]:
    """A row for each way. Every round looks at all ways and sizes in turn."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {(way, size): [] for way in _NOTEBOOKS for size in sizes}
    for _ in range(rounds):
        for way, size in found:
            found[way, size].append(observe(way, size, workers))
    return [row(way, sizes, [found[way, size] for size in sizes]) for way in _NOTEBOOKS]


def row(way: str, sizes: tuple[int, int], found: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians of one way in MB. `found`: for each of the two sizes, what `observe` saw in every round."""
    small, large = (median(each["extra"] for each in rounds) / 1e6 for rounds in found)
    grows = (large - small) / (sizes[1] - sizes[0])
    private = median(each for rounds in found[:1] for one in rounds for each in one["private"]) / 1e6
    return {
        "way": way,
        f"extra MB, {sizes[0]} MB model": small,
        f"extra MB, {sizes[1]} MB model": large,
        "grows by (models)": grows,
        "does not grow, MB": small - grows * sizes[0],
        f"private MB of one worker, {sizes[0]} MB model": private,
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    by_way = {row["way"]: row for row in rows}
    larger = list(rows[0])[2]
    hand = by_way[HAND_PASSED][larger]
    return [
        line
        for way in (PASSED, HOISTED)
        for line in (
            f"Target: {way} takes no more than passing by hand: "
            f"{_met(by_way[way][larger] <= hand)} ({by_way[way][larger]:.0f} MB, by hand {hand:.0f} MB).",
            f"Target: {way} grows by one model, not by one for each worker: "
            f"{_met(by_way[way]['grows by (models)'] < 1.1)} ({by_way[way]['grows by (models)']:.2f}).",
        )
    ]


def _met(met: bool) -> str:
    return "met" if met else "MISSED"
