"""Workers that ended without a word: signals and exits that memory does not explain.

What lives here: SIGBUS and /dev/shm, crashes in native code, kills from outside, exits behind Python's back. What does
not: shortage of memory itself (memory.py), which is asked before a crash is called a crash.
"""

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
    "Close the files, sockets and processes that are opened (use `with`), call "
    "torch.multiprocessing.set_sharing_strategy('file_system') where DataLoader workers send tensors, or raise the "
    "limit: resource.setrlimit(resource.RLIMIT_NOFILE, ...), `ulimit -n` before Jupyter starts."
)
# What our own part of a worker lacked: what it said, why, what to do.
_USED_UP = (
    (_DESCRIPTORS, "The notebook or the function has used up the file descriptors of a process.", _CLOSE),
    (
        r"\[Errno (?:28|122)\]",
        "The disk of the run folder is full.",
        "Free some space, or set TPU_MAGICS_RUNS to a folder on another disk, and run the cell again.",
    ),
)
_MEANING = {
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGBUS: "a fault in memory that is mapped from a file",
}


def shared_memory(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGBUS, or a DataLoader's text, because /dev/shm is too small."""
    text = base.evidence(outcome)
    if "DataLoader worker" in text:  # the exception says no more; PyTorch writes its reason to stderr
        text += base.plain(outcome.log_tail)
    total = _shared_bytes()
    if not _SHARED_TEXT.search(text) and not (outcome.signal == signal.SIGBUS and 0 < total < _SMALL):
        return None
    how = f"raised {base.error_type(outcome)}" if base.raised(outcome) else "died of signal SIGBUS"
    measured = f"It holds {base.size(total)} on this machine." if total else "Its size is not available."
    return Explanation(
        f"Rank {outcome.rank} {how}: most likely the shared memory in {SHARED} was full.",
        f"Tensors that processes share (DataLoader workers, share_memory_()) are files in {SHARED}. {measured}",
        "Set DataLoader(num_workers=0), call torch.multiprocessing.set_sharing_strategy('file_system'), leave out "
        "share_memory_() (workers inherit models without it), or start the container with --shm-size=8g.",
    )


def _shared_bytes() -> int:
    try:
        return shutil.disk_usage(SHARED).total
    except OSError:
        return 0


def crashed(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A crash in native code while there was memory enough."""
    if outcome.signal not in _MEANING or base.raised(outcome):
        return None
    name = base.signal_name(outcome.signal)
    return Explanation(
        f"Rank {outcome.rank} died of signal {name}: {_MEANING[signal.Signals(outcome.signal)]}.",
        " ".join(filter(None, [_not_memory(failure), _where(failure, outcome), _last_words(outcome)])),
        f"{_try_line(failure, outcome)}{_suspects(failure, outcome)} "
        f"The rank's whole output: %tpu_logs -r {outcome.rank}",
    )


def _not_memory(failure: Failure) -> str:
    free = memory.free_memory(failure)
    if not memory.was_measured(failure):
        return f"Whether host memory was short is not known ({free})."
    return f"Host memory was not the cause: {free}."


def _where(failure: Failure, outcome: WorkerOutcome) -> str:
    stack = base.stack_of(failure, outcome)
    line = frames.last_user_frame(stack)
    if line is None:
        return "Where it was in your code is not available."
    called = frames.libraries_below(stack)
    inside = f", in a call into {'/'.join(called)}" if called else ""
    return f"It was{base.at_line(line)}{inside}."


def _last_words(outcome: WorkerOutcome) -> str:
    said = base.line_with(_LAST_WORDS, base.plain(outcome.log_tail))
    return f"It said: {said}" if said else ""


def _try_line(failure: Failure, outcome: WorkerOutcome) -> str:
    line = base.user_line(failure, outcome)
    known = f"`{line.code}`" if line and line.code else "the step that came last"
    return f"Run {known} by itself with small inputs."


def _suspects(failure: Failure, outcome: WorkerOutcome) -> str:
    """The libraries that the line called, with versions; nothing is known about whose fault it is."""
    called = frames.libraries_below(base.stack_of(failure, outcome))
    versions = base.with_versions(failure, *called)
    return f" If it crashes there too, try another version of the library it calls ({versions})." if versions else ""


def killed(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGKILL, SIGTERM and the like, sent by something that is not us, while there was memory enough."""
    if outcome.signal is None or base.raised(outcome):
        return None
    name = base.signal_name(outcome.signal)
    return Explanation(
        f"Rank {outcome.rank} was ended by signal {name}, which the launcher did not send.",
        f"{_not_memory(failure)} {_where(failure, outcome)}",
        "Find out what sent the signal: another person or program on this machine, the function itself (os.kill), or a "
        "limit of the container or batch system. Then run the cell again.",
    )


def silent_exit(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The process ended by itself and reported nothing: os._exit, or exit() in native code."""
    if outcome.signal is not None or outcome.end is not None:
        return None
    last = base.line_with(r"\S", base.plain(outcome.log_tail))
    code = "exit code unknown" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    return Explanation(
        f"Rank {outcome.rank} ended itself without finishing ({code}).",
        "Something called os._exit(), or exit() in native code: no exception was raised."
        + (f" Its last line of output: {last}" if last else " It wrote no output."),
        f"Take the call out, or raise an exception instead. The rank's whole output: %tpu_logs -r {outcome.rank}",
    )


def machinery(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Our own part of the worker failed, before the user's code or after it (process.fork_worker)."""
    if outcome.exit_code != process.CRASHED or outcome.end is not None:
        return None
    text = f"{base.plain(outcome.stack)}\n{base.plain(outcome.log_tail)}"
    said = base.line_with(_RAISED, text) if "Traceback (most recent call last)" in text else ""
    if not said:
        return None
    known = next((row[1:] for row in _USED_UP if re.search(row[0], said)), None)
    why, todo = known or ("This is an error of tpu_magics.", "Run the cell again; please report the whole output.")
    return Explanation(
        f"Rank {outcome.rank} failed outside of the function: {said}",
        why,
        f"{todo} The rank's whole output: %tpu_logs -r {outcome.rank}",
    )


def unrecorded(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """It came to its end and could not write that down."""
    if outcome.exit_code != process.UNRECORDED or outcome.end is not None:
        return None
    said = base.line_with("could not be written", base.plain(outcome.log_tail))
    return Explanation(
        f"Rank {outcome.rank} ended, and its last record could not be written{f': {said}' if said else ''}.",
        f"Without that record it is not known how it ended. {results.free_space(failure.run)}A full disk keeps files "
        "from growing, and so does resource.setrlimit(RLIMIT_FSIZE).",
        f"Free some space, set TPU_MAGICS_RUNS to a folder on another disk, or take the limit away. {base.UNCHANGED}",
    )


def descriptors(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The function has used up what a process may have open."""
    text = base.error_text(outcome)
    if not _DESCRIPTORS.search(text):
        return None
    return Explanation(
        f"Rank {outcome.rank} ran out of file descriptors{base.at(failure, outcome)}.",
        f"It was told: {base.one_line(text)}",
        f"{_CLOSE} {base.UNCHANGED}",
    )


def late_death(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The function returned, and the process still died before it had ended."""
    if outcome.end is None or base.raised(outcome):
        return None
    how = base.signal_name(outcome.signal) if outcome.signal else f"exit code {outcome.exit_code}"
    return Explanation(
        f"Rank {outcome.rank} had finished the function and then died ({how}).",
        "It happened while the process ended, or while the results were brought home.",
        f"Look at the end of its output: %tpu_logs -r {outcome.rank}",
    )


def child_died(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process that the function started died, and memory was not short."""
    found = memory.CHILD.search(base.error_text(outcome))
    if not found:
        return None
    return Explanation(
        f"A process started by rank {outcome.rank} died ({found[0]}){base.at(failure, outcome)}.",
        f"The library that started it does not report why. {_not_memory(failure)}",
        "Do its work in the function itself to see the error: DataLoader(num_workers=0), no process pool, and no "
        f"xmp.spawn, because %%tpu_train starts the workers. Its output: %tpu_logs -r {outcome.rank}",
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
