"""The live panel: ipywidgets while the run goes on, static HTML and text afterwards.

It uses core widgets of ipywidgets 7.7 and 8. Each section and each compile is an HTML widget of its own, updated only
where its HTML has changed: an unfolded row stays open, and nothing moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.panel.model import SharedView
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.panel.sections import compile_rows, sections
from tpu_magics.panel.widget_parts import Budget, Widgets
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

    # -- what launch calls (see launch/run_observer.py) -----------------------------------------------------------
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
