"""Out of host memory: signals and failed allocations, and the measurements that prove or rule out a shortage."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_GIB = 2**30
_MEMORY_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
# A process that the function started, as torch.multiprocessing, DataLoader and concurrent.futures report its end.
CHILD = re.compile(
    r"process \d+ terminated with signal (SIGSEGV|SIGKILL|SIGABRT|SIGBUS)"
    r"|DataLoader worker \(pid\(?s?\)?[ \d,]*\) (?:exited unexpectedly|is killed by signal: (?:Killed|Segmentation))"
    r"|terminated abruptly"
)
_REFUSED = (
    re.compile(r"you tried to allocate (?P<bytes>\d+) bytes"),
    re.compile(r"Unable to allocate (?P<text>[\d.]+ [KMGTPE]?i?B)"),
    re.compile(r"[Cc]annot allocate memory|std::bad_alloc"),  # glibc's, for a thread
)
_NO_THREAD = re.compile(r"can't start new thread|pthread_create\(\) failed|^MemoryError", re.MULTILINE)
_REFUSED_TYPES = ("MemoryError", "_ArrayMemoryError")  # Python's, which has no text, and NumPy's
_LISTED = 4


# -- measurements --------------------------------------------------------------------------------------------------


def was_short(failure: Failure) -> bool:
    """Whether free memory ran low, as far as the samples show; without samples, whether the OOM killer acted.

    Memory is sampled twice a second and can be used up between two samples, so "low" is a margin: 5 % of the machine,
    at least 1 GiB (15 % of a small machine), at most 4 GiB.
    """
    if not was_measured(failure):
        return bool(failure.oom_kills)
    total = failure.memory_total
    floor = min(max(total // 20, min(_GIB, total * 15 // 100)), 4 * _GIB)
    return failure.memory_low < floor


def was_measured(failure: Failure) -> bool:
    """Whether free memory was sampled during the run."""
    return failure.memory_total > 0 and failure.memory_low > 0


def free_memory(failure: Failure) -> str:
    """`18.0 GiB of 23.5 GiB were free at the lowest point measured`, or that it was not measured."""
    if not was_measured(failure):
        return "free memory was not measured"
    low, total = base.size(failure.memory_low), base.size(failure.memory_total)
    return f"{low} of {total} were free at the lowest point measured"


def numbers(failure: Failure) -> str:
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
    if not was_measured(failure):
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


def advice(failure: Failure) -> str:
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


def limited(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """RLIMIT_AS: an allocation failed although the machine had free memory."""
    limit = outcome.address_space
    if limit is None or was_short(failure) or not (_refused(outcome) or _NO_THREAD.search(base.evidence(outcome))):
        return None
    return Explanation(
        f"Rank {outcome.rank} could not allocate host memory{base.at(failure, outcome)}: its address space is limited "
        f"to {base.size(limit)} (RLIMIT_AS).",
        f"The machine had free memory: {free_memory(failure)}. The limit was set by resource.setrlimit(RLIMIT_AS) or "
        "by `ulimit -v` before Jupyter was started. Threads and compiled programs map far more memory than they use.",
        f"Remove or raise the limit. {base.UNCHANGED}",
    )


def signalled(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """SIGKILL by the kernel's OOM killer, SIGSEGV or SIGABRT after an allocation that failed."""
    if base.raised(outcome) or outcome.signal not in _MEMORY_SIGNALS:
        return None
    by_kernel = outcome.signal == signal.SIGKILL and bool(failure.oom_kills)
    sure = by_kernel or _refused(outcome)
    if not sure and not was_short(failure):
        return None
    how = "was killed" if outcome.signal == signal.SIGKILL else "crashed"
    why = ": out of host memory" if sure else ", probably out of host memory"
    return Explanation(
        f"Rank {outcome.rank} {how} ({base.signal_name(outcome.signal)}){why}.",
        numbers(failure) + _models(failure),
        advice(failure),
    )


def child_died(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process that the function started (DataLoader, a pool) died while memory was low."""
    match = CHILD.search(base.error_text(outcome))
    if not match or not was_short(failure):
        return None
    return Explanation(
        f"A process started by rank {outcome.rank} died ({match[0]}), probably out of host memory.",
        numbers(failure) + _models(failure),
        advice(failure),
    )


def refused(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An exception that reports a failed allocation in host memory."""
    if not base.raised(outcome) or not _refused(outcome):
        return None
    wanted = _wanted(base.error_text(outcome))
    line = base.at(failure, outcome)
    return Explanation(
        f"Rank {outcome.rank} could not allocate {wanted or 'more'} host memory{line}.",
        numbers(failure) + _models(failure),
        f"Allocate less at that line. {advice(failure)}",
    )


def _refused(outcome: WorkerOutcome) -> bool:
    known = base.error_type(outcome) in _REFUSED_TYPES
    return known or any(pattern.search(base.evidence(outcome)) for pattern in _REFUSED)


def _wanted(text: str) -> str:
    """How much was requested, e.g. "2.0 GiB of"; "" if the text does not say."""
    for pattern in _REFUSED[:2]:
        if match := pattern.search(text):
            known = match.groupdict()
            return f"{base.size(int(known['bytes'])) if 'bytes' in known else known['text']} of"
    return ""
