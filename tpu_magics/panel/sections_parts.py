"""The parts below the head: ranks, curves, values, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpu_magics.panel.charts import sparkline, svg
from tpu_magics.panel.model_view import CUT_SHORT, Notice, RankView, RunView, ValueSeries
from tpu_magics.panel.sections_header import STATES, no_hbm
from tpu_magics.panel.sections_rehearsal import straggler, straggler_note, waited
from tpu_magics.panel.sections_words import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    NOT_AVAILABLE,
    RED,
    VIOLET,
    chip,
    cut,
    number,
    rate,
    say,
    several,
    short,
    size,
    small,
    table,
    title,
    whole,
)

WAITED = "in collectives"
NO_VALUES = "No values logged. Log one with tpu_magics.log(loss=loss)."
_CHARTS, _RANKS, _NOTICES = 4, 64, 50
_LINE_COLOURS = (BLUE, GREEN, VIOLET, AMBER)
_WORDS = {"": "note", "warning": "! warning", "broken": "✗ error"}
_COLOURS = {"": GREY, "warning": AMBER, "broken": RED}


# -- ranks -----------------------------------------------------------------------------------------------------------


def rank_columns(view: RunView) -> tuple[str, ...]:
    """The headings; a column that no rank fills is left out."""
    loss = [short(name, 20)] if (name := _loss(view)) else []
    waits = [WAITED] if view.rehearsed else []
    columns = [
        "rank",
        *(["host"] if _any_host(view) else []),
        "state",
        "steps",
        "steps/s",
        *waits,
        *loss,
        "compiles",
        "recompiles",
        "RSS",
        "PSS",
    ]
    return (*columns, "HBM") if _any_hbm(view) else tuple(columns)


def rank_cells(view: RunView, rank: RankView) -> tuple[str, ...]:
    """One rank, in the order of the columns."""
    word = "stopped" if rank.state == CUT_SHORT else rank.state
    state = f"{word} ({rank.exit})" if rank.exit not in ("", "exit code 0") else word
    cells = [str(rank.rank), *([rank.host] if _any_host(view) else []), state, _count(rank.steps)]
    cells.append(NOT_AVAILABLE if rank.steps_per_second is None else rate(rank.steps_per_second))
    if view.rehearsed:
        cells.append(waited(rank))
    if name := _loss(view):
        cells.append(number(rank.values[name]) if name in rank.values else "not logged")
    cells += [_count(rank.compiles), _count(rank.recompiles)]
    cells += [_bytes(rank.rss if view.live else rank.peak_rss), _bytes(rank.pss if view.live else rank.peak_pss)]
    if _any_hbm(view):
        cells.append(_bytes(rank.hbm_used) + (f" of {size(rank.hbm_total)}" if rank.hbm_total else ""))
    return tuple(cells)


def rank_notes(view: RunView) -> Iterator[str]:
    """Notes below the table."""
    if not view.ranks:
        yield "No rank has written a record."
        return
    yield (
        f"Host memory{'' if view.live else ', peak'}: RSS counts shared pages in each process, "
        "PSS divides them between the processes."
    )
    if not _any_hbm(view):
        yield f"HBM: {no_hbm(view)}."
    if len(view.ranks) > _RANKS:
        yield f"{len(view.ranks) - _RANKS:,} more ranks are not shown."


def shown_ranks(view: RunView) -> tuple[RankView, ...]:
    return view.ranks[:_RANKS]


def ranks_html(view: RunView) -> str:
    html = title("Ranks")
    if view.ranks:
        html += table(rank_columns(view), (_rank_row(view, rank) for rank in shown_ranks(view)))
    if slow := straggler_note(view):
        html += f'<p style="margin:.3em 0">{chip("! slowest rank", AMBER)} {say(slow)}</p>'
    return html + small(" ".join(rank_notes(view)))


def _rank_row(view: RunView, rank: RankView) -> list[str]:
    texts = rank_cells(view, rank)
    cells = [say(text) for text in texts]
    if rank.state in ("failed", CUT_SHORT) or rank.exit.startswith("SIG"):
        mark, colour = STATES["failed"] if rank.state != CUT_SHORT else STATES["lost"]
        at = rank_columns(view).index("state")
        cells[at] = chip(f"{mark} {texts[at]}", colour)
    if view.rehearsed:
        at, slow = rank_columns(view).index(WAITED), straggler(view)
        cells[at] = chip(f"! {texts[at]}", AMBER) if slow is not None and slow.rank == rank.rank else whole(texts[at])
    return cells


def _count(value: int | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:,}"


def _bytes(value: int | None) -> str:
    return NOT_AVAILABLE if value is None else size(value)


def _any_host(view: RunView) -> bool:
    return any(rank.host for rank in view.ranks)


def _any_hbm(view: RunView) -> bool:
    return any(rank.hbm_used is not None for rank in view.ranks)


def _loss(view: RunView) -> str:
    """The name of the loss, where one was logged."""
    names = [series.name for series in view.values]
    exact = [name for name in names if name == "loss"]
    return next(iter(exact or [name for name in names if "loss" in name.lower()]), "")


# -- curves and values -----------------------------------------------------------------------------------------------


def charted(view: RunView) -> list[ValueSeries]:
    """The names that get a curve: the loss first."""
    curves = [series for series in view.values if len(series.points) > 1]
    return sorted(curves, key=lambda series: series.name != _loss(view))[:_CHARTS]


def chart_caption(series: ValueSeries) -> str:
    """E.g. "2.316 → 0.125 at step 1,200, between 0.11 and 2.4"."""
    first = "" if series.first is None else f"{number(series.first)} → "
    text = f"{first}{number(series.last)} at step {series.step:,}"
    if series.low is not None and series.high is not None:
        text += f", between {number(series.low)} and {number(series.high)}"
    return text + (f"; {broken(series)}" if broken(series) else "")


def broken(series: ValueSeries) -> str:
    """That a value was no finite number, or ""."""
    if series.not_finite_at is None:
        return ""
    return f"! not a finite number at step {series.not_finite_at:,}"


def shape_of(series: ValueSeries, width: int = 40) -> str:
    return sparkline([point.value for point in series.points], width)


def charts_html(view: RunView) -> str:
    shown = charted(view)
    if not shown:
        return ""
    charts = "".join(_chart(series, _LINE_COLOURS[index]) for index, series in enumerate(shown))
    if len(shown) > 3:  # those of the last row are not to be wider than the others
        charts += f'<div style="{_CHART};height:0"></div>' * (len(shown) - 2)
    return f'{title("Curves")}<div style="display:flex;flex-wrap:wrap;gap:.6em 1.6em">{charts}</div>'


_CHART = "flex:1 1 16em;min-width:0;max-width:36em;margin:0"


def _chart(series: ValueSeries, colour: str) -> str:
    shape = f'<span style="font-size:.75em;opacity:.75;white-space:nowrap">{say(shape_of(series, 20))}</span>'
    head = f"<b>{say(short(series.name, 60))}</b> {shape} {say(chart_caption(series))}"
    return (
        f'<div style="{_CHART}"><p style="margin:0;overflow-wrap:anywhere">{head}</p>{svg(series.points, colour)}</div>'
    )


VALUE_COLUMNS = ("value", "last", "at step", "lowest", "highest", "")


def value_cells(series: ValueSeries) -> tuple[str, ...]:
    """One name in a line."""
    low = "" if series.low is None else number(series.low)
    high = "" if series.high is None else number(series.high)
    curve = shape_of(series, 16) if len(series.points) > 1 else ""
    note = " ".join(part for part in (curve, broken(series)) if part)
    return short(series.name, 60), number(series.last), f"{series.step:,}", low, high, note


def other_values(view: RunView) -> list[ValueSeries]:
    """What has no curve of its own."""
    names = {series.name for series in charted(view)}
    return [series for series in view.values if series.name not in names]


def values_html(view: RunView) -> str:
    shown = other_values(view)
    if not shown:
        return "" if view.values else title("Values") + small(NO_VALUES)
    rows = ([say(cell) for cell in value_cells(series)] for series in shown)
    return title("Values") + table(VALUE_COLUMNS, rows)


# -- warnings --------------------------------------------------------------------------------------------------------


def notice_text(notice: Notice, view: RunView) -> str:
    """The text, and its ranks where these are not all."""
    ranks = [str(rank) for rank in notice.ranks]
    some = 0 < len(ranks) < len(view.ranks)
    whose = f" (rank{'s' if len(ranks) > 1 else ''} {several(ranks, 16)})" if some else ""
    return cut(notice.text, 600) + whose


def shown_notices(view: RunView) -> Sequence[Notice]:
    """Errors first, notes last."""
    order = ("broken", "warning", "")
    return sorted(view.notices, key=lambda notice: order.index(notice.state))[:_NOTICES]


def notices_left(view: RunView) -> str:
    left = len(view.notices) - _NOTICES
    return f"{left:,} more are not shown." if left > 0 else ""


def notices_title(view: RunView) -> str:
    """Notes alone are no warnings."""
    return "Warnings" if any(notice.state for notice in view.notices) else "Notes"


def warnings_html(view: RunView) -> str:
    if not view.notices:
        return ""
    rows = (
        (chip(_WORDS[each.state], _COLOURS[each.state]), _long(notice_text(each, view))) for each in shown_notices(view)
    )
    return title(notices_title(view)) + table((), rows) + (small(notices_left(view)) if notices_left(view) else "")


def _long(text: str) -> str:
    return f'<span style="overflow-wrap:anywhere">{say(text)}</span>'


def notice_word(notice: Notice) -> str:
    return _WORDS[notice.state]
