"""Bringing results home: what cannot be pickled, and disks without space.

What lives here: failures of the worker while it writes. What does not: checks in the notebook's process, which raise
their own errors (see launch/results.py).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

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
_FULL = re.compile(
    r"\[Errno (?:28|122)\]|\(os error (?:28|122)\)|^No space left on device|: No space left on device"
    r"|Disk quota exceeded|database or disk is full"
)
# torch.save to a disk that fills up says only that fewer bytes arrived than were written (torch 2.9.0).
_SHORT_WRITE = re.compile(r"inline_container\.cc.{0,40}unexpected pos|PytorchStreamWriter failed writing")
_PATH = re.compile(r"No space left on device: '([^']+)'")


def unpicklable(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A return value, or something that the function wants to send to a process, that pickle refuses."""
    found = _PICKLE.search(base.error_text(outcome))
    if not found or base.error_type(outcome) not in _PICKLE_TYPES:
        return None
    name = _ADDRESS.sub("", (found[1] or found[2]).strip())
    line = base.user_line(failure, outcome)
    if failure.reason != "collect" and line is not None:
        return _sent_elsewhere(outcome, name, base.at_line(line))
    return Explanation(
        f"Rank {outcome.rank} finished, but its result cannot be pickled: {name}.",
        "What the function returns travels from the worker to the notebook as a pickle. Functions and classes defined "
        "inside the function, generators, locks and open files cannot be pickled.",
        "Return numbers, strings, lists, dicts, arrays or tensors instead. Models need not be returned: those passed "
        "as arguments come home by themselves.",
    )


def _sent_elsewhere(outcome: WorkerOutcome, name: str, line: str) -> Explanation:
    return Explanation(
        f"Rank {outcome.rank} tried to pickle something that cannot be pickled: {name}.",
        f"It happened{line}. Saving an object and sending it to another process both pickle it.",
        "Move functions and classes out of the function to the top level of a cell; keep locks, files and generators "
        f"out of what is sent. {base.UNCHANGED}",
    )


def disk_full(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """ENOSPC or EDQUOT, in any library's words."""
    text = base.evidence(outcome)
    short = _SHORT_WRITE.search(text)
    if not short and not _FULL.search(text):
        return None
    path = named[1] if (named := _PATH.search(text)) else ""
    sure = "the disk is full" if not short else "a file could not be written to its end; most likely the disk is full"
    return Explanation(
        f"Rank {outcome.rank} could not write{f' {path}' if path else ''}{base.at(failure, outcome)}: {sure}.",
        f"{free_space(path or failure.run)}{base.one_line(text)}",
        "Free some space (old runs are in .tpu_runs, checkpoints where you write them), or write elsewhere: set "
        "TPU_MAGICS_RUNS to a folder on another disk for the runs. Then run the cell again.",
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
