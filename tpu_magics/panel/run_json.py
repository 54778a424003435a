"""A run's page as JSON: for the comm, and for the mime bundle of a saved notebook."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tpu_magics.panel.by_identity import by_identity
from tpu_magics.panel.html import to_html
from tpu_magics.panel.json_values import plain, shortened, size_of
from tpu_magics.panel.page import Item, Page
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_view import RunView
from tpu_magics.panel.text import to_text


@dataclass(frozen=True)
class RecordSize:
    """How large a record may be. `total`: bytes; `compiles`: how many of them, `points`: of a curve, at most."""

    total: int
    compiles: int
    points: int


# A server cuts a kernel off that sends more than 1 MB a second (jupyter_server's iopub_data_rate_limit).
COMM = RecordSize(total=1_000_000, compiles=200, points=200)
SAVED = RecordSize(total=100_000, compiles=50, points=100)


def record(view: RunView, size: RecordSize = COMM) -> dict[str, Any]:
    """The page of a run as JSON, with as many of its newest compiles as fit."""
    return sized_page(view, size)[1]


def sized_page(view: RunView, size: RecordSize) -> tuple[Page, dict[str, Any]]:
    """A page, and the same as JSON; of a page that is too large without any compiles, the longest texts and lists are
    halved."""
    made = page(view, size.compiles, size.points)
    found, rest, items = _measured(made)
    room = size.total - rest
    if sum(items) > room:
        fit = next(at for at in range(len(items)) if sum(items[: at + 1]) > room)
        made = page(view, fit, size.points)
        found = _measured(made)[0]
    return made, shortened(found, size.total) if rest > size.total else found


def _measured(made: Page) -> tuple[dict[str, Any], int, list[int]]:
    """A page as JSON, the bytes of all but its items, and of each item. Items are many and stay as they are."""
    bare = tuple(dataclasses.replace(section, items=()) for section in made.sections)
    found = plain(dataclasses.replace(made, sections=bare))
    rest = size_of(found)
    for section, shown in zip(made.sections, found["sections"], strict=True):
        shown["items"] = [_item(item)[0] for item in section.items]
    return found, rest, [_item(item)[1] for section in made.sections for item in section.items]


@by_identity
def _item(one: Item) -> tuple[Any, int]:
    made = plain(one)
    return made, size_of(made) + 1


def to_bundle(view: RunView) -> dict[str, Any]:
    """The run as a mime bundle: text, html and record are of the same page."""
    made, found = sized_page(view, SAVED)
    return {"text/plain": to_text(made), "text/html": to_html(made), MIME_TYPE: found}
