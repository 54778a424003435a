"""The JupyterLab extension's side of the comm, without a browser: what a page sends and what it understands."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.panel.patches import patched

from .kernel import Kernel

OURS = "tpu_magics"
_NUMBERS = itertools.count(1)


def told(kernel: Kernel, comm: str | None = None, *kinds: str) -> list[dict[str, Any]]:
    """All that the kernel has said to the extension, optionally on one comm, and of these types."""
    messages = [one for one in kernel.messages if one["msg_type"] in ("comm_open", "comm_msg")]
    datas = [one["content"]["data"] for one in messages if comm in (None, one["content"]["comm_id"])]
    ours = [data for data in datas if isinstance(data, dict) and data.get("protocol") == OURS]
    return [data for data in ours if not kinds or data["type"] in kinds]


def comms(kernel: Kernel) -> list[str]:
    """The ids of the comms that the kernel has opened for the extension, in their order."""
    opened = [one["content"] for one in kernel.messages if one["msg_type"] == "comm_open"]
    return [content["comm_id"] for content in opened if content["target_name"] == OURS]


class Front:
    """One page. `comm`: the one it speaks on, by default the newest that the kernel has opened."""

    def __init__(self, kernel: Kernel, comm: str = "") -> None:
        if not comm:
            kernel.wait_until(lambda: bool(comms(kernel)))
        self.kernel, self.comm = kernel, comm or comms(kernel)[-1]

    def opens(self, **header: str) -> Front:
        """Open a comm of its own, as a page does that has missed the kernel's."""
        self.comm = f"front-{next(_NUMBERS)}"
        self._send("comm_open", {"comm_id": self.comm, "target_name": OURS, "data": {}}, header)
        return self

    def closes(self) -> None:
        self._send("comm_close", {"comm_id": self.comm, "data": {}}, {})

    def say(self, kind: str, header: dict[str, str] | None = None, **fields: Any) -> str:
        """Send a request and return its id at once."""
        request = f"request-{next(_NUMBERS)}"
        data = {"protocol": OURS, "v": 1, "type": kind, "request": request, **fields}
        self._send("comm_msg", {"comm_id": self.comm, "data": data}, header or {})
        return request

    def ask(self, kind: str, within: float = 20, **fields: Any) -> dict[str, Any]:
        """The answer to a request."""
        request = self.say(kind, **fields)
        self.kernel.wait_until(lambda: bool(self.answers(request)), within)
        return self.answers(request)[0]

    def greets(self) -> dict[str, Any]:
        """Say hello, and wait for the answer."""
        before = len(self.told("hello"))
        self.say("hello")
        self.kernel.wait_until(lambda: len(self.told("hello")) > before)
        return self.told("hello")[-1]

    def answers(self, request: str) -> list[dict[str, Any]]:
        return [data for data in self.told() if data.get("request") == request]

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        return told(self.kernel, self.comm, *kinds)

    def _send(self, kind: str, content: dict[str, Any], header: dict[str, str]) -> None:
        message = self.kernel.client.session.msg(kind, content)
        message["header"].update(header)
        self.kernel.client.shell_channel.send(message)


def put_together(messages: list[dict[str, Any]], run: str) -> tuple[dict[str, Any], int]:
    """The record of a run after these messages, as the extension makes it; fails where one is missing."""
    record: dict[str, Any] = {}
    seq = -1
    for data in messages:
        if data["type"] == "run" and data["record"]["id"] == run:
            record, seq = data["record"], data["seq"]
        elif data["type"] == "update" and data["run"] == run:
            assert data["after"] == seq, "an update was missed"
            record, seq = patched(record, data["patch"]), data["seq"]
    json.dumps(record, allow_nan=False)
    return record, seq
