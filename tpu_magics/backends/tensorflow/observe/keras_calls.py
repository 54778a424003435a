"""What Keras was doing when a program ran (mode, steps per call, batch sizes), read from its trainer's frames."""

# Read in Keras 3.15 (src/backend/tensorflow/trainer.py, src/trainers/epoch_iterator.py, data_adapters/): the local
# names `epoch_iterator`, `begin_step` and `self` of fit, evaluate and predict; ArrayDataAdapter.batch_size and
# .partial_batch_size. Where a name is missing, nothing is known.

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from tpu_magics.backends.observe.sites import outwards

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
_TRAINER = "trainer.py"
_MODES = {
    **dict.fromkeys(("fit", "train_on_batch"), TRAINING),
    **dict.fromkeys(("evaluate", "test_on_batch"), EVALUATION),
    **dict.fromkeys(("predict", "predict_on_batch"), PREDICTION),
}
_DEEPEST = 16  # frames to search for Keras' loop
_MANY = "multi_step_on_iterator"


def loop_of(frame: FrameType | None) -> FrameType | None:
    """The frame of the innermost fit, evaluate, predict or ..._on_batch of Keras."""
    for _, one in zip(range(_DEEPEST), outwards(frame), strict=False):
        code = one.f_code
        if code.co_name in _MODES and code.co_filename.endswith(_TRAINER) and "keras" in code.co_filename:
            return one
    return None


def mode_of(loop: FrameType | None) -> str:
    """The mode of that call; "" without one."""
    return _MODES[loop.f_code.co_name] if loop is not None else ""


def model_of(loop: FrameType | None) -> Any:
    """The model of that call."""
    return loop.f_locals.get("self") if loop is not None else None


def short_batch(loop: FrameType | None) -> tuple[frozenset[tuple[int, int]], bool]:
    """((full, last),) if batches are cut from arrays and the last one is short; and whether there are arrays."""
    adapter: Any = getattr(_iterator_of(loop), "data_adapter", None)
    if type(adapter).__name__ != "ArrayDataAdapter":
        return frozenset(), False
    full, last = adapter.batch_size, adapter.partial_batch_size
    return (frozenset({(int(full), int(last))}) if full and last else frozenset()), True


def batch_parts(loop: FrameType | None) -> tuple[int | None, int]:
    """(gradient accumulation steps, replicas) of the model that trains."""
    model = model_of(loop)
    every = getattr(getattr(model, "optimizer", None), "gradient_accumulation_steps", None)
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    return int(every or 1), int(replicas)


def many(frame: FrameType, function: Any) -> int:
    """Maximum number of steps in one call of `function` (`steps_per_execution`), if Keras calls it."""
    loop = loop_of(frame) if getattr(function, "name", "") == _MANY else None
    return int(getattr(model_of(loop), "steps_per_execution", 1)) if loop is not None else 1


def steps_done(frame: FrameType, most: int, result: Any) -> int:
    """Number of steps in a call of up to `most`: fewer at the end of an epoch, none without data. In the first epoch
    over data of unknown size, the last call counts as full."""
    has_value = getattr(result, "has_value", None)
    if has_value is not None and not bool(has_value()):
        return 0
    loop = loop_of(frame)
    batches = getattr(_iterator_of(loop), "num_batches", None)
    begin = loop.f_locals.get("begin_step") if loop is not None else None
    return max(1, min(most, batches - begin)) if batches and begin is not None else most


def _iterator_of(loop: FrameType | None) -> Any:
    return loop.f_locals.get("epoch_iterator") if loop is not None else None


def batched(dataset: Any) -> Iterator[int]:
    """Batch sizes of the batch ops in a pipeline whose last batch may be short.

    TensorFlow 2.21, data/ops/batch_op.py: _batch_size and _drop_remainder, scalar tensors.
    """
    waiting, looked = [dataset], 0
    while waiting and looked < 200:
        one = waiting.pop()
        looked += 1
        size, drop = getattr(one, "_batch_size", None), getattr(one, "_drop_remainder", None)
        if size is not None and drop is not None and not bool(drop):
            yield int(size)
        inputs = getattr(one, "_inputs", None)
        waiting += inputs() if callable(inputs) else []
