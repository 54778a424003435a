"""Results that a worker could not write: objects that cannot be pickled, and full disks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_magics.launch import stacks
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_PICKLE = re.compile(
    r"[Cc]an(?:'t|not) (?:pickle|get local object)(?: local object| function)? (.{1,120}?)"
    r"(?:: attribute lookup|: it's not|: import of|$)"
    r"|[Cc]ould not pickle (.{1,120}?)(?:$|:)",
    re.MULTILINE,
)
_PICKLE_TYPES = ("PicklingError", "PickleError", "TypeError", "AttributeError")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"(?:No space left on device: |Disk quota exceeded: |\(writing )'([^']+)'")

_TO_FREE = (
    "Free disk space (old runs are in .tpu_runs; also check your checkpoints), or use another disk: set "
    "TPU_MAGICS_RUNS to a folder there for the runs. Then run the cell again."
)
_TO_FREE_THERE = (
    "Free space on that disk, for example by removing older checkpoints there, or write to a folder on another disk. "
    "Then run the cell again."
)


def unpicklable(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A return value, or an object sent to another process, that cannot be pickled."""
    match = _PICKLE.search(base.error_text(outcome))
    if not match or base.error_type(outcome) not in _PICKLE_TYPES:
        return None
    name = _ADDRESS.sub("", (match[1] or match[2]).strip())
    line = base.user_line(failure, outcome)
    if failure.reason != "collect" and line is not None:
        return _sent_elsewhere(outcome, name, base.at_line(line))
    return Explanation(
        f"Rank {outcome.rank} finished, but its return value cannot be pickled: {name}.",
        "The worker sends the return value to the notebook as a pickle. Functions and classes defined inside the "
        "function, generators, locks and open files cannot be pickled.",
        "Return numbers, strings, lists, dicts, arrays or tensors instead. You need not return models that are passed "
        "as arguments: they are updated in the notebook.",
    )


def _sent_elsewhere(outcome: WorkerOutcome, name: str, line: str) -> Explanation:
    return Explanation(
        f"Rank {outcome.rank} tried to pickle an object that cannot be pickled: {name}.",
        f"It happened{line}. Objects are pickled when they are saved or sent to another process.",
        "Define functions and classes at the top level of a cell, not inside the function. Do not send locks, files or "
        f"generators. {base.UNCHANGED}",
    )


def disk_full(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """ENOSPC or EDQUOT, as reported by any library."""
    text = base.evidence(outcome)
    short = stacks.SHORT_WRITE.search(text)
    if not short and not stacks.FULL_DISK.search(text):
        return None
    path = named[1] if (named := _PATH.search(text)) else ""
    sure = "the disk is full" if not short else "a file could not be written completely; the disk is probably full"
    return Explanation(
        f"Rank {outcome.rank} could not write{f' {path}' if path else ''}{base.at(failure, outcome)}: {sure}.",
        f"{free_space(path or failure.run)}{base.one_line(text)}",
        _TO_FREE_THERE if path and not path.startswith(failure.run) else _TO_FREE,
    )


def free_space(path: str) -> str:
    """Free bytes on the disk that holds `path`, measured now."""
    for folder in (Path(path), *Path(path).parents) if path else ():
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        return f"{base.size(usage.free)} of {base.size(usage.total)} are free now on the disk of {folder}. "
    return ""


EXPLAINERS = (disk_full, unpicklable)
