"""The evidence of a compile: the runtime's report, the events of the step, a snapshot of Python values, the part of the
training; and of how it differs from another one."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import FrameType
from typing import Any, NamedTuple

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import (
    CompileCause,
    CompileComparison,
    CompileEvidence,
    changed,
    graph_distance,
)
from tpu_magics.backends.observe.sites import Sites, StackLine, locals_of, outwards
from tpu_magics.backends.torch_xla.observe.python_values import FrameSnapshot, Number
from tpu_magics.backends.torch_xla.observe.step_events import StepFacts
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport
from tpu_magics.runs.origin import OWN, package_of, under

# -- parts of the training --------------------------------------------------------------------------------------------


# Which part of the training a graph belongs to, if a library runs it: a forward pass, the training step, evaluation,
# logging.

# Packages that run code for others: their lines do not show the part.
_BENEATH = frozenset({"torch", "torch_xla", "typing_extensions", "Python", "tpu_magics"})
# Functions of trainers, and what they do (transformers 5.23 and accelerate 1.15).
_ACTIVITIES = {
    "evaluate": "evaluation",
    "evaluation_loop": "evaluation",
    "prediction_loop": "evaluation",
    "prediction_step": "evaluation",
    "predict": "prediction",
    "_maybe_log_save_evaluate": "logging",
    "log": "logging",
    "save_model": "saving",
    "_save_checkpoint": "saving",
    "save_state": "saving",
    "_load_best_model": "loading a checkpoint",
    "_load_from_checkpoint": "loading a checkpoint",
    "load_state": "loading a checkpoint",
    "_clip_grad_norm": "gradient clipping",
    "clip_grad_norm_": "gradient clipping",
}
_BETWEEN = "between two steps"
_ENOUGH = 0.5  # share of a model's parameters that are inputs of a graph with its forward pass
_LONGEST = 100


@dataclass(frozen=True)
class TrainingPart:
    """A part of what a user's line runs. `work`: what it does, or ""; `place`: the library's line (None: the user's
    line is the nearest that is known); `key`: equal for graphs of the same part; `weights`: the graph takes the
    parameters of a model; `activity`: "evaluation", "logging", ..., or ""; `first`: the first graph of this part at its
    site."""

    work: str = ""
    place: StackLine | None = None
    key: tuple[object, ...] = ()
    weights: bool = False
    activity: str = ""
    first: bool = False

    @property
    def text(self) -> str:
        """E.g. "evaluation: forward of BertForSequenceClassification, transformers/trainer.py line 2995: ..."."""
        return ", ".join(filter(None, [self.work, self.line]))

    @property
    def line(self) -> str:
        """The library's line: "transformers/trainer.py line 2999: losses = self.gather_function(...)"."""
        if self.place is None:
            return ""
        _function, path, number = self.place
        code = linecache.getline(path, number).strip()
        shown = f": {code[:_LONGEST]}" if code else ""
        return f"{short_path(path)} line {number}{shown}"


# The graphs that torch_xla runs to exchange values between the ranks: see TorchObserver.exchange.
EXCHANGE = TrainingPart("exchange of values between the ranks", key=("exchange",), activity="exchange")


def short_path(path: str) -> str:
    """The last folder and the file."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def find_part(
    stack: Sequence[StackLine],
    frame: FrameType,
    sites: Sites,
    facts: StepFacts,
    snapshot: FrameSnapshot,
    graph: hlo.Graph | None,
) -> TrainingPart:
    """The part that a graph belongs to. `stack`: of the call that ran it, innermost first; `frame`: the running one."""
    inside = list(takewhile(lambda line: not sites.is_user_code(line[1], line[0]), stack))
    inside = [line for line in inside if not under(line[1], OWN)]
    named = [line for line in inside if package_of(line[1], line[0]) not in _BENEATH]
    if not named:
        return TrainingPart()
    activity = _activity(inside)
    forward = _forward(frame, sites)
    if forward:  # the graph ran in the middle of a forward pass, because a value was read there
        work = f"forward of {forward}"
        return TrainingPart(_joined(activity, work), named[0], ("inside", work, named[0]), activity=activity)
    place = _called(named)
    kind = _taken_in(graph, snapshot.models.values())
    work = _work(kind, facts)
    if not work:
        return TrainingPart(activity or _BETWEEN, place, (activity, *inside), activity=activity)
    trains = facts.backward or facts.stepped
    return TrainingPart(work if trains else _joined(activity, work), place, (kind, trains, activity), True, activity)


def _joined(activity: str, work: str) -> str:
    return f"{activity}: {work}" if activity else work


def _forward(frame: FrameType, sites: Sites) -> str:
    """The class of the module whose forward pass is running, the outermost one below the user's line; "" if none."""
    import torch

    found = ""
    for one in outwards(frame):
        if sites.is_user_code(one.f_code.co_filename, one.f_code.co_name):
            break
        module = locals_of(one).get("self") if one.f_code.co_name == "forward" else None
        if isinstance(module, torch.nn.Module):
            found = type(module).__name__
    return found


def _called(named: Sequence[StackLine]) -> StackLine:
    """The innermost line of the library that the user called: it shows what is done there, in that library's terms."""
    outermost = package_of(named[-1][1])
    return list(takewhile(lambda line: package_of(line[1]) == outermost, reversed(named)))[-1]


def _activity(inside: Iterable[StackLine]) -> str:
    return next((_ACTIVITIES[function] for function, _path, _line in inside if function in _ACTIVITIES), "")


def _work(kind: str, facts: StepFacts) -> str:
    if not kind:
        return ""
    if not (facts.backward or facts.stepped):
        return f"forward of {kind}"
    passes = ["forward, loss, backward"] if facts.backward else []
    stepped = [f"step of {facts.optimizer}"] if facts.stepped and facts.optimizer else []
    return f"training step of {kind} ({', '.join([*passes, *stepped])})"


def _taken_in(graph: hlo.Graph | None, models: Iterable[tuple[str, Counter[Any]]]) -> str:
    """The class of the model whose parameters the graph takes and multiplies by; "" if none."""
    if graph is None or not graph.multiplied:
        return ""
    shapes = Counter(parameter.shape for parameter in graph.parameters)
    best, kind = 0, ""
    for name, weights in models:
        found = (weights & shapes).total()
        if found > max(best, _ENOUGH * weights.total()):
            best, kind = found, name
    return kind


# -- the optimizer whose step is running ------------------------------------------------------------------------------


class RunningOptimizer(NamedTuple):
    """A library's optimizer whose step is running. `closure`: its closure, which is user code, runs."""

    kind: str
    closure: bool


def running_optimizer(frame: FrameType, sites: Sites) -> RunningOptimizer | None:
    """None if none is running, or one that the user wrote."""
    import torch

    closure = False
    for one in outwards(frame):
        own = sites.is_user_code(one.f_code.co_filename, one.f_code.co_name)
        closure = closure or own
        owner = locals_of(one).get("self") if one.f_code.co_name == "step" and not own else None
        if isinstance(owner, torch.optim.Optimizer):
            return RunningOptimizer(type(owner).__name__, closure)
    return None


# -- evidence ---------------------------------------------------------------------------------------------------------


NO_ACTION = "Expected once. No action needed."
_COMPARED = ("cuts", "backward", "stepped", "state_created", "autocast")  # facts


@dataclass(frozen=True)
class TorchCompileEvidence(CompileEvidence):
    """One compile at a site, with the events of the step and the snapshot of Python values."""

    report: XlaCompileReport
    facts: StepFacts = field(default_factory=StepFacts)
    snapshot: FrameSnapshot = field(default_factory=FrameSnapshot)
    part: TrainingPart = field(default_factory=TrainingPart)
    running: RunningOptimizer | None = None


def distance(new: TorchCompileEvidence, old: TorchCompileEvidence) -> tuple[bool, bool, int, int, int]:
    """Small for the same part, the same calling functions, the same operations and step events, and the latest
    compile."""
    parts = new.part.key != old.part.key, new.through != old.through
    return *parts, graph_distance(new, old), _facts_apart(new, old), -old.nth


def _facts_apart(new: TorchCompileEvidence, old: TorchCompileEvidence) -> int:
    facts = sum(bool(getattr(new.facts, name) != getattr(old.facts, name)) for name in _COMPARED)
    return facts + (new.snapshot.training != old.snapshot.training)


@dataclass
class TorchComparison(CompileComparison[TorchCompileEvidence]):
    """A compile and the nearest earlier one of its site."""

    @property
    def dims(self) -> tuple[tuple[int, int], ...]:
        """The sizes inside the graph that changed."""
        return self.change.dims if self.change is not None else ()

    @property
    def other_ops(self) -> bool:
        """The graphs have other operations (True also if they are unknown)."""
        return self.change is None or not self.change.same_ops

    def numbers(self) -> dict[str, tuple[Number, Number]]:
        """Numbers with the same name in both that changed: name -> (old, new)."""
        return changed(self.new.snapshot.numbers, self.old.snapshot.numbers)

    def part_cause(self, what: str) -> CompileCause:
        """The first graph of a part of what the line runs."""
        return CompileCause("new-part", f"{what}.", NO_ACTION, self.evidence)

    def new_code(self, what: str, fix: str, normal: bool = False) -> CompileCause:
        """The line runs other operations."""
        return CompileCause("new-code", f"{what}.", f"{fix}.", self.evidence, normal)
