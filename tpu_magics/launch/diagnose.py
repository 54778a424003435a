"""What went wrong: from how the workers ended to one error that a person can act on.

What lives here: the record of a failed run, the choice of the rank that is to blame, and the shape of the error: which
rank, what happened, why, what to do, then the user's own frames. What does not: the causes themselves (explain/), and
stacks (frames.py). The supervisor fills the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tpu_magics.errors import TrainingFailed, TrainingInterrupted
from tpu_magics.launch import frames
from tpu_magics.launch.explain import base, explain, hosts, rehearsal, waiting
from tpu_magics.launch.explain.base import Explanation
from tpu_magics.runs import events


@dataclass(frozen=True)
class WorkerOutcome:
    """How one worker ended.

    `signal` or `exit_code`: what the kernel reported (the other is None); `ended`: unix seconds; `peak_rss` and
    `peak_pss`: bytes (None: not available); `end`: its last record, where it wrote one; `stack`: faulthandler's dump of
    its threads, "" for none; `log_tail`: the end of its output; `stopped_by_us`: the supervisor ended it;
    `address_space`: the limit that it ended with, in bytes (None: no limit).
    """

    rank: int
    pid: int = 0
    exit_code: int | None = None
    signal: int | None = None
    ended: float = 0.0
    peak_rss: int = 0
    peak_pss: int | None = None
    end: events.End | None = None
    stack: str = ""
    log_tail: str = ""
    stopped_by_us: bool = False
    address_space: int | None = None


@dataclass(frozen=True)
class Failure:
    """A run that did not succeed, as the supervisor saw it.

    `reason`: "worker" (one ended badly), "timeout", "interrupt", "kernel" (the notebook's process ended), "collect"
    (bringing results home), "host" (one of several was lost, or could not begin). Memory is in bytes, 0 where it was
    not measured; `memory_low`: the least that was available during the run; `oom_kills`: how often the kernel's OOM
    killer acted meanwhile (None: not available). `models_built_in_function`: lines that build a model in every worker,
    as "In [4], line 3: model = Net()". `run`: path of the run folder; `cell_names`: a cell's file name -> "In [n]".
    Of several hosts: `hosts`: rank -> its host's name; `lost`: name, ranks, how; `refused`: name, what, why, todo.
    """

    reason: str
    outcomes: tuple[WorkerOutcome, ...]
    timeout: float | None = None
    memory_total: int = 0
    memory_available_at_start: int = 0
    memory_low: int = 0
    oom_kills: int | None = None
    devices: str = ""
    holders: tuple[tuple[int, str], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    models_bytes: int = 0
    models_built_in_function: tuple[str, ...] = ()
    run: str = ""
    cell_names: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    lost: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    refused: tuple[tuple[str, str, str, str], ...] = ()


def diagnose(failure: Failure) -> TrainingFailed:
    """The error that the person reads; a TrainingInterrupted where they stopped the run themselves."""
    return _BY_REASON.get(failure.reason, _worker)(failure)


# -- one way for each reason --------------------------------------------------------------------------------------


def _worker(failure: Failure) -> TrainingFailed:
    culprit = blame(failure)
    if culprit is None:
        return _nobody(failure)
    found = explain(failure, culprit)
    parts = (list(found.details), _stack(failure, culprit), _others(failure, culprit))
    return _error(failure, found, culprit.rank, _spaced(parts))


def _timeout(failure: Failure) -> TrainingFailed:
    rank, found = waiting.timed_out(failure)
    shown = [one for one in failure.outcomes if one.rank == rank or len(failure.outcomes) == 1]
    return _error(failure, found, rank, [line for one in shown for line in _stack(failure, one)])


def _interrupt(failure: Failure) -> TrainingFailed:
    found = waiting.interrupted(failure)
    return TrainingInterrupted(found.what, found.why, found.todo, run=failure.run)


def _kernel(failure: Failure) -> TrainingFailed:
    found = Explanation(
        "The notebook's kernel ended during the run, and its workers with it.",
        "A restart, a crash of the kernel, or too little host memory for it.",
        "Run the notebook's cells again. What the workers had written until then is in the run folder.",
    )
    return _error(failure, found, None, [])


def _host(failure: Failure) -> TrainingFailed:
    """A worker that failed for a reason of its own, before, is what happened."""
    culprit = blame(failure)
    if culprit is not None and not waiting.is_consequence(culprit):
        return _worker(failure)
    found = hosts.refused(failure) if failure.refused else hosts.lost(failure)
    ranks = failure.lost[0][1] if failure.lost and not failure.refused else ()
    return _error(failure, found, ranks[0] if ranks else None, [])


def _nobody(failure: Failure) -> TrainingFailed:
    what = {"collect": "The results of the run could not be brought home."}
    found = Explanation(
        what.get(failure.reason, "The run ended before its work was done."),
        "No worker reported a failure of its own.",
        f"{base.UNCHANGED} Look at the output of the ranks: %tpu_logs -r 0",
    )
    return _error(failure, found, None, [])


_BY_REASON = {"timeout": _timeout, "interrupt": _interrupt, "kernel": _kernel, "host": _host}


def _error(failure: Failure, found: Explanation, rank: int | None, details: list[str]) -> TrainingFailed:
    what = hosts.named(failure, found.what, rank)
    return TrainingFailed(what, found.why, found.todo, details, rank=rank, run=failure.run)


# -- who is to blame ----------------------------------------------------------------------------------------------


def blame(failure: Failure) -> WorkerOutcome | None:
    """The worker that failed first for a reason of its own; None where none failed by itself.

    A rank that is killed breaks the collectives of the others, whose exceptions may be read earlier: so signals count
    before exceptions, and exceptions before errors of collectives; the earliest among equals.
    """
    failed = [one for one in failure.outcomes if _failed(one)]
    return min(failed, key=lambda one: (_severity(one), one.ended, one.rank), default=None)


def _failed(outcome: WorkerOutcome) -> bool:
    finished = outcome.end is not None and not base.raised(outcome) and not outcome.signal and not outcome.exit_code
    return not outcome.stopped_by_us and not finished


def _severity(outcome: WorkerOutcome) -> int:
    if waiting.is_consequence(outcome):
        return 2
    # A signal after a reported exception came while the process ended: the exception is what happened.
    return 0 if outcome.signal and not base.raised(outcome) else 1


# -- details ------------------------------------------------------------------------------------------------------


def _spaced(parts: Iterable[list[str]]) -> list[str]:
    """The parts that are not empty, one empty line between them."""
    return [line for part in parts if part for line in ("", *part)][1:]


def _stack(failure: Failure, outcome: WorkerOutcome) -> list[str]:
    stack = base.stack_of(failure, outcome)
    if frames.last_user_frame(stack) is None:
        return []
    return [f"Your code in rank {outcome.rank}, outermost call first:", *(f"  {line}" for line in frames.fold(stack))]


def _others(failure: Failure, culprit: WorkerOutcome) -> list[str]:
    """One line about the others that died, each with its own short text."""
    groups: dict[str, list[int]] = {}
    for one in failure.outcomes:
        if one is not culprit and _failed(one) and not (rehearsal.short(one) and rehearsal.short(culprit)):
            groups.setdefault(_short(one, culprit), []).append(one.rank)
    lines = [f"{base.ranks(who)} {how}" for how, who in groups.items()]
    return [f"Also died: {'; '.join(lines)}"] if lines else []


def _short(outcome: WorkerOutcome, culprit: WorkerOutcome) -> str:
    text = rehearsal.short(outcome) or base.one_line(base.without_addresses(base.error_text(outcome)), 120)
    if waiting.is_consequence(outcome):
        verdict = ": a consequence" if not waiting.is_consequence(culprit) else ""
        return f"({text or 'in a collective'}){verdict}"
    if base.raised(outcome):
        same = base.error_text(outcome) == base.error_text(culprit)
        return "(the same exception)" if same else f"({base.error_type(outcome)}: {text})"
    return f"({base.signal_name(outcome.signal)})" if outcome.signal else f"(exit code {outcome.exit_code})"
