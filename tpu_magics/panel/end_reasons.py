"""Why a run is in its state, and why a figure is missing, in words."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.errors import plural
from tpu_magics.panel.model_info import as_count, as_seconds
from tpu_magics.panel.rank_state import RankRecords
from tpu_magics.panel.run_view import COLLECTING, COMPILING, CUT_SHORT, STARTING, RunFailure
from tpu_magics.runs.events import Divergence, End

# Of a rank, as states of a run.
OUTCOMES = {"done": "done", "failed": "failed", "limit": "stopped", "stopped": "stopped"}

Reason = Callable[[RankRecords, Mapping[str, Any]], str]


def _compiling(lead: RankRecords, _plan: Mapping[str, Any]) -> str:
    if lead.total is None:
        return "tracing and compiling the first step"
    return "the latest steps compiled" if lead.only_compiled else "a graph was compiled since the last recorded step"


def _stopped(lead: RankRecords, _plan: Mapping[str, Any]) -> str:
    limited = lead.end is not None and lead.end.status == "limit"
    return "--steps was reached; the notebook's models are unchanged" if limited else ""


def _timeout(_lead: RankRecords, plan: Mapping[str, Any]) -> str:
    seconds = as_seconds(plan.get("timeout"))
    return "it exceeded --timeout" + ("" if seconds is None else f" {seconds:g}")


DETAILS: Mapping[str, Reason] = {
    STARTING: lambda lead, _plan: "starting the workers" if lead.start is None else "the function has not started yet",
    COMPILING: _compiling,
    COLLECTING: lambda _lead, _plan: "the function has ended",
    "stopped": _stopped,
    "timeout": _timeout,
    "interrupted": lambda _lead, _plan: "the notebook's models are unchanged",
    "lost": lambda _lead, _plan: "the kernel of this run has ended, and the run with it",
    "refused": lambda _lead, _plan: "nothing was started",
    "unknown": lambda _lead, _plan: "run.json is missing or incomplete",
}


def warming_up(lead: RankRecords) -> str:
    if not lead.warming:
        return ""
    count = plural(lead.compiles, "compile")
    began = (lead.total or 0) <= 10 * max(lead.compiles, 1)
    return f"warming up, {count} so far" if began else f"compiled in the last steps, {count} so far"


def why_no_compiles(lead: RankRecords, ended: bool) -> str:
    name = f"rank {lead.rank}"
    if not ended:
        return f"{name} has recorded none yet; the count comes at its end"
    return f"{name} did not finish" if lead.end is None else "not reported by the runtime"


def rank_state(records: RankRecords, live: bool) -> str:
    if records.end is not None:
        return OUTCOMES.get(records.end.status, records.end.status)
    if live:
        return records.state
    return CUT_SHORT if records.start is not None else "no record"


def exit_words(worker: Mapping[str, Any]) -> str:
    number, code = as_count(worker.get("signal")), as_count(worker.get("exit"))
    if number:
        return signal_name(number)
    return "" if code is None else f"exit code {code}"


def signal_name(number: int) -> str:
    """E.g. "SIGTERM"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG {number}"


def diverged(divergence: Divergence) -> str:
    names = ", ".join(map(str, divergence.ranks)) or "some ranks"
    return f"Ranks compiled different graphs at compile #{divergence.nth}: {names}. On a TPU this run would hang."


def failed_rank(end: End) -> RunFailure:
    lines = tuple(
        f"{frame.path}, line {frame.line}, in {frame.function}: {frame.code}"
        for frame in end.frames
        if not frame.library
    )
    return RunFailure(f"Rank {end.rank} failed: {end.error_type}: {end.error_text}", details=lines)
