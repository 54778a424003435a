"""The live panel: ipywidgets while the run goes on, static HTML and text afterwards.

It uses core widgets of ipywidgets 7.7 and 8. Each section and each compile is an HTML widget of its own, updated only
where its HTML has changed: an unfolded row stays open, and nothing moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tpu_magics.panel.model import SharedView
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.panel.sections import compile_rows, sections
from tpu_magics.panel.widget_html import CLASS, Sheet, fixed_pieces
from tpu_magics.panel.widget_rows import RowBox, Rows
from tpu_magics.runs.files import RunFiles

UPDATE_EVERY = 0.5  # seconds between updates, at least
SHARE = 0.05  # of the watching thread's time that updates may take

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

Publish = Callable[[Mapping[str, Any], bool], None]
"""Shows a mime bundle; True: instead of the one that was shown before, wherever that is."""
Answer = Callable[[str, Mapping[str, Any]], bool]
"""Given a comm's id and what a message to it holds: whether the message was for the panel."""


class LivePanel:
    """One run, live. It is made in the main thread, and driven by the thread that watches the run.

    Args:
        files: the run.
        stop: stops the run; returns at once.
        publish: shows a mime bundle.
        serve: called at each look with `answer`, to bring clicks here while the kernel is busy.
        no_stop: why the button cannot work, or "".
        reading: of the run, which others may share.
    """

    def __init__(
        self,
        files: RunFiles,
        stop: Callable[[], None],
        publish: Publish,
        serve: Callable[[Answer], None] | None = None,
        no_stop: str = "",
        reading: SharedView | None = None,
    ) -> None:
        self.files = files
        self.asked = False
        self.left_to_others = 0.0  # of SHARE
        self._stop, self._publish, self._serve = stop, publish, serve
        self._reading = reading or SharedView(files)
        self._lock = threading.RLock()
        self._budget = Budget()
        self._next = 0.0
        self._static: Mapping[str, Any] | None = None
        view = self._reading.view()
        self._name = view.name
        self._widgets = Widgets(sections(view), no_stop, self._clicked)
        self.show()

    # -- what launch calls (see launch/notebook.py) -----------------------------------------------------------
    def look(self) -> None:
        """Answer clicks; update what has changed, if it is time."""
        if self._serve is not None:
            self._serve(self.answer)
        began = time.monotonic()
        if began < self._next:
            return
        with self._lock:
            if self._static is None:
                self._update()
        spent = time.monotonic() - began
        self._next = began + max(UPDATE_EVERY, spent / (SHARE - self.left_to_others))

    def settle(self) -> None:
        """Replace the widgets by HTML and text, and close them."""
        with self._lock:
            self._end(to_bundle(self._reading.anew()))

    def close(self, why: str) -> None:
        """Stop updating: one line replaces the widgets."""
        with self._lock:
            self._end({"text/plain": f"This panel has stopped: {why}\n%tpu_panel {self.files.id} shows the run."})

    @property
    def settled(self) -> bool:
        """Whether the static HTML has replaced the widgets."""
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

    # -- the rest ---------------------------------------------------------------------------------------------------
    def _clicked(self, _button: Any = None) -> None:
        """May be called in any thread: a kernel with subshells runs callbacks in one of its own."""
        self.asked = True
        self._stop()

    def _live(self) -> dict[str, Any]:
        shown = {"version_major": 2, "version_minor": 0, "model_id": self._widgets.root_id}
        return {WIDGET_VIEW: shown, "text/plain": f"{self._name}: a live panel; %tpu_panel shows the run as it is now."}

    def _update(self) -> None:
        if self.asked:
            self._widgets.show_asked()
        view = self._reading.view()
        self._budget.refill()
        self._widgets.update(sections(view), compile_rows(view), self._budget)

    def _end(self, bundle: Mapping[str, Any]) -> None:
        try:
            if bundle != self._static:
                self._static = bundle
                self._publish(bundle, True)
        finally:
            self._widgets.close()


# -- the widgets ----------------------------------------------------------------------------------------------------


RATE = 2_400  # bytes a second that updates may send, on average
BURST = 12_000  # bytes that may be sent at once
ENVELOPE = 700  # bytes of a message around its html, about
LOOKED_AT = 4  # the state and the figures are sent so many times as soon as the rest
HEAD = 2  # pieces of the header: title, figures
FACTS = "facts"  # the section with the cause of the newest recompile
URGENT = 1_000  # times as soon: new compiles, and what is said of them
ROWS = 4_000  # bytes that new compiles take, about
LEAN = 2.5  # html with styles in its tags is so many times as long as what is sent
ROWS_AFTER = "compiles"  # the section below which the rows of compiles stand

STOP, STOPPING = "Stop", "Stopping …"
WHAT_STOP_DOES = "Stop this run; the notebook's models stay as they are"


class Budget:
    """Bytes that may be sent now. It may be overdrawn by one message, and then the next has to wait."""

    def __init__(self) -> None:
        self.left = float(BURST)
        self._at = time.monotonic()

    def refill(self) -> None:
        now = time.monotonic()
        self.left = min(float(BURST), self.left + (now - self._at) * RATE)
        self._at = now

    def take(self, html: str) -> bool:
        """Whether this may be sent now; then it counts as sent."""
        if self.left <= 0:
            return False
        self.left -= len(html.encode("utf-8", "replace")) + ENVELOPE
        return True


class HtmlPart:
    """A piece of html in a widget of its own. `weight`: how much sooner than others it is sent again."""

    def __init__(self, widget: Any, html: str, weight: int = 1) -> None:
        self.widget, self._html = widget, html
        self.weight = self._usual = weight
        self._sent = time.monotonic()

    def waits(self, html: str, now: float) -> float:
        """How long it has waited to be sent, by its weight and its size; 0 where there is nothing new."""
        return 0.0 if html == self._html else self.weight * max(now - self._sent, 0.001) / (ENVELOPE + len(html) / LEAN)

    def send(self, html: str, lean: str) -> None:
        self.widget.value = lean
        self._html, self._sent, self.weight = html, time.monotonic(), self._usual


class Widgets:
    """The tree: header and stop button, then a widget for each section and for each compile."""

    def __init__(self, sections: Mapping[str, str], no_stop: str, clicked: Callable[[Any], None]) -> None:
        from ipywidgets import HTML, HBox, Layout, VBox

        wide = Layout(width="auto", margin="0", min_width="0", flex="0 0 auto")
        divided = _divided(sections)
        self._sheet = Sheet(divided.values())
        self._style = HTML(self._sheet.html, layout=wide)
        shared = {"layout": wide, "style": self._style.style}
        self._parts = {
            name: HtmlPart(HTML(self._sheet.lean(html), **shared), html, _weight(name))
            for name, html in divided.items()
        }
        self._rows = RowBox(wide, self._style.style, self._sheet)
        self._stop = _stop_button(no_stop, clicked)
        title, *others = self._parts
        head = self._parts[title].widget  # its words wrap beside the button
        head.layout = Layout(width="auto", margin="0", min_width="0", flex="0 1 auto")
        top = HBox([head, self._stop], layout=Layout(align_items="flex-start"))
        below = [each for name in others for each in self._with_rows(name)]
        self._root = VBox([self._style, top, *below], layout=Layout(width="100%", overflow="hidden"))
        self._root.add_class(CLASS)
        self.root_id, self.stop_id = str(self._root.model_id), str(self._stop.model_id)
        self._all = [self._root, self._root.layout, top, top.layout, head.layout]
        self._all += [self._stop, self._stop.layout, self._stop.style]
        self._all += [*(part.widget for part in self._parts.values()), self._style, self._style.style, wide]

    def _with_rows(self, name: str) -> list[Any]:
        return [self._parts[name].widget, *([self._rows.box] if name == ROWS_AFTER else [])]

    def update(self, sections: Mapping[str, str], rows: Rows, budget: Budget) -> None:
        """Send what has changed, as far as the budget goes; what has waited longest goes first."""
        now = time.monotonic()
        turns: list[tuple[float, Callable[[], bool]]] = []
        if waited := self._rows.waits(rows, now):
            turns.append((URGENT * waited / ROWS, partial(self._send_rows, rows, budget)))
            for name in (*list(self._parts)[:HEAD], FACTS, ROWS_AFTER):  # texts about rows must not contradict them
                self._parts[name].weight = URGENT
        for name, html in _divided(sections).items():
            part = self._parts[name]
            turns.append((part.waits(html, now), partial(self._send, part, html, budget)))
        for waited, send in sorted(turns, key=lambda turn: -turn[0]):
            if not waited or not send():
                return

    def _send(self, part: HtmlPart, html: str, budget: Budget) -> bool:
        lean = self._sheet.lean(html)
        if not self._may_send(budget, lean):
            return False
        part.send(html, lean)
        return True

    def _send_rows(self, rows: Rows, budget: Budget) -> bool:
        return self._rows.send(rows, partial(self._may_send, budget))

    def _may_send(self, budget: Budget, lean: str) -> bool:
        if not budget.take(lean):
            return False
        self._send_styles(budget)
        return True

    def _send_styles(self, budget: Budget) -> None:
        """Before the html that uses them; whatever the budget says."""
        if self._style.value != self._sheet.html:
            budget.take(self._sheet.html)
            self._style.value = self._sheet.html

    def show_asked(self) -> None:
        """The run is being stopped."""
        if not self._stop.disabled:
            self._stop.description = STOPPING
            self._stop.disabled = True

    def click(self) -> None:
        if not self._stop.disabled:
            self._stop.click()

    def close(self) -> None:
        """Take every widget out of the kernel and the front end (idempotent)."""
        self._rows.close()
        for widget in self._all:
            widget.close()
        self._all = []


def _divided(sections: Mapping[str, str]) -> dict[str, str]:
    """The sections, the first of them in its pieces: they change at different times."""
    header, *others = sections
    head = {f"{header} {number}": html for number, html in enumerate(fixed_pieces(sections[header], HEAD))}
    return {**head, **{name: sections[name] for name in others}}


def _weight(name: str) -> int:
    return LOOKED_AT if name.endswith((" 0", " 1")) else 1


def _stop_button(no_stop: str, clicked: Callable[[Any], None]) -> Any:
    from ipywidgets import Button, Layout

    button = Button(
        description=STOP,
        icon="stop",
        tooltip=no_stop or WHAT_STOP_DOES,
        disabled=bool(no_stop),
        layout=Layout(width="auto", flex="0 0 auto", margin="2px 0 2px 12px"),
    )
    button.on_click(clicked)
    return button
