"""Workers that ended without a Python exception: signals, full /dev/shm, exits from native code."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING

from tpu_magics.launch import frames, process
from tpu_magics.launch.errors import base, memory, results
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

SHARED = "/dev/shm"
_SMALL = 2**30
_SHARED_TEXT = re.compile(
    r"insufficient shared memory|out of shared memory|unable to (?:write to|resize|open shared memory).{0,200}No space",
    re.IGNORECASE,
)
_LAST_WORDS = (
    r"terminate called|what\(\):|[Cc]heck failed|Fatal Python error|^F\d{4} |INTERNAL|double free|free\(\)|malloc"
)
_RAISED = r"^[\w.]+(?:Error|Exception|Exit|Interrupt)\b"
_DESCRIPTORS = re.compile(r"\[Errno (?:23|24)\]|Too many open files")
_CLOSE = (
    "Close files, sockets and processes after use (`with`); call "
    "torch.multiprocessing.set_sharing_strategy('file_system') if DataLoader workers send tensors; or raise the limit: "
    "resource.setrlimit(resource.RLIMIT_NOFILE, ...), or `ulimit -n` before Jupyter starts."
)
# A resource that our own code in a worker ran out of: pattern, why, what to do.
_USED_UP = (
    (_DESCRIPTORS, "The notebook or the function has used all file descriptors of a process.", _CLOSE),
    (
        r"\[Errno (?:28|122)\]",
        "The disk of the run folder is full.",
        "Free disk space, or set TPU_MAGICS_RUNS to a folder on another disk, and run the cell again.",
    ),
)
_MEANING = {
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code aborted",
    signal.SIGFPE: "an arithmetic error in native code",
    signal.SIGILL: "an instruction that this processor does not support",
    signal.SIGBUS: "an error in memory mapped from a file",
}


def shared_memory(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGBUS or a DataLoader error because /dev/shm is too small."""
    text = base.evidence(outcome)
    if "DataLoader worker" in text:  # PyTorch writes the reason to stderr only
        text += base.plain(outcome.log_tail)
    total = _shared_bytes()
    if not _SHARED_TEXT.search(text) and not (outcome.signal == signal.SIGBUS and 0 < total < _SMALL):
        return None
    how = f"raised {base.error_type(outcome)}" if base.raised(outcome) else "crashed (SIGBUS)"
    measured = f"Its size here is {base.size(total)}." if total else "Its size is unknown."
    return Explanation(
        f"Rank {outcome.rank} {how}: the shared memory in {SHARED} was probably full.",
        f"Tensors shared between processes (DataLoader workers, share_memory_()) are files in {SHARED}. {measured}",
        "Set DataLoader(num_workers=0), call torch.multiprocessing.set_sharing_strategy('file_system'), remove "
        "share_memory_() (workers inherit models without it), or start the container with --shm-size=8g.",
    )


def _shared_bytes() -> int:
    try:
        return shutil.disk_usage(SHARED).total
    except OSError:
        return 0


def crashed(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A crash in native code while enough memory was free."""
    if outcome.signal not in _MEANING or base.raised(outcome):
        return None
    name = base.signal_name(outcome.signal)
    return Explanation(
        f"Rank {outcome.rank} crashed ({name}): {_MEANING[signal.Signals(outcome.signal)]}.",
        " ".join(filter(None, [_not_memory(failure), _where(failure, outcome), _last_words(outcome)])),
        f"{_try_line(failure, outcome)}{_suspects(failure, outcome)} "
        f"The rank's full output: %tpu_logs -r {outcome.rank}",
    )


def _not_memory(failure: Failure) -> str:
    free = memory.free_memory(failure)
    if not memory.was_measured(failure):
        return f"It is unknown whether host memory was low ({free})."
    return f"Host memory was not the cause: {free}."


def _where(failure: Failure, outcome: WorkerOutcome) -> str:
    stack = base.stack_of(failure, outcome)
    line = frames.last_user_frame(stack)
    if line is None:
        return "Source line unknown."
    called = frames.libraries_below(stack)
    inside = f", in a call into {'/'.join(called)}" if called else ""
    return f"It happened{base.at_line(line)}{inside}."


def _last_words(outcome: WorkerOutcome) -> str:
    said = base.line_with(_LAST_WORDS, base.plain(outcome.log_tail))
    return f"Last message: {said}" if said else ""


def _try_line(failure: Failure, outcome: WorkerOutcome) -> str:
    line = base.user_line(failure, outcome)
    known = f"`{line.code}`" if line and line.code else "the last step"
    return f"Run {known} by itself with small inputs."


def _suspects(failure: Failure, outcome: WorkerOutcome) -> str:
    """The libraries that the line called, with versions; any of them may be the cause."""
    called = frames.libraries_below(base.stack_of(failure, outcome))
    versions = base.with_versions(failure, *called)
    return (
        f" If it crashes there too, try another version of the library that it calls ({versions})." if versions else ""
    )


def killed(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGKILL, SIGTERM and similar from outside, while enough memory was free."""
    if outcome.signal is None or base.raised(outcome):
        return None
    name = base.signal_name(outcome.signal)
    how = "killed" if outcome.signal == signal.SIGKILL else "stopped"
    return Explanation(
        f"Rank {outcome.rank} was {how} ({name}), not by the launcher.",
        f"{_not_memory(failure)} {_where(failure, outcome)}",
        "Find out what sent the signal: another user or program on this machine, the function itself (os.kill), or a "
        "limit of the container or batch system. Then run the cell again.",
    )


def silent_exit(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The process exited without a report: os._exit, or exit() in native code."""
    if outcome.signal is not None or outcome.end is not None:
        return None
    last = base.line_with(r"\S", base.plain(outcome.log_tail))
    code = "exit code unknown" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    return Explanation(
        f"Rank {outcome.rank} exited before it finished ({code}).",
        "The code called os._exit(), or native code called exit(): no exception was raised."
        + (f" Its last line of output: {last}" if last else " It wrote no output."),
        f"Remove the call, or raise an exception instead. The rank's full output: %tpu_logs -r {outcome.rank}",
    )


def machinery(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Our own code in the worker failed, before or after the user code (process.fork_worker)."""
    if outcome.exit_code != process.CRASHED or outcome.end is not None:
        return None
    text = f"{base.plain(outcome.stack)}\n{base.plain(outcome.log_tail)}"
    said = base.line_with(_RAISED, text) if "Traceback (most recent call last)" in text else ""
    if not said:
        return None
    known = next((row[1:] for row in _USED_UP if re.search(row[0], said)), None)
    why, todo = known or ("This is a bug in tpu_magics.", "Run the cell again, and please report the full output.")
    return Explanation(
        f"Rank {outcome.rank} failed outside of the training function: {said}",
        why,
        f"{todo} The rank's full output: %tpu_logs -r {outcome.rank}",
    )


def unrecorded(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """It ended but could not write its last record."""
    if outcome.exit_code != process.UNRECORDED or outcome.end is not None:
        return None
    said = base.line_with("could not be written", base.plain(outcome.log_tail))
    return Explanation(
        f"Rank {outcome.rank} ended, but its last record could not be written{f': {said}' if said else ''}.",
        f"Without that record it is unknown how the rank ended. {results.free_space(failure.run)}Possible causes: a "
        "full disk, or a limit set by resource.setrlimit(RLIMIT_FSIZE).",
        f"Free disk space, set TPU_MAGICS_RUNS to a folder on another disk, or remove the limit. {base.UNCHANGED}",
    )


def descriptors(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The function opened as many files as a process may have open."""
    text = base.error_text(outcome)
    if not _DESCRIPTORS.search(text):
        return None
    return Explanation(
        f"Rank {outcome.rank} ran out of file descriptors{base.at(failure, outcome)}.",
        f"The error was: {base.one_line(text)}",
        f"{_CLOSE} {base.UNCHANGED}",
    )


def late_death(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The function returned, but the process failed before it exited."""
    if outcome.end is None or base.raised(outcome):
        return None
    how = base.signal_name(outcome.signal) if outcome.signal else f"exit code {outcome.exit_code}"
    return Explanation(
        f"Rank {outcome.rank} finished the function and then failed ({how}).",
        "It happened while the worker wrote its results or exited.",
        f"See the end of its output: %tpu_logs -r {outcome.rank}",
    )


def child_died(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process that the function started died while enough memory was free."""
    match = memory.CHILD.search(base.error_text(outcome))
    if not match:
        return None
    return Explanation(
        f"A process started by rank {outcome.rank} died ({match[0]}){base.at(failure, outcome)}.",
        f"The library that started it does not report why. {_not_memory(failure)}",
        "Do its work in the function itself to see the error: DataLoader(num_workers=0), no process pool, and no "
        f"xmp.spawn (%%tpu_train starts the workers). The rank's full output: %tpu_logs -r {outcome.rank}",
    )


EXPLAINERS = (
    shared_memory,
    memory.limited,
    memory.signalled,
    memory.child_died,
    memory.refused,
    late_death,
    crashed,
    killed,
    machinery,
    unrecorded,
    silent_exit,
    descriptors,
    child_died,
)
