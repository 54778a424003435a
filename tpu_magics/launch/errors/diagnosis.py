"""From the record of a failed run to one error: which rank failed first, what happened, why, what to do, and the user's
own frames."""

from __future__ import annotations

import re
from dataclasses import replace

from tpu_magics.errors import TrainingFailed, TrainingInterrupted
from tpu_magics.launch import stacks
from tpu_magics.launch.endless_waits import WaitsForever
from tpu_magics.launch.errors import base, device, hangs, known, ranks, results, signals, user_code
from tpu_magics.launch.errors.base import Explainer, Explanation
from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_THREADS = 3  # sentences about threads that ended with an exception


def diagnose(failure: Failure) -> TrainingFailed:
    """The error to raise; a TrainingInterrupted if the user stopped the run."""
    return _BY_REASON.get(failure.reason, _worker)(failure)


# -- one function for each reason ---------------------------------------------------------------------------------


def _worker(failure: Failure) -> TrainingFailed:
    culprit = blame(failure)
    if culprit is None:
        return _no_culprit(failure)
    explanation = _with_threads(explain(failure, culprit), failure, culprit)
    parts = (list(explanation.details), _stack(failure, culprit), _others(failure, culprit))
    details = [line for part in parts if part for line in ("", *part)][1:]  # an empty line between parts
    return _error(failure, explanation, culprit.rank, details)


def _ranks(failure: Failure) -> TrainingFailed:
    explanation = ranks.claimed_twice(failure)
    return _error(failure, explanation, None, list(explanation.details))


def _timeout(failure: Failure) -> TrainingFailed:
    rank, explanation = hangs.timed_out(failure)
    shown = [one for one in failure.outcomes if one.rank == rank or len(failure.outcomes) == 1]
    return _error(failure, explanation, rank, [line for one in shown for line in _stack(failure, one)])


def _interrupt(failure: Failure) -> TrainingFailed:
    explanation = hangs.interrupted(failure)
    return TrainingInterrupted(explanation.what, explanation.why, explanation.todo, run=failure.run)


def _kernel(failure: Failure) -> TrainingFailed:
    explanation = Explanation(
        "The notebook's kernel ended during the run, and the workers ended with it.",
        "Possible causes: a restart, a crash of the kernel, or too little host memory.",
        "Run the notebook's cells again. The run folder has what the workers wrote until then.",
    )
    return _error(failure, explanation, None, [])


def _host(failure: Failure) -> TrainingFailed:
    """If a worker had failed before the host was lost, that is the cause."""
    culprit = blame(failure)
    if culprit is not None and not hangs.is_consequence(culprit):
        return _worker(failure)
    explanation = host_refused(failure) if failure.refused else hosts_lost(failure)
    lost = failure.lost[0][1] if failure.lost and not failure.refused else ()
    return _error(failure, explanation, lost[0] if lost else None, [])


def _no_culprit(failure: Failure) -> TrainingFailed:
    what = {"collect": "The results of the run could not be loaded."}
    explanation = Explanation(
        what.get(failure.reason, "The run ended before it finished."),
        "No worker reported a failure.",
        f"{base.UNCHANGED} See the output of the ranks: %tpu_logs -r 0",
    )
    return _error(failure, explanation, None, [])


_BY_REASON = {"ranks": _ranks, "timeout": _timeout, "interrupt": _interrupt, "kernel": _kernel, "host": _host}


def _error(failure: Failure, explanation: Explanation, rank: int | None, details: list[str]) -> TrainingFailed:
    what = with_host(failure, explanation.what, rank)
    return TrainingFailed(what, explanation.why, explanation.todo, details, rank=rank, run=failure.run)


def _with_threads(explanation: Explanation, failure: Failure, culprit: WorkerOutcome) -> Explanation:
    """With the threads that ended with an exception: what then waited for one of them has failed because of it."""
    ended: dict[str, list[int]] = {}
    for one in failure.outcomes:
        for text in one.threads:
            ended.setdefault(text, []).append(one.rank)
    said = [f"In {base.ranks(who)}: {text}" for text, who in ended.items()][:_THREADS]
    waited = hangs.is_consequence(culprit) or base.error_type(culprit) == WaitsForever.__name__
    todo = f"Fix the thread's exception, and run the cell again. Only if it waits still: {explanation.todo}"
    why = " ".join([explanation.why, *said]).lstrip()
    return replace(explanation, why=why, todo=todo if said and waited else explanation.todo)


# -- which rank failed first ---------------------------------------------------------------------------------------


def blame(failure: Failure) -> WorkerOutcome | None:
    """The worker whose failure is the cause; None if no worker failed by itself.

    A killed rank breaks the collectives of the others, and their exceptions may be recorded earlier. So signals rank
    before exceptions, exceptions before errors of collectives, and the earliest before later ones.
    """
    failed = [one for one in failure.outcomes if _failed(one)]
    return min(failed, key=lambda one: (_severity(one), one.ended, one.rank), default=None)


def _failed(outcome: WorkerOutcome) -> bool:
    finished = outcome.end is not None and not base.raised(outcome) and not outcome.signal and not outcome.exit_code
    return not outcome.stopped_by_us and not finished


def _severity(outcome: WorkerOutcome) -> int:
    if hangs.is_consequence(outcome):
        return 2
    # A signal after a reported exception came while the process ended: the exception is the cause.
    return 0 if outcome.signal and not base.raised(outcome) else 1


# -- details ------------------------------------------------------------------------------------------------------


def _stack(failure: Failure, outcome: WorkerOutcome) -> list[str]:
    stack = base.stack_of(failure, outcome)
    if stacks.last_user_frame(stack) is None:
        return []
    return [f"Your code in rank {outcome.rank} (outermost call first):", *(f"  {line}" for line in stacks.fold(stack))]


def _others(failure: Failure, culprit: WorkerOutcome) -> list[str]:
    """One line about the other ranks that failed."""
    groups: dict[str, list[int]] = {}
    for one in failure.outcomes:
        if one is not culprit and _failed(one) and not (hangs.collective_text(one) and hangs.collective_text(culprit)):
            groups.setdefault(_short(one, culprit), []).append(one.rank)
    lines = [f"{base.ranks(who)} {how}" for how, who in groups.items()]
    return [f"Also failed: {'; '.join(lines)}"] if lines else []


def _short(outcome: WorkerOutcome, culprit: WorkerOutcome) -> str:
    text = hangs.collective_text(outcome) or base.one_line(base.without_addresses(base.error_text(outcome)), 120)
    if hangs.is_consequence(outcome):
        verdict = ": a consequence" if not hangs.is_consequence(culprit) else ""
        return f"({text or 'in a collective'}){verdict}"
    if base.raised(outcome):
        same = base.error_text(outcome) == base.error_text(culprit)
        return "(the same exception)" if same else f"({base.error_type(outcome)}: {text})"
    if outcome.signal:
        return f"({base.signal_name(outcome.signal)})"
    return "(exit status unknown)" if outcome.exit_code is None else f"(exit code {outcome.exit_code})"


# -- known causes, the most specific first ----------------------------------------------------------------------------

EXPLAINERS: tuple[Explainer, ...] = (
    *user_code.TRAINER,  # before `device`: its error text is the cause of Trainer's
    *device.EXPLAINERS,
    *user_code.VERSIONS,
    *hangs.RECOMPILES,
    *user_code.SPMD,
    *known.COMPILER,
    *user_code.EXPLAINERS,
    *hangs.EXPLAINERS,
    *signals.EXPLAINERS,
    *results.EXPLAINERS,
    *known.EXPLAINERS,
    *user_code.LAST,
)


def explain(failure: Failure, outcome: WorkerOutcome) -> Explanation:
    """The first explanation that matches; every outcome has one."""
    explanations = (explainer(failure, outcome) for explainer in EXPLAINERS)
    return next((one for one in explanations if one), Explanation(f"Rank {outcome.rank} ended before it finished."))


# -- several hosts ----------------------------------------------------------------------------------------------------


def hosts_lost(failure: Failure) -> Explanation:
    """A host was lost during the run."""
    names = [f"{name} ({base.ranks(ranks)})" for name, ranks, _ in failure.lost]
    why = "; ".join(f"{name}: {how}" for name, _, how in failure.lost)
    one = len(names) == 1
    return Explanation(
        f"{'Host' if one else 'Hosts'} {', '.join(names)} {'was' if one else 'were'} lost during the run.",
        f"{why}. The other hosts were stopped, because collectives cannot finish without {'it' if one else 'them'}. "
        f"{base.UNCHANGED}",
        "Check with `ray status` whether the node is back (a spot or preemptible TPU may have been reclaimed). Run "
        "%tpu_init --hosts again to use the hosts that are available now, and run the cell again.",
    )


def host_refused(failure: Failure) -> Explanation:
    """A host could not start the run and reported the reason."""
    name, what, why, todo = failure.refused[0]
    others = f" The same on {len(failure.refused) - 1} more." if len(failure.refused) > 1 else ""
    if what:
        return Explanation(f"Host {name}: {what}", f"{why}{others}", todo)
    return Explanation(
        f"Host {name} could not start the run.",
        f"{why}.{others} {base.UNCHANGED}",
        _missing(why) or "The text above comes from that host. Its full output is in the run folder (host-*.log).",
    )


_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def _missing(why: str) -> str:
    match = _NO_MODULE.search(why)
    if not match:
        return ""
    return (
        f"Install {match[1]} on every host, then run the cell again. If it is a file beside the notebook, put its code "
        "into a cell or copy it to the Python path of each host."
    )


def with_host(failure: Failure, text: str, rank: int | None) -> str:
    """The text with the host's name after the first mention of the rank outside of brackets."""
    if rank is None or rank not in failure.hosts:
        return text
    return re.sub(rf"(?<!\()\b([Rr]ank {rank})\b", rf"\1 on host {failure.hosts[rank]}", text, count=1)
