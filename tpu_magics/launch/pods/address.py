"""Parses the address of a Ray cluster from the `--hosts` option."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.errors import TpuMagicsError

OFF = "off"
LOCAL = ("ray", "auto")
CLIENT_PORT = 10001  # default of `ray start --head --ray-client-server-port`
GCS_PORT = 6379  # default of `ray start --head --port`
FORMS = (
    "--hosts accepts ray (the cluster of this machine), ray://HOST:PORT (a cluster that this machine is not part of), "
    "HOST:PORT (the address of the cluster's head node) or off."
)
_CLIENT = "ray://"
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class Address:
    """The address of a cluster. `given`: the text of `--hosts`; `client`: connect from outside the cluster (ray://);
    `source`: where the address was found, "" if it was given in full."""

    given: str
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
        """The address for `ray.init`."""
        return f"{_CLIENT}{self.target}" if self.client else self.target

    @property
    def text(self) -> str:
        """The address for messages, with its source."""
        return f"{self.url} (from {self.source})" if self.source else self.url


def is_off(hosts: str) -> bool:
    """Whether `--hosts` names no cluster."""
    return hosts.strip().lower() in ("", OFF)


def parse_address(hosts: str, environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> Address | None:
    """The address that `--hosts` names; None for "off" and "". `folder`: where Ray records the latest cluster of this
    machine (default: $RAY_TMPDIR/ray or /tmp/ray). Raises TpuMagicsError if there is no address or it is invalid."""
    given = hosts.strip()
    if is_off(given):
        return None
    if given.lower() in LOCAL:
        return _local(given, environ, folder or Path(environ.get("RAY_TMPDIR") or "/tmp") / "ray")
    return _parsed(given, given)


def _local(given: str, environ: Mapping[str, str], folder: Path) -> Address:
    variable = environ.get("RAY_ADDRESS", "").strip()
    if variable and variable != "auto":
        return _parsed(given, variable, "RAY_ADDRESS")
    file = folder / "ray_current_cluster"
    try:
        recorded = file.read_text(encoding="utf-8").strip()
    except OSError:
        recorded = ""
    if recorded:
        return _parsed(given, recorded, str(file))
    raise TpuMagicsError(
        "This machine is not part of a Ray cluster.",
        f"RAY_ADDRESS is not set, and `ray start` has not written {file}.",
        "Start a cluster here with `!ray start --head`, join one with `!ray start --address=HEAD:6379`, or connect to "
        f"another one: --hosts ray://HEAD:{CLIENT_PORT}",
    )


def _parsed(given: str, text: str, source: str = "") -> Address:
    client = text.startswith(_CLIENT)
    match = _HOST_PORT.fullmatch(text.removeprefix(_CLIENT).rstrip("/"))
    if match is None:
        raise _invalid(given, text, source)
    port = int(match["port"]) if match["port"] else CLIENT_PORT if client else 0
    if not 0 < port < 65536:
        raise _invalid(given, text, source)
    return Address(given=given, host=match["host"], port=port, client=client, source=source)


def _invalid(given: str, text: str, source: str) -> TpuMagicsError:
    where = f"{source} is {text!r}. " if source else ""
    scheme = text.partition("://")[0] if "://" in text else ""
    why = f"Ray does not use {scheme}://. " if scheme not in ("", "ray") else ""
    return TpuMagicsError(
        f"--hosts {given} is not the address of a Ray cluster.",
        f"{where}{why}{FORMS}",
        "Give the head node with its port, for example --hosts "
        f"ray://10.0.0.2:{CLIENT_PORT} or --hosts 10.0.0.2:{GCS_PORT}",
    )
