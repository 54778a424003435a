"""The rows of compiles in the live panel, newest at the top.

A front end redraws every child of a box after the first one that differs. So rows are only added at the end, and the
boxes show their children in reverse. Rows that come together share a widget, and widgets stand in groups: a box sends
the list of all its children whenever one is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_magics.panel.widget_html import Sheet

LIMIT = 50  # rows that are shown, at least where there are so many
GROUP = 8  # widgets in a group
EVERY = 2.0  # seconds between new widgets: each costs about as much as two rows
TOGETHER = 12_000  # characters of html, styles and all, after which further rows get a widget of their own
OPENING = 1_900  # bytes that a new widget needs besides its html and the message around it, about

Rows = Sequence[tuple[str, str]]
"""Compiles, newest first: a key that stays, and html."""


class RowBatch:
    """Some rows in one widget, oldest first."""

    def __init__(self, rows: Rows) -> None:
        self.rows = dict(rows)
        self.widget: Any = None

    def html(self, now: Mapping[str, str]) -> str:
        """As it reads now, newest first."""
        return "".join(now.get(key, html) for key, html in reversed(self.rows.items()))


class RowBox:
    """`box` is the widget that holds them. `layout`, `style` and `sheet` are shared by all rows."""

    def __init__(self, layout: Any, style: Any, sheet: Sheet) -> None:
        from ipywidgets import Layout, VBox

        self._layout, self._style, self._sheet = layout, style, sheet
        self._reverse = Layout(width="auto", flex_flow="column-reverse", overflow="hidden", flex="0 0 auto")
        self.box = VBox(layout=self._reverse)
        self._groups: list[tuple[Any, list[RowBatch]]] = []
        self._batches: dict[str, RowBatch | None] = {}  # None: its group was emptied
        self._sent = time.monotonic() - 2 * EVERY

    def waits(self, rows: Rows, now: float) -> float:
        """How long it was not sent; 0 where there is nothing new to show, or it is too early for that."""
        waited = now - self._sent
        return waited if waited >= EVERY and (self._fresh(rows) or self._changed(rows)) else 0.0

    def send(self, rows: Rows, take: Callable[[str], bool]) -> bool:
        """Show what is new, oldest first, as far as it may be sent. False where something may not."""
        now = dict(rows)
        for batch in self._changed(rows):
            lean = self._sheet.lean(batch.html(now))
            if not take(lean):
                return False
            batch.widget.value = lean
            batch.rows = {key: now.get(key, html) for key, html in batch.rows.items()}
            self._sent = time.monotonic()
        fresh = self._fresh(rows)
        while fresh:
            batch = RowBatch(_first(fresh))
            lean = self._sheet.lean(batch.html(now))
            if not take(lean + " " * OPENING):
                return False
            self._add(batch, lean)
            self._sent = time.monotonic()
            fresh = fresh[len(batch.rows) :]
        return True

    def _fresh(self, rows: Rows) -> Rows:
        """New rows, oldest first."""
        return [(key, html) for key, html in reversed(rows[:LIMIT]) if key not in self._batches]

    def _changed(self, rows: Rows) -> list[RowBatch]:
        """Batches with a row that reads differently now."""
        shown = ((self._batches.get(key), key, html) for key, html in rows[:LIMIT])
        found = {id(batch): batch for batch, key, html in shown if batch is not None and batch.rows[key] != html}
        return list(found.values())

    def _add(self, batch: RowBatch, lean: str) -> None:
        from ipywidgets import HTML, VBox

        if not self._groups or len(self._groups[-1][1]) >= GROUP:
            self._groups.append((VBox(layout=self._reverse), []))
            self.box.children = tuple(group for group, _ in self._groups)
        batch.widget = HTML(lean, layout=self._layout, style=self._style)
        group, batches = self._groups[-1]
        batches.append(batch)
        group.children = tuple(each.widget for each in batches)
        self._batches.update(dict.fromkeys(batch.rows, batch))
        self._empty_old()

    def _empty_old(self) -> None:
        shown = 0
        for group, batches in reversed(self._groups):
            if shown >= LIMIT and batches:
                group.children = ()
                self._forget(batches)
            shown += sum(len(batch.rows) for batch in batches)

    def _forget(self, batches: list[RowBatch]) -> None:
        for batch in batches:
            batch.widget.close()
            self._batches.update(dict.fromkeys(batch.rows))
        batches.clear()

    def close(self) -> None:
        """Close them all (idempotent)."""
        for group, batches in self._groups:
            self._forget(batches)
            group.close()
        self._groups = []
        self.box.close()
        self._reverse.close()


def _first(rows: Rows) -> Rows:
    """As many of the first rows as go together."""
    size = 0
    for number, (_key, html) in enumerate(rows):
        size += len(html)
        if size > TOGETHER and number:
            return rows[:number]
    return rows
