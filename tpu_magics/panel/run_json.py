"""A run as JSON for the comm, and as the mime bundle of a saved notebook.

Texts are worded in Python only. What exceeds the size limit is cut from the end of its list: the oldest compiles, the
last findings.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.panel.json_values import fitting, names, plain, shortened, size_of, text_of
from tpu_magics.panel.messages import FailureText, NoticeText, RankTable, RehearsalNote, RunRecord
from tpu_magics.panel.model_series import merge_points
from tpu_magics.panel.model_view import CompileEntry, Point, RunView, ValueSeries
from tpu_magics.panel.page import footer_text, to_html, to_text
from tpu_magics.panel.protocol import MIME_TYPE, RECORD_VERSION
from tpu_magics.panel.sections_compiles import compiles_summary
from tpu_magics.panel.sections_header import (
    cause_name,
    facts,
    failure_facts,
    failure_lines,
    figures,
    state_text,
    title_notes,
)
from tpu_magics.panel.sections_parts import (
    notice_text,
    notice_word,
    rank_cells,
    rank_columns,
    rank_notes,
    shown_notices,
    shown_ranks,
)
from tpu_magics.panel.sections_rehearsal import likeness, likeness_facts, straggler_note

TONES = {"done": "ok", "failed": "broken", "timeout": "broken", "refused": "broken", "lost": "warning"}
LOG = "compile_log"
POINT = 70  # bytes of a point of a curve, about


@dataclass(frozen=True)
class SizeBudget:
    """How much of a run is sent. Bytes: `total` of a record, of which `log` may be compiles, `part` of any other
    list, `curves` of all curves together, `one` of one compile; `compiles`: how many of them."""

    total: int
    log: int
    part: int
    curves: int
    one: int
    compiles: int = 1_000


# A server cuts a kernel off that sends more than 1 MB a second (jupyter_server's iopub_data_rate_limit).
COMM = SizeBudget(total=1_000_000, log=860_000, part=60_000, curves=60_000, one=20_000)
SAVED = SizeBudget(total=100_000, log=100_000, part=8_000, curves=16_000, one=4_000)


# -- the view --------------------------------------------------------------------------------------------------------

FIELDS = names(RunView)


def field_json(view: RunView, name: str, budget: SizeBudget = COMM) -> Any:
    """One field of the view; compiles apart (see `log_json`)."""
    value = getattr(view, name)
    if name == "values":
        return fitting(_thinned(value, budget.curves), 2 * budget.curves)
    if isinstance(value, tuple):
        return fitting(value, budget.part)
    if isinstance(value, Mapping):
        return dict(_fitting_pairs(value, budget.part))
    return plain(value)


def log_json(log: Sequence[CompileEntry], budget: SizeBudget, most: int) -> list[Any]:
    """As many of the first compiles as fit into `most` bytes."""
    return fitting((shortened(plain(entry), budget.one) for entry in log[: budget.compiles]), most)


def _fitting_pairs(value: Mapping[str, Any], budget: int) -> Iterable[tuple[str, Any]]:
    for key, one in value.items():
        made = plain(one)
        budget -= size_of(made) + len(str(key)) + 4
        if budget >= 0:
            yield text_of(str(key)), made


def _thinned(values: Sequence[ValueSeries], budget: int) -> Iterable[ValueSeries]:
    """Each curve with as many points as all may have, with the range of those that were merged."""
    curves = sum(bool(series.points) for series in values)
    most = max(8, budget // POINT // max(curves, 1))
    return (dataclasses.replace(series, points=_points(series.points, most)) for series in values)


def _points(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    each = -(-len(points) // most)
    return tuple(_short(_merged(points[at : at + each])) for at in range(0, len(points), max(each, 1)))


def _merged(points: Sequence[Point]) -> Point:
    merged = points[0]
    for point in points[1:]:
        merged = merge_points(merged, point)
    return merged


def _short(point: Point) -> Point:
    """Six digits, which is more than a drawing shows."""
    return Point(point.step, *(float(f"{value:.6g}") for value in (point.value, point.low, point.high)))


# -- the texts ------------------------------------------------------------------------------------------------------


def texts_json(view: RunView, budget: SizeBudget = COMM) -> dict[str, Any]:
    """The texts of the run."""
    return {name: make(view, budget) for name, make in _SAID.items()}


def _ranks(view: RunView, budget: SizeBudget) -> Any:
    slow = straggler_note(view)
    notes = (*([f"! {slow}"] if slow else ()), *rank_notes(view))
    columns = rank_columns(view) if view.ranks else ()
    table = plain(RankTable(tuple(columns), (), notes))
    table["rows"] = fitting((rank_cells(view, rank) for rank in shown_ranks(view)), budget.part)
    return table


def _notices(view: RunView, budget: SizeBudget) -> Any:
    told = (NoticeText(notice_word(each), notice_text(each, view), each.state) for each in shown_notices(view))
    return fitting(told, budget.part)


def _failure(view: RunView, budget: SizeBudget) -> Any:
    if view.failure is None:
        return None
    found = fitting(failure_facts(view.failure, view.state), budget.part)
    return plain(FailureText(found, fitting(failure_lines(view.failure), budget.part)))


def _likeness(view: RunView, _budget: SizeBudget) -> Any:
    found = likeness(view)
    return None if found is None else plain(RehearsalNote(found.short, tuple(likeness_facts(view))))


_SAID: dict[str, Callable[[RunView, SizeBudget], Any]] = {
    "state": lambda view, _budget: plain(state_text(view)),
    "tone": lambda view, _budget: TONES.get(view.state, ""),
    "notes": lambda view, _budget: plain(title_notes(view)),
    "figures": lambda view, _budget: plain(figures(view)),
    "facts": lambda view, budget: fitting(facts(view), 2 * budget.part),
    "compiles": lambda view, _budget: plain(compiles_summary(view)),
    "causes": lambda view, _budget: {plain(each.newest.cause): cause_name(each.newest) for each in view.causes[:100]},
    "ranks": _ranks,
    "notices": _notices,
    "failure": _failure,
    "likeness": _likeness,
    "footer": lambda view, _budget: plain(footer_text(view)),
}


# -- the whole -------------------------------------------------------------------------------------------------------

_REST, _WORDS = 0.5, 0.25  # parts of a record's budget that all but compiles, and the words, may take


def record(view: RunView, budget: SizeBudget = COMM) -> dict[str, Any]:
    """A whole run. Compiles take what the rest has left."""
    rest = {name: field_json(view, name, budget) for name in FIELDS if name != LOG}
    return joined(rest, texts_json(view, budget), view.compile_log, budget)


def joined(
    rest: Mapping[str, Any], said: Mapping[str, Any], log: Sequence[CompileEntry], budget: SizeBudget
) -> dict[str, Any]:
    """A record of its parts, none of them larger than its budget."""
    rest, said = shortened(rest, int(budget.total * _REST)), shortened(said, int(budget.total * _WORDS))
    left = min(budget.log, budget.total - size_of(rest) - size_of(said) - 200)
    fields = {**rest, LOG: log_json(log, budget, left)}
    return vars(RunRecord(RECORD_VERSION, {name: fields[name] for name in FIELDS}, said)).copy()


def to_bundle(view: RunView) -> dict[str, Any]:
    """The run as a mime bundle."""
    bundle: dict[str, Any] = {"text/plain": to_text(view), "text/html": to_html(view)}
    with contextlib.suppress(Exception):  # whatever a record holds, the html is shown
        bundle[MIME_TYPE] = record(view, SAVED)
    return bundle
