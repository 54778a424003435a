"""Statistics of the runtime: seconds of compiling and executing, fallbacks, the persistent cache, HBM."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.observing.sampling import PeriodicSampler
from tpu_magics.backends.torch_xla import spmd
from tpu_magics.backends.torch_xla.observe import counters
from tpu_magics.backends.torch_xla.rehearse.join import carried
from tpu_magics.runs import events

OFF_ON_CPU = "off on XLA:CPU: torch_xla 2.9 cannot load cached programs there"


class RuntimeStats(PeriodicSampler):
    """The statistics of one rank. `waited`: how long the host has waited for reads so far."""

    def __init__(
        self, write: Callable[[events.Event], object], rank: int, config: ObserverConfig, waited: Callable[[], float]
    ) -> None:
        super().__init__(write, rank)
        self.config = config
        self.waited = waited

    def look(self) -> None:
        """Record what changed."""
        self._times()
        for op, count in counters.fallbacks().items():
            self._if_new(f"fallback {op}", count, events.Fallback(self._now(), self.rank, op=op, count=count))
        self._cache()
        self._hbm()

    def _cache(self) -> None:
        hits, misses = counters.counter("PersistentCacheHit"), counters.counter("PersistentCacheMiss")
        if hits or misses or self.config.cache:
            text = OFF_ON_CPU if self.config.device == "CPU" else ""
            fields = (hits, misses, self.config.cache, text)
            self._if_new("cache", fields, events.Cache(self._now(), self.rank, *fields))

    def _now(self) -> float:
        return round(time.time(), 3)

    def _times(self) -> None:
        times = {
            "compiling": counters.seconds("CompileTime"),
            "executing": counters.seconds("ExecuteReplicatedTime" if self.config.spmd else "ExecuteTime"),
            "waiting": self.waited(),
        }
        count, seconds = carried() if self.config.rehearsed else (0, None)
        times["collectives"] = seconds
        rounded = {name: None if value is None else round(value, 3) for name, value in times.items()}
        self._if_new("times", rounded, events.Times(self._now(), self.rank, **rounded, n_collectives=count))

    def _hbm(self) -> None:
        if self.config.device == "CPU":
            return  # it has no memory of its own: the runtime raises "UNIMPLEMENTED"
        found = hbm()
        if found is not None:
            self._if_new("hbm", found, events.Memory(self._now(), self.rank, hbm_used=found[0], hbm_total=found[1]))

    def look_at_mesh(self) -> None:
        """In an SPMD run, between two steps: the sharding of the parameters, if it changed."""
        if self.config.spmd:
            fields = spmd.mesh_fields(self.config.device)
            self._if_new("mesh", fields, events.Mesh(self._now(), self.rank, **fields))

    def last_look_at_mesh(self, steps: int) -> None:
        """When the function has ended, after `steps` steps. Models that it created are gone then, so the last record
        stands."""
        if "mesh" not in self.last:
            self.look_at_mesh()
        if self.config.spmd and steps and (text := spmd.nothing_split()):
            self.write(events.Warned(self._now(), self.rank, code="nothing-split", text=text))


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
