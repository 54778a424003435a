"""One size of a search: trace the function with it, and ask the compilers.

What lives here: which graphs of a size are compiled, in which order, and what that says of the size. What does not:
which sizes are tried (fit/), and the name that has them (sizes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.facts import Compiled, Graph, Traced
from tpu_magics.preflight.fit import FitPoint
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.targets import Target
from tpu_magics.preflight.thresholds import SETTLES

__all__ = ["Probing", "Ranked", "require_steps"]

LONGEST = 300  # characters of an error
_ANSWERS = ("fits", "failed", "refused", "too-large")  # what one graph proves decides, whatever is unknown of another


class Asked(Protocol):
    """What traces the function with one size, and asks the compilers (run.py's Way)."""

    def traced(self, target: Target) -> Traced: ...

    def compiled(self, graphs: Sequence[Graph], target: Target) -> list[Compiled]: ...


@dataclass(frozen=True)
class Ranked:
    """A target as the search knows it: the ranks that run together there, and the devices that share the batch of
    one (1 without SPMD)."""

    name: str
    ranks: int
    devices: int = 1

    @classmethod
    def of(cls, found: TargetResult) -> Ranked:
        return cls(found.name, found.ranks or 1, found.devices)


@dataclass(frozen=True)
class Probing:
    """`args`, `kwargs`: of the function with the size that there is now; `now`: what was found with it, by target;
    `way`: arguments -> what traces and compiles with them; `steps`: traced at most."""

    size: Size
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    now: Mapping[str, TargetResult]
    way: Callable[[tuple[Any, ...], dict[str, Any]], Asked]
    steps: int

    def probe(self, value: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        """What the compilers of these targets say of that size. Raises TpuMagicsError where the function does not run
        with it, or does not make steps enough."""
        if value == self.size.now:
            return {name: _point(value, self.now[name].graph, self.now[name].compiled) for name in names}
        with self.size.at(value, self.args, self.kwargs) as (args, kwargs):
            going = self.way(args, kwargs)
            return {name: self._ask(going, value, self.now[name]) for name in names}

    def _ask(self, going: Asked, value: int, now: TargetResult) -> FitPoint:
        """The graph that needed most comes first: where it is too large, the others need no compile."""
        traced = going.traced(now.target)
        require_steps(f"{self.size.name} = {value}", traced, self.steps)
        compiled: list[Compiled] = []
        for graph in _decider_first(traced.graphs, now):
            compiled += going.compiled([graph], now.target)
            if compiled[-1].status != "fits":
                break
        return _point(value, traced.graphs[-1], compiled)


def _decider_first(graphs: Sequence[Graph], now: TargetResult) -> list[Graph]:
    first = graphs[min(now.compiled.index(now.worst), len(graphs) - 1)]
    return [first, *(one for one in graphs if one is not first)]


def _point(value: int, steady: Graph, compiled: Sequence[Compiled]) -> FitPoint:
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
    """A compiler's refusal goes on for pages."""
    return next(iter(text.splitlines()), "")[:LONGEST]


def require_steps(what: str, traced: Traced, steps: int) -> None:
    """The graph of the first step has no optimiser state among its arguments: what fits then says too little."""
    if steps < SETTLES:
        raise TpuMagicsError(
            f"A search cannot do with --steps {steps}.",
            "The first step of a training makes the optimiser's state, the second is the first that has it, and the "
            "third tells whether later ones are alike.",
            f"Leave --steps away, or give it {SETTLES} or more.",
        )
    if traced.settled or traced.syncs >= SETTLES:
        return
    made = "1 step" if traced.syncs == 1 else f"{traced.syncs} steps"
    raise TpuMagicsError(
        f"With {what} the function makes only {made}, and what later steps need is not known.",
        "The first steps of a training make the optimiser's state, so their graphs need less memory than later ones.",
        "Let the function make at least three steps with the largest batch that is to be tried: give it more data (a "
        "repeated or made-up batch will do, for no step is executed).",
    )
