"""Workers that ended without a Python exception: signals, full /dev/shm, exits from native code; and out of host
memory, with the measurements that prove or rule out a shortage."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING

from tpu_magics.launch import process, stacks
from tpu_magics.launch.errors import base, results
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome


_GIB = 2**30
_MEMORY_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
# A process that the function started, as torch.multiprocessing, DataLoader and concurrent.futures report its end.
_CHILD_DIED = re.compile(
    r"process \d+ terminated with signal (SIGSEGV|SIGKILL|SIGABRT|SIGBUS)"
    r"|DataLoader worker \(pid\(?s?\)?[ \d,]*\) (?:exited unexpectedly|is killed by signal: (?:Killed|Segmentation))"
    r"|terminated abruptly"
)
_CLOSED = ("ConnectionResetError", "BrokenPipeError", "EOFError", "ConnectionRefusedError")
_REFUSED = (
    re.compile(r"you tried to allocate (?P<bytes>\d+) bytes"),
    re.compile(r"Unable to allocate (?P<text>[\d.]+ [KMGTPE]?i?B)"),
    re.compile(r"[Cc]annot allocate memory|std::bad_alloc"),  # glibc's, for a thread
)
_NO_THREAD = re.compile(r"can't start new thread|pthread_create\(\) failed|^MemoryError", re.MULTILINE)
_REFUSED_TYPES = ("MemoryError", "_ArrayMemoryError")  # Python's, which has no text, and NumPy's
_LISTED = 4


# -- measurements --------------------------------------------------------------------------------------------------


def _was_short(failure: Failure) -> bool:
    """Whether free memory ran low, as far as the samples show; without samples, whether the OOM killer acted.

    Memory is sampled twice a second and can be used up between two samples, so "low" is a margin: 5 % of the machine,
    at least 1 GiB (15 % of a small machine), at most 4 GiB.
    """
    if not _was_measured(failure):
        return bool(failure.oom_kills)
    total = failure.memory_total
    floor = min(max(total // 20, min(_GIB, total * 15 // 100)), 4 * _GIB)
    return failure.memory_low < floor


def _was_measured(failure: Failure) -> bool:
    """Whether free memory was sampled during the run."""
    return failure.memory_total > 0 and failure.memory_low > 0


def _free_memory(failure: Failure) -> str:
    """`18.0 GiB of 23.5 GiB were free at the lowest point measured`, or that it was not measured."""
    if not _was_measured(failure):
        return "free memory was not measured"
    low, total = base.size(failure.memory_low), base.size(failure.memory_total)
    return f"{low} of {total} were free at the lowest point measured"


def _memory_text(failure: Failure) -> str:
    """Peak memory of each worker against the machine's, in sentences."""
    parts = []
    if failure.oom_kills:
        times = "once" if failure.oom_kills == 1 else f"{failure.oom_kills} times"
        parts.append(f"The kernel's out-of-memory killer ran {times} during the run.")
    parts.append(_peaks(failure))
    parts.append(_machine(failure))
    return " ".join(part for part in parts if part)


def _peaks(failure: Failure) -> str:
    proportional = all(outcome.peak_pss for outcome in failure.outcomes)
    peaks = {one.rank: (one.peak_pss if proportional else one.peak_rss) or 0 for one in failure.outcomes}
    if not any(peaks.values()):
        return "The workers' memory was not measured."
    how = "PSS" if proportional else "RSS, shared pages counted for each rank"
    together = f", total {base.size(sum(peaks.values()))}" if len(peaks) > 1 else ""
    return f"Peak memory ({how}): {_each(peaks)}{together}."


def _each(peaks: dict[int, int]) -> str:
    if len(peaks) <= _LISTED:
        return ", ".join(f"rank {rank} {base.size(peak)}" for rank, peak in sorted(peaks.items()))
    low, high = base.size(min(peaks.values())), base.size(max(peaks.values()))
    return f"{base.ranks(list(peaks))} {low if low == high else f'{low} to {high}'} each"


def _machine(failure: Failure) -> str:
    if not _was_measured(failure):
        return "Free memory was not measured."
    at_start = failure.memory_available_at_start
    start = f"{base.size(at_start)} free at the start, " if at_start else ""
    low = base.size(failure.memory_low)
    return f"Host memory: {base.size(failure.memory_total)} total, {start}{low} free at the lowest point measured."


def _models(failure: Failure) -> str:
    workers = len(failure.outcomes)
    if failure.models_built_in_function and workers > 1:
        return f" Each of the {workers} workers builds its own model: {failure.models_built_in_function[0]}."
    if failure.models_bytes:
        size = base.size(failure.models_bytes)
        return f" The notebook's models take {size}, shared by all workers until they write to them."
    return ""


def _use_less_memory(failure: Failure) -> str:
    """How to use less host memory; a model that every worker builds comes first."""
    fewer = "fewer workers (-n), " if len(failure.outcomes) > 1 else ""
    rest = f"use {fewer}fewer DataLoader workers, less data in memory, or a machine with more memory."
    if not failure.models_built_in_function:
        return rest[0].upper() + rest[1:]
    return f"{_move(failure.models_built_in_function[0])} If that is not enough, {rest}"


def _move(line: str) -> str:
    """The instruction for one `In [4], line 3: model = Net()`."""
    where, colon, code = line.partition(": ")
    if not colon:
        where, code = "", line
    name = re.match(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=(?!=)", code)
    shown = f"`{code.strip()}`" + (f" ({where})" if where else "")
    model = name[1] if name else "model"
    return f"Move the line {shown} out of the function, or pass the model as an argument: %%tpu_train {model}."


# -- explainers ---------------------------------------------------------------------------------------------------


def allocation_limited(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """RLIMIT_AS: an allocation failed although the machine had free memory."""
    limit = outcome.address_space
    if limit is None or _was_short(failure) or not (_is_refused(outcome) or _NO_THREAD.search(base.evidence(outcome))):
        return None
    return Explanation(
        f"Rank {outcome.rank} could not allocate host memory{base.at(failure, outcome)}: its address space is limited "
        f"to {base.size(limit)} (RLIMIT_AS).",
        f"The machine had free memory: {_free_memory(failure)}. The limit was set by resource.setrlimit(RLIMIT_AS) or "
        "by `ulimit -v` before Jupyter was started. Threads and compiled programs map far more memory than they use.",
        f"Remove or raise the limit. {base.UNCHANGED}",
    )


def died_of_memory(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGKILL by the kernel's OOM killer, SIGSEGV or SIGABRT after an allocation that failed."""
    if base.raised(outcome) or outcome.signal not in _MEMORY_SIGNALS:
        return None
    by_kernel = outcome.signal == signal.SIGKILL and bool(failure.oom_kills)
    sure = by_kernel or _is_refused(outcome)
    if not sure and not _was_short(failure):
        return None
    how = "was killed" if outcome.signal == signal.SIGKILL else "crashed"
    why = ": out of host memory" if sure else ", probably out of host memory"
    return Explanation(
        f"Rank {outcome.rank} {how} ({base.signal_name(outcome.signal)}){why}.",
        _memory_text(failure) + _models(failure),
        _use_less_memory(failure),
    )


def child_died_of_memory(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process that the function started (DataLoader, a pool) died while memory was low."""
    died = _dead_child(failure, outcome)
    if not died or not _was_short(failure):
        return None
    return Explanation(
        f"A process started by rank {outcome.rank} died ({died}), probably out of host memory.",
        _memory_text(failure) + _models(failure),
        _use_less_memory(failure),
    )


def _dead_child(failure: Failure, outcome: WorkerOutcome) -> str:
    """What is said of a dead process that the function started; "" for none. Where a DataLoader's worker dies as it
    sends a batch, the loader finds a closed connection first."""
    match = _CHILD_DIED.search(base.error_text(outcome))
    if match:
        return str(match[0])
    loads = any("/torch/utils/data/" in frame.path for frame in base.stack_of(failure, outcome))
    return "a DataLoader worker" if loads and base.error_type(outcome) in _CLOSED else ""


def allocation_refused(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An exception that reports a failed allocation in host memory."""
    if not base.raised(outcome) or not _is_refused(outcome):
        return None
    wanted = _wanted(base.error_text(outcome))
    line = base.at(failure, outcome)
    return Explanation(
        f"Rank {outcome.rank} could not allocate {wanted or 'more'} host memory{line}.",
        _memory_text(failure) + _models(failure),
        f"Allocate less at that line. {_use_less_memory(failure)}",
    )


def _is_refused(outcome: WorkerOutcome) -> bool:
    known = base.error_type(outcome) in _REFUSED_TYPES
    return known or any(pattern.search(base.evidence(outcome)) for pattern in _REFUSED)


def _wanted(text: str) -> str:
    """How much was requested, e.g. "2.0 GiB of"; "" if the text does not say."""
    for pattern in _REFUSED[:2]:
        if match := pattern.search(text):
            known = match.groupdict()
            return f"{base.size(int(known['bytes'])) if 'bytes' in known else known['text']} of"
    return ""


# -- signals and exits ------------------------------------------------------------------------------------------------


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
    free = _free_memory(failure)
    if not _was_measured(failure):
        return f"It is unknown whether host memory was low ({free})."
    return f"Host memory was not the cause: {free}."


def _where(failure: Failure, outcome: WorkerOutcome) -> str:
    stack = base.stack_of(failure, outcome)
    line = stacks.last_user_frame(stack)
    if line is None:
        return "Source line unknown."
    called = stacks.libraries_below(stack)
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
    called = stacks.libraries_below(base.stack_of(failure, outcome))
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


_FLAGS = re.compile(r"Unknown flags? in XLA_FLAGS: (.+)")


def unknown_flags(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """XLA ends the process for a flag that it does not know."""
    match = _FLAGS.search(base.plain(outcome.log_tail))
    if match is None or outcome.end is not None:
        return None
    return Explanation(
        f"XLA ended rank {outcome.rank}: XLA_FLAGS has flags that it does not know.",
        f"Unknown here: {match[1].strip()}. XLA ends the process then, before anything runs.",
        "Correct or remove them in a cell, then train again: import os; os.environ['XLA_FLAGS'] = ''",
    )


def silent_exit(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The process exited without a report: os._exit, or exit() in native code."""
    if outcome.exit_code is None or outcome.end is not None:
        return None
    return Explanation(
        f"Rank {outcome.rank} exited before it finished (exit code {outcome.exit_code}).",
        f"The code called os._exit(), or native code called exit(): no exception was raised. {_last_line(outcome)}",
        f"Remove the call, or raise an exception instead. The rank's full output: %tpu_logs -r {outcome.rank}",
    )


def _last_line(outcome: WorkerOutcome) -> str:
    last = base.line_with(r"\S", base.plain(outcome.log_tail))
    return f"Its last line of output: {last}" if last else "It wrote no output."


def unknown_exit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Somebody else has taken its exit status (supervisor.py, `_note_lost`)."""
    if outcome.signal is not None or outcome.exit_code is not None or outcome.end is not None:
        return None
    kills = "The out-of-memory killer acted on this machine during the run. " if failure.oom_kills else ""
    crash = base.line_with("^Fatal Python error", outcome.stack)
    said = f"It crashed: {crash}. " if crash else ""
    return Explanation(
        f"Rank {outcome.rank} ended before it finished, and its exit status is unknown.",
        "Something in the notebook took the status: SIGCHLD is ignored or has a handler, or a thread calls os.wait(). "
        f"{said}{kills}Possible causes: a signal, a crash, the out-of-memory killer, or os._exit(). "
        f"{_last_line(outcome)}",
        "Restore the default, signal.signal(signal.SIGCHLD, signal.SIG_DFL), or end what waits for all child "
        f"processes, and run the cell again: the error then names the cause. {base.UNCHANGED}",
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
    died = _dead_child(failure, outcome)
    if not died:
        return None
    return Explanation(
        f"A process started by rank {outcome.rank} died ({died}){base.at(failure, outcome)}.",
        f"The library that started it does not report why. {_not_memory(failure)}",
        "Do its work in the function itself to see the error: DataLoader(num_workers=0), no process pool, and no "
        f"xmp.spawn (%%tpu_train starts the workers). The rank's full output: %tpu_logs -r {outcome.rank}",
    )


EXPLAINERS = (
    unknown_flags,
    shared_memory,
    allocation_limited,
    died_of_memory,
    child_died_of_memory,
    allocation_refused,
    late_death,
    crashed,
    killed,
    machinery,
    unrecorded,
    silent_exit,
    unknown_exit,
    descriptors,
    child_died,
)
