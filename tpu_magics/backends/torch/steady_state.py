"""When a traced function has reached its steady state, and the events of its steps that show it.

In training, a step ends with an optimizer step: syncs before it accumulate gradients, and syncs without a backward pass
evaluate, initialize weights or log. Their graphs count, but do not show when to stop. Two optimizers that take turns,
each with its own sync, have a steady graph each. Without training, a graph that repeats is steady.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

WAITS = 64  # syncs without an optimizer step, if there is an optimizer
FORWARD = 8  # equal ones in a row, in a function without optimizer and backward pass


@dataclass(frozen=True)
class Sync:
    """What ended at a sync. `graph`: the hash of the pending graph; `backward`: there was a backward pass; `stepped`:
    the optimizers that made a step; `optimizer`: whether there is an optimizer; `asleep`: how many have made no step so
    far."""

    graph: str
    backward: bool = False
    stepped: frozenset[int] = frozenset()
    optimizer: bool = False
    asleep: int = 0

    @property
    def trains(self) -> bool:
        """Whether it ends a training step. Without a torch optimizer, the user's code is one."""
        return bool(self.stepped) or (self.backward and not self.optimizer)


@dataclass
class SteadyStateDetector:
    """The syncs of a function so far. `steps`: the most steps; `notes`: what stays unknown, in sentences; `ended`: the
    function ended before that."""

    steps: int
    syncs: list[Sync] = field(default_factory=list)
    settled: bool = False
    notes: list[str] = field(default_factory=list)
    ended: bool = False

    def add(self, sync: Sync) -> bool:
        """Add a sync. Returns whether the trace can stop."""
        self.syncs.append(sync)
        if sync.trains:
            return self._step_of_training()
        if self.trained:
            return self._waited(len(self.syncs) - 1 - _last(self.syncs))
        return self._forward() or self._waited(len(self.syncs))

    @property
    def trained(self) -> list[Sync]:
        return [sync for sync in self.syncs if sync.trains]

    @property
    def steady(self) -> tuple[str, ...]:
        """The graphs that later steps run, as far as known, in the order of their last sync."""
        if self.trained:
            newest = {sync.stepped: sync.graph for sync in self.trained}
            kept = {graph: None for graph in reversed([s.graph for s in self.trained]) if graph in newest.values()}
            return tuple(reversed(list(kept)))
        gathered = [sync.graph for sync in self.syncs if sync.backward] or [sync.graph for sync in self.syncs]
        return tuple(gathered[-1:])

    def at_end(self) -> None:
        """The function has ended: note what stays unknown."""
        made = len(self.trained)
        if self.settled or not self.syncs:
            return
        self.ended = (made or len(self.syncs)) < self.steps
        if 0 < made < self.steps:
            steps = "one step" if made == 1 else f"{made} steps, and no two consecutive graphs were equal"
            self.notes.append(
                f"The function made only {steps}. The graph of later steps may be unknown. Let the function make at "
                "least three steps."
            )
        elif not made and any(sync.optimizer for sync in self.syncs):
            self.notes.append("The function ended before its optimizer made a step, so no training step was traced.")

    # -- when it is enough ------------------------------------------------------------------------------------------
    def _step_of_training(self) -> bool:
        turns: dict[frozenset[int], list[str]] = {}
        for sync in self.trained:
            turns.setdefault(sync.stepped, []).append(sync.graph)
        known = all(len(graphs) > 1 and graphs[-1] == graphs[-2] for graphs in turns.values())
        asleep = self.syncs[-1].asleep
        if (
            asleep and len(self.trained) < 2 * self.steps
        ):  # it may still step: some functions train one model n times, then another
            return False
        if asleep and known:
            self.notes.append(f"Optimizers that made no step during the trace: {asleep}.")
        self.settled = known
        return known or min(map(len, turns.values())) >= self.steps or len(self.trained) >= WAITS

    def _forward(self) -> bool:
        """Without an optimizer: always the same graph, or never the same."""
        if any(sync.backward or sync.optimizer for sync in self.syncs):
            return False
        last = [sync.graph for sync in self.syncs]
        self.settled = len(last) >= FORWARD and len(set(last[-FORWARD:])) == 1
        return self.settled or (len(last) >= self.steps and len(set(last[-self.steps :])) == self.steps > 1)

    def _waited(self, count: int) -> bool:
        if count < WAITS:
            return False
        what = (
            "accumulated gradients or evaluated" if any(sync.backward for sync in self.syncs[-count:]) else "evaluated"
        )
        when = f"the last {count}" if self.trained else f"the first {count}"
        self.notes.append(
            f"The trace ended before the function: {when} syncs only {what}. Graphs that come later are unknown."
        )
        return True


def _last(syncs: list[Sync]) -> int:
    """The index of the last training step."""
    return max(place for place, sync in enumerate(syncs) if sync.trains)


# -- the events of a step ---------------------------------------------------------------------------------------------


class TraceStepEvents:
    """The events of one process since its last sync: backward passes and optimizer steps."""

    def __init__(self) -> None:
        self._backward = False
        self._stepped: set[int] = set()
        self._known: dict[int, Any] = {}

    def install(self) -> None:
        """Start to record, until the process ends."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._noted(getattr(torch.autograd, name)))
        register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: self._steps(optimizer))

    @property
    def has_backward(self) -> bool:
        """Whether there was a backward pass since the last sync."""
        return self._backward

    def _noted(self, original: Any) -> Any:
        @functools.wraps(original)
        def goes_backward(*args: Any, **kwargs: Any) -> Any:
            self._backward = True
            return original(*args, **kwargs)

        return goes_backward

    def _steps(self, optimizer: Any) -> None:
        self._known[id(optimizer)] = optimizer  # kept alive, so that its id is not reused
        self._stepped.add(id(optimizer))

    def since_last(self, graph: str) -> Sync:
        """The events that ended at a sync."""
        asleep = [one for one in _optimizers() if id(one) not in self._known]
        found = Sync(graph, self._backward, frozenset(self._stepped), bool(self._known or asleep), len(asleep))
        self._backward, self._stepped = False, set()
        return found


def _optimizers() -> list[Any]:
    """The optimizers of this process, and those inside accelerate's wrappers, which have no step of their own."""
    from tpu_magics.backends.torch import optimizers

    return [getattr(one, "optimizer", one) for one in optimizers.living()]
