"""Clicks while a cell runs: reads the messages of a front end that wait for the kernel's main thread.

A kernel handles the messages of its shell channel one after the other, so a click waits until the cell ends. ipykernel
7.0 to 7.3 run callbacks in a thread of their own where the front end asks for it (a subshell); 7.4 gives them back to
the thread that sent the widget's last message, which is the one that waits; ipykernel 6 has no subshells. So the
waiting thread looks itself. It takes only the messages that it can answer. All others go to the kernel's own handler in
their order, which queues them behind the cell.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Answer = Callable[[str, Mapping[str, Any]], bool]
"""Given a comm's id and what a message to it holds: whether the message is answered now."""
Adopt = Callable[[str, str, Any], bool]
"""Given the id and the target of a comm that a front end opens, and what it says: whether it is open now."""


class Mailbox:
    """The messages that wait for a kernel's main thread. Only that thread may look."""

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
