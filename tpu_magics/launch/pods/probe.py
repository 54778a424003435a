"""Whether a Ray cluster answers at an address.

What lives here: asking it, with a deadline, before anything of Ray is started. What does not: connecting (cluster.py).
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods import auth_token
from tpu_magics.launch.pods.address import CLIENT_PORT, GCS_PORT, Address

TIMEOUT = 10.0  # seconds for an answer


def probe_cluster(address: Address, patience: float = TIMEOUT) -> bytes:
    """Whether a Ray cluster answers there; its id, by which one that was started anew is known (none through ray://).
    Raises TpuMagicsError after at most `patience` seconds."""
    until = time.monotonic() + patience
    host = address.host.strip("[]")
    try:
        _connect_once(host, address.port, until)
    except OSError as error:
        raise _no_connection(address, _reason(error, patience)) from None
    answer = _probe_client if address.client else _probe_gcs
    return answer(address, max(until - time.monotonic(), 0.1))


def _connect_once(host: str, port: int, until: float) -> None:
    """Connect to one of the addresses that a name has; `create_connection` would give each of them the whole time."""
    places = _resolve(host, port, until)
    for number, (family, kind, protocol, _, place) in enumerate(places):
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(max((until - time.monotonic()) / (len(places) - number), 0.1))
            try:
                probe.connect(place)
                return
            except OSError:
                if number + 1 == len(places):
                    raise


def _resolve(host: str, port: int, until: float) -> list[Any]:
    """The addresses of a name. `getaddrinfo` has no deadline of its own, and cannot be interrupted: where a name server
    does not answer, it asks for half a minute."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:
            answers.put(OSError(f"{host} is no name that a host can have"))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=look_up, name="tpu_magics: name look-up", daemon=True).start()
    try:
        found = answers.get(timeout=max(until - time.monotonic(), 0.1))
    except queue.Empty:
        raise OSError(f"the name {host} was not looked up in time; no name server answers") from None
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: OSError, patience: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {patience:.0f} s"
    return (error.strerror or str(error) or type(error).__name__).rstrip(".")


def _probe_gcs(address: Address, patience: float) -> bytes:
    """Ray's head answers `GetClusterId` (ray/core/generated/gcs_service_pb2_grpc.py, 2.60)."""
    import grpc

    messages, services = _generated("gcs_service")
    with _channel(address) as channel:
        stub = services.NodeInfoGcsServiceStub(channel)
        try:
            reply = stub.GetClusterId(messages.GetClusterIdRequest(), timeout=patience, wait_for_ready=True)
        except grpc.RpcError as error:
            raise _no_cluster(address, error, patience) from None
    return bytes(reply.cluster_id)


def _probe_client(address: Address, patience: float) -> bytes:
    """The server of ray:// answers a ping (ray/core/generated/ray_client_pb2_grpc.py, 2.60)."""
    import grpc

    messages, services = _generated("ray_client")
    ping = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    with _channel(address) as channel:
        stub = services.RayletDriverStub(channel)
        try:
            stub.ClusterInfo(ping, timeout=patience, wait_for_ready=True, metadata=[("client_id", "tpu_magics")])
        except grpc.RpcError as error:
            raise _no_cluster(address, error, patience) from None
    return b""


def _generated(name: str) -> tuple[Any, Any]:
    """Ray's messages and services of that name."""
    package = "ray.core.generated"
    return import_module(f"{package}.{name}_pb2"), import_module(f"{package}.{name}_pb2_grpc")


@contextmanager
def _channel(address: Address) -> Iterator[Any]:
    """Ray's own way to its services: with TLS and the cluster's token, where these are set."""
    utils: Any = import_module("ray._private.grpc_utils")  # read in 2.60
    channel = utils.init_grpc_channel(address.target, options=[("grpc.enable_http_proxy", 0)])
    try:
        yield channel
    finally:
        channel.close()


def _no_connection(address: Address, reason: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"No Ray cluster answers at {address.text}.",
        f"The connection to {address.target} fails: {reason}.",
        _advice(address),
    )


def _no_cluster(address: Address, error: Any, patience: float) -> TpuMagicsError:
    code = error.code().name
    if code == "UNAUTHENTICATED":
        return auth_token.token_error(address)
    if code == "UNIMPLEMENTED":
        other = f"ray://{address.host}:{address.port}" if not address.client else f"{address.host}:{address.port}"
        return TpuMagicsError(
            f"What answers at {address.text} is not that end of a Ray cluster.",
            "ray://HOST:PORT is the port for clients from outside, HOST:PORT that of the head's own service.",
            f"Try --hosts {other}, or look at the ports that `ray start --head` was given "
            f"(--port, by default {GCS_PORT}; --ray-client-server-port, by default {CLIENT_PORT}).",
        )
    said = f"no answer within {patience:.0f} s" if code == "DEADLINE_EXCEEDED" else str(error.details() or code)
    return TpuMagicsError(
        f"No Ray cluster answers at {address.text}.",
        f"Something listens there, and it does not speak as Ray does: {said}.",
        _advice(address),
    )


def _advice(address: Address) -> str:
    if address.source:
        return (
            f"The cluster that {address.source} names is gone, or cannot be reached: see `ray status`, start one with "
            "`!ray start --head`, or name another with --hosts ray://HOST:PORT"
        )
    port = "--ray-client-server-port" if address.client else "--port"
    return (
        f"See on the head node whether the cluster is up (`ray status`), whether the port is the one of `ray start "
        f"--head {port}=...`, and whether a firewall lets this machine through."
    )
