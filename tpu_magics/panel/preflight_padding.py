"""The padding of TPU tiles by dimension, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpu_magics.panel.preflight_topic import Topic, by_target
from tpu_magics.panel.sections_words import percent, short, size
from tpu_magics.panel.table import Table
from tpu_magics.preflight.facts import PaddedDimension
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.roofline import is_made

DIMENSIONS = 6
TILES = (
    "In memory the innermost dimension is padded to a multiple of 128, and the next one to one of 8 (bf16: 16). The "
    "compiler chooses which dimension is innermost."
)


@dataclass(frozen=True)
class _Lost:
    dimension: str
    wasted: int
    buffers: str = ""
    example: str = ""


def padding(found: Preflight) -> Iterator[Topic]:
    columns, rows = by_target(
        found, ("dimension", "wasted", "of the HBM in use", "buffers", "for example"), _dimensions
    )
    if not rows:
        return
    lead = next(one for one in found.results if _lost(one))
    worst, all_ = _lost(lead)[0], sum(one.wasted for one in _lost(lead))
    whose = f" ({lead.name})" if len(found.results) > 1 else ""
    text = f"{size(all_)}, most of it {worst.dimension}: {percent(_part(worst.wasted, lead))} of the HBM in use{whose}"
    yield Topic("Padding of tiles", text, Table("", columns, rows, (TILES,)))


def _lost(result: TargetResult) -> list[_Lost]:
    """What the padding adds up to: the dimensions that waste most, and the rest in one."""
    found = result.steady.padding
    if found is None or not is_made(result.steady) or found.padded <= found.plain:
        return []
    most = sorted(found.dimensions, key=lambda one: -one.wasted)[:DIMENSIONS]
    told = [_Lost(_dimension(one), one.wasted, f"{one.buffers:,}", short(one.example, 60)) for one in most]
    rest = found.padded - found.plain - sum(one.wasted for one in most)
    return [*told, *((_Lost("others", rest),) if rest > 0 else ())]


def _dimensions(result: TargetResult) -> Iterator[tuple[str, ...]]:
    for one in _lost(result):
        yield one.dimension, size(one.wasted), percent(_part(one.wasted, result)), one.buffers, one.example


def _dimension(one: PaddedDimension) -> str:
    """ "hidden 100 -> 128"."""
    name = f"{short(one.name, 40)} " if one.name else ""
    return f"{name}{one.size:,} → {one.padded:,}"


def _part(wasted: int, result: TargetResult) -> float:
    """Of the HBM that is in use at the program's fullest point."""
    found = result.steady.padding
    return wasted / found.padded if found and found.padded else 0.0
