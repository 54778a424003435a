"""What a preflight found: the object that `tpu_magics.preflight` gives.

What lives here: the results by target, and what follows from them. What does not: how they are found (preflight/), and
how they look (panel/preflight.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpu_magics.backends.lowered import Graph, Traced
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.facts import Compiled
from tpu_magics.preflight.fit import FitResult
from tpu_magics.preflight.judge import Case, Verdict, judge
from tpu_magics.preflight.plain import plain
from tpu_magics.preflight.roofline import Roofline, bf16_share, roofline, waste
from tpu_magics.preflight.targets import Target, parse

__all__ = ["Preflight", "Rate", "TargetResult"]

FITS, TOO_LARGE, REFUSED, FAILED = "fits", "too-large", "refused", "failed"
_WORST = (REFUSED, TOO_LARGE, FAILED, FITS)  # what is proved decides before what has no answer


@dataclass(frozen=True)
class Rate:
    """Samples a second at most, by the roofline: of one chip, and of all (`batch` of them in each step). `every`,
    `batch`: None where it is not known how many train together."""

    chip: float
    every: float | None
    batch: int | None


@dataclass(frozen=True)
class TargetResult:
    """What the compiler of one target said of each graph of a function: `compiled[i]` is of `traced.graphs[i]`."""

    target: Target
    traced: Traced
    compiled: tuple[Compiled, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {self.status}>"

    @property
    def name(self) -> str:
        """As Google writes it, e.g. "v5litepod-8"."""
        return self.target.name

    @property
    def device(self) -> str:
        """What one program runs on: "v5e chip", "v3 device (half a chip)"."""
        chip = self.target.chip
        return f"{chip.generation} chip" if chip.devices == 1 else f"{chip.generation} device (half a chip)"

    @property
    def graph(self) -> Graph:
        """The graph that all later steps run."""
        return next((one for one in reversed(self.traced.graphs) if one.steady), self.traced.graphs[-1])

    @property
    def steady(self) -> Compiled:
        """What the compiler said of that graph."""
        return self.compiled[self.traced.graphs.index(self.graph)]

    @property
    def worst(self) -> Compiled:
        """The graph that decides: one that is refused or too large, else one without an answer; else the one that needs
        most HBM, the steady one where several need as much."""
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
        """The part of the HBM that stays free, of the graph that needs most; below 0 where it is too large. None: not
        known."""
        memory = self.worst.memory
        return None if memory is None or not memory.available else 1 - memory.needed / memory.available

    @property
    def bf16_share(self) -> float | None:
        """The part of the FLOPs of multiplications in the steady program whose operands are bf16, 0 to 1."""
        return bf16_share(self.steady)

    @property
    def padding_waste(self) -> float | None:
        """The part of the steady program's HBM that is padding of tiles, 0 to 1."""
        return waste(self.steady)

    @cached_property
    def roofline(self) -> Roofline:
        """Of the steady graph on one device: an estimate, and where `roofline.least` a lower bound of the time."""
        return roofline(self.steady, self.target.chip.device_peak_flops, self.target.chip.device_bandwidth)

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
        """Samples a second at most. None: the batch or the roofline is not known."""
        steps, batch = self.roofline.steps_per_second, self.traced.batch
        if steps is None or batch is None:
            return None
        every = self.everywhere(batch)
        return Rate(self.on_chip(batch) * steps, None if every is None else every * steps, every)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the step suits a TPU, with the reasons."""
        return judge(Case(self.device, self.traced, self.steady, self.worst, self.roofline, self.devices))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "target": plain(self.target),
            "status": self.status,
            "fits": self.fits,
            "headroom": self.headroom,
            "ranks": self.ranks,
            "chips": self.chips,
            "bf16_share": self.bf16_share,
            "padding_waste": self.padding_waste,
            "roofline": _roofline(self.roofline),
            "samples_per_second": plain(self.rate),
            "verdict": plain(self.verdict),
            "trace": plain(self.traced),
            "graphs": [
                {"steady": graph is self.graph, **plain(one)}
                for graph, one in zip(self.traced.graphs, self.compiled, strict=True)
            ],
        }


@dataclass(frozen=True)
class Preflight:
    """What `tpu_magics.preflight(function, ..., target="v5e-8,v6e-8")` found, without a TPU and without a step.

    `function`: its name; `results`: one for each target, in the order asked for; `fit`: one for each target where
    `fit=NAME` was asked for. A notebook shows it as tables and drawings, `print` as text.

        found = tpu_magics.preflight(train, model, target="v5e-8,v6e-8")
        found.fits                            # on all targets
        found["v5e-8"].steady.memory.needed   # bytes of HBM of one device
        found["v5e-8"].roofline.seconds       # of a step at least: an estimate, a lower bound
        found["v5e-8"].verdict.suits          # True, False, or None where too little is known
    """

    function: str
    results: tuple[TargetResult, ...]
    fit: tuple[FitResult, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it compiles for every target and fits there."""
        return all(one.fits for one in self.results)

    def target(self, name: str) -> TargetResult:
        """The result of one target, by its name. Raises TpuMagicsError where there is none of that name."""
        names = {name, *_google(name)}
        found = next((one for one in self.results if one.name in names), None)
        if found is None:
            known = ", ".join(one.name for one in self.results)
            raise TpuMagicsError(
                f"There is no result for {name!r}.", f"This preflight was for {known}.", "Name one of these."
            )
        return found

    def __getitem__(self, name: str) -> TargetResult:
        return self.target(name)

    def steady(self, name: str) -> Compiled:
        """What the compiler of that target said of the graph that all later steps run."""
        return self.target(name).steady

    def largest(self, name: str) -> FitResult | None:
        """What the search for the largest size found for that target. None: none was asked for."""
        wanted = self.target(name).name
        return next((one for one in self.fit if one.target == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as `python -m tpu_magics preflight --format json` prints it: sizes in bytes, times in
        seconds, shares from 0 to 1, null for what is not known."""
        return {
            "function": self.function,
            "fits": self.fits,
            "results": [one.to_dict() for one in self.results],
            "fit": [plain(one) for one in self.fit],
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{one.name} {one.status}" for one in self.results)
        return f"<{type(self).__name__} of {self.function}: {found}>"


def _needed(one: Compiled) -> int:
    return one.memory.needed if one.memory is not None else 0


def _google(name: str) -> Iterator[str]:
    """Google's name of the TPU that goes by that name."""
    with contextlib.suppress(TpuMagicsError):
        yield parse(name).name


def _roofline(found: Roofline) -> dict[str, Any]:
    return {
        "estimate": "a lower bound of the time" if found.least else "no bound of the time",
        "seconds": found.seconds,
        "steps_per_second": found.steps_per_second,
        "bound": found.bound or None,
        **{name: value for name, value in plain(found).items() if name != "reasons"},
        "not_known": found.reasons,
    }
