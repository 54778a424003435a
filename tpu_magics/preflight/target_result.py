"""The result of a preflight for one target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpu_magics.backends.lowered import Graph, Traced
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.json_data import json_data
from tpu_magics.preflight.roofline import Roofline, bf16_share, is_made, roofline, waste
from tpu_magics.preflight.targets import Target
from tpu_magics.preflight.turns import Cost, turn
from tpu_magics.preflight.verdict import Case, TpuVerdict, judge

FITS, TOO_LARGE, REFUSED, FAILED = "fits", "too-large", "refused", "failed"
NO_RATE = "graphs take turns, and their numbers of rows are unknown"
_WORST = (REFUSED, TOO_LARGE, FAILED, FITS)  # a proved answer decides before a missing one


@dataclass(frozen=True)
class Rate:
    """Samples a second at most, by the roofline: of one chip, and of all (`batch` of them in each step; where
    graphs take turns, in a full turn). `every`, `batch`: None where it is not known how many train together."""

    chip: float
    every: float | None
    batch: int | None


@dataclass(frozen=True)
class TargetResult:
    """The compile results of a function's graphs for one target: `compiled[i]` is that of `traced.graphs[i]`."""

    target: Target
    traced: Traced
    compiled: tuple[CompileResult, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {self.status}>"

    @property
    def name(self) -> str:
        """As Google writes it, e.g. "v5litepod-8"."""
        return self.target.name

    @property
    def device(self) -> str:
        """The device that one program runs on: "v5e chip", "v3 device (half a chip)"."""
        chip = self.target.chip
        return f"{chip.generation} chip" if chip.devices == 1 else f"{chip.generation} device (half a chip)"

    @property
    def graph(self) -> Graph:
        """The graph that all later steps run."""
        return next((one for one in reversed(self.traced.graphs) if one.steady), self.traced.graphs[-1])

    @property
    def steady(self) -> CompileResult:
        """The compile result of that graph."""
        return self.compiled[self.traced.graphs.index(self.graph)]

    @property
    def worst(self) -> CompileResult:
        """The result that decides: refused or too large, else without an answer, else the one that needs most HBM (the
        steady one of equals)."""
        return max(self.compiled, key=lambda one: (-_WORST.index(one.status), _needed(one), one is self.steady))

    @property
    def status(self) -> str:
        """ "fits", "too-large", "refused" or "failed": of all graphs, the worst."""
        return self.worst.status

    @property
    def fits(self) -> bool:
        """Whether every graph compiles and fits into the HBM."""
        return self.status == FITS

    @property
    def headroom(self) -> float | None:
        """The free part of the HBM with the graph that needs most; below 0 where it is too large. None: unknown."""
        memory = self.worst.memory
        return None if memory is None or not memory.available else 1 - memory.needed / memory.available

    @property
    def bf16_share(self) -> float | None:
        """The part of the FLOPs of multiplications in the steady program whose operands are bf16, 0 to 1. None: not
        read, there are none, or no program was made."""
        return bf16_share(self.steady) if is_made(self.steady) else None

    @property
    def padding_waste(self) -> float | None:
        """The part of the HBM in use by the steady program that is padding of tiles, 0 to 1. None: not known, or no
        program was made."""
        return waste(self.steady)

    @cached_property
    def roofline(self) -> Roofline:
        """Of the steady graph on one device: an estimate, and where `roofline.least` a lower bound of the time."""
        return self.roofline_of(self.steady)

    def roofline_of(self, compiled: CompileResult) -> Roofline:
        """Of any of its graphs."""
        return roofline(compiled, self.target.chip.device_peak_flops, self.target.chip.device_bandwidth)

    @cached_property
    def turn(self) -> tuple[int, ...]:
        """The places of the graphs that later steps run over and over, e.g. (0, 1, 1, 3) of an accumulation of four;
        one where all later steps have one graph. Empty: not known."""
        return turn(self.traced)

    @cached_property
    def cost(self) -> Cost:
        """Of one full turn."""
        return Cost.of([self.roofline_of(self.compiled[place]) for place in self.turn])

    @property
    def ranks(self) -> int | None:
        """How many train together, each with a batch of its own: copies of the graph, which `processes` may make fewer
        than the target has. 1 under SPMD. None: the program does not say (TensorFlow's is that of one replica)."""
        return self.graph.replicas if self.traced.ranks_known else None

    @property
    def devices(self) -> int:
        """That share one batch: 1 without SPMD."""
        return self.graph.partitions

    @property
    def chips(self) -> int:
        """That the program runs on, as it was compiled: ranks are one to a chip where that suffices."""
        return min(self.target.chips, self.graph.replicas * self.graph.partitions)

    def everywhere(self, batch: int) -> int | None:
        """The batch of all ranks together, where this is that of one. None: how many there are is not known."""
        return None if self.ranks is None else batch * self.ranks

    def on_chip(self, batch: int) -> float:
        """The part of all that one chip has, where this is the batch of a rank."""
        return batch * self.graph.replicas / self.chips

    @property
    def rate(self) -> Rate | None:
        """Samples a second at most. None: `no_rate` says why."""
        seconds, rows = self.cost.seconds, self.samples
        if not seconds or rows is None:
            return None
        every = self.everywhere(rows)
        return Rate(self.on_chip(rows) / seconds, None if every is None else every / seconds, every)

    @property
    def samples(self) -> int | None:
        """That one rank is given in a step, or in a full turn of its graphs. None: not known."""
        if len(self.turn) < 2 or not self.traced.rows:
            return self.traced.batch if len(self.turn) == 1 else None
        return sum(self.traced.rows[place] or 0 for place in self.turn) or None

    @property
    def no_rate(self) -> str:
        """Why there is no rate; "" where there is one."""
        if self.rate is not None:
            return ""
        if self.roofline.seconds is None:
            return next(iter(self.roofline.reasons.values()), "")
        if not self.turn:
            return "the graph of later steps is unknown"
        if self.cost.seconds is None:
            return "one of the graphs that take turns has no estimate"
        return NO_RATE if len(self.turn) > 1 else "the batch size is unknown"

    @cached_property
    def verdict(self) -> TpuVerdict:
        """Whether the step suits a TPU, with the reasons."""
        return judge(Case(self.device, self.traced, self.steady, self.worst, self.roofline, self.devices))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "target": json_data(self.target),
            "status": self.status,
            "fits": self.fits,
            "headroom": self.headroom,
            "ranks": self.ranks,
            "chips": self.chips,
            "bf16_share": self.bf16_share,
            "padding_waste": self.padding_waste,
            "roofline": _roofline(self.roofline),
            "turn": {"graphs": list(self.turn), **json_data(self.cost)},
            "samples_per_second": json_data(self.rate),
            "verdict": json_data(self.verdict),
            "trace": json_data(self.traced),
            "graphs": [
                {"steady": graph is self.graph, **json_data(one)}
                for graph, one in zip(self.traced.graphs, self.compiled, strict=True)
            ],
        }


def _needed(one: CompileResult) -> int:
    return one.memory.needed if one.memory is not None else 0


def _roofline(found: Roofline) -> dict[str, Any]:
    return {
        "estimate": "a lower bound of the time" if found.least else "no bound of the time",
        "seconds": found.seconds,
        "steps_per_second": found.steps_per_second,
        "bound": found.bound or None,
        **{name: value for name, value in json_data(found).items() if name != "reasons"},
        "not_known": found.reasons,
    }
