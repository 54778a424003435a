"""--keep-partial: what rank 0 had learned until a run was ended comes home, all of it or nothing.

What lives here: how a worker says what it has kept, and what of that the person reads. What does not: the way home,
which is that of a run that went well (worker.py, results.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.launch.errors import base
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.reader import Tail

if TYPE_CHECKING:
    from tpu_magics.launch.supervisor import WorkerProcess

NOT_KEPT = "not-kept"  # code of the warning that says why
SPREAD = "its weights are split over the ranks, and all of them would have to stop at the same step"
NOTHING_DONE = "no step had ended"


def mark_written(files: RunFiles, step: int) -> None:
    """In the worker: all that goes home is written."""
    path = files.partial_path
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step}))
    temporary.replace(path)


def step_of(files: RunFiles) -> int | None:
    """The step that rank 0's results are of; None where it has left none, or not all of them."""
    try:
        return int(json.loads(files.partial_path.read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(step: int) -> str:
    """What was kept, in words."""
    return f"weights and state of step {step:,}"


def reason_missing(files: RunFiles, workers: Sequence[WorkerProcess]) -> str:
    """Why rank 0 has left nothing, as far as it is known."""
    warnings = [one.text for one in Tail(files.events_path(0)).read() if isinstance(one, events.Warned)]
    said = [text for text in warnings if text.startswith(_NOT)]
    if said:
        return said[-1].removeprefix(_NOT)
    lead = next((one for one in workers if one.rank == 0), None)
    if lead is not None and lead.signal is not None and not lead.stopped_by_us:
        return f"rank 0 was ended by {base.signal_name(lead.signal)}"
    if lead is not None and lead.end is None and lead.signal is None:
        return "rank 0 ended itself"
    return "rank 0 did not come to the end of a step in time"


_NOT = "Nothing could be kept: "


def warning_text(reason: object) -> str:
    """The warning's text."""
    text = reason.what if isinstance(reason, TpuMagicsError) else str(reason)
    return f"{_NOT}{events.cut_text(text)}"


def with_sentence(error: TrainingFailed, sentence: str) -> TrainingFailed:
    """The error, with `sentence` for what it says of the notebook's models."""
    parts = [error.why, error.todo]
    error.why, error.todo = (part.replace(base.UNCHANGED, sentence) for part in parts)
    if sentence not in error.why + error.todo:
        error.why = f"{error.why} {sentence}".strip()
    return error
