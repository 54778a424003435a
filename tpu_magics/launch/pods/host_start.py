"""Getting a run onto its hosts: carriers, the parcel, the large arrays, the start.

What lives here: what happens between the plan and the first look of the watch. What does not: what is in the parcel
(freight.py), following it (remote_watch.py).

The parcel and each large array are put into the object store once; Ray brings them to each host once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.plan import mb
from tpu_magics.launch.pods.bundle import Bundle
from tpu_magics.launch.pods.host_actor import HostActor
from tpu_magics.launch.pods.host_task import HostTask
from tpu_magics.launch.pods.link import error_text
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.pods.ray_calls import ray_call

ACTOR_START_SECONDS = 60.0  # seconds in which each host has started its carrier
PROCESS_START_SECONDS = 120.0  # seconds in which it has the parcel and has started its process,
BYTES_PER_SECOND = 10e6  # and a second more for so many bytes of large arrays
CLOSE_SECONDS = 5.0  # seconds in which carriers whose run does not begin have cleared up
_INTERRUPT_POLL = 0.2  # seconds between looks whether the person has interrupted


@dataclass
class StoredBundle:
    """What lies in the object store, for as long as this is held."""

    parcel: Any
    arrays: tuple[Any, ...]
    bytes: int


def store_bundle(packed: Bundle) -> StoredBundle:
    """Put it there, once. Raises TpuMagicsError where there is no room."""
    import numpy as np
    import ray

    size = len(packed.data) + packed.array_bytes
    try:
        arrays = tuple(ray.put(np.frombuffer(one, dtype=np.uint8)) for one in packed.arrays)
        return StoredBundle(ray.put(packed.data), arrays, size)
    except Exception as error:
        if type(error).__name__ not in ("ObjectStoreFullError", "OutOfDiskError"):
            raise
        raise TpuMagicsError(
            f"The object store of the cluster has no room for what this run sends ({size / 1e6:,.1f} MB).",
            f"Models and arrays travel through it, once for each host. Ray says: {_first_line(error)}",
            "Let go of what other programs keep there (`ray memory` lists it), or start the nodes with more: "
            "ray start --object-store-memory=BYTES. The models are unchanged.",
        ) from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def start_actors(
    pod: Pod, name: str, placing: Callable[[Pod, PodHost], Mapping[str, Any]], interrupted: Callable[[], bool]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """An actor on each host, and what each says of its own. Raises TpuMagicsError naming the hosts that do not come;
    none is left then."""
    import ray

    kind: Any = ray.remote(HostActor)
    made = [
        kind.options(max_restarts=0, max_task_retries=0, **placing(pod, host)).remote(f"{name}-{host.index}")
        for host in pod.hosts
    ]
    try:
        ports = [2 if host.index == 0 else 0 for host in pod.hosts]
        asked = [one.hello.remote(count) for one, count in zip(made, ports, strict=True)]
        return made, _wait_for_all(asked, pod.hosts, ACTOR_START_SECONDS, "did not start", interrupted)
    except BaseException:
        close_actors(made)
        raise


def close_actors(made: Sequence[Any], patience: float = CLOSE_SECONDS) -> None:
    """Have carriers leave nothing on their hosts, and end them; one that does not answer is ended all the same. Without
    a connection they are out of reach, and end by themselves."""
    with contextlib.suppress(ConnectionError), ray_call() as ray:
        closing = []
        for one in made:
            with contextlib.suppress(Exception):
                closing.append(one.close.remote())
        with contextlib.suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=patience)
        for one in made:
            with contextlib.suppress(Exception):
                ray.kill(one)


def start_processes(
    pod: Pod,
    made: Sequence[Any],
    task: HostTask,
    told: Sequence[Mapping[str, Any]],
    stored: StoredBundle,
    interrupted: Callable[[], bool],
) -> None:
    """Start every host's process. `task`: what all are told alike."""
    _require_disk(pod.hosts, [one["disk"] for one in told], stored.bytes)
    first = pod.hosts[0].address
    here = replace(task, store=(first, told[0]["ports"][0]), hosts=len(pod.hosts), arrays=len(stored.arrays))
    meeting = {"MASTER_ADDR": first, "MASTER_PORT": str(told[0]["ports"][1])} if task.rehearsed else {}
    asked = []
    for host, carrier in zip(pod.hosts, made, strict=True):
        environment = {**meeting, **task.environment, **host.environment}
        own = replace(here, index=host.index, name=host.name, address=host.address, environment=environment)
        asked.append(carrier.begin.remote(own, stored.parcel, *stored.arrays))
    _wait_for_all(
        asked, pod.hosts, PROCESS_START_SECONDS + stored.bytes / BYTES_PER_SECOND, "could not begin", interrupted
    )


def _require_disk(hosts: Sequence[PodHost], free: Sequence[int | None], size: int) -> None:
    """Refuse what a host has no room for: large arrays lie in its temporary folder until its workers are forked."""
    sharing = Counter(host.address for host in hosts)
    for host, disk in zip(hosts, free, strict=True):
        if disk is not None and disk < size * sharing[host.address]:
            raise TpuMagicsError(
                f"There is no room on {host.name} for what this run sends ({mb(size * sharing[host.address])}).",
                f"Models and arrays pass through its temporary folder, which has {mb(disk)} free.",
                "Make room there, or give the nodes another one: TMPDIR=FOLDER ray start ... The models are unchanged.",
            )


def _wait_for_all(
    asked: Sequence[Any],
    hosts: Sequence[PodHost],
    patience: float,
    what: str,
    interrupted: Callable[[], bool],
) -> list[Any]:
    """What all of them answer. Raises KeyboardInterrupt, and TpuMagicsError naming those that do not."""
    import ray

    until = time.monotonic() + patience
    waiting = list(asked)
    while waiting and time.monotonic() < until:
        if interrupted():
            raise KeyboardInterrupt
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_INTERRUPT_POLL)
    silent = [host for host, one in zip(hosts, asked, strict=True) if one in waiting]
    if silent:
        raise _host_error(silent, what, f"within {patience:.0f} s")
    answers = []
    for host, one in zip(hosts, asked, strict=True):
        try:
            answers.append(ray.get(one))
        except Exception as error:
            raise _host_error([host], what, error_text(error)) from error
    return answers


def _host_error(hosts: Sequence[PodHost], what: str, why: str) -> TpuMagicsError:
    names = ", ".join(host.name for host in hosts)
    return TpuMagicsError(
        f"{'Host' if len(hosts) == 1 else 'Hosts'} {names} {what}.",
        f"On each host a small process starts the workers there: {why}."
        if not why.startswith("within")
        else f"On each host a small process starts the workers there; it did not answer {why}.",
        "Look whether the node is alive and has room (`ray status`), then run %tpu_init --hosts and the cell again.",
    )
