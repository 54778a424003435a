"""What a preflight found: the object that `tpu_magics.preflight` gives.

What lives here: the results by target, and what follows from them. What does not: how they are found (preflight/), and
how they look (panel/preflight.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

from tpu_magics.backends.lowered import Graph, Traced
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.facts import Compiled
from tpu_magics.preflight.fit import FitResult
from tpu_magics.preflight.judge import Case, Verdict, judge
from tpu_magics.preflight.roofline import Roofline, bf16_share, roofline, waste
from tpu_magics.preflight.targets import Target, parse

__all__ = ["Preflight", "Rate", "TargetResult"]

FITS, TOO_LARGE, REFUSED, FAILED = "fits", "too-large", "refused", "failed"
_HEAVY = {"module", "places"}  # megabytes of a program, and its lines by number
_WORST = (FAILED, REFUSED, TOO_LARGE, FITS)


@dataclass(frozen=True)
class Rate:
    """Samples a second at most, by the roofline: of one chip, and of all (`batch` of them in each step)."""

    chip: float
    every: float
    batch: int


@dataclass(frozen=True)
class TargetResult:
    """What the compiler of one target said of each graph of a function: `compiled[i]` is of `traced.graphs[i]`."""

    target: Target
    traced: Traced
    compiled: tuple[Compiled, ...]

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
        """The graph that decides: one without an answer, refused or too large; else the one that needs most HBM, the
        steady one where several need as much."""
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
        """Of the steady graph on one device: an estimate, a lower bound of the time."""
        return roofline(self.steady, self.target.chip.device_peak_flops, self.target.chip.device_bandwidth)

    def everywhere(self, batch: int) -> int:
        """The batch of all ranks together. Under SPMD the one process has it as it is."""
        return batch if self.graph.partitions > 1 else batch * self.target.ranks

    @property
    def rate(self) -> Rate | None:
        """Samples a second at most. None: the batch or the roofline is not known."""
        steps, batch = self.roofline.steps_per_second, self.traced.batch
        if steps is None or batch is None:
            return None
        every = self.everywhere(batch)
        return Rate(every * steps / self.target.chips, every * steps, every)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the step suits a TPU, with the reasons."""
        return judge(Case(self.device, self.traced, self.steady, self.worst, self.roofline))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "target": _plain(self.target),
            "status": self.status,
            "fits": self.fits,
            "headroom": self.headroom,
            "bf16_share": self.bf16_share,
            "padding_waste": self.padding_waste,
            "roofline": _roofline(self.roofline),
            "samples_per_second": _plain(self.rate),
            "verdict": _plain(self.verdict),
            "trace": _plain(self.traced),
            "graphs": [
                {"steady": graph is self.graph, **_plain(one)}
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
            "fit": [_plain(one) for one in self.fit],
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
        "estimate": "a lower bound of the time",
        "seconds": found.seconds,
        "steps_per_second": found.steps_per_second,
        "bound": found.bound or None,
        **{name: value for name, value in _plain(found).items() if name != "reasons"},
        "matmul_share": found.matmul_share,
        "not_known": found.reasons,
    }


def _plain(value: Any) -> Any:
    """Plain JSON data of a dataclass, without the programs in it."""
    return _without_modules(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _without_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_modules(found) for name, found in value.items() if name not in _HEAVY}
    return [_without_modules(one) for one in value] if isinstance(value, (list, tuple)) else value
