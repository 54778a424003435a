"""The result of a preflight: the object that `tpu_magics.preflight` returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import NUMBERED, LoweredGraph, SourceLine, TraceResult
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.compile_result import KERNEL, CompileResult
from tpu_magics.preflight.fit import FitResult
from tpu_magics.preflight.profile import ModuleTree, Profile, ProfileGroup, profile
from tpu_magics.preflight.profile_export import export
from tpu_magics.preflight.roofline import Cost, Roofline, bf16_share, is_made, roofline, turn, waste
from tpu_magics.preflight.targets import Target, parse
from tpu_magics.preflight.verdict import Case, TpuVerdict, judge

__all__ = ["Preflight", "Rate", "TargetResult"]


# Megabytes: a program's lines by number, and all of its operations and buffers; the program itself is bytes.
_HEAVY = {*NUMBERED, "costs", "held", "curve"}


def json_data(value: Any) -> Any:
    """Plain JSON data of a dataclass, without the programs in it."""
    return _without_modules(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _without_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {str(name): found for name, found in value.items() if name not in _HEAVY and type(found) is not bytes}
        return {name: _without_modules(found) for name, found in kept.items()}
    return [_without_modules(one) for one in value] if isinstance(value, (list, tuple)) else value


# -- gradients that stay alive until the next step --------------------------------------------------------------------

# A training step that ends with `optimizer.step()` and begins with `zero_grad()` returns its gradients: they are alive
# at its sync. Measured with libtpu 0.0.52 for v5e, three linear layers with AdamW: 131 MiB, and 70 MiB with
# `zero_grad()` after the step; torch_xla 2.9 returns each gradient twice.
_MOSTLY, _WORTH = 0.9, 0.05  # of the outputs that are known; of what is needed


def retained_gradients(graph: LoweredGraph, compiled: CompileResult) -> int | None:
    """Bytes of outputs that take no argument's memory, where the largest of them have shapes of donated parameters.
    None: there are none, they are less than a twentieth of what the program needs, or it is not known."""
    memory = compiled.memory
    if memory is None or memory.outputs is None or memory.aliased is None:
        return None
    own = memory.outputs - memory.aliased
    shapes = {graph.parameters[place].partition(" ")[0] for place in graph.donors if place < len(graph.parameters)}
    outputs = [one for one in compiled.buffers if one.kind == "output"]
    shaped = sum(one.size for one in outputs if one.shape in shapes)
    alike = shaped > 0 and shaped >= _MOSTLY * sum(one.size for one in outputs)
    return own if alike and own >= _WORTH * memory.needed else None


# -- the result of one target -----------------------------------------------------------------------------------------

FITS, TOO_LARGE, REFUSED, FAILED = "fits", "too-large", "refused", "failed"
NO_RATE = "graphs take turns, and their numbers of rows are unknown"
_WORST = (REFUSED, TOO_LARGE, FAILED, FITS)  # a proved answer decides before a missing one


@dataclass(frozen=True)
class Rate:
    """Samples per second at most, by the roofline: of one chip, and of all (`batch` of them in each step; where
    graphs take turns, in a full turn). `every`, `batch`: None where it is not known how many train together."""

    chip: float
    every: float | None
    batch: int | None


@dataclass(frozen=True)
class TargetResult:
    """The compile results of a function's graphs for one target: `compiled[i]` is that of `traced.graphs[i]`."""

    target: Target
    traced: TraceResult
    compiled: tuple[CompileResult, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {self.status}>"

    @property
    def name(self) -> str:
        """The target's name in Google's words, e.g. "v5litepod-8"."""
        return self.target.name

    @property
    def device(self) -> str:
        """The device that one program runs on: "v5e chip", "v3 device (half a chip)"."""
        chip = self.target.chip
        return f"{chip.generation} chip" if chip.devices == 1 else f"{chip.generation} device (half a chip)"

    @property
    def graph(self) -> LoweredGraph:
        """The graph that all later steps run."""
        return next((one for one in reversed(self.traced.graphs) if one.steady), self.traced.graphs[-1])

    @property
    def steady(self) -> CompileResult:
        """The compile result of that graph."""
        return self._of(self.graph)

    @property
    def later(self) -> TargetResult:
        """The graphs that later steps run alone, if the trace has settled."""
        traced = self.traced.later
        return replace(self, traced=traced, compiled=tuple(self._of(graph) for graph in traced.graphs))

    def _of(self, graph: LoweredGraph) -> CompileResult:
        return self.compiled[self.traced.graphs.index(graph)]

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
        read, there are none, or no program was compiled."""
        return bf16_share(self.steady) if is_made(self.steady) else None

    @property
    def padding_waste(self) -> float | None:
        """The part of the HBM in use by the steady program that is padding of tiles, 0 to 1. None: not known, or no
        program was made."""
        return waste(self.steady)

    @cached_property
    def roofline(self) -> Roofline:
        """The steady graph's roofline on one device: an estimate, and if `roofline.least` a lower bound of the time."""
        return self.roofline_of(self.steady)

    def roofline_of(self, compiled: CompileResult) -> Roofline:
        """The roofline of any of its graphs."""
        return roofline(compiled, self.target.chip.device_peak_flops, self.target.chip.device_bandwidth)

    @cached_property
    def profile(self) -> Profile:
        """Where the time and memory of a step go: of the graphs that later steps run over and over."""
        places = self.turn or (self.traced.graphs.index(self.graph),)
        return profile((self.compiled[place] for place in places), self.target.chip, self.graph)

    @property
    def time_for_a_sample(self) -> float | None:
        """Seconds of one rank, by the compiler's estimate and the bounds of what it does not estimate: to compare. None
        without an estimate, or where the number of samples is not known."""
        return None if self.profile.missing or not self.samples else self.profile.whole.weight / self.samples

    @cached_property
    def turn(self) -> tuple[int, ...]:
        """The places of the graphs that later steps run over and over, e.g. (0, 1, 1, 3) of an accumulation of four;
        one where all later steps have one graph. Empty: not known."""
        return turn(self.traced)

    @cached_property
    def cost(self) -> Cost:
        """The cost of one full turn."""
        return Cost.of([self.roofline_of(self.compiled[place]) for place in self.turn])

    @property
    def least(self) -> float | None:
        """Seconds at least, by the roofline: of a full turn, or where that is unknown of the steady graph. None: not
        known."""
        return self.cost.seconds or self.roofline.seconds

    @property
    def ranks(self) -> int | None:
        """The ranks that train together, each with its own batch; `processes` may be fewer than the target has.
        1 under SPMD. None: the program does not say (TensorFlow's is that of one replica)."""
        return self.graph.replicas if self.traced.ranks_known else None

    @property
    def devices(self) -> int:
        """The devices that share one batch: 1 without SPMD."""
        return self.graph.partitions

    @property
    def chips(self) -> int:
        """The chips that the program runs on: one rank per chip, if there are enough chips."""
        return min(self.target.chips, self.graph.replicas * self.graph.partitions)

    def everywhere(self, batch: int) -> int | None:
        """The batch of all ranks together, for this batch of one rank. None: the number of ranks is unknown."""
        return None if self.ranks is None else batch * self.ranks

    def on_chip(self, batch: int) -> float:
        """The batch of one chip, for this batch of one rank."""
        return batch * self.graph.replicas / self.chips

    @property
    def rate(self) -> Rate | None:
        """Samples per second at most. None: `no_rate` has the reason."""
        seconds, rows = self.cost.seconds, self.samples
        if not seconds or rows is None:
            return None
        every = self.everywhere(rows)
        return Rate(self.on_chip(rows) / seconds, None if every is None else every / seconds, every)

    @property
    def samples(self) -> int | None:
        """Samples of one rank in a step, or in a full turn of its graphs. None: unknown."""
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
        return judge(Case(self.device, self.traced, self.steady, self.worst, self.roofline, self.devices, self.profile))

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
            "profile": _profile(self.profile),
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


def _profile(found: Profile) -> dict[str, Any]:
    def group(one: ProfileGroup) -> dict[str, Any]:
        known = {"seconds": one.seconds, "not_estimated": len(one.unknown), "not_estimated_least": one.unknown_least}
        return {"name": one.name, "operations": len(one.ops), **known}

    def tree(one: ModuleTree) -> dict[str, Any]:
        return {**group(one.group), "inside": [tree(each) for each in one.inside]}

    return {
        "estimate": "the compiler's, not measured",
        "seconds": found.seconds,
        "least": found.least,
        "not_known": found.missing,
        "placed": found.placed,
        "kinds": [group(one) for one in found.kinds],
        "phases": [group(one) for one in found.phases],
        "lines": [{**group(one), "place": json_data(one.place)} for one in found.lines],
        "modules": [tree(one) for one in found.modules],
        "memory": [json_data(one) for one in found.memory_by_module],
        "transfers": [{**group(one), "bytes": one.bytes, "beside": one.beside} for one in found.transfers],
        "largest": [{"seconds": one.seconds, "least": one.least, **json_data(one.cost)} for one in found.largest()],
    }


def _roofline(found: Roofline) -> dict[str, Any]:
    return {
        "estimate": "a lower bound of the time" if found.least else "no bound of the time",
        "seconds": found.seconds,
        "steps_per_second": found.steps_per_second,
        "bound": found.bound or None,
        **{name: value for name, value in json_data(found).items() if name != "reasons"},
        "not_known": found.reasons,
    }


# -- variants ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A combination of what is compared: "batch=64, precision=bf16". `sizes`: values of names; `precision`: "" for the
    requested one; `changes`: as in TraceSpec; `mesh`: axes and their sizes, where one process drives all devices."""

    label: str
    sizes: tuple[tuple[str, int], ...] = ()
    precision: str = ""
    changes: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()

    @property
    def is_mesh_alone(self) -> bool:
        return bool(self.mesh) and not (self.sizes or self.precision or self.changes)


@dataclass(frozen=True)
class VariantResult:
    """The results of a variant, one for each target that has the devices of its mesh; or the `error`, if the function
    does not run so."""

    variant: Variant
    results: tuple[TargetResult, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class TriedChange:
    """A change that was tried by a compile. `what`: the change; `todo`: what to write; `place`: the line that it is
    about; `before`, `after`: the results (None: there is none, and `error` says why); `worth`: whether it gains enough
    to be proposed."""

    what: str
    todo: str
    place: SourceLine | None
    before: TargetResult
    after: TargetResult | None
    error: str = ""
    worth: bool = False

    @property
    def time_gain(self) -> float | None:
        """The part of the time for a sample that it saves, by the compiler's estimate; where the number of samples is
        not known before and after, of the time for a step. None: not known, as where more of the work is in kernels."""
        if self.after is None or self.before.profile.missing or self.after.profile.missing:
            return None
        ends = (self.before, self.after)
        if _kernels(self.after) > _kernels(self.before):
            return None
        before, after = (one.profile.whole.weight for one in ends)
        if any(one.samples for one in ends):
            before, after = (one.time_for_a_sample or 0.0 for one in ends)
        return 1 - after / before if before and after else None

    @property
    def memory_gain(self) -> float | None:
        """The part of the HBM that it saves."""
        before, after = self.before.worst.memory, self.after.worst.memory if self.after is not None else None
        return None if before is None or after is None else 1 - after.needed / before.needed


def _kernels(result: TargetResult) -> float:
    """How many kernels run, which have no estimate of time."""
    return sum(one.cost.runs for one in result.profile.ops if one.cost.kind == KERNEL)


@dataclass(frozen=True)
class AdviceResult:
    """What was tried for a step, what gains most first. `asked`: for it; `missing`: why nothing could be tried."""

    tried: tuple[TriedChange, ...] = ()
    asked: bool = False
    missing: str = ""


# -- the result of all targets ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preflight:
    """The result of `tpu_magics.preflight(function, ..., target="v5e-8,v6e-8")`, without a TPU and without a step.

    `function`: its name; `results`: one for each target, in the given order; `fit`: one for each target with
    `fit=NAME`; `results` are then for the size that it recommends for each target, so `fits` says whether there is
    one; `profiled`: whether it is shown with its profile; `compared`: the variants of `compare`; `advice`: of
    `advise`, for the first target. A notebook shows it as tables and drawings, `print` as text.

        found = tpu_magics.preflight(train, model, target="v5e-8,v6e-8")
        found.fits                            # on all targets
        found["v5e-8"].steady.memory.needed   # bytes of HBM of one device
        found["v5e-8"].roofline.seconds       # of a step at least: an estimate, a lower bound
        found["v5e-8"].verdict.suits          # True, False, or None where too little is known
    """

    function: str
    results: tuple[TargetResult, ...]
    fit: tuple[FitResult, ...] = ()
    profiled: bool = False
    compared: tuple[VariantResult, ...] = ()
    advice: AdviceResult = field(default_factory=AdviceResult)

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
                f"There is no result for {name!r}.", f"This preflight was for {known}.", "Use one of these names."
            )
        return found

    def __getitem__(self, name: str) -> TargetResult:
        return self.target(name)

    def largest(self, name: str) -> FitResult:
        """The result of the search for the largest size on that target. Raises TpuMagicsError without a search."""
        wanted = self.target(name).name
        for one in self.fit:
            if one.target == wanted:
                return one
        raise TpuMagicsError(
            "There was no search for the largest size.",
            "This preflight compiled one size, because it ran without --fit.",
            'Run one: %tpu_preflight ... --fit NAME, or preflight(..., fit="NAME").',
        )

    def export_profile(self, path: str | Path, target: str = "") -> None:
        """Write the profile of a step for that target (the first): NAME.json or .json.gz for Perfetto and
        chrome://tracing, NAME.pb.gz for pprof. Raises TpuMagicsError where that is not possible."""
        found = self.target(target) if target else self.results[0]
        export(found.profile, f"{self.function} on {found.name}", Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as `python -m tpu_magics preflight --format json` prints it: sizes in bytes, times in
        seconds, shares from 0 to 1, null for what is not known."""
        return {
            "function": self.function,
            "fits": self.fits,
            "results": [one.to_dict() for one in self.results],
            "fit": [json_data(one) for one in self.fit],
            "compared": [_compared(one) for one in self.compared],
            "advice": {"missing": self.advice.missing, "tried": [_advice(one) for one in self.advice.tried]},
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{one.name} {one.status}" for one in self.results)
        return f"<{type(self).__name__} of {self.function}: {found}>"


def _compared(one: VariantResult) -> dict[str, Any]:
    results = [{"target": each.name, **_brief(each)} for each in one.results]
    return {"variant": one.variant.label, "results": results, "error": one.error}


def _advice(one: TriedChange) -> dict[str, Any]:
    told = {"what": one.what, "todo": one.todo, "place": json_data(one.place), "worth": one.worth, "error": one.error}
    gains = {"time_gain": one.time_gain, "memory_gain": one.memory_gain}
    return {**told, **gains, "before": _brief(one.before), "after": _brief(one.after) if one.after else None}


def _brief(one: TargetResult) -> dict[str, Any]:
    """The figures that are compared."""
    memory = one.worst.memory
    return {
        "status": one.status,
        "needed": memory.needed if memory is not None else None,
        "least": one.least,
        "estimate": one.profile.seconds,
        "samples": one.samples,
        "estimate_for_a_sample": one.time_for_a_sample,
        "sent": one.profile.sent,
    }


def _google(name: str) -> Iterator[str]:
    """Google's name of that TPU."""
    with contextlib.suppress(TpuMagicsError):
        yield parse(name).name
