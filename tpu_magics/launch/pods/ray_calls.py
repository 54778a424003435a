"""Ray's calls for a run that goes on, and `ray.shutdown()` beside them.

What lives here: that the two do not meet. A run in the background asks its hosts from a thread. Where the notebook
closes the connection meanwhile, Ray ends that thread, or the whole process with the kernel in it (GetCoreWorker in its
core_worker_process.cc); and a call that comes later would start a cluster of its own. What does not: what is asked
(link.py, ship.py, remote_watch.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tpu_magics.launch.pods import cluster

CLOSED = "this notebook's connection to the cluster was closed (ray.shutdown())"
_lock = threading.RLock()


@contextmanager
def ray_call() -> Iterator[Any]:
    """Ray, for a short call: `ray.shutdown()` waits for its end. Raises ConnectionError without a connection."""
    with _lock:
        if not cluster.is_connected():
            raise ConnectionError(CLOSED)
        ray: Any = import_module("ray")
        _serialize_shutdown(ray)
        try:
            yield ray
        except SystemExit as error:  # Ray's, where it was shut down past us
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
