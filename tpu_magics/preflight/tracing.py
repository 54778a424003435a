"""A training function -> its graphs.

What lives here: asking launch/ for them, and reading what the worker wrote. What does not: how it is traced
(backends/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import TRACED
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch import tracing as road
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import Request
from tpu_magics.preflight.facts import Graph, Place, Traced, from_json
from tpu_magics.runs.events import Compile, Warned
from tpu_magics.runs.reader import Run

_FIRST = ("new-line", "A step ends here for the first time.")
_UNKNOWN = ("unknown", "Why this graph is another one is not known.")
_LOGS = re.compile(r"(?<=[.!?]) [^.!?]*%tpu_logs.*$")  # a trace leaves no run folder


class HostTooSmall(TpuMagicsError):
    """The memory of this machine is the limit of the trace. It says nothing of the TPU's."""


def trace(request: Request, options: Options, asked: road.TracingOptions) -> Traced:
    """Trace a function in a forked worker.

    Raises:
        HostTooSmall: what it makes on the host does not fit in this machine's memory.
        TpuMagicsError: it cannot be forked, fails while it is traced, or never syncs.
        TrainingInterrupted: the person stopped it.
    """
    try:
        with road.traced(request, options, asked) as (folder, run):
            found = _understood(request.name, folder, run)
    except TrainingInterrupted:
        raise
    except TrainingFailed as error:
        raise _failed(request.name, error) from None
    _require_sync(request.name, found, asked.world)
    return found


def _failed(name: str, error: TrainingFailed) -> TpuMagicsError:
    if "host memory" not in error.what:
        what = f"{name} failed while it was traced: {error.what}"
        return TpuMagicsError(what, error.why, _LOGS.sub("", error.todo), error.details)
    return HostTooSmall(
        f"This machine has too little memory to trace {name}: {error.what}",
        "No step is run, but what the function makes on the host, its batches above all, is made as in training. It "
        f"is this machine's memory that is short, not the TPU's. {error.why}",
        "Make large batches on the device (torch.randn(..., device=device)), where they take no memory while they are "
        "traced. Or trace with a smaller batch, or on a machine with more memory.",
        error.details,
    )


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


def _understood(name: str, folder: Path, run: Run) -> Traced:
    try:
        return _read(folder, run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TpuMagicsError(
            f"What was traced of {name} cannot be read.",
            f"{TRACED} or a file beside it is broken, or was removed: {type(error).__name__}: {error}",
            "Run the preflight again; see that the folder for temporary files has room.",
        ) from error


def _read(folder: Path, run: Run) -> Traced:
    """What the worker wrote."""
    path = folder / TRACED
    if not path.is_file():
        return Traced((), 0, False, notes=tuple(_warnings(run)))
    data = json.loads(path.read_text())
    graphs = tuple(_graph(folder, one) for one in data.pop("graphs"))
    found = from_json(Traced, {**data, "graphs": ()})
    compiles = [one for one in run.events("compile", rank=0) if isinstance(one, Compile)]
    return Traced(
        **{
            **vars(found),
            "graphs": graphs,
            "changes": () if found.settled else tuple(_changes(compiles, data.get("differences", ()))),
            "notes": (*found.notes, *_warnings(run)),
        }
    )


def _changes(compiles: Sequence[Compile], differences: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Cause and sentence of each graph from the third on: what the observer makes of it, and what is different."""
    for compile_, different in list(zip_longest(compiles, differences))[2:]:
        cause, text = _FIRST if compile_ is not None and compile_.nearest is None else _UNKNOWN
        if compile_ is not None and compile_.cause:
            cause, text = compile_.cause, compile_.text
        yield cause, " ".join(one for one in (text, different) if one)


def _warnings(run: Run) -> Sequence[str]:
    wanted = ("observing-stopped", "not-observed")
    return [one.text for one in run.events("warning", rank=0) if isinstance(one, Warned) and one.code in wanted]


def _graph(folder: Path, data: Mapping[str, Any]) -> Graph:
    lines = [from_json(Place, one) for one in data["places"]["lines"]]
    places = {int(number): lines[line] for number, line in data["places"]["of"].items()}
    module = (folder / data["file"]).read_bytes()
    rest = {name: value for name, value in data.items() if name not in ("file", "places")}
    return from_json(Graph, {**rest, "module": module, "places": places})
