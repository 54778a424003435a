"""What a run on many hosts would send, and how much memory each host needs, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.launch import object_graph, session
from tpu_magics.launch.pods import host_selection
from tpu_magics.launch.pods.pod import Pod
from tpu_magics.launch.pods.slices import Slice
from tpu_magics.launch.request import function_request

if TYPE_CHECKING:
    from tpu_magics.launch.pods.bundle import Bundle
    from tpu_magics.launch.work import Work


@dataclass(frozen=True)
class PayloadSize:
    """What a training function sends, in bytes. `bundle`: the function and its small arguments, pickled; `shared`:
    models and large arrays, which go through Ray's object store; `models`: the part that is models, whose weights are
    returned."""

    name: str
    bundle: int
    shared: int
    models: int


@dataclass(frozen=True)
class DryRun:
    """The result of `%tpu_pod`. `pod`: the session's hosts (None: it has none); `slice`: the slice that the plan is
    for, which need not exist; `load`: what the named function sends (None: no function is named)."""

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
        """Bytes that are sent to a host before its workers start."""
        return self.load.bundle + self.load.shared if self.load is not None else 0

    @property
    def needed(self) -> int | None:
        """Bytes of memory that the run needs on a host; None without a pod."""
        models = self.load.models if self.load is not None else 0
        return host_selection.memory_per_host(self.pod, models) if self.pod is not None else None


def payload_size(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backend: Backend,
    labels: Sequence[str],
) -> PayloadSize:
    """What a training of `function(*args, **kwargs)` sends. Raises TpuMagicsError if it cannot be pickled."""

    request = function_request(function, args, kwargs, labels=labels)
    models = object_graph.find_models(iter(request.items), backend.models.is_model)
    bundle = _pack(request.make(models, None))
    weights = sum(backend.models.model_bytes(model) for model in models.values())
    return PayloadSize(request.name, len(bundle.data), bundle.array_bytes, weights)


def _pack(work: Work) -> Bundle:
    from tpu_magics.launch.pods import payload
    from tpu_magics.launch.pods.payload import pack_payload

    current = session.current
    current.backend.prepare()
    cells = current.notebook.cell_names()
    gathered = payload.gather(work, current.backend, cell_names=cells)
    return pack_payload(gathered, current.notebook.namespace, payload.cell_sources(cells))
