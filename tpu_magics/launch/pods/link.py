"""A host as the notebook follows it: its carrier, its workers, what it has told.

What lives here: that record, bringing a file from it, and what Ray's errors mean. What does not: the loop over all
hosts (remote_watch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.launch.pods.host_actor import CHUNK_BYTES
from tpu_magics.launch.pods.host_task import is_result_file
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.pods.ray_calls import CLOSED, ray_call
from tpu_magics.launch.supervise import Watched

SILENCE_SECONDS = 20.0  # seconds without an answer after which a host is lost
PARALLEL_FETCHES = 4  # pieces of a result that are on their way at once


@dataclass
class Link:
    """A host as the notebook follows it. `carrier`: Ray's handle; `lost`: how it was lost, "" for not; `asked`: when
    the question was sent that is not answered yet; `answered`: when the newest answered one was sent."""

    host: PodHost
    carrier: Any
    workers: list[Watched]
    offsets: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    question: Any = None
    asked: float = 0.0
    answered: float = 0.0
    stopped: bool = False
    lost: str = ""
    bytes: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.workers)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected of it: it has told all, or is lost."""
        return bool(self.lost) or (self.state.get("exit") is not None and not self.question)

    @property
    def refused(self) -> dict[str, str] | None:
        """What its process refused before it forked: what, why, todo."""
        found: dict[str, str] | None = self.state.get("refused")
        return found


def make_links(pod: Pod, made: Sequence[Any]) -> list[Link]:
    """The hosts, to be followed."""
    found = []
    for host, carrier in zip(pod.hosts, made, strict=True):
        first = host.index * pod.workers
        workers = [Watched(first + local, 0, first + local) for local in range(pod.workers)]
        found.append(Link(host, carrier, workers))
    return found


def submit(method: Any, *args: Any) -> Any:
    """Ask a carrier; gives the question."""
    with ray_call():
        return method.remote(*args)


def get_result(question: Any, timeout: float | None = SILENCE_SECONDS) -> Any:
    with ray_call() as ray:
        return ray.get(question, timeout=timeout)


def fetch_file(carrier: Any, name: str, size: int, folder: Path) -> int:
    """Bring a result into a folder in pieces; several are on their way at once."""
    if not is_result_file(name):
        raise ValueError(f"it sends {name!r}, which is no result of a run")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces = [(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES)]
    coming = [submit(carrier.fetch, name, *piece) for piece in pieces[:PARALLEL_FETCHES]]
    with path.open("wb") as file:
        for number in range(len(pieces)):
            if number + PARALLEL_FETCHES < len(pieces):
                coming.append(submit(carrier.fetch, name, *pieces[number + PARALLEL_FETCHES]))
            file.write(get_result(coming[number]))
            coming[number] = None
    return size


def error_text(error: Exception) -> str:
    """What Ray says of a carrier that does not answer, in a line."""
    kinds = {
        "ActorDiedError": "its process has died",
        "ActorUnavailableError": "it cannot be reached",
        "NodeDiedError": "its node has died",
        "GetTimeoutError": f"it has not answered for {SILENCE_SECONDS:.0f} s",
        "ObjectStoreFullError": "its object store is full",
        "OutOfMemoryError": "Ray killed its process for memory",
    }
    kind = type(error).__name__
    if isinstance(error, ConnectionError) and str(error) == CLOSED:
        return CLOSED
    if kind in kinds and "in its creation task" not in str(error):  # that has a cause of ours (ray 2.60)
        return kinds[kind]
    text = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
    return f"{kind}: {text}"[:300]
