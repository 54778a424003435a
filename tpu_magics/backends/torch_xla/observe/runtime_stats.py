"""Statistics of the runtime: seconds of compiling and executing, fallbacks, the persistent cache, and HBM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.observe.measurements import PeriodicSampler
from tpu_magics.backends.torch_xla import spmd
from tpu_magics.backends.torch_xla.observe import counters
from tpu_magics.backends.torch_xla.rehearse.join import carried
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

OFF_ON_CPU = "off on XLA:CPU: torch_xla 2.9 cannot load cached programs there"


class RuntimeStats(PeriodicSampler):
    """The statistics of one rank. `waited`: how long the host has waited for reads so far."""

    def __init__(self, writer: EventWriter, config: ObserverConfig, waited: Callable[[], float]) -> None:
        super().__init__(writer)
        self.config = config
        self.waited = waited

    def sample(self) -> None:
        """Record what changed."""
        self._times()
        for op, count in counters.fallbacks().items():
            self.record_if_new(f"fallback {op}", events.Fallback, op=op, count=count)
        self._cache()
        self._hbm()

    def _cache(self) -> None:
        hits, misses = counters.counter("PersistentCacheHit"), counters.counter("PersistentCacheMiss")
        if hits or misses or self.config.cache:
            text = OFF_ON_CPU if self.config.device == "CPU" else ""
            self.record_if_new("cache", events.Cache, hits=hits, misses=misses, path=self.config.cache, text=text)

    def _times(self) -> None:
        times = {
            "compiling": counters.seconds("CompileTime"),
            "executing": counters.seconds("ExecuteReplicatedTime" if self.config.spmd else "ExecuteTime"),
            "waiting": self.waited(),
        }
        count, seconds = carried() if self.config.rehearsed else (0, None)
        times["collectives"] = seconds
        rounded = {name: None if value is None else round(value, 3) for name, value in times.items()}
        self.record_if_new("times", events.Times, **rounded, n_collectives=count)

    def _hbm(self) -> None:
        if self.config.device == "CPU":
            return  # it has no memory of its own: the runtime raises "UNIMPLEMENTED"
        found = hbm()
        if found is not None:
            self.record_if_new("hbm", events.Memory, hbm_used=found[0], hbm_total=found[1])

    def sample_mesh(self) -> None:
        """In an SPMD run, between two steps: the sharding of the parameters, if it changed."""
        if self.config.spmd:
            self.record_if_new("mesh", events.Mesh, **spmd.mesh_fields(self.config.device))

    def last_mesh_sample(self, steps: int) -> None:
        """When the function has ended, after `steps` steps. Models that it created are gone then, so the last record
        stands."""
        if "mesh" not in self.last:
            self.sample_mesh()
        if self.config.spmd and steps and (text := spmd.nothing_split()):
            self.writer.record(events.Warned, code="nothing-split", text=text)


def hbm() -> tuple[int, int] | None:
    """(used, total) bytes of this rank's device; None if the runtime does not report them.

    On a TPU, xm.get_memory_info of torch_xla 2.9 returns bytes_used and bytes_limit.
    """
    import torch_xla
    import torch_xla.core.xla_model as xm

    try:
        info: Any = xm.get_memory_info(str(torch_xla.device()))
        return int(info["bytes_used"]), int(info["bytes_limit"])
    except (RuntimeError, KeyError, TypeError, ValueError):
        return None
