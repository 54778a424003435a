"""A host as the notebook follows it: its carrier, its workers, what it has told.

What lives here: that record, bringing a file from it, and what Ray's errors mean. What does not: the loop over all
hosts (remote_watch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.launch.pods.calling import CLOSED, calling
from tpu_magics.launch.pods.carrier import CHUNK
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.pods.task import is_result
from tpu_magics.launch.supervisor import WorkerProcess

SILENT = 20.0  # seconds without an answer after which a host is lost
AHEAD = 4  # pieces of a result that are on their way at once


@dataclass
class Link:
    """A host as the notebook follows it. `carrier`: Ray's handle; `lost`: how it was lost, "" for not; `asked`: when
    the question was sent that is not answered yet; `answered`: when the newest answered one was sent."""

    host: PodHost
    carrier: Any
    workers: list[WorkerProcess]
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


def linked(pod: Pod, made: Sequence[Any]) -> list[Link]:
    """The hosts, to be followed."""
    found = []
    for host, carrier in zip(pod.hosts, made, strict=True):
        first = host.index * pod.workers
        workers = [WorkerProcess(first + local, 0, first + local) for local in range(pod.workers)]
        found.append(Link(host, carrier, workers))
    return found


def ask(method: Any, *args: Any) -> Any:
    """Ask a carrier; gives the question."""
    with calling():
        return method.remote(*args)


def answer(question: Any, timeout: float | None = SILENT) -> Any:
    with calling() as ray:
        return ray.get(question, timeout=timeout)


def fetch(carrier: Any, name: str, size: int, folder: Path) -> int:
    """Bring a result into a folder in pieces; several are on their way at once."""
    if not is_result(name):
        raise ValueError(f"it sends {name!r}, which is no result of a run")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces = [(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK)]
    coming = [ask(carrier.fetch, name, *piece) for piece in pieces[:AHEAD]]
    with path.open("wb") as file:
        for number in range(len(pieces)):
            if number + AHEAD < len(pieces):
                coming.append(ask(carrier.fetch, name, *pieces[number + AHEAD]))
            file.write(answer(coming[number]))
            coming[number] = None
    return size


def short(error: Exception) -> str:
    """What Ray says of a carrier that does not answer, in a line."""
    kinds = {
        "ActorDiedError": "its process has died",
        "ActorUnavailableError": "it cannot be reached",
        "NodeDiedError": "its node has died",
        "GetTimeoutError": f"it has not answered for {SILENT:.0f} s",
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
