"""One size of a search: trace the function with it and compile the graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.compile_result import CompileResult, Graph, Traced
from tpu_magics.preflight.pipeline import FunctionCall, PreflightPipeline
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.search import APART, FitPoint, FitResult
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.thresholds import SETTLES

__all__ = ["SearchProbe", "SearchTarget", "require_change", "require_steps"]

LONGEST = 300  # characters of an error
_ANSWERS = ("fits", "failed", "refused", "too-large")  # what one graph proves decides, whatever is unknown of another


@dataclass(frozen=True)
class SearchTarget:
    """A target of a search: its ranks, and the devices that share the batch of one rank (1 without SPMD)."""

    name: str
    ranks: int
    devices: int = 1

    @classmethod
    def of(cls, found: TargetResult) -> SearchTarget:
        return cls(found.name, found.ranks or 1, found.devices)


@dataclass(frozen=True)
class SearchProbe:
    """`call`: the function with the current size; `start`: the result with it; `pipeline`: makes the pipeline of a
    call; `fits`: the results with other sizes that fit, by size and target."""

    size: Size
    call: FunctionCall
    start: Preflight
    pipeline: Callable[[FunctionCall], PreflightPipeline]
    fits: dict[tuple[int, str], TargetResult] = field(default_factory=dict)

    def probe(self, value: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        """The compile results of that size for these targets. Raises TpuMagicsError where the function does not run
        with it, or makes too few steps."""
        if value == self.size.now:
            start = map(self.start.target, names)
            return {one.name: _point(value, one.graph, one.compiled) for one in start}
        with self.size.at(value, self.call.args, self.call.kwargs) as (args, kwargs):
            pipeline = self.pipeline(replace(self.call, args=args, kwargs=kwargs))
            return {name: self._ask(pipeline, value, self.start.target(name)) for name in names}

    def _ask(self, pipeline: PreflightPipeline, value: int, start: TargetResult) -> FitPoint:
        """Compiles the graph that needed most first: if it is too large, the others need no compile."""
        traced = pipeline.traced(start.target)
        require_steps(f"{self.size.name} = {value}", traced)
        compiled: dict[int, CompileResult] = {}
        for number in _largest_first(traced.graphs, start):
            [compiled[number]] = pipeline.compiled([traced.graphs[number]], start.target)
            if compiled[number].status != "fits":
                break
        else:
            in_order = tuple(compiled[number] for number in sorted(compiled))
            self.fits[value, start.name] = TargetResult(start.target, traced, in_order)
        return _point(value, traced.graphs[-1], tuple(compiled.values()))

    def recommended(self, found: FitResult) -> TargetResult:
        """The result with the recommended size, or with the start value if none fits."""
        start = self.start.target(found.target)
        return start if found.best is None else self.fits.get((found.best, found.target), start)


def _largest_first(graphs: Sequence[Graph], start: TargetResult) -> list[int]:
    first = min(start.compiled.index(start.worst), len(graphs) - 1)
    return [first, *(number for number in range(len(graphs)) if number != first)]


def _point(value: int, steady: Graph, compiled: Sequence[CompileResult]) -> FitPoint:
    worst = max(compiled, key=lambda one: (_ANSWERS.index(one.status), one.memory.needed if one.memory else 0))
    known = [one.seconds for one in compiled if one.seconds is not None]
    return FitPoint(
        size=value,
        status=worst.status,
        needed=worst.memory.needed if worst.memory is not None else None,
        available=worst.memory.available if worst.memory is not None else None,
        seconds=sum(known) if known else None,
        error=_first_line(worst.error),
        graph=steady.hash,
    )


def _first_line(text: str) -> str:
    """A compiler's refusal can have pages."""
    return next(iter(text.splitlines()), "")[:LONGEST]


# -- what a search needs ----------------------------------------------------------------------------------------------


def require_steps(what: str, traced: Traced, steps: int = SETTLES) -> None:
    """Raise TpuMagicsError with too few steps: the graph of the first step has no optimizer state among its
    arguments."""
    if steps < SETTLES:
        raise TpuMagicsError(
            f"--fit does not work with --steps {steps}.",
            "The first step of a training creates the optimizer state, the second is the first that has it, and the "
            "third shows whether later steps are alike.",
            f"Leave out --steps, or set it to {SETTLES} or more.",
        )
    if traced.settled or traced.syncs >= SETTLES:
        return
    made = "1 step" if traced.syncs == 1 else f"{traced.syncs} steps"
    raise TpuMagicsError(
        f"With {what} the function makes only {made}, so the memory of later steps is unknown.",
        "The first steps of a training create the optimizer state, so their graphs need less memory than later ones.",
        "Let the function make at least three steps with the largest batch to try: give it more data (repeated or "
        "made-up batches are fine, because no step is executed).",
    )


def require_change(size: Size, call: FunctionCall, traced: Traced, trace: Callable[[FunctionCall], Traced]) -> None:
    """Raise TpuMagicsError where a name of the notebook does not reach a TensorFlow step: its batch is that of its
    arguments, and these were made before. `traced`: with the size that there is now."""
    if size.is_argument:
        return
    other = size.now // APART or size.now * APART
    with size.at(other, call.args, call.kwargs) as (args, kwargs):
        changed = trace(replace(call, args=args, kwargs=kwargs))
    if changed.graphs[-1].hash != traced.graphs[-1].hash:
        return
    rows = f", with {traced.batch:,} rows" if traced.batch is not None else ""
    raise TpuMagicsError(
        f"Changing {size.name} has no effect: {size.now} and {other} give the same graph.",
        f"{call.name} gets its batch from its arguments. They were created before{rows}, and another value of "
        f"{size.name} does not create new ones.",
        f"Create the batch inside a function: def step({size.name}), which creates tensors with {size.name} rows "
        "(tf.random.uniform; the compiler would remove work on zeros) and trains on them, as in "
        f"model.train_step((x, y)). Then preflight that function, with {size.name}={size.now} and --fit {size.name}.",
    )
