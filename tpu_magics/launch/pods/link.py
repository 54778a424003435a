"""A host of a run as the notebook follows it: its actor, its workers and its latest state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.launch.pods.cluster import CLOSED, ray_call
from tpu_magics.launch.pods.host_actor import CHUNK_BYTES
from tpu_magics.launch.pods.host_task import is_result_file
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.supervise import Watched

SILENCE_SECONDS = 20.0  # without an answer, after which a host counts as lost
PARALLEL_FETCHES = 4  # parts of a file that are requested at the same time


@dataclass
class Link:
    """A host as the notebook follows it. `actor`: Ray's handle of the HostActor; `lost`: why the host is lost, "" if it
    is not; `pending`: the call that is not answered yet, sent at `sent_at`; `answered`: when the latest answered call
    was sent."""

    host: PodHost
    actor: Any
    workers: list[Watched]
    offsets: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    pending: Any = None
    sent_at: float = 0.0
    answered: float = 0.0
    stopped: bool = False
    lost: str = ""
    bytes: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.workers)

    @property
    def finished(self) -> bool:
        """Whether the host has sent everything, or is lost."""
        return bool(self.lost) or (self.state.get("exit") is not None and not self.pending)

    @property
    def refused(self) -> dict[str, str] | None:
        """The error that stopped its process before it forked workers: what, why, todo."""
        found: dict[str, str] | None = self.state.get("refused")
        return found


def make_links(pod: Pod, actors: Sequence[Any]) -> list[Link]:
    found = []
    for host, actor in zip(pod.hosts, actors, strict=True):
        first = host.index * pod.workers
        workers = [Watched(first + local, 0, first + local) for local in range(pod.workers)]
        found.append(Link(host, actor, workers))
    return found


def submit(method: Any, *args: Any) -> Any:
    """Call a method of an actor; returns the call's object reference."""
    with ray_call():
        return method.remote(*args)


def get_result(call: Any, timeout: float | None = SILENCE_SECONDS) -> Any:
    with ray_call() as ray:
        return ray.get(call, timeout=timeout)


def fetch_file(actor: Any, name: str, size: int, folder: Path) -> int:
    """Fetch a result file into a folder, in parts."""
    if not is_result_file(name):
        raise ValueError(f"it sent {name!r}, which is not a result file of a run")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES)]
    calls = [submit(actor.fetch, name, *part) for part in parts[:PARALLEL_FETCHES]]
    with path.open("wb") as file:
        for number in range(len(parts)):
            if number + PARALLEL_FETCHES < len(parts):
                calls.append(submit(actor.fetch, name, *parts[number + PARALLEL_FETCHES]))
            file.write(get_result(calls[number]))
            calls[number] = None
    return size


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
