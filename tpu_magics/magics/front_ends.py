"""The observers of one run in a notebook: the panel and the JupyterLab extension.

They share one reading of the run, and a fault of one does not stop the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.launch.run_observer import FREE, WAITS, NullObserver, RunObserver, SafeObserver, describe_error
from tpu_magics.magics import lab, lab_run
from tpu_magics.magics.mailbox import Mailbox, open_mailbox
from tpu_magics.panel.model import SHARED, SharedView
from tpu_magics.panel.protocol import TARGET
from tpu_magics.panel.widget import LivePanel, Publish
from tpu_magics.runs.files import RunFiles

NO_STOP = "This kernel handles clicks only between cells. To stop the run, interrupt the kernel (the square, or I, I)"

Stop = Callable[[], None]
Say = Callable[[str], None]


class FrontEnds:
    """`panel`: None where there is none; `mailbox`: where the main thread waits for the run and reads messages."""

    def __init__(self, panel: LivePanel | None, run: lab_run.LabRun, mailbox: Mailbox | None, say: Say) -> None:
        self.panel = panel
        self._guarded: RunObserver = NullObserver() if panel is None else SafeObserver(panel, say)
        self._run, self._mailbox, self._say = run, mailbox, say

    def look(self) -> None:
        self._look_into_mailbox()
        if self.panel is not None:
            self.panel.left_to_others = lab_run.SHARE if lab.current is not None and lab.current.heard else 0.0
        self._guarded.look()
        self._run.look()

    def settle(self) -> None:
        self._guarded.settle()
        self._run.settle()

    def close(self, why: str) -> None:
        self._guarded.close(why)
        self._run.close(why)

    def _look_into_mailbox(self) -> None:
        """On a fault, clicks wait until the cell ends; the displays continue."""
        if self._mailbox is None:
            return
        try:
            self._mailbox.look(self._answer, self._adopt)
        except Exception as error:
            self._mailbox = None
            self._run.deafen(lab.current is not None and lab.current.answers)
            self._say(f"Clicks wait until the cell ends; the run continues: {describe_error(error)}")

    def _answer(self, comm_id: str, data: Mapping[str, Any]) -> bool:
        if self.panel is not None and self.panel.answer(comm_id, data):
            return True
        return lab.current is not None and lab.current.take(comm_id, data)

    def _adopt(self, comm_id: str, target: str, data: Any) -> bool:
        """A front end opens a comm, e.g. after a reload."""
        if lab.current is None or target != TARGET:
            return False
        lab.current.adopt(comm_id, data)
        return True


def with_panel(kernel: Any, files: RunFiles, stop: Stop, main: str, say: Say, publish: Publish) -> FrontEnds:
    """A live panel, and the extension. `main`: what the main thread does meanwhile."""
    mailbox = _mailbox(kernel, main)
    reading = SharedView(files, SHARED)
    panel = LivePanel(files, stop, publish, None, "" if main == FREE or mailbox else NO_STOP, reading)
    return FrontEnds(panel, _followed(kernel, files, stop, mailbox, reading), mailbox, say)


def without_panel(kernel: Any, files: RunFiles, stop: Stop, main: str, say: Say) -> FrontEnds:
    """The extension alone."""
    mailbox = _mailbox(kernel, main)
    return FrontEnds(None, _followed(kernel, files, stop, mailbox, SharedView(files)), mailbox, say)


def _followed(kernel: Any, files: RunFiles, stop: Stop, mailbox: Mailbox | None, reading: SharedView) -> lab_run.LabRun:
    """Without subshells, a main thread that trains or runs other cells answers no request until it is done."""
    hears = mailbox is not None
    return lab_run.follow(files, stop, reading, hears or lab.has_subshells(kernel), hears)


def _mailbox(kernel: Any, main: str) -> Mailbox | None:
    """A main thread that waits for the run looks for messages itself."""
    return open_mailbox(kernel) if main == WAITS else None
