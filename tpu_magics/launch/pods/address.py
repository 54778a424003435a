"""Where a cluster is: what `--hosts` was given, read.

What lives here: words -> an address. What does not: asking whether anything answers there (cluster.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.errors import TpuMagicsError

OFF = "off"
LOCAL = ("ray", "auto")
CLIENT_PORT = 10001  # of `ray start --head`, unless it is told another (--ray-client-server-port)
GCS_PORT = 6379  # (--port)
FORMS = (
    "--hosts takes ray (the cluster that this machine is part of), ray://HOST:PORT (a cluster elsewhere), HOST:PORT (a "
    "cluster by the address of its head node) or off."
)
_CLIENT = "ray://"
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class Address:
    """Of a cluster. `asked`: as a person wrote it; `client`: whether it is reached from outside, by ray://; `source`:
    what it was read from where it was not written out, "" where it was."""

    asked: str
    host: str
    port: int
    client: bool = False
    source: str = ""

    @property
    def target(self) -> str:
        """ "HOST:PORT"."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As Ray takes it."""
        return f"{_CLIENT}{self.target}" if self.client else self.target

    @property
    def text(self) -> str:
        """For people: with where it was read."""
        return f"{self.url} (from {self.source})" if self.source else self.url


def is_off(asked: str) -> bool:
    """Whether `--hosts` names no cluster."""
    return asked.strip().lower() in ("", OFF)


def parse_address(asked: str, environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Address | None:
    """The address that `--hosts` names; None for "off" and "". `folder`: where Ray notes its newest cluster on this
    machine (default: $RAY_TMPDIR/ray or /tmp/ray). Raises TpuMagicsError where there is none, or it cannot be read."""
    words = asked.strip()
    if is_off(words):
        return None
    if words.lower() in LOCAL:
        return _local(words, environ, folder or Path(environ.get("RAY_TMPDIR") or "/tmp") / "ray")
    return _parsed(words, words)


def _local(asked: str, environ: Mapping[str, str], folder: Path) -> Address:
    named = environ.get("RAY_ADDRESS", "").strip()
    if named and named != "auto":
        return _parsed(asked, named, "RAY_ADDRESS")
    note = folder / "ray_current_cluster"
    try:
        noted = note.read_text(encoding="utf-8").strip()
    except OSError:
        noted = ""
    if noted:
        return _parsed(asked, noted, str(note))
    raise TpuMagicsError(
        "This machine is part of no Ray cluster.",
        f"RAY_ADDRESS is not set, and `ray start` has left no note in {note}.",
        "Start one here with `!ray start --head`, join one with `!ray start --address=HEAD:6379`, or name one that is "
        f"elsewhere: --hosts ray://HEAD:{CLIENT_PORT}",
    )


def _parsed(asked: str, words: str, source: str = "") -> Address:
    client = words.startswith(_CLIENT)
    found = _HOST_PORT.fullmatch(words.removeprefix(_CLIENT).rstrip("/"))
    if found is None:
        raise _unreadable(asked, words, source)
    port = int(found["port"]) if found["port"] else CLIENT_PORT if client else 0
    if not 0 < port < 65536:
        raise _unreadable(asked, words, source)
    return Address(asked=asked, host=found["host"], port=port, client=client, source=source)


def _unreadable(asked: str, words: str, source: str) -> TpuMagicsError:
    where = f"{source} is {words!r}. " if source else ""
    scheme = words.partition("://")[0] if "://" in words else ""
    why = f"{scheme}:// is not how Ray is reached. " if scheme not in ("", "ray") else ""
    return TpuMagicsError(
        f"--hosts {asked} is no address of a Ray cluster.",
        f"{where}{why}{FORMS}",
        f"Name the head node with its port, e.g. --hosts ray://10.0.0.2:{CLIENT_PORT} or --hosts 10.0.0.2:{GCS_PORT}",
    )
