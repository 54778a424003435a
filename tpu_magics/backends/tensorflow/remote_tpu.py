"""Reach a remote TPU by name or grpc address, with a time limit (TensorFlow has none)."""

# Read in TensorFlow 2.21 (python/tpu/client/client.py): a name is looked up with the project and zone of the metadata
# server and the Cloud TPU API; an address ("grpc://host:port", port 8470 where it has none) is used unchanged.

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tpu_magics.errors import TpuMagicsError

LIMIT = 10.0  # seconds in total
_GRPC = "grpc://"
# RFC 9113, 3.4 and 6.5: the client preface, and an empty settings frame (its fourth byte is the type).
_PREFACE, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"


def resolve(requested: str, limit: float = LIMIT) -> Any:
    """A TPUClusterResolver whose address answers.

    Args:
        requested: a TPU's name or address.
        limit: seconds to try.

    Raises:
        TpuMagicsError: it cannot be resolved or does not answer, with what was tried.
    """
    started = time.monotonic()
    resolver, spec = _in_time(lambda: _look_up(requested), requested, limit)
    addresses = [address for job in spec for address in spec[job]]
    for address in addresses[:1]:
        _try(address, requested, max(1.0, limit - (time.monotonic() - started)))
    return resolver


def _look_up(requested: str) -> tuple[Any, dict[str, list[str]]]:
    import tensorflow as tf

    named = f"{_GRPC}{requested}" if ":" in requested and "://" not in requested else requested
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=named)
    return resolver, resolver.cluster_spec().as_dict()


def _in_time(work: Callable[[], Any], requested: str, limit: float) -> Any:
    """The result of `work`. After the time limit its thread keeps running, since look-ups cannot be stopped."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="tpu_magics-resolve", daemon=True)
    thread.start()
    thread.join(limit)
    if found:
        return found[0]
    raise _resolve_error(requested, failed[0] if failed else None, limit) from (failed[0] if failed else None)


def _resolve_error(requested: str, error: BaseException | None, limit: float) -> TpuMagicsError:
    said = f"{type(error).__name__}: {error}" if error else f"no answer within {limit:g} s"
    if requested.startswith(_GRPC):
        return TpuMagicsError(
            f"{requested} is not a valid TPU address.", f"Tried: reading it as grpc://host:port. {said}", _TODO
        )
    return TpuMagicsError(
        f"The TPU name {requested!r} could not be resolved.",
        "Tried: the metadata server of Google's cloud for project and zone, then the Cloud TPU API for the node's "
        f"address. {said}",
        _TODO,
    )


def _try(address: str, requested: str, limit: float) -> None:
    """Begin HTTP/2, as gRPC does, and wait for the server's settings: TensorFlow waits without limit for a server that
    accepts a connection and stays silent."""
    host, _, port = address.rpartition(":")
    started = time.monotonic()
    try:
        with socket.create_connection((host, int(port)), timeout=limit) as connection:
            connection.sendall(_PREFACE + _SETTINGS)
            connection.settimeout(max(1.0, limit - (time.monotonic() - started)))
            answer = connection.recv(len(_SETTINGS))
    except (OSError, ValueError) as error:
        raise _no_answer(requested, address, time.monotonic() - started, f"{type(error).__name__}: {error}") from error
    if answer[3:4] != _SETTINGS[3:4]:
        raise _no_answer(requested, address, time.monotonic() - started, "The server does not use gRPC.")


def _no_answer(requested: str, address: str, seconds: float, said: str) -> TpuMagicsError:
    tried = f"Tried: a grpc connection to {address}, for {seconds:.1f} s. {said}"
    return TpuMagicsError(f"The TPU {requested!r} does not answer.", tried, _TODO)


_TODO = (
    "Check the name (gcloud compute tpus list), the zone and the state. Google discontinued TPU nodes in April "
    "2025: on a TPU VM, run the notebook on the VM itself, with %tpu_init and without --tpu."
)
