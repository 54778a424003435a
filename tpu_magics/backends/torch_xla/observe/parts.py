"""Which part of the training a graph belongs to, if a library runs it: a forward pass, the training step, evaluation,
logging."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.sites import Sites, StackLine, outwards
from tpu_magics.backends.torch_xla.observe.snapshot import FrameSnapshot, locals_of
from tpu_magics.backends.torch_xla.observe.step_events import StepFacts
from tpu_magics.runs.origin import OWN, package_of, under

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


def short_path(path: str) -> str:
    """The last folder and the file."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def find(
    stack: Sequence[StackLine],
    frame: FrameType,
    sites: Sites,
    facts: StepFacts,
    snapshot: FrameSnapshot,
    graph: hlo.Graph | None,
) -> TrainingPart:
    """The part that a graph belongs to. `stack`: of the call that ran it, innermost first; `frame`: the running one."""
    inside = list(takewhile(lambda line: not sites.is_user_code(line[1]), stack))
    inside = [line for line in inside if not under(line[1], OWN)]
    named = [line for line in inside if package_of(line[1]) not in _BENEATH]
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
        if sites.is_user_code(one.f_code.co_filename):
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
