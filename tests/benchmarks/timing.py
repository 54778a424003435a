"""What several benchmarks do: time a call, run cells and workers as a notebook does, measure two ways in turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

BLOCK, LEFT_OUT = 12, 2  # steps in a row, of which the first are left out: new hooks empty Python's own caches


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row(what: str, times: list[float]) -> dict[str, Any]:
    """The row of these seconds."""
    return {"what": what, "s, median": median(times), "s, slowest": max(times)}


def shell(*cells: str) -> Any:
    """IPython after `%load_ext tpu_magics`, `%tpu_init` and these cells."""
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell.instance(colors="NoColor")
    for cell in ("%load_ext tpu_magics", "%tpu_init", *cells):
        run_cell(made, cell)
    return made


def run_cell(shell: Any, cell: str) -> None:
    """Run a cell. What it raises is raised here."""
    shell.run_cell(cell, store_history=True).raise_error()


def notebook_session() -> Any:
    """The session of a notebook after `%tpu_init`, without a shell."""
    from tpu_magics.launch import session

    session.initialise()
    session.current.backend.prepare()
    return session.current


def train(function: Callable[..., Any], args: tuple[Any, ...], workers: int, **options: Any) -> Any:
    """A run in this session. `%%tpu_train` itself starts one worker on this machine; the launcher takes any number."""
    from tpu_magics.launch import train
    from tpu_magics.launch.options import Options

    return train.start(train.function_request(function, args), Options(**options), workers=workers)


def on_and_off(
    block: Callable[[bool], list[float]], rounds: int, counted: int = BLOCK - LEFT_OUT
) -> Mapping[str, list[float]]:
    """Seconds of at least `rounds` steps of each kind, from blocks that give `counted` each. The order of the blocks
    changes; the first two are left out."""
    block(True), block(False)
    taken: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(rounds // counted):
        for name in random.sample(["on", "off"], 2):
            taken[name] += block(name == "on")
    return taken
