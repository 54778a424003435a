"""The live panel where no extension shows the run (Colab, Kaggle): ipywidgets while it goes on, static HTML afterwards.

It uses core widgets of ipywidgets 7.7 and 8. All numbers that are seen at one moment are of one page: an update sends
it whole, or the texts that changed (live_texts.py), or waits. Drawings may be some seconds old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tpu_magics.panel import html
from tpu_magics.panel.charts import ChartSize
from tpu_magics.panel.feed import A_MINUTE, BURST, TokenBucket
from tpu_magics.panel.live_texts import CLASS, RULE, LiveTexts
from tpu_magics.panel.page import (
    Chart,
    Fact,
    FailureText,
    Figure,
    Item,
    Page,
    Problem,
    Progress,
    Section,
    SectionRow,
    Tone,
)
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import SAVED, record, to_bundle
from tpu_magics.panel.run_state import SharedView
from tpu_magics.panel.style_sheet import StyleSheet
from tpu_magics.runs.events import Site
from tpu_magics.runs.files import RunFiles

UPDATE_EVERY = 0.5  # seconds between updates, at least
ELSEWHERE_EVERY = 5.0  # the same while the extension shows the run
FOLDED_EVERY = 20.0  # seconds that the inside of a section may wait while bytes are short
SHARE = 0.05  # of a core that updates may take
COMPILES, POINTS = 8, 40  # of a live page: each update sends all of them
UPDATES = 145_000  # bytes of updates in the first minute; with those that open the widgets it is A_MINUTE
ENVELOPE = 700  # bytes of a message around its html, about
LARGE, SMALL = ChartSize(170, POINTS, 4, 5), ChartSize(80, POINTS, 2, 3)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
STOP, STOPPING = "Stop", "Stopping …"
WHAT_STOP_DOES = "Stop this run; the notebook's models stay as they are"

Publish = Callable[[Mapping[str, Any], bool], None]
"""Shows a mime bundle; True: instead of the one that was shown before, wherever that is."""


class LivePanel:
    """One run, live. It is made in the main thread, and driven by the thread that watches the run.

    Args:
        files: the run.
        stop: stops the run; returns at once.
        publish: shows a mime bundle.
        no_stop: why the button cannot work, or "".
        reading: of the run, which others may share.
    """

    def __init__(
        self,
        files: RunFiles,
        stop: Callable[[], None],
        publish: Publish,
        no_stop: str = "",
        reading: SharedView | None = None,
    ) -> None:
        self.files = files
        self.elsewhere = False  # whether the extension shows the run
        self._stop, self._publish = stop, publish
        self._reading = reading or SharedView(files)
        self._lock = threading.RLock()
        self._next = 0.0
        self._static: Mapping[str, Any] | None = None
        self._widgets = Widgets(self._page(), no_stop, self.stop)
        self.show()

    # -- what launch calls (see launch/notebook.py) -----------------------------------------------------------
    def look(self) -> None:
        """Update what has changed, if it is time."""
        began, spent = time.monotonic(), time.thread_time()
        if began < self._next:
            return
        with self._lock:
            if self._static is None:
                self._widgets.update(self._page())
        every = ELSEWHERE_EVERY if self.elsewhere else UPDATE_EVERY
        self._next = began + max(every, (time.thread_time() - spent) / SHARE)

    def settle(self) -> None:
        """Replace the widgets by the static page, and close them."""
        with self._lock:
            self._end(to_bundle(self._reading.anew()))

    def close(self, why: str) -> None:
        """Stop updating: one line replaces the widgets."""
        with self._lock:
            self._end({"text/plain": f"This panel has stopped: {why}\n%tpu_panel {self.files.id} shows the run."})

    @property
    def settled(self) -> bool:
        """Whether the static page has replaced the widgets."""
        return self._static is not None

    # -- what the notebook calls ------------------------------------------------------------------------------------
    def show(self) -> None:
        """Show it in the cell that is running; a second time, it is in both places."""
        with self._lock:
            self._publish(self._static or self._live(), False)

    def answer(self, comm_id: str, data: Mapping[str, Any]) -> bool:
        """A message of the front end to one of the kernel's widgets. False: not one of ours."""
        content = data.get("content")
        clicked = data.get("method") == "custom" and isinstance(content, dict) and content.get("event") == "click"
        if not clicked or comm_id != self._widgets.stop_id:
            return False
        self._widgets.click()
        return True

    def stop(self, _button: Any = None) -> None:
        """Stop the run, and show at once that this was requested; in any thread."""
        self._stop()
        with self._lock:
            self._widgets.show_stopping()

    # -- the rest ---------------------------------------------------------------------------------------------------
    def _page(self) -> Page:
        return page(self._reading.view(), COMPILES, POINTS)

    def _live(self) -> dict[str, Any]:
        """The extension shows the record, and ranks before widgets; others show the widgets."""
        view = self._reading.view()
        shown = {"version_major": 2, "version_minor": 0, "model_id": self._widgets.root_id}
        text = f"{view.name}: a live panel; %tpu_panel shows the run as it is now."
        return {WIDGET_VIEW: shown, MIME_TYPE: record(view, SAVED), "text/plain": text}

    def _end(self, bundle: Mapping[str, Any]) -> None:
        try:
            if bundle != self._static:
                self._static = bundle
                self._publish(bundle, True)
        finally:
            self._widgets.close()


# -- the widgets ----------------------------------------------------------------------------------------------------

HEAD = "head"  # the part that is always there, and first
BEHIND = 1_500  # the orders of the first parts, which are always there, are 1,000 apart
_STOP, _HEAD, _TOGGLE = "tpu-magics-stop", "tpu-magics-head", "tpu-magics-toggle"
_ROOT = f".{CLASS}.{CLASS}.{CLASS}"  # three times: it weighs more than a front end's own rules
_TEXT = "line-height:1.5;font-size:inherit"  # front ends have lines of a button's height, and smaller letters
# All that widgets hold stands in one box, in its own order. What folds is seen while the `<details>` in the widget
# before it is open; that widget never changes, and so it stays open.
_BASE = (
    f"{_ROOT}{{flex-flow:row wrap;position:relative;max-width:64em;overflow-wrap:break-word;line-height:1.5;"
    f"font-size:var(--jp-content-font-size1,14px)}}{RULE}"
    f"{_ROOT}>.widget-html,{_ROOT}>.widget-html>.widget-html-content{{display:contents;{_TEXT}}}"
    f"{_ROOT}>.widget-html:first-child{{display:none}}"  # the one that holds this
    f"{_ROOT}>.{_STOP}{{position:absolute;right:0;top:2px}}"
    f"{_ROOT}>*>*>div{{flex:0 0 100%;min-width:0}}{_ROOT} .{_HEAD}>:first-child{{padding-right:7em}}"
    f"{_ROOT}>*>*>.{_TOGGLE}{{border-top:{html.RULE};padding-right:.35em}}"
    f"{_ROOT}>*>*>span{{border-top:{html.RULE};flex:1 1 0;min-width:8em;padding:.45em 0}}"
    f"@supports selector(:has(*)){{{_ROOT}>:has(>*>.{_TOGGLE}:not([open]))+*>*>div"
    "{height:0;overflow:hidden;visibility:hidden}}"  # it still ends the row
)


class Piece(NamedTuple):
    """A part of the page. `toggle`: unfolds it, "" for one that is never folded; `line`: what is seen of it at any
    time; `rest`: what is seen where it is unfolded, of one that is never folded what stands behind the next part."""

    toggle: str
    line: str
    rest: str = ""


def pieces(shown: Page) -> dict[str, Piece]:
    """The parts of a page by name, in their order."""
    chart, others = html.first_chart(shown, LARGE), shown.charts[1:]
    top = f'<div class="{_HEAD}">{html.title(shown)}{html.progress(shown.progress)}</div>'
    # One widget has all that changes with each step; a failure, which stands between its halves, is sent once.
    found = {HEAD: Piece("", top, chart + html.figures(shown.figures))}
    found["failure"] = Piece("", html.failure(shown.failure))
    found["problems"] = Piece("", html.problems(shown.problems))
    if others:
        inside = html.multiples(others, shown.compiled_at, SMALL)
        found["charts"] = _folded(html.chart_names(others), html.captions(others), inside)
    for one in shown.sections:
        found[f"section {one.key}"] = _folded(html.heading(one), html.small(one.summary), html.content(one, SMALL))
    return {**found, "footer": Piece("", html.footer(shown))}


def _folded(name: str, line: str, inside: str) -> Piece:
    return Piece(f'<summary style="{html.SUMMARY}">{name}</summary>', line, inside)


class Part:
    """A piece in its widgets. `order`: its place among the others; `at`: when its content was sent."""

    def __init__(self, piece: Piece, order: int) -> None:
        self.piece, self.order = piece, order
        self.toggle: Any = None
        self.content: Any = None
        self.at = time.monotonic()


class Widgets:
    """The tree: a box of the style sheet, the stop button, and a widget for each part, or two for one that folds. The
    lines of those that fold are in the head's widget: one message has all that changes with each step."""

    def __init__(self, shown: Page, no_stop: str, clicked: Callable[[Any], None]) -> None:
        from ipywidgets import HTML, Layout, VBox

        self._sheet = StyleSheet(_BASE, html.to_html(shown) + _styled())
        self._bucket = TokenBucket(UPDATES)
        self._texts = LiveTexts()
        self._style = HTML(self._sheet.html, layout=Layout(width="auto", margin="0"))
        self._values = HTML("", style=self._style.style, layout=self._style.layout)  # the texts that changed
        self._stop = _stop_button(no_stop, clicked)
        self._root = VBox([self._style, self._stop, self._values], layout=Layout(width="100%", overflow="hidden"))
        self._root.add_class(CLASS)
        self.root_id, self.stop_id = str(self._root.model_id), str(self._stop.model_id)
        self._all = [self._root, self._root.layout, self._stop, self._stop.layout, self._stop.style]
        self._all += [self._style, self._style.style, self._style.layout, self._values]
        self._parts: dict[str, Part] = {}
        self._add(pieces(shown))
        self._bucket = TokenBucket(UPDATES)  # what was sent so far is no update
        self._first_minute = time.monotonic() + 60

    def update(self, shown: Page) -> None:
        """Send what has changed; nothing, where too much was sent lately."""
        if time.monotonic() >= self._first_minute:
            self._bucket.allow(A_MINUTE)
        new = pieces(shown)
        now = {**new, **dict.fromkeys(self._parts.keys() - new.keys(), Piece("", ""))}
        changed = [name for name, part in self._parts.items() if now[name] != part.piece]
        added = new.keys() - self._parts.keys()
        if not self._bucket.open or not (changed or added):
            return
        folded = [name for name in changed if now[name].toggle and now[name].toggle == self._parts[name].piece.toggle]
        waits = not added and {*changed} <= {HEAD, *folded}
        if waits and self._bucket.left <= BURST / 2 and self._send_texts(new):
            return
        self._add(new)
        self._send(self._parts[HEAD].content, self._head(new), self._texts.whole)
        self._parts[HEAD].piece = new[HEAD]
        for name in changed:
            if name not in (HEAD, *folded):
                self._change(self._parts[name], now[name])
        self._change_folded({name: now[name] for name in folded})

    def _send_texts(self, new: Mapping[str, Piece]) -> bool:
        """Send the head's texts alone. False: it has to be sent whole."""
        values = self._texts.changes(self._lean(self._head(new)))
        if values is not None:
            self._send(self._values, values)
        return values is not None

    def _change_folded(self, changed: Mapping[str, Piece]) -> None:
        """What is inside may wait; where bytes are short, one is sent at a time."""
        short = False
        for name, piece in sorted(changed.items(), key=lambda one: self._parts[one[0]].at):
            part = self._parts[name]
            if self._bucket.left > BURST / 2 or not (short or time.monotonic() - part.at < FOLDED_EVERY):
                self._change(part, piece)
                short = self._bucket.left <= BURST / 2
            part.piece = piece._replace(rest=part.piece.rest)

    def _change(self, part: Part, piece: Piece) -> None:
        if piece.toggle != part.piece.toggle:
            self._send(part.toggle, _toggle(piece, part.order))
        self._send(part.content, _content(piece, part.order))
        part.piece, part.at = piece, time.monotonic()

    def _send(self, widget: Any, text: str, put: Callable[[str], str] = str) -> None:
        lean = put(self._lean(text))
        if widget.value != lean:
            self._bucket.take(len(lean.encode("utf-8", "replace")) + ENVELOPE)
            widget.value = lean

    def _head(self, new: Mapping[str, Piece]) -> str:
        """The head, and the line of each part that folds, in its place."""
        lines = ((self._parts[name].order, piece.line) for name, piece in new.items() if piece.toggle)
        spans = (f'<span style="order:{order + 1}">{line}</span>' for order, line in lines)
        return _content(new[HEAD], self._parts[HEAD].order) + "".join(spans)

    def _lean(self, text: str) -> str:
        """The html as it is sent; the styles that it uses are sent before it."""
        lean = self._sheet.lean(text)
        if self._style.value != self._sheet.html:
            self._style.value = self._sheet.html
            self._bucket.take(len(self._sheet.html) + ENVELOPE)
        return lean

    def _add(self, new: Mapping[str, Piece]) -> None:
        """Widgets for parts that were not there before. They are the last children, because a front end draws all that
        are behind a new one anew; their `order` puts them in their place."""
        before, names = 0, list(new)
        for at, (name, piece) in enumerate(new.items()):
            if name not in self._parts:
                later = (self._parts[each].order for each in names[at:] if each in self._parts)
                self._parts[name] = Part(piece, (before + next(later, before + 2_000)) // 2)
            before = self._parts[name].order
        made = [
            one for name, part in self._parts.items() if part.content is None for one in self._made(name, part, new)
        ]
        if made:
            self._root.children = (*self._root.children, *made)

    def _made(self, name: str, part: Part, new: Mapping[str, Piece]) -> list[Any]:
        text = self._head(new) if name == HEAD else _content(part.piece, part.order)
        part.content = self._html(text, self._texts.whole if name == HEAD else str)
        part.toggle = self._html(_toggle(part.piece, part.order)) if part.piece.toggle else None
        made = [each for each in (part.toggle, part.content) if each is not None]
        self._all += made
        return made

    def _html(self, text: str, put: Callable[[str], str] = str) -> Any:
        from ipywidgets import HTML

        lean = put(self._lean(text))
        self._bucket.take(len(lean.encode("utf-8", "replace")) + ENVELOPE)
        return HTML(lean, style=self._style.style, layout=self._style.layout)

    def show_stopping(self) -> None:
        """The run is being stopped."""
        if not self._stop.disabled:
            self._stop.description = STOPPING
            self._stop.disabled = True

    def click(self) -> None:
        if not self._stop.disabled:
            self._stop.click()

    def close(self) -> None:
        """Take every widget out of the kernel and the front end (idempotent)."""
        for widget in self._all:
            widget.close()
        self._all = []


def _styled() -> str:
    """Html with nearly all styles that a page may come to have: they are sent once, at the beginning."""
    points = tuple((step, step + 1.0, step + 0.5, step + 2.0) for step in range(3))
    charts = [Chart("", "a", "b", points, axis, marked=True, warning="c") for axis in ("number", "bytes")]
    tones: tuple[Tone, ...] = ("", "live", "ok", "info", "warning", "broken")
    facts = tuple(Fact("a", ("b `c`",), tone, "d", "e") for tone in ("ok", "warning", "broken"))
    items = tuple(Item("a", ("b", "c"), facts, tone) for tone in tones)
    rows = tuple(SectionRow(("a", "b " * 20), tone) for tone in tones)
    section = Section("a", "b", "c", facts, tuple(charts), ("d", "e"), rows, items, notes=("f",))
    site = Site(0, "a", 1, code="b")
    parts = [html.pill("a", tone) + html.figures([Figure("a", "b", "c", "", tone)]) for tone in tones]
    parts += [html.problem(Problem("a", "message", tone, "b", "c", "d", "e", site=site)) for tone in tones]
    failure = html.failure(FailureText("broken", "a", "b", "c", ("d",)))
    return "".join([*parts, failure, html.progress(Progress(1, 2, "a")), html.content(section, SMALL)]) + html.figure(
        charts[0], (1,), LARGE
    )


def _toggle(piece: Piece, order: int) -> str:
    return f'<details class="{_TOGGLE}" style="order:{order}">{piece.toggle}</details>' if piece.toggle else ""


def _content(piece: Piece, order: int) -> str:
    if piece.toggle:
        return f'<div style="order:{order + 2}">{piece.rest}</div>'
    behind = f'<div style="order:{order + BEHIND}">{piece.rest}</div>' if piece.rest else ""
    return f'<div style="order:{order}">{piece.line}</div>{behind}' if piece.line else ""


def _stop_button(no_stop: str, clicked: Callable[[Any], None]) -> Any:
    from ipywidgets import Button, Layout

    button = Button(
        description=STOP,
        icon="stop",
        tooltip=no_stop or WHAT_STOP_DOES,
        disabled=bool(no_stop),
        layout=Layout(width="auto"),
    )
    button.add_class(_STOP)
    button.on_click(clicked)
    return button
