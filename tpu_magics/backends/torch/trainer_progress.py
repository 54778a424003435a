"""How many steps transformers' Trainer has ahead: its updates, and the batches of its evaluations, which are steps too.

transformers 5.24.0 (trainer.py, trainer_callback.py): a Trainer syncs once for an update, and once for each batch of an
evaluation.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tpu_magics.backends.observe.progress import TrainingProgress
from tpu_magics.backends.observe.sites import locals_of

Now = tuple[Any, Any, Any]  # TrainingArguments, TrainerState, TrainerControl
SOURCE = "Trainer.max_steps"
_ROUNDING = 2  # steps at the start, for what was pending before
_progress: list[TrainingProgress] = []
_training: list[TrainerSteps] = []


@contextmanager
def followed(progress: TrainingProgress) -> Iterator[None]:
    """Until the block ends, a Trainer's training is told to `progress`."""
    _progress[:] = [progress]
    try:
        yield
    finally:
        _progress.clear()
        _training.clear()


def follow(module: Any) -> None:
    """Patch the callbacks of transformers' Trainer. No callback is added: a returned Trainer would bring it along."""
    handler = module.CallbackHandler
    for name, told in (
        ("on_train_begin", _begin),
        ("on_epoch_begin", _correct),
        ("on_evaluate", functools.partial(_worked, "evaluation")),
        ("on_save", functools.partial(_worked, "save")),
        ("on_log", _check),
        ("on_train_end", _end),
    ):
        setattr(handler, name, _telling(getattr(handler, name), told))


def _telling(original: Callable[..., Any], told: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, args: Any, state: Any, control: Any, *rest: Any, **kwargs: Any) -> Any:
        for progress in _progress:
            try:
                told(progress, sys._getframe(1), (args, state, control), *rest, **kwargs)
            except Exception:
                progress.give_up()
        return original(self, args, state, control, *rest, **kwargs)

    return call


@dataclass
class TrainerSteps:
    """One call of train(). `since`: steps and updates when the last evaluation or save ended, or at the start; `costs`:
    steps of an evaluation and of a save, which are no updates (None: not known); `known`: whether any of them has been
    measured."""

    since: tuple[int, int]
    costs: dict[str, int | None]
    known: bool = False

    def on_work(self, work: str, steps: int, updates: int) -> None:
        """An evaluation or a save has ended. The first of them also has the steps of what was pending at the start."""
        taken = (steps - self.since[0]) - (updates - self.since[1])
        expected = self.costs[work]
        if self.known or expected is None or abs(taken - expected) > _ROUNDING:
            self.costs[work] = taken
        self.since, self.known = (steps, updates), True

    def left(self, args: Any, state: Any, saves: int) -> int | None:
        """Steps ahead; None: not known. `saves`: those of this update that are still ahead."""
        steps: int = state.max_steps - state.global_step
        evaluations = times_left(args.eval_strategy, state, state.eval_steps, args.eval_delay)
        evaluations += bool(args.eval_on_start and not self.known)
        saves += times_left(args.save_strategy, state, state.save_steps)
        for work, times in (("evaluation", evaluations), ("save", saves)):
            cost = self.costs[work]
            if times and cost is None:
                return None
            steps += times * (cost or 0)
        return steps


def _begin(progress: TrainingProgress, frame: FrameType, now: Now) -> None:
    args, state, _ = now
    costs = {"evaluation": evaluation_batches(locals_of(frame).get("self"), args), "save": 0}
    _training[:] = [TrainerSteps((progress.steps.total, state.global_step), costs)]
    _correct(progress, frame, now)


def _correct(progress: TrainingProgress, frame: FrameType, now: Now, *_: Any, saves: int = 0, **__: Any) -> None:
    args, state, _control = now
    for training in _training:
        progress.on_training(frame, training.left(args, state, saves), SOURCE)


def _worked(work: str, progress: TrainingProgress, frame: FrameType, now: Now, *_: Any, **__: Any) -> None:
    for training in _training:
        training.on_work(work, progress.steps.total, now[1].global_step)
        _correct(progress, frame, now, saves=int(work == "evaluation" and now[2].should_save))


def _check(progress: TrainingProgress, frame: FrameType, now: Now, logs: Any = None, **_: Any) -> None:
    """Whether an update is one step, as everything here takes for granted. An evaluation logs before it has ended."""
    if any(str(name).startswith("eval_") for name in logs or ()):
        return
    for training in _training:
        steps, updates = training.since
        if abs((progress.steps.total - steps) - (now[1].global_step - updates)) > _ROUNDING:
            _training.clear()
            progress.on_training(frame, None, "")


def _end(progress: TrainingProgress, frame: FrameType, *_: Any, **__: Any) -> None:
    """What was left is not done where it stopped early."""
    if _training:
        _training.clear()
        progress.on_training(frame, 0, SOURCE)


def evaluation_batches(trainer: Any, args: Any) -> int | None:
    """The batches of one evaluation on one rank, as the Trainer's loader has them; None: not known."""
    data: Any = getattr(trainer, "eval_dataset", None)
    if isinstance(data, dict) or not hasattr(data, "__len__"):
        return None
    parts = 1 if args.accelerator_config.split_batches else args.world_size
    rounded = math.floor if args.dataloader_drop_last else math.ceil
    return int(rounded(rounded(len(data) / args.eval_batch_size) / parts))


def times_left(strategy: Any, state: Any, every: int, delay: float = 0) -> int:
    """How often something is ahead that is done after `every` so many updates and at the end, or after each epoch
    (DefaultFlowCallback), once `delay` updates or epochs are done."""
    last, done = int(state.max_steps), int(state.global_step)
    if done >= last:
        return 0
    if strategy == "epoch":
        return sum(delay <= epoch for epoch in range(math.floor(state.epoch or 0) + 1, state.num_train_epochs + 1))
    if strategy == "steps":
        skipped = max(done, math.ceil(delay) - 1)
        return max(0, last // every - skipped // every) + (last % every > 0 and delay <= last)
    return 0
