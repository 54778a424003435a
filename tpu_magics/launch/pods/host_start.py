"""Starts a run on its hosts: puts the bundle into Ray's object store, starts an actor and a process on each host; calls
the actors, and tells what Ray's errors mean. `ray.shutdown()` waits for each call.

The bundle and each large array are stored once, and Ray copies them to each host once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.plan import mb
from tpu_magics.launch.pods import cluster, slices
from tpu_magics.launch.pods.bundle import Bundle
from tpu_magics.launch.pods.host_actor import HostActor
from tpu_magics.launch.pods.pod import HostTask, Pod, PodHost

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


# -- starting ---------------------------------------------------------------------------------------------------------


ACTOR_START_SECONDS = 60.0  # in which each host must start its actor
PROCESS_START_SECONDS = 120.0  # in which it must receive the bundle and start its process,
BYTES_PER_SECOND = 10e6  # plus the time for the large arrays at this speed
CLOSE_SECONDS = 5.0  # in which actors must clean up if the run does not start
_INTERRUPT_POLL = 0.2  # seconds between checks for an interrupt


@dataclass
class StoredBundle:
    """References to a bundle in the object store, which keeps it as long as they exist."""

    data: Any
    arrays: tuple[Any, ...]
    bytes: int


def store_bundle(bundle: Bundle) -> StoredBundle:
    """Put a bundle into the object store. Raises TpuMagicsError if the store is full."""
    import numpy as np
    import ray

    size = len(bundle.data) + bundle.array_bytes
    try:
        arrays = tuple(ray.put(np.frombuffer(one, dtype=np.uint8)) for one in bundle.arrays)
        return StoredBundle(ray.put(bundle.data), arrays, size)
    except Exception as error:
        if type(error).__name__ not in ("ObjectStoreFullError", "OutOfDiskError"):
            raise
        report = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TpuMagicsError(
            f"The object store of the cluster is too full for the data of this run ({size / 1e6:,.1f} MB).",
            f"Models and arrays are sent through it, once to each host. Ray reports: {report[:300]}",
            "Free the objects of other programs (`ray memory` lists them), or start the nodes with a larger store: "
            "ray start --object-store-memory=BYTES. The models are unchanged.",
        ) from None


def start_actors(pod: Pod, name: str, interrupted: Callable[[], bool]) -> tuple[list[Any], list[dict[str, Any]]]:
    """An actor on each host, and each host's description. Raises TpuMagicsError that names the hosts whose actor does
    not start, and then closes the others."""
    import ray

    kind: Any = ray.remote(HostActor)
    actors = [
        kind.options(max_restarts=0, max_task_retries=0, **slices.actor_options(pod, host)).remote(
            f"{name}-{host.index}"
        )
        for host in pod.hosts
    ]
    try:
        ports = [2 if host.index == 0 else 0 for host in pod.hosts]
        calls = [actor.describe.remote(count) for actor, count in zip(actors, ports, strict=True)]
        return actors, _wait_for_all(calls, pod.hosts, ACTOR_START_SECONDS, "did not start", interrupted)
    except BaseException:
        close_actors(actors)
        raise


def close_actors(actors: Sequence[Any], timeout: float = CLOSE_SECONDS) -> None:
    """Have actors clean up their hosts, then end all of them, also those that do not answer. Without a connection they
    cannot be reached, and end by themselves."""
    with contextlib.suppress(ConnectionError), ray_call() as ray:
        closing = []
        for actor in actors:
            with contextlib.suppress(Exception):
                closing.append(actor.close.remote())
        with contextlib.suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=timeout)
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)


def start_processes(
    pod: Pod,
    actors: Sequence[Any],
    task: HostTask,
    descriptions: Sequence[Mapping[str, Any]],
    stored: StoredBundle,
    interrupted: Callable[[], bool],
) -> None:
    """Start every host's process. `task`: the fields that are the same on all hosts."""
    _require_disk(pod.hosts, [one["disk"] for one in descriptions], stored.bytes)
    first, ports = pod.hosts[0].address, descriptions[0]["ports"]
    common = replace(task, store=(first, ports[0]), hosts=len(pod.hosts), arrays=len(stored.arrays))
    meeting = {"MASTER_ADDR": first, "MASTER_PORT": str(ports[1])} if task.plan.rehearsed else {}
    calls = []
    for host, actor in zip(pod.hosts, actors, strict=True):
        environment = {**meeting, **task.plan.environment, **host.environment}
        own = replace(common, index=host.index, name=host.name, address=host.address, environment=environment)
        calls.append(actor.start.remote(own, stored.data, *stored.arrays))
    timeout = PROCESS_START_SECONDS + stored.bytes / BYTES_PER_SECOND
    _wait_for_all(calls, pod.hosts, timeout, "could not start", interrupted)


def _require_disk(hosts: Sequence[PodHost], free: Sequence[int | None], size: int) -> None:
    """Raise TpuMagicsError if a host's disk is too full: large arrays are in its temporary folder until its workers are
    forked."""
    sharing = Counter(host.address for host in hosts)
    for host, disk in zip(hosts, free, strict=True):
        if disk is not None and disk < size * sharing[host.address]:
            raise TpuMagicsError(
                f"Not enough disk on {host.name} for the data of this run ({mb(size * sharing[host.address])}).",
                f"Models and arrays are copied to its temporary folder, which has {mb(disk)} free.",
                "Free disk space there, or use another folder: TMPDIR=FOLDER ray start ... The models are unchanged.",
            )


def _wait_for_all(
    calls: Sequence[Any],
    hosts: Sequence[PodHost],
    timeout: float,
    what: str,
    interrupted: Callable[[], bool],
) -> list[Any]:
    """The results of all calls. Raises KeyboardInterrupt, and TpuMagicsError that names the hosts without an answer."""
    import ray

    until = time.monotonic() + timeout
    waiting = list(calls)
    while waiting and time.monotonic() < until:
        if interrupted():
            raise KeyboardInterrupt
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_INTERRUPT_POLL)
    silent = [host for host, call in zip(hosts, calls, strict=True) if call in waiting]
    if silent:
        raise _host_error(silent, what, f"it did not answer within {timeout:.0f} s")
    answers = []
    for host, call in zip(hosts, calls, strict=True):
        try:
            answers.append(ray.get(call))
        except Exception as error:
            raise _host_error([host], what, error_text(error)) from error
    return answers


def _host_error(hosts: Sequence[PodHost], what: str, why: str) -> TpuMagicsError:
    names = ", ".join(host.name for host in hosts)
    return TpuMagicsError(
        f"{'Host' if len(hosts) == 1 else 'Hosts'} {names} {what}.",
        f"A small process on each host starts the workers there: {why}.",
        "Check that the node is alive and has free resources (`ray status`), then run %tpu_init --hosts and the cell "
        "again.",
    )
