"""A run in words: its `Page`. Each sentence about a run is here or in the modules beside it, once.

`page_charts.py`: the curves; `page_problems.py`: what to change; `page_sections.py`: what is folded below.
"""

from __future__ import annotations

import math

from tpu_magics.errors import plural
from tpu_magics.panel.formats import NOT_AVAILABLE, clock, cut, percent, seconds, short
from tpu_magics.panel.page import FailureText, Figure, Page, Progress, Tone
from tpu_magics.panel.page_charts import POINTS, charts, compiled_at
from tpu_magics.panel.page_problems import problems
from tpu_magics.panel.page_sections import devices, sections
from tpu_magics.panel.protocol import RECORD_VERSION
from tpu_magics.panel.run_view import COLLECTING, COMPILING, STARTING, TRAINING, RunView

STATES: dict[str, tuple[str, Tone]] = {
    STARTING: ("◌", "live"),
    COMPILING: ("◐", "live"),
    TRAINING: ("●", "live"),
    COLLECTING: ("●", "live"),
    "done": ("✓", "ok"),
    "failed": ("✗", "broken"),
    "timeout": ("✗", "broken"),
    "refused": ("✗", "broken"),
    "interrupted": ("■", ""),
    "stopped": ("■", ""),
    "lost": ("!", "warning"),
}
LINES = 40  # of a failure
COMPILES = 1_000  # that a page has at most; a saved one has fewer


def page(view: RunView, compiles: int = COMPILES, points: int = POINTS) -> Page:
    """The page of a run, with at most so many compiles and points of a curve."""
    symbol, tone = STATES.get(view.state, ("?", ""))
    return Page(
        v=RECORD_VERSION,
        id=short(view.id, 200),
        name=short(view.name, 100),
        live=view.live,
        background=view.plan.get("background") is True,
        state=short(view.state, 40),
        symbol=symbol,
        tone=tone,
        where=where(view),
        detail=_detail(view),
        elapsed="" if view.elapsed is None else clock(view.elapsed),
        progress=_progress(view),
        failure=_failure(view),
        charts=charts(view, points),
        compiled_at=compiled_at(view),
        figures=figures(view),
        problems=problems(view),
        sections=sections(view, compiles, points),
        footer=_footer(view),
    )


def where(view: RunView) -> str:
    """E.g. "rehearsal of 8 ranks on XLA:CPU"; "" where nothing is known."""
    ranks = plural(len(view.ranks), "rank") if view.ranks else ""
    if view.rehearsed:
        ranks = f"rehearsal of {ranks}" if ranks else "rehearsal"
    elif view.spmd:
        ranks = f"{devices(view.mesh)} in one SPMD worker" if view.mesh else "one SPMD worker"
    hosts = {rank.host for rank in view.ranks if rank.host}
    device = f"{plural(len(hosts), 'host')}, {view.device}".rstrip(", ") if len(hosts) > 1 else view.device
    return " on ".join(part for part in (ranks, device) if part)


def _detail(view: RunView) -> str:
    """Why it is in this state, and what it changed."""
    names = [short(name, 60) for name in view.models[:20]]
    updated = f"updated in the notebook: {', '.join(names)}" if names else ""
    return short(" · ".join(part for part in (view.warming_up or view.detail, updated) if part), 400)


def _footer(view: RunView) -> str:
    """Which run it is, and whose counts are shown."""
    lead = f"Counts, times and curves are those of rank {view.lead}." if len(view.ranks) > 1 else ""
    return " ".join(part for part in (f"Run {short(view.id, 200)}.", lead) if part)


# -- progress --------------------------------------------------------------------------------------------------------


def _progress(view: RunView) -> Progress | None:
    """None where the number of all steps is not known."""
    total = view.total_steps
    if not total or view.steps is None:
        return None
    done = min(view.steps, total)
    left = _left(view, total - done) if view.live else ""
    return Progress(done, total, f"{done:,} of {total:,} steps{f' · {left}' if left else ''}")


def _left(view: RunView, steps: int) -> str:
    """E.g. "about 12 s left": at the speed of the last seconds, compiles included."""
    if not view.steps_per_second or view.state == COLLECTING:
        return ""
    return f"about {clock(max(1.0, steps / view.steps_per_second))} left" if steps else "almost done"


# -- the figures -----------------------------------------------------------------------------------------------------


def figures(view: RunView) -> tuple[Figure, ...]:
    """The numbers at the top, always the same ones; the share of bf16 where it was asked for."""
    share = [_share(view)] if view.precision is not None and _asked_bf16(view) else []
    return (_steps(view), _step_time(view), _compiles(view), _recompiles(view), *share)


def _steps(view: RunView) -> Figure:
    if view.steps is None:
        return Figure("Steps", NOT_AVAILABLE, hint="No rank has recorded a step.")
    if view.total_steps:
        return Figure("Steps", f"{view.steps:,}", f"of {max(view.total_steps, view.steps):,}")
    return Figure("Steps", f"{view.steps:,}", "" if view.max_steps is None else f"of at most {view.max_steps:,}")


def _step_time(view: RunView) -> Figure:
    if view.step_seconds is None:
        hint = "Each step so far compiled." if view.compiled_steps else "No step is done."
        return Figure("Step time", NOT_AVAILABLE, hint=hint)
    hint = "Median of the steps that compiled nothing."
    return Figure("Step time", seconds(view.step_seconds), "median", hint)


def _compiles(view: RunView) -> Figure:
    if view.compiles is None:
        return Figure("Compiles", NOT_AVAILABLE, hint=f"{NOT_AVAILABLE}: {view.compiles_missing}.")
    spent = view.compiling_share
    note = f"{percent(spent)} of the time" if view.compiles and spent is not None and spent >= 0.01 else ""
    return Figure("Compiles", f"{view.compiles:,}", note)


def _recompiles(view: RunView) -> Figure:
    """The recompiles that need action. The expected ones stand beside them."""
    if view.recompiles is None:
        return Figure("Recompiles", NOT_AVAILABLE, hint=f"{NOT_AVAILABLE}: no compile was recorded.")
    unexpected = max(0, view.recompiles - view.expected)
    beside = ("or more" if view.at_least else "", f"and {view.expected:,} expected" if view.expected else "")
    hint = "Expected compiles are part of every training: no action needed." if view.expected else ""
    note = ", ".join(filter(None, beside))
    return Figure("Recompiles", f"{unexpected:,}", note, hint, "warning" if unexpected else "")


def _asked_bf16(view: RunView) -> bool:
    """Whether bf16 was requested, by an option or in the program."""
    asked = (view.asked, view.precision.asked if view.precision else "")
    return any("bf16" in str(one).lower() or "bfloat16" in str(one).lower() for one in asked)


def _share(view: RunView) -> Figure:
    found = view.precision
    assert found is not None
    if found.share is None or not math.isfinite(found.share):
        return Figure("bf16", NOT_AVAILABLE, hint="The runtime did not report the types of the graph's matmuls.")
    hint = "Share of matmuls and convolutions in bf16, before XLA optimizes the graph."
    return Figure(
        "bf16", percent(found.share), f"of {plural(found.ops, 'matmul')}", hint, "" if found.agrees else "warning"
    )


# -- a failure -------------------------------------------------------------------------------------------------------


def _failure(view: RunView) -> FailureText | None:
    found = view.failure
    if found is None:
        return None
    lines = [cut(line, 300) for line in found.details[:LINES]]
    left = len(found.details) - LINES
    shown = (*lines, f"… and {left:,} more lines") if left > 0 else tuple(lines)
    tone: Tone = "" if view.state in ("interrupted", "stopped") else "broken"
    return FailureText(tone, cut(found.what, 1_000), cut(found.why, 1_000), cut(found.todo, 1_000), shown)
