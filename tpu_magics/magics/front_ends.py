"""The observers of one run in a notebook, the panel and the JupyterLab extension, and their clicks while a cell runs.
They share one reading of the run, and a fault of one does not stop the other."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.launch.notebook import FREE, WAITS, NullObserver, RunObserver, SafeObserver, describe_error
from tpu_magics.magics import lab
from tpu_magics.panel.feed import A_MINUTE, Feed, TokenBucket
from tpu_magics.panel.json_values import size_of
from tpu_magics.panel.live import LivePanel, Publish
from tpu_magics.panel.messages import RunMessage, UpdateMessage
from tpu_magics.panel.protocol import TARGET
from tpu_magics.panel.run_state import SHARED, SharedView
from tpu_magics.runs.files import LIVE, RunFiles, read_info
from tpu_magics.runs.summary import run_status

NO_STOP = "This kernel handles clicks only between cells. To stop the run, interrupt the kernel (the square, or I, I)"

Stop = Callable[[], None]
Say = Callable[[str], None]


class FrontEnds:
    """`panel`: None where there is none; `mailbox`: where the main thread waits for the run and reads messages."""

    def __init__(self, panel: LivePanel | None, run: LabRun, mailbox: Mailbox | None, say: Say) -> None:
        self.panel = panel
        self._guarded: RunObserver = NullObserver() if panel is None else SafeObserver(panel, say)
        self._run, self._mailbox, self._say = run, mailbox, say

    def look(self) -> None:
        self._look_into_mailbox()
        if self.panel is not None:
            self.panel.elsewhere = lab.current is not None and lab.current.heard
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
    panel = LivePanel(files, stop, publish, "" if main == FREE or mailbox else NO_STOP, reading)
    return FrontEnds(panel, _followed(kernel, files, panel.stop, mailbox, reading), mailbox, say)


def without_panel(kernel: Any, files: RunFiles, stop: Stop, main: str, say: Say) -> FrontEnds:
    """The extension alone."""
    mailbox = _mailbox(kernel, main)
    return FrontEnds(None, _followed(kernel, files, stop, mailbox, SharedView(files)), mailbox, say)


def _followed(kernel: Any, files: RunFiles, stop: Stop, mailbox: Mailbox | None, reading: SharedView) -> LabRun:
    """Without subshells, a main thread that trains or runs other cells answers no request until it is done."""
    hears = mailbox is not None
    return follow(files, stop, reading, hears or lab.has_subshells(kernel), hears)


def _mailbox(kernel: Any, main: str) -> Mailbox | None:
    """A main thread that waits for the run looks for messages itself."""
    return open_mailbox(kernel) if main == WAITS else None


# -- the JupyterLab extension ---------------------------------------------------------------------------------------


SHARE = 0.05  # of a core that updates may take
WHOLE_EVERY = 10.0  # seconds between whole runs where a busy kernel cannot answer a request for one, at least
ENVELOPE = 500  # bytes of a message around its patch, about


class LabRun:
    """One run, as front ends are told of it: an observer (launch/notebook.py) that never fails.

    Args:
        stop: stops the run, from any thread.
        reading: of the run, which the panel may share.
        answers: whether requests are answered while it runs.
        hears: whether messages are certainly read while it runs, because its thread looks for them.
    """

    def __init__(
        self, files: RunFiles, stop: Callable[[], None], reading: SharedView, answers: bool, hears: bool = False
    ) -> None:
        self.files, self.stop, self.reading = files, stop, reading
        self.answers, self.hears = answers, hears
        self.live = True
        self._feed, self._bucket = Feed(files.id), TokenBucket()
        self._lock = threading.RLock()
        self._next = self._next_whole = 0.0

    def look(self) -> None:
        """Send the changes, if a front end is active and it is time."""
        desk = lab.current
        began, spent = time.monotonic(), time.thread_time()
        if desk is None or began < self._next or not desk.heard:
            return
        with contextlib.suppress(Exception), self._lock:
            if self.live:
                self._tell(desk, began)
        self._next = began + max(desk.every, (time.thread_time() - spent) / SHARE)

    def _tell(self, desk: lab.Lab, now: float) -> None:
        message = self._feed.update(self.reading.view()) if self._bucket.open else None
        if isinstance(message, UpdateMessage):
            self._bucket.take(size_of(message.patch) + ENVELOPE)
        if not self.answers and now >= self._next_whole and (whole := self._feed.whole(None)) is not None:
            message = whole
            self._next_whole = now + max(WHOLE_EVERY, size_of(whole.record) / (A_MINUTE / 60))
        desk.tell(*(one for one in (message, self._feed.heartbeat()) if one is not None))

    def whole(self, request: str | None) -> RunMessage | None:
        """The run as front ends have it, as an answer; None where it has ended: its records have more."""
        with self._lock:
            if not self.live:
                return None
            if not self._feed.seq:
                self._feed.begin(self.reading.anew())
            return self._feed.whole(request)

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended; a run that is no longer followed may still be active."""
        return self.live or run_status(read_info(self.files.info_path)) in LIVE

    def settle(self) -> None:
        """All workers have ended, or the results are loaded: send the whole run."""
        was_live = self.live
        with contextlib.suppress(Exception), self._lock:
            if lab.current is None or not lab.current.heard:
                self.live = run_status(read_info(self.files.info_path)) in LIVE
            else:
                view = self.reading.anew()
                self.live = view.live
                lab.current.tell(self._feed.begin(view))
        if was_live and not self.live and lab.current is not None and lab.current.answers != self.answers:
            lab.say_hello()  # whether a busy kernel answers has changed

    def deafen(self, answers: bool) -> None:
        """The waiting thread no longer reads messages. `answers`: whether the kernel still does."""
        self.answers, self.hears = answers, False
        lab.say_hello()

    def close(self, why: str) -> None:  # noqa: ARG002
        """Stop following, and tell the front ends that their figures are final."""
        with self._lock:
            self.live = False
        lab.say_hello()


_newest: LabRun | None = None


def following() -> LabRun | None:
    """The newest run of this kernel."""
    return _newest


def follow(
    files: RunFiles, stop: Callable[[], None], reading: SharedView, answers: bool, hears: bool = False
) -> LabRun:
    """Follow a run; one that is followed already stays what it is."""
    global _newest
    if _newest is None or _newest.files.path != files.path or not _newest.live:
        _newest = LabRun(files, stop, reading, answers, hears)
        lab.say_hello()
    return _newest


# -- clicks while a cell runs -----------------------------------------------------------------------------------------


Answer = Callable[[str, Mapping[str, Any]], bool]
"""Given a comm's id and what a message to it holds: whether the message is answered now."""
Adopt = Callable[[str, str, Any], bool]
"""Given the id and the target of a comm that a front end opens, and what it says: whether it is open now."""


class Mailbox:
    """The messages that wait for a kernel's main thread. Only that thread may look.

    A kernel handles the messages of its shell channel one after the other, so a click waits until the cell ends.
    ipykernel 7.0 to 7.3 run callbacks in a thread of their own where the front end asks for it (a subshell); 7.4 gives
    them back to the thread that sent the widget's last message, which is the one that waits; ipykernel 6 has no
    subshells. So the waiting thread looks itself. It takes only the messages that it can answer. All others go to the
    kernel's own handler in their order, which queues them behind the cell.
    """

    def __init__(self, kernel: Any) -> None:
        stream = _stream(kernel)
        self._session, self._socket = kernel.session, stream.socket
        # pyzmq 24 to 27: what the stream calls with each message, and whether that gets bytes.
        self._deliver, self._copy = stream._recv_callback, stream._recv_copy
        if not callable(self._deliver):
            raise AttributeError("nobody listens to the kernel's shell channel")
        self._handed_on: set[asyncio.Future[Any]] = set()

    def look(self, answer: Answer, adopt: Adopt = lambda *_: False) -> None:
        """Answer what can be answered, and hand the rest on."""
        import zmq

        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=self._copy)
            except zmq.Again:
                return
            if not self._answered(frames, answer, adopt):
                self._hand_on(frames)

    def _answered(self, frames: Any, answer: Answer, adopt: Adopt) -> bool:
        """A message is only looked at: its signature stays unused, so that the kernel can read it as well."""
        try:
            _, parts = self._session.feed_identities(frames, copy=self._copy)
            message = self._session.deserialize(parts, content=False, copy=self._copy)
            kind = message["header"]["msg_type"]
            if kind not in ("comm_msg", "comm_open"):
                return False
            content = self._session.unpack(message["content"])
            if kind == "comm_open":
                return adopt(str(content["comm_id"]), str(content["target_name"]), content.get("data"))
            return answer(str(content["comm_id"]), content["data"])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return False  # not a message as we know them; the kernel knows what to do with it

    def _hand_on(self, frames: Any) -> None:
        """Synchronous in ipykernel 6; in 7 a coroutine, which waits for the cell to end."""
        made = self._deliver(frames)
        if inspect.isawaitable(made):
            task = asyncio.ensure_future(made)
            self._handed_on.add(task)
            task.add_done_callback(self._handed_on.discard)


def _stream(kernel: Any) -> Any:
    """The stream that the main thread reads: the shell channel's own (ipykernel 6.17 to 6.31), or the one by which the
    shell channel's thread passes messages on (7.0 to 7.4)."""
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is None:
        return kernel.shell_stream
    return thread.manager.get_shell_channel_to_subshell_pair(None).to_stream


def open_mailbox(kernel: Any) -> Mailbox | None:
    """None for a kernel that is built otherwise: there, clicks wait until the cell ends."""
    try:
        return Mailbox(kernel)
    except AttributeError:
        return None
