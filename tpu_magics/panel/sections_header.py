"""The head of the panel: state, figures, the newest recompile, precision, memory.

It has the same lines from the first second to the last, so that nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_magics.panel.charts import sparkline
from tpu_magics.panel.model_view import COLLECTING, COMPILING, STARTING, TRAINING, RankView, RunFailure, RunView
from tpu_magics.panel.sections_rehearsal import collectives, hosts_of, mesh_fact, where
from tpu_magics.panel.sections_words import (
    AMBER,
    BLUE,
    CELL,
    GREEN,
    GREY,
    NOT_AVAILABLE,
    RED,
    SMALL,
    VIOLET,
    Fact,
    chip,
    clock,
    count,
    cut,
    facts_table,
    label,
    lines_as_they_are,
    not_available,
    percent,
    place,
    rate,
    say,
    seconds,
    short,
    size,
)
from tpu_magics.runs.events import Compile, Precision

STATES = {
    STARTING: ("◌", GREY),
    COMPILING: ("◐", VIOLET),
    TRAINING: ("●", BLUE),
    COLLECTING: ("●", BLUE),
    "done": ("✓", GREEN),
    "failed": ("✗", RED),
    "timeout": ("✗", RED),
    "refused": ("✗", RED),
    "interrupted": ("■", GREY),
    "stopped": ("■", GREY),
    "lost": ("!", AMBER),
}
_FULL = {"": "", "warning": "little left", "broken": "almost full"}
HIGH, FULL = 0.85, 0.95  # shares of a memory from which on it is a warning, and nearly gone
CPU = "XLA:CPU"
_DETAILS = 40  # lines of a failure
NOTHING = "-"  # in the place of a figure that is not available


@dataclass(frozen=True)
class Figure:
    """A number at the top. `beside`: its note, in small letters; `amber`: it needs action."""

    label: str
    value: str
    beside: str = ""
    amber: bool = False


def header_html(view: RunView) -> str:
    """State and figures, which change with every step; a failure."""
    return _title(view) + _failure(view) + _figures(view)


def facts_html(view: RunView) -> str:
    """The rows below the figures."""
    return facts_table(facts(view))


# -- the title -------------------------------------------------------------------------------------------------------


def state_text(view: RunView) -> str:
    """E.g. "● training"."""
    return f"{STATES.get(view.state, ('?', GREY))[0]} {view.state}"


def title_notes(view: RunView) -> str:
    """The notes behind the state: warming up, a reason, where it runs."""
    return " · ".join(part for part in (view.warming_up, view.detail, where(view)) if part)


def _title(view: RunView) -> str:
    name = f'<b style="font-size:1.15em;overflow-wrap:anywhere">{say(short(view.name, 100))}</b>'
    state = chip(state_text(view), STATES.get(view.state, ("?", GREY))[1])
    notes = f'<span style="{SMALL}">{say(title_notes(view))}</span>'
    return f'<p style="margin:.2em 0 .5em 0" role="status">{name} {state} {notes}</p>'


# -- the figures -----------------------------------------------------------------------------------------------------


def figures(view: RunView) -> tuple[Figure, ...]:
    """The numbers at the top, always the same ones."""
    return (
        Figure("Elapsed", NOTHING, NOT_AVAILABLE) if view.elapsed is None else Figure("Elapsed", clock(view.elapsed)),
        _steps(view),
        _rate(view),
        _step_time(view),
        _compiles(view),
        _recompiles(view),
        _share(view),
    )


def _steps(view: RunView) -> Figure:
    if view.steps is None:
        return Figure("Steps", NOTHING, NOT_AVAILABLE)
    return Figure("Steps", f"{view.steps:,}", "" if view.max_steps is None else f"of at most {view.max_steps:,}")


def _rate(view: RunView) -> Figure:
    if view.steps_per_second is None:
        return Figure("Steps/s", NOTHING, _no_step(view))
    return Figure("Steps/s", rate(view.steps_per_second), sparkline(view.rates, 12))


def _no_step(view: RunView) -> str:
    return "no step yet" if view.live else NOT_AVAILABLE


def _step_time(view: RunView) -> Figure:
    if view.step_seconds is None:
        return Figure(
            "Step", NOTHING, "each step compiled" if view.compiled_steps else "no step yet" if view.live else ""
        )
    return Figure("Step", seconds(view.step_seconds), "excluding compiles" if view.compiled_steps else "")


def _compiles(view: RunView) -> Figure:
    if view.compiles is None:
        return Figure("Compiles", NOTHING, NOT_AVAILABLE)
    return Figure("Compiles", f"{view.compiles:,}")


def _recompiles(view: RunView) -> Figure:
    if view.recompiles is None:
        return Figure("Recompiles", NOTHING, NOT_AVAILABLE)
    beside = f"{view.expected:,} expected" if view.expected else ""
    beside = ", ".join(filter(None, ["or more" if view.at_least else "", beside]))
    return Figure("Recompiles", f"{view.recompiles:,}", beside, amber=view.recompiles > view.expected)


def _share(view: RunView) -> Figure:
    if view.compiling_share is None:
        return Figure("Compiling", NOTHING, NOT_AVAILABLE)
    return Figure("Compiling", percent(view.compiling_share), "of the time")


def _figures(view: RunView) -> str:
    """Three rows: label, figure, note. An empty row stays, so that nothing moves."""
    shown = figures(view)
    heads = "".join(f'<th scope="col" style="{CELL}">{say(each.label)}</th>' for each in shown)
    values = "".join(f'<td style="{CELL}">{_value(each)}</td>' for each in shown)
    notes = "".join(f'<td style="{CELL}">{_note(each)}</td>' for each in shown)
    row = '<tr style="background:transparent'
    return (
        '<div style="overflow-x:auto;max-width:100%"><table style="border-collapse:collapse;color:inherit;margin:0;'
        f'border:0;font-variant-numeric:tabular-nums"><thead>{row};{SMALL}">{heads}</tr></thead>'
        f'<tbody>{row};font-size:1.25em">{values}</tr>{row};{SMALL}">{notes}</tr></tbody></table></div>'
    )


def _note(figure: Figure) -> str:
    return say(figure.beside).replace(" ", "&nbsp;") or "&nbsp;"


def _value(figure: Figure) -> str:
    value = chip(f"! {figure.value}", AMBER) if figure.amber else f"<b>{say(figure.value)}</b>"
    return value if figure.amber else value.replace(" ", "&nbsp;")


# -- the facts -------------------------------------------------------------------------------------------------------


def facts(view: RunView) -> Iterator[Fact]:
    """The facts in their order; what is not known has its reason."""
    yield _recompile_fact(view)
    yield precision_fact(view)
    yield memory_fact(view)
    yield hbm_fact(view)
    yield Fact("Time", (_time(view),))
    if (mesh := mesh_fact(view)) is not None:
        yield mesh
    if view.batch is not None:
        yield Fact("Effective batch", (_batch(view),))
    if view.models:
        yield Fact("Updated in the notebook", (", ".join(short(name, 60) for name in view.models[:20]),))


def _recompile_fact(view: RunView) -> Fact:
    again = [entry.compile for entry in view.compile_log if entry.compile.recompile]
    newest = next((one for one in again if not one.expected), next(iter(again), None))
    if newest is not None:
        return _explained(newest)
    if view.recompiles is None or (view.recompiles == 0 and view.compiles is None):
        return Fact("Recompiles", (not_available(view.compiles_missing or "no compile was recorded"),))
    none = "None so far." if view.live else "None."
    return Fact("Recompiles", (none if not view.recompiles else not_available("its record is missing"),))


def _explained(newest: Compile) -> Fact:
    """Cause, line and fix."""
    text = short(newest.text or why(newest), 400)
    where = f"{label(newest)} at {place(newest.site)}"
    prefix = "" if newest.expected else "Fix: "  # an expected one needs no action, and its text says so
    lines = [f"{where}: {text}", f"{prefix}{short(newest.fix, 400)}" if newest.fix else ""]
    known = tuple(line for line in lines if line)
    state = "" if newest.expected else "warning"
    return Fact("Recompiles", known, state, cause_name(newest), short(newest.site.code, 200))


def cause_name(graph: Compile) -> str:
    return short(graph.cause or "unknown cause", 30) if graph.recompile else "first compile"


def why(graph: Compile) -> str:
    """The cause of a recompile in a few words, where no sentence was recorded."""
    difference = ", ".join(short(each, 120) for each in graph.difference[:2])
    return difference or f"cause: {graph.cause or 'unknown'}"


def precision_fact(view: RunView) -> Fact:
    """The precision that was requested, and that of the compiled graph."""
    found = view.precision
    if found is None:
        reason = "no compiled step yet" if view.live else "no compiled step was examined"
        if view.steps and view.compiles == 0 and not view.live:
            reason = "no step was compiled in this run"
        return Fact("Precision", (f"Requested: {view.asked or 'default'}. Actual: {not_available(reason)}",))
    source = f" ({short(found.source, 60)})" if found.source else ""
    requested = f"Requested: {short(found.asked, 40) or 'default'}{source}"
    lines = (f"{requested}. {_actual(found)}", "" if found.agrees else short(found.text, 300))  # why they differ
    state, mark = ("warning", "differs") if not found.agrees else ("ok", "as requested") if found.asked else ("", "")
    return Fact("Precision", tuple(line for line in lines if line), state, mark)


def _actual(found: Precision) -> str:
    """As the graph has it before XLA optimizes it; convolutions count as matmuls."""
    if found.share is None or not math.isfinite(found.share):
        reason = "not reported by the runtime" if found.ops else "the graph has no matmul or convolution"
        share = f"Actual: {not_available(reason)}"
    else:
        bf16 = found.share * found.ops
        many = f"{round(bf16):,}" if math.isfinite(bf16) else percent(found.share)
        share = f"{many} of {count(found.ops, 'matmul')} in bf16"
    types = ", ".join(f"{short(n, 12)} {short(name, 20)}" for name, n in list(found.parameters.items())[:8])
    return f"{share}. Parameters: {types}" if types else share


def memory_fact(view: RunView) -> Fact:
    """The workers' host memory against the machine's."""
    known = [(rank, used) for rank in view.ranks if (used := used_memory(rank, view.live)) is not None]
    if not known:
        return Fact("Host memory", (not_available("no sample yet" if view.live else "no sample"),))
    kind = "PSS" if all(_has_pss(rank, view.live) for rank, _used in known) else "RSS"
    together = sum(used for _rank, used in known)
    most, largest = max(known, key=lambda pair: pair[1])
    if len(known) == 1:
        text = f"{_rss(most, view.live)}{size(together)} ({kind})"
    else:
        workers = count(len(known), "worker")
        text = f"{workers}: {size(together)} ({kind}) in total, most in rank {most.rank} ({size(largest)})"
    when = "" if view.live else ", peak of each worker"
    curve = sparkline(view.memory_curve, 12)
    hosts = len(hosts_of(view))
    against, state = _against(together, view.memory_total) if hosts < 2 else (f"on {hosts} hosts", "")
    over_time = f" {curve}" if len(curve) > 2 else ""
    return Fact("Host memory", (f"{text}{when}; {against}{over_time}",), state, _FULL[state])


def _has_pss(rank: RankView, live: bool) -> bool:
    return (rank.pss if live else rank.peak_pss) is not None


def used_memory(rank: RankView, live: bool) -> int | None:
    """What a rank's worker takes: PSS where it is known, so that shared pages count once."""
    now, most = (rank.pss, rank.rss), (rank.peak_pss, rank.peak_rss)
    return next((value for value in (now if live else most) if value is not None), None)


def _rss(rank: RankView, live: bool) -> str:
    """Stands before the PSS."""
    rss = rank.rss if live else rank.peak_rss
    return "" if rss is None or not _has_pss(rank, live) else f"{size(rss)} (RSS), "


def _against(used: float, total: int | None) -> tuple[str, str]:
    if not total:
        return f"total of the machine: {not_available('not in run.json')}", ""
    share = used / total
    return f"{percent(share)} of the machine's {size(total)}", _fullness(share)


def _fullness(share: float) -> str:
    return "broken" if share >= FULL else "warning" if share >= HIGH else ""


def hbm_fact(view: RunView) -> Fact:
    """The TPU's own memory: the fullest rank."""
    known = [rank for rank in view.ranks if rank.hbm_used is not None]
    if not known:
        return Fact("HBM", (no_hbm(view),))
    fullest = max(known, key=_hbm_share)
    used, total = fullest.hbm_used or 0, fullest.hbm_total
    name = f"rank {fullest.rank}, the fullest of {len(known)}: " if len(known) > 1 else ""
    if not total:
        return Fact("HBM", (f"{name}{size(used)}; total {not_available('not reported by the runtime')}",))
    state = _fullness(used / total)
    return Fact("HBM", (f"{name}{size(used)} of {size(total)} ({percent(used / total)})",), state, _FULL[state])


def no_hbm(view: RunView) -> str:
    """Why there is no figure of HBM."""
    if view.device == CPU:
        return f"{NOT_AVAILABLE} on {CPU}"
    return not_available("no sample yet" if view.live else "not reported by the runtime")


def _hbm_share(rank: RankView) -> tuple[float, int]:
    used = rank.hbm_used or 0
    return (used / rank.hbm_total if rank.hbm_total else 0.0, used)


def _time(view: RunView) -> str:
    parts = (("compiling", view.compiling), ("executing", view.executing), ("waiting for the device", view.waiting))
    known = [f"{name} {seconds(value)}" for name, value in parts if value is not None]
    missing = [name for name, value in parts if value is None]
    if not known:
        return not_available("no record yet" if view.live else "no record")
    known += filter(None, [collectives(view)])
    unknown = not_available("not reported yet" if view.live else "not reported")
    rest = f"; {' and '.join(missing)} {unknown}" if missing else ""
    return ", ".join(known) + rest


def _batch(view: RunView) -> str:
    batch = view.batch
    assert batch is not None
    if batch.per_device is None or batch.accumulation is None:
        unknown = "the batch of a device" if batch.per_device is None else "the number of accumulated batches"
        return not_available(f"{unknown} is not known")
    total = batch.per_device * batch.accumulation * batch.ranks
    if view.spmd:  # one worker's batch is that of all its devices
        return f"{total:,} = {batch.per_device:,} for all devices together x {batch.accumulation:,} accumulated"
    ranks = count(batch.ranks, "rank")
    return f"{total:,} = {batch.per_device:,} per device x {batch.accumulation:,} accumulated x {ranks}"


# -- a failure -------------------------------------------------------------------------------------------------------


def failure_facts(failure: RunFailure, state: str) -> Iterator[Fact]:
    """What happened, why, what to do. A run that the user stopped has not failed."""
    mark = ("", "") if state in ("interrupted", "stopped") else ("broken", "failed")
    yield Fact("What happened", (cut(failure.what, 1_000),), *mark)
    for name, text in (("Why", failure.why), ("What to do", failure.todo)):
        if text:
            yield Fact(name, (cut(text, 1_000),))


def failure_lines(failure: RunFailure) -> list[str]:
    """The lines shown as they are."""
    lines = [cut(line, 300) for line in failure.details[:_DETAILS]]
    left = len(failure.details) - _DETAILS
    return [*lines, f"… and {left:,} more lines"] if left > 0 else lines


def _failure(view: RunView) -> str:
    if view.failure is None:
        return ""
    lines = failure_lines(view.failure)
    return facts_table(failure_facts(view.failure, view.state)) + (
        lines_as_they_are(lines) + "<br>" if lines else "<br>"
    )
