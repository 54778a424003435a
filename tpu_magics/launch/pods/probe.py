"""Checks, with a deadline and before Ray starts anything, that a Ray cluster answers at an address."""

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

TIMEOUT = 10.0  # seconds


def probe_cluster(address: Address, timeout: float = TIMEOUT) -> bytes:
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
        _advice(address),
    )


def _no_cluster(address: Address, error: Any, timeout: float) -> TpuMagicsError:
    code = error.code().name
    if code == "UNAUTHENTICATED":
        return auth_token.token_error(address)
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
        _advice(address),
    )


def _advice(address: Address) -> str:
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
