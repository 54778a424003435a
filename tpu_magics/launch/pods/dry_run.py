"""What a run on many hosts would send, worked out before anything is sent.

What lives here: sizes, and what a host has to have room for. What does not: making the parcel (parcel.py), the words
(panel/pod.py), and any host's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.launch.pods import host_selection
from tpu_magics.launch.pods.pod import Pod
from tpu_magics.launch.pods.slices import Slice


@dataclass(frozen=True)
class PayloadSize:
    """What a function takes along, in bytes. `parcel`: it and its small arguments, as they are packed for a host;
    `shared`: models and large arrays, which go through Ray's object store; `models`: of these the models, which come
    home trained."""

    name: str
    parcel: int
    shared: int
    models: int


@dataclass(frozen=True)
class DryRun:
    """What `%tpu_pod` found out. `pod`: the session's hosts (None: it has none); `slice`: the slice of the plan, also
    one that nobody has yet; `load`: of the function that was named (None: none was)."""

    pod: Pod | None = None
    slice: Slice | None = None
    load: PayloadSize | None = None

    @property
    def hosts(self) -> int:
        return len(self.pod.hosts) if self.pod is not None else self.slice.hosts if self.slice is not None else 1

    @property
    def workers(self) -> int:
        """On each host."""
        return self.pod.workers if self.pod is not None else self.slice.chips if self.slice is not None else 1

    @property
    def ranks(self) -> int:
        if self.pod is not None:
            return self.pod.ranks
        return self.slice.all_chips * self.slice.generation.devices if self.slice is not None else 1

    @property
    def each(self) -> int:
        """Bytes that a host gets before its workers start."""
        return self.load.parcel + self.load.shared if self.load is not None else 0

    @property
    def needed(self) -> int | None:
        """Bytes of memory that the run takes on a host; None where no pod is known."""
        models = self.load.models if self.load is not None else 0
        return host_selection.memory_per_host(self.pod, models) if self.pod is not None else None


def payload_size(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], backend: Any, labels: Sequence[str]
) -> PayloadSize:
    """What training `function(*args, **kwargs)` takes along. Raises TpuMagicsError where it cannot travel."""
    from tpu_magics.launch import reach, train
    from tpu_magics.launch.pods import bundle

    request = train.function_request(function, args, kwargs, labels=labels)
    models = reach.models_of(iter(request.items), backend.is_model)
    sizes = bundle.measure(request.make(models, None))
    return PayloadSize(
        request.name, sizes.parcel, sizes.shared, sum(backend.model_bytes(model) for model in models.values())
    )
