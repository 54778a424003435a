"""The Ray cluster of the `--hosts` option: its address, the token that this process sends, and a check with a deadline,
before Ray starts anything, that a cluster answers there.

The private names of Ray were read in 2.60 (_private/authentication). A version of Ray without them has no tokens."""

from __future__ import annotations

import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import read_regular

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
        recorded = read_regular(file).decode("utf-8", "replace").strip()
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


# -- the token --------------------------------------------------------------------------------------------------------


AUTH_MODE = "RAY_AUTH_MODE"
AUTH_DOCS = "https://docs.ray.io/en/latest/ray-security/token-auth.html"


def load_token(address: Address) -> None:
    """Load the token before this process connects: variables that %env changed after Ray's import count, and for a
    cluster of this machine the local token is used, as in `ray.init()`. For an address that was given in full Ray does
    not use the local token on its own."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "AuthenticationTokenLoader"):
        return
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    if address.given.strip().lower() in LOCAL and not address.client and address.source != "RAY_ADDRESS":
        setup: Any = import_module("ray._private.authentication.authentication_token_setup")
        level = setup.logger.level
        setup.logger.setLevel(logging.ERROR)  # it would recommend to turn authentication off
        try:
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        finally:
            setup.logger.setLevel(level)


def token_error(address: Address) -> TpuMagicsError:
    """The error for a cluster that requires a token and did not get the right one."""
    sent = os.environ.get(AUTH_MODE, "").lower() == "token"
    connected = bool(import_module("ray").is_initialized())  # then `load_token` changes nothing
    why = "this notebook's token is missing or is not the cluster's token" if sent else "this notebook sends no token"
    return TpuMagicsError(
        f"The Ray cluster at {address.text} requires a token.",
        f"The cluster uses token authentication, and {why}.",
        "Copy ~/.ray/auth_token from the head node to the same path on this machine"
        + ("." if sent else f", and run %env {AUTH_MODE}=token before %tpu_init.")
        + (" Close the open connection first: %tpu_init --hosts off." if connected else "")
        + f" See {AUTH_DOCS}",
    )


# -- does a cluster answer? -------------------------------------------------------------------------------------------


PROBE_SECONDS = 10.0  # seconds


def probe_cluster(address: Address, timeout: float = PROBE_SECONDS) -> bytes:
    """The id of the cluster at an address; it changes when the cluster is restarted. Empty for ray://. Raises
    TpuMagicsError if no cluster answers within `timeout` seconds."""
    until = time.monotonic() + timeout
    host = address.host.strip("[]")
    try:
        _connect_once(host, address.port, until)
    except OSError as error:
        raise _no_connection(address, _reason(error, timeout)) from None
    probe = _probe_client if address.client else _probe_gcs
    return probe(address, max(until - time.monotonic(), 0.1))


def _connect_once(host: str, port: int, until: float) -> None:
    """Connect to one of the IP addresses of a name. `create_connection` would give each of them the full time."""
    addresses = _resolve(host, port, until)
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(max((until - time.monotonic()) / (len(addresses) - number), 0.1))
            try:
                connection.connect(address)
                return
            except OSError:
                if number + 1 == len(addresses):
                    raise


def _resolve(host: str, port: int, until: float) -> list[Any]:
    """The IP addresses of a name. In a thread: `getaddrinfo` has no timeout and cannot be interrupted, and takes half a
    minute if the name server does not answer."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:
            answers.put(OSError(f"{host} is not a valid host name"))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=look_up, name="tpu_magics: name look-up", daemon=True).start()
    try:
        found = answers.get(timeout=max(until - time.monotonic(), 0.1))
    except queue.Empty:
        raise OSError(f"the look-up of the name {host} timed out; no name server answers") from None
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:.0f} s"
    return (error.strerror or str(error) or type(error).__name__).rstrip(".")


def _probe_gcs(address: Address, timeout: float) -> bytes:
    """Send `GetClusterId` to the head node (ray/core/generated/gcs_service_pb2_grpc.py, 2.60)."""
    import grpc

    messages, services = _generated("gcs_service")
    with _channel(address) as channel:
        stub = services.NodeInfoGcsServiceStub(channel)
        try:
            reply = stub.GetClusterId(messages.GetClusterIdRequest(), timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise _no_cluster(address, error, timeout) from None
    return bytes(reply.cluster_id)


def _probe_client(address: Address, timeout: float) -> bytes:
    """Send a ping to the Ray client server (ray/core/generated/ray_client_pb2_grpc.py, 2.60)."""
    import grpc

    messages, services = _generated("ray_client")
    ping = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    with _channel(address) as channel:
        stub = services.RayletDriverStub(channel)
        try:
            stub.ClusterInfo(ping, timeout=timeout, wait_for_ready=True, metadata=[("client_id", "tpu_magics")])
        except grpc.RpcError as error:
            raise _no_cluster(address, error, timeout) from None
    return b""


def _generated(name: str) -> tuple[Any, Any]:
    """Ray's protobuf messages and gRPC services of that name."""
    package = "ray.core.generated"
    return import_module(f"{package}.{name}_pb2"), import_module(f"{package}.{name}_pb2_grpc")


@contextmanager
def _channel(address: Address) -> Iterator[Any]:
    """A gRPC channel as Ray opens it, with TLS and the token where they are set."""
    utils: Any = import_module("ray._private.grpc_utils")  # read in 2.60
    channel = utils.init_grpc_channel(address.target, options=[("grpc.enable_http_proxy", 0)])
    try:
        yield channel
    finally:
        channel.close()


def _no_connection(address: Address, reason: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"No Ray cluster answers at {address.text}.",
        f"The connection to {address.target} failed: {reason}.",
        _probe_advice(address),
    )


def _no_cluster(address: Address, error: Any, timeout: float) -> TpuMagicsError:
    code = error.code().name
    if code == "UNAUTHENTICATED":
        return token_error(address)
    if code == "UNIMPLEMENTED":
        other = f"ray://{address.host}:{address.port}" if not address.client else f"{address.host}:{address.port}"
        return TpuMagicsError(
            f"The port at {address.text} belongs to another service of the Ray cluster.",
            "ray://HOST:PORT needs the port of the Ray client server, HOST:PORT the port of the head node (GCS).",
            f"Try --hosts {other}, or check the ports that `ray start --head` was given "
            f"(--port, default {GCS_PORT}; --ray-client-server-port, default {CLIENT_PORT}).",
        )
    answer = f"no answer within {timeout:.0f} s" if code == "DEADLINE_EXCEEDED" else str(error.details() or code)
    return TpuMagicsError(
        f"No Ray cluster answers at {address.text}.",
        f"A program listens on this port, but it is not a Ray cluster: {answer}.",
        _probe_advice(address),
    )


def _probe_advice(address: Address) -> str:
    if address.source:
        return (
            f"The cluster in {address.source} has ended or cannot be reached. Check `ray status`, start a cluster with "
            "`!ray start --head`, or connect to another one with --hosts ray://HOST:PORT"
        )
    port = "--ray-client-server-port" if address.client else "--port"
    return (
        "On the head node, check that the cluster runs (`ray status`) and that this is the port of `ray start --head "
        f"{port}=...`. Check that no firewall blocks this machine."
    )
