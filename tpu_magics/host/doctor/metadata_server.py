"""One request to Google Cloud's metadata server, with a limit on its total time.

By address and without a proxy: a name lookup can hang longer than the limit, and no proxy has the answer.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass

ADDRESS = ("169.254.169.254", 80)  # the same in all of Google's cloud; a link-local address, which leaves no network
SECONDS = 1.5  # for everything: connecting, asking, reading
_PATH = "/computeMetadata/v1/instance/attributes/tpu-env"
_REQUEST = (
    f"GET {_PATH} HTTP/1.0\r\nHost: metadata.google.internal\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
)
_MOST = 65_536  # bytes; a tpu-env has about one thousand


@dataclass(frozen=True)
class Answer:
    """An answer. `status`: of HTTP, 0 without an answer; `text`: the body, or why there is none; `seconds`:
    duration."""

    status: int
    text: str
    seconds: float

    @property
    def accelerator(self) -> str:
        """ACCELERATOR_TYPE of a tpu-env, e.g. "v5litepod-8"; "" where it names none."""
        found = re.search(r"^\s*ACCELERATOR_TYPE:\s*['\"]?([\w-]+)", self.text, re.MULTILINE)
        return found[1] if found and self.status == 200 else ""


def ask(address: tuple[str, int] = ADDRESS, seconds: float = SECONDS) -> Answer:
    """Request `tpu-env` once. Never raises, and never takes much longer than `seconds`."""
    began = time.monotonic()
    try:
        reply = _exchange(address, began + seconds)
    except OSError as error:
        slow = isinstance(error, TimeoutError)
        return Answer(0, "no answer" if slow else error.strerror or str(error), time.monotonic() - began)
    found = re.match(rb"HTTP/1\.[01] (\d{3})", reply)
    head, _, body = reply.partition(b"\r\n\r\n")
    if found is None or b"metadata-flavor: google" not in head.lower():
        return Answer(0, "another server answered", time.monotonic() - began)
    return Answer(int(found[1]), body.decode("utf-8", "replace"), time.monotonic() - began)


def _exchange(address: tuple[str, int], until: float) -> bytes:
    with socket.create_connection(address, timeout=_left(until)) as connection:
        connection.sendall(_REQUEST.encode())
        reply = b""
        while len(reply) < _MOST:
            connection.settimeout(_left(until))  # one limit for all parts: a server may send a byte now and then
            part = connection.recv(4096)
            if not part:
                break
            reply += part
    return reply


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
