"""Why a run is in its state, and why a figure is missing, in words.

What lives here: the reasons that follow from records. What does not: the words of the panel's parts (sections*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.panel.model_info import as_count, as_seconds
from tpu_magics.panel.model_ranks import RankRecords
from tpu_magics.panel.model_view import COMPILING, HOME, STARTING, RunFailure
from tpu_magics.runs.events import Divergence, End

# Of a rank, as states of a run.
OUTCOMES = {"done": "done", "failed": "failed", "limit": "stopped", "stopped": "stopped"}

Reason = Callable[[RankRecords, Mapping[str, Any]], str]


def _compiling(lead: RankRecords, _plan: Mapping[str, Any]) -> str:
    if lead.total is None:
        return "the function was entered, and no step is done yet"
    return "the newest steps compiled" if lead.only_compiled else "a graph was compiled since the last recorded step"


def _stopped(lead: RankRecords, _plan: Mapping[str, Any]) -> str:
    limited = lead.end is not None and lead.end.status == "limit"
    return "--steps was reached; the notebook's models are unchanged" if limited else ""


def _timeout(_lead: RankRecords, plan: Mapping[str, Any]) -> str:
    seconds = as_seconds(plan.get("timeout"))
    return "it ran longer than --timeout" + ("" if seconds is None else f" {seconds:g}")


DETAILS: Mapping[str, Reason] = {
    STARTING: lambda lead, _plan: "the workers start" if lead.start is None else "the function is not entered yet",
    COMPILING: _compiling,
    HOME: lambda _lead, _plan: "the function has ended",
    "stopped": _stopped,
    "timeout": _timeout,
    "interrupted": lambda _lead, _plan: "the notebook's models are unchanged",
    "lost": lambda _lead, _plan: "the kernel that ran it is gone, and the run with it",
    "refused": lambda _lead, _plan: "nothing was started",
    "unknown": lambda _lead, _plan: "its run.json is missing or torn",
}


def warming_up(lead: RankRecords) -> str:
    if not lead.warming:
        return ""
    count = f"{lead.compiles:,} compile{'' if lead.compiles == 1 else 's'}"
    began = (lead.total or 0) <= 10 * max(lead.compiles, 1)
    return f"warming up, {count} so far" if began else f"compiled within the last steps, {count} so far"


def why_no_compiles(lead: RankRecords, ended: bool) -> str:
    name = f"rank {lead.rank}"
    if not ended:
        return f"{name} recorded none; it tells its count at its end"
    return f"{name} did not come to its end" if lead.end is None else "the runtime did not tell"


def rank_state(records: RankRecords, live: bool) -> str:
    if records.end is not None:
        return OUTCOMES.get(records.end.status, records.end.status)
    if live:
        return records.state
    return "cut short" if records.start is not None else "no record"


def exit_words(worker: Mapping[str, Any]) -> str:
    number, code = as_count(worker.get("signal")), as_count(worker.get("exit"))
    if number:
        return f"signal {number}"
    return "" if code is None else f"exit code {code}"


def diverged(divergence: Divergence) -> str:
    names = ", ".join(map(str, divergence.ranks)) or "some ranks"
    return f"Ranks compiled different graphs as compile {divergence.nth}: {names}. On a TPU such a run hangs."


def failed_rank(end: End) -> RunFailure:
    lines = tuple(
        f"{frame.path}, line {frame.line}, in {frame.function}: {frame.code}"
        for frame in end.frames
        if not frame.library
    )
    return RunFailure(f"Rank {end.rank} failed: {end.error_type}: {end.error_text}", details=lines)
