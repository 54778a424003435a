"""Calls of Ray's actors for a running run, and what Ray's errors mean. `ray.shutdown()` waits for each call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tpu_magics.launch.pods import cluster

CLOSED = "this notebook's connection to the cluster was closed (ray.shutdown())"
SILENCE_SECONDS = 20.0  # without an answer, after which a host counts as lost

_lock = threading.RLock()


@contextmanager
def ray_call() -> Iterator[Any]:
    """The module `ray`, for a short call; `ray.shutdown()` waits until it ends. Raises ConnectionError if there is no
    connection.

    A run in the background calls Ray from a thread. If the notebook closes the connection meanwhile, Ray ends that
    thread or the whole kernel (GetCoreWorker in its core_worker_process.cc), and a later call would start a cluster.
    """
    with _lock:
        if not cluster.is_connected():
            raise ConnectionError(CLOSED)
        ray: Any = import_module("ray")
        _serialize_shutdown(ray)
        try:
            yield ray
        except SystemExit as error:  # from Ray, if it was shut down in another way
            raise ConnectionError(CLOSED) from error


def _serialize_shutdown(ray: Any) -> None:
    if getattr(ray.shutdown, "waits_for_tpu_magics", False):
        return

    @functools.wraps(ray.shutdown)
    def shutdown(*args: Any, **options: Any) -> Any:
        with _lock:
            return shutdown.__wrapped__(*args, **options)

    shutdown.waits_for_tpu_magics = True  # type: ignore[attr-defined]
    ray.shutdown = shutdown


def submit(method: Any, *args: Any) -> Any:
    """Call a method of an actor; returns the call's object reference."""
    with ray_call():
        return method.remote(*args)


def get_result(call: Any, timeout: float | None = SILENCE_SECONDS) -> Any:
    with ray_call() as ray:
        return ray.get(call, timeout=timeout)


def error_text(error: Exception) -> str:
    """Ray's error for an actor that does not answer, in one line."""
    kinds = {
        "ActorDiedError": "its process died",
        "ActorUnavailableError": "it cannot be reached",
        "NodeDiedError": "its node died",
        "GetTimeoutError": f"it did not answer for {SILENCE_SECONDS:.0f} s",
        "ObjectStoreFullError": "its object store is full",
        "OutOfMemoryError": "Ray killed its process because of low memory",
    }
    kind = type(error).__name__
    if isinstance(error, ConnectionError) and str(error) == CLOSED:
        return CLOSED
    if kind in kinds and "in its creation task" not in str(error):  # then the cause is in our code (Ray 2.60)
        return kinds[kind]
    text = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
    return f"{kind}: {text}"[:300]
