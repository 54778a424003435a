"""--keep-partial: rank 0's weights and state are loaded although the run failed; all of them or nothing."""

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

NOT_KEPT = "not-kept"  # code of the warning with the reason
SHARDED = "its weights are sharded over the ranks, which would have to stop at the same step"
NO_STEP = "no step was finished"


def mark_written(files: RunFiles, step: int) -> None:
    """In the worker: note that all results are written."""
    path = files.partial_path
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step}))
    temporary.replace(path)


def step_of(files: RunFiles) -> int | None:
    """The step of rank 0's results; None if it wrote none, or not all of them."""
    try:
        return int(json.loads(files.partial_path.read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe(step: int) -> str:
    """What was kept, as text."""
    return f"weights and state of step {step:,}"


def reason_missing(files: RunFiles, workers: Sequence[WorkerProcess]) -> str:
    """Why rank 0 wrote no results, as far as it is known."""
    warnings = [one.text for one in Tail(files.events_path(0)).read() if isinstance(one, events.Warned)]
    reasons = [text for text in warnings if text.startswith(_PREFIX)]
    if reasons:
        return reasons[-1].removeprefix(_PREFIX)
    lead = next((one for one in workers if one.rank == 0), None)
    if lead is not None and lead.signal is not None and not lead.stopped_by_us:
        return f"rank 0 was stopped ({base.signal_name(lead.signal)})"
    if lead is not None and lead.end is None and lead.signal is None:
        return "rank 0 exited"
    return "rank 0 did not finish its step in time"


_PREFIX = "No results could be kept: "


def warning_text(reason: object) -> str:
    """The text of the warning."""
    text = reason.what if isinstance(reason, TpuMagicsError) else str(reason)
    return f"{_PREFIX}{events.cut_text(text)}"


def with_sentence(error: TrainingFailed, sentence: str) -> TrainingFailed:
    """The error, with `sentence` in place of what it says about the notebook's models."""
    parts = [error.why, error.todo]
    error.why, error.todo = (part.replace(base.UNCHANGED, sentence) for part in parts)
    if sentence not in error.why + error.todo:
        error.why = f"{error.why} {sentence}".strip()
    return error
