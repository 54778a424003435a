"""What a run costs with TorchTPU, rehearsed in .venv/torch-tpu: from the call to the function's first line, the memory
of eight workers, and the observer's share of a step."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, timing
from tests.benchmarks.report import met

TITLE = "TorchTPU: launch, memory, observer (rehearsed)"
PYTHON = fresh.ROOT / ".venv" / "torch-tpu" / "bin" / "python"
WORKERS, MODEL = 8, 400  # MB
PROCESSES = 5  # of which each has its memory elsewhere
WIDTH, DEPTH, SAMPLES = 384, 4, 64  # for steps of about 5 ms on two cores
SLOWER, MOST_MODELS, MOST_SHARE = 0.5, 2.0, 2.0  # s over the fork by hand; models; percent of a step


# -- in .venv/torch-tpu --------------------------------------------------------------------------------------------
def note_time(path: str) -> None:
    """The function that is launched."""
    Path(path).write_text(str(time.time()))


def in_fork(function: Callable[..., Any], *args: Any) -> None:
    """Fork by hand, start the runtime in the child, and call the function."""
    from tpu_magics.backends.base import WorkerSpec
    from tpu_magics.backends.torch_tpu import worker

    pid = os.fork()
    if pid == 0:
        try:
            worker.run_worker(WorkerSpec(0, 1, "CPU"), lambda *_: None, lambda *_: function(*args))
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the forked process failed")


def launches(rounds: int) -> dict[str, list[float]]:
    """Seconds from the call to the first line: ours, and a fork by hand that starts the runtime, in turns."""
    timing.notebook_session()
    path = str(Path("first_line").absolute())
    ways = {
        "tpu_magics.train": lambda: train(False, note_time, (path,), 1),
        "os.fork by hand": lambda: in_fork(note_time, path),
        "tpu_magics.train, in a new process": lambda: train(True, note_time, (path,), 1),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _round in range(rounds):
        for way, launch in ways.items():
            start = time.time()
            launch()
            taken[way].append(float(Path(path).read_text()) - start)
    return taken


def train(spawns: bool, function: Callable[..., Any], args: tuple[Any, ...], workers: int) -> None:
    """Train in forks, or in new processes."""
    from tpu_magics.launch import session

    session.current.spawns = spawns
    timing.train(function, args, workers)


def hold(model: Any, folder: str) -> None:
    """Tell that this worker is inside its function with the model, and wait."""
    assert sum(parameter.nbytes for parameter in model.parameters()) >= MODEL * 0.99e6
    Path(folder, f"inside-{os.getpid()}").touch()
    while not Path(folder, "after").exists():
        time.sleep(0.05)


def memory(workers: int, megabytes: int, spawns: bool) -> int:
    """Bytes (Pss, without files) of the notebook's process and its workers, less what it had before the model. In new
    processes the model is in a file that all of them map."""
    import psutil
    import torch

    timing.notebook_session()
    before = _anonymous(psutil.Process())
    model = torch.nn.Linear(megabytes * 1000 // 4 // 100, 100 * 1000, bias=False)
    folder, found = tempfile.mkdtemp(dir="."), []

    def measure() -> None:
        while len(list(Path(folder).glob("inside-*"))) < workers:
            time.sleep(0.1)
        here = psutil.Process()
        found.append(sum(_anonymous(one) for one in (here, *here.children(recursive=True))) - before)
        Path(folder, "after").touch()

    watcher = threading.Thread(target=measure)
    watcher.start()
    train(spawns, hold, (model, folder), workers)
    watcher.join()
    return int(found[0])


def _anonymous(process: Any) -> int:
    """The proportional share of memory that is no file's (smaps_rollup)."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    fields = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return (fields["Pss_Anon:"] + fields["Pss_Shmem:"]) * 1024


def observed(rounds: int) -> dict[str, list[float]]:
    """Seconds of steps with and without the observer's hooks, in one worker that has no others."""
    timing.notebook_session()
    path = Path("steps.json").absolute()
    in_fork(steps, rounds, path)
    value: dict[str, list[float]] = json.loads(path.read_text())
    return value


def steps(rounds: int, path: Path) -> None:
    """Blocks of steps with hooks and without, in turns."""
    import torch

    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.torch_tpu.observe import hooks
    from tpu_magics.backends.torch_tpu.observe.observer import TpuObserver
    from tpu_magics.runs.writer import EventWriter

    layers = [layer for _ in range(DEPTH) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    forward = torch.compile(lambda x: model(x).pow(2).mean())
    x = torch.randn(SAMPLES, WIDTH).to("tpu")

    def step() -> None:
        optimizer.zero_grad()
        loss = forward(x)
        loss.backward()
        optimizer.step()
        loss.item()

    for _warm in range(5):
        step()
    observer = TpuObserver(EventWriter(Path(tempfile.mkdtemp()) / "rank-0.jsonl", 0), ObserverConfig())

    def block(on: bool) -> list[float]:
        if on:
            with hooks.installed(observer):
                taken = [timing.seconds(step) for _ in range(timing.BLOCK)]
        else:
            taken = [timing.seconds(step) for _ in range(timing.BLOCK)]
        return taken[timing.LEFT_OUT :]

    found = dict(timing.on_and_off(block, rounds))
    if observer.stopped or observer.total_steps < rounds:
        raise RuntimeError(f"the observer did not observe: {observer.stopped or observer.total_steps}")
    path.write_text(json.dumps(found))


# -- the table -----------------------------------------------------------------------------------------------------
def measure(
    rounds: int = 8, workers: int = WORKERS, megabytes: int = MODEL, counted: int = 600
) -> list[dict[str, Any]]:
    """A row for each figure."""
    if not PYTHON.is_file():
        raise RuntimeError("there is no .venv/torch-tpu: make test-torch-tpu makes it")
    launched = _call("launches", rounds)
    rows = [
        {"what": f"{way}: s to the first line", "value": median(times[1:]), "first": times[0]}
        for way, times in launched.items()
    ]
    what = f"{workers} workers with a model of {megabytes} MB: MB in all"
    for spawns, where in ((False, ""), (True, ", in new processes, without the file of the model")):
        rows.append({"what": f"{what}{where}", "value": _call("memory", workers, megabytes, spawns) / 1e6})
    taken = [_call("observed", counted) for _process in range(PROCESSES)]
    pairs = [(median(one["on"]), median(one["off"])) for one in taken]
    rows.append({"what": "a step without the observer, ms", "value": median(off for _, off in pairs) * 1e3})
    shares = [(on / off - 1) * 100 for on, off in pairs]
    rows.append({"what": f"the observer's share of it, % ({PROCESSES} processes)", "value": median(shares)})
    return rows


def _call(function: str, *args: Any) -> Any:
    with fresh.Fresh("tests.benchmarks.bench_torch_tpu", function, *args, python=PYTHON) as running:
        return running.result(600)


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    ours, by_hand, _spawned, extra, _spawned_extra, _step, share = (row["value"] for row in rows)
    folders = (PYTHON.parent.parent / "lib").glob("python*/site-packages/torch*-*.dist-info")
    versions = sorted(one.name.removesuffix(".dist-info").replace("-", " ") for one in folders)
    return [
        f"In .venv/torch-tpu: {', '.join(versions)}.",
        f"Target: at most {SLOWER} s over the fork by hand: {met(ours - by_hand <= SLOWER)} ({ours - by_hand:.2f} s).",
        f"Target: at most {MOST_MODELS:g} times the model: {met(extra <= MOST_MODELS * MODEL)} ({extra / MODEL:.1f}).",
        f"Target: at most {MOST_SHARE:g} % of a step of about 5 ms: {met(share <= MOST_SHARE)} ({share:.1f} %).",
    ]
