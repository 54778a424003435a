"""The training loop of transformers' Trainer (5.23.0), as far as a run is to be saved in it and gone on from.

Its own `resume_from_checkpoint` finds the place in the data; weights and all other state are put back like those of any
loop, to the bit (its own checkpoints leave out the loss since it was last logged).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from tpu_magics.backends.protocols import LibraryLoops
from tpu_magics.backends.torch.post_import import PostImport

LOOP = "Trainer.train"
_STATE = "trainer_state.json"
_LOADS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")


def arrange(loops: LibraryLoops, folder: Path) -> None:
    """Follow every Trainer of this worker. `folder`: for a file that it reads."""
    hook = PostImport()
    hook.when_imported("transformers.trainer", functools.partial(_change, loops=loops, folder=folder))


def _change(module: Any, loops: LibraryLoops, folder: Path) -> None:
    cls = module.Trainer
    ours = str(folder)
    for name in _LOADS:
        setattr(cls, name, _unless(ours, getattr(cls, name)))
    _begin_there(cls, loops, folder)
    _follow_passes(cls, loops)


def _unless(folder: str, original: Any) -> Any:
    @functools.wraps(original)
    def load(trainer: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
        return None if checkpoint == folder else original(trainer, checkpoint, *args, **kwargs)

    return load


def _begin_there(cls: Any, loops: LibraryLoops, folder: Path) -> None:
    original = cls.train

    @functools.wraps(original)
    def train(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with loops.library_call(LOOP) as state:
            if state is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _STATE).write_text(json.dumps(state))
                resume_from_checkpoint = str(folder)
            return original(trainer, resume_from_checkpoint, *args, **kwargs)

    cls.train = train


def _follow_passes(cls: Any, loops: LibraryLoops) -> None:
    original, take = cls._run_epoch, cls.get_batch_samples
    loaders: list[Any] = []

    @functools.wraps(original)
    def run_epoch(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        loaders.append(kwargs.get("train_dataloader"))
        loops.begin_library(LOOP, lambda: _state_of(trainer), ("Trainer", trainer), ("state", trainer.state))
        try:
            return original(trainer, *args, **kwargs)
        finally:
            loaders.pop()
            loops.end_library()

    @functools.wraps(take)
    def get_batch_samples(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        batches = take(trainer, *args, **kwargs)
        if loaders:
            loops.library_item(loaders[-1])
        return batches

    cls._run_epoch, cls.get_batch_samples = run_epoch, get_batch_samples


def _state_of(trainer: Any) -> dict[str, Any]:
    """What TrainerState.load_from_json reads."""
    fields = dataclasses.asdict(trainer.state)
    return {**fields, "stateful_callbacks": {}}
