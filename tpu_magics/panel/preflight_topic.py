"""A topic of a preflight: a summary in one line, and the table folded below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.report import Preflight, TargetResult


@dataclass(frozen=True)
class Topic:
    """`summary`: the answer in a line, shown while the table is folded away."""

    title: str
    summary: str
    table: Table


def by_target(
    found: Preflight, columns: Sequence[str], rows: Callable[[TargetResult], Iterable[Sequence[str]]]
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Columns and rows of all targets; their names lead where there are several."""
    several = len(found.results) > 1
    made = tuple(Row((*((one.name,) if several else ()), *cells)) for one in found.results for cells in rows(one))
    return (*(("target",) if several else ()), *columns), made


def across(found: Preflight, rows: Iterable[tuple[str, Callable[[TargetResult], str]]]) -> tuple[Row, ...]:
    """A line for each label, with a column for each target."""
    return tuple(Row((label, *(tell(one) for one in found.results))) for label, tell in rows)


def heads(found: Preflight) -> tuple[str, ...]:
    return ("", *(one.name for one in found.results))
