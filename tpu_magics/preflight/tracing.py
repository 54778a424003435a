"""A training function -> its graphs.

What lives here: asking launch/ for them, and reading what the worker wrote. What does not: how it is traced
(backends/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import TRACED
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch import tracing as road
from tpu_magics.launch.plan import Options
from tpu_magics.launch.train import Request
from tpu_magics.preflight.facts import Graph, Place, Traced, from_json
from tpu_magics.runs.events import Compile, Warned
from tpu_magics.runs.reader import Run

_LOGS = re.compile(r"(?<=[.!?]) [^.!?]*%tpu_logs.*$")  # a trace leaves no run folder


def trace(request: Request, options: Options, asked: road.Asked) -> Traced:
    """Trace a function in a forked worker.

    Raises:
        TpuMagicsError: it cannot be forked, fails while it is traced, or never syncs.
        TrainingInterrupted: the person stopped it.
    """
    try:
        with road.traced(request, options, asked) as (folder, run):
            found = _read(folder, run)
    except TrainingInterrupted:
        raise
    except TrainingFailed as error:
        raise TpuMagicsError(
            f"{request.name} failed while it was traced: {error.what}",
            error.why,
            _LOGS.sub("", error.todo),
            error.details,
        ) from None
    _require_sync(request.name, found, asked.world)
    return found


def _require_sync(name: str, found: Traced, world: int) -> None:
    if found.syncs:
        return
    pending = "Everything it did is one graph at its end" if found.graphs else "It did nothing on the XLA device"
    ranks = (
        f" It was traced as one of {world} ranks, each of which gets 1/{world} of the data: with too little of it, a "
        "loader hands out nothing."
        if world > 1
        else ""
    )
    raise TpuMagicsError(
        f"{name} never syncs, so it has no step that could be compiled.",
        f"{pending}; a step ends with torch_xla.sync(), or when a loader that accelerator.prepare has wrapped hands "
        f"out the next batch.{ranks}",
        "End each step with torch_xla.sync(), and let the function make at least three steps"
        + (" on each rank: give it more data." if ranks else "."),
    )


def _read(folder: Path, run: Run) -> Traced:
    """What the worker wrote."""
    path = folder / TRACED
    if not path.is_file():
        return Traced((), 0, False, notes=tuple(_warnings(run)))
    data = json.loads(path.read_text())
    graphs = tuple(_graph(folder, one) for one in data.pop("graphs"))
    found = from_json(Traced, {**data, "graphs": ()})
    later = [one for one in run.events("compile", rank=0) if isinstance(one, Compile)][2:]
    return Traced(
        **{
            **vars(found),
            "graphs": graphs,
            "changes": () if found.settled else tuple((one.cause, one.text) for one in later),
            "notes": (*found.notes, *_warnings(run)),
        }
    )


def _warnings(run: Run) -> Sequence[str]:
    wanted = ("observing-stopped", "not-observed")
    return [one.text for one in run.events("warning", rank=0) if isinstance(one, Warned) and one.code in wanted]


def _graph(folder: Path, data: Mapping[str, Any]) -> Graph:
    lines = [from_json(Place, one) for one in data["places"]["lines"]]
    places = {int(number): lines[line] for number, line in data["places"]["of"].items()}
    module = (folder / data["file"]).read_bytes()
    rest = {name: value for name, value in data.items() if name not in ("file", "places")}
    return from_json(Graph, {**rest, "module": module, "places": places})
