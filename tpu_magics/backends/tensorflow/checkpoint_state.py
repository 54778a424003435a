"""What a checkpoint of a model contains (weights, optimizer, seeds), and restoring it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tpu_magics.backends.tensorflow.checkpoint_paths import is_local
from tpu_magics.errors import TpuMagicsError

LOCALHOST = "/job:localhost"


def require_built(model: Any) -> None:
    if not getattr(model, "built", True):
        raise TpuMagicsError(
            f"The model {model.name} is not built: it has no weights yet.",
            "Keras creates the weights when the input shape is known.",
            "Call the model on a batch first, or call model.build(shape).",
        )


def variables_of(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and hasattr(optimizer, "built") and not optimizer.built and model.trainable_variables:
        with strategy_of(model).scope():
            optimizer.build(model.trainable_variables)
    return [*model.variables, *getattr(optimizer, "variables", ())]


def seeds_of(model: Any) -> list[Any]:
    """The random states of the model: variables that are neither weights nor metrics."""
    if not isinstance(model, keras.Model):
        return []
    others = {id(one) for one in (*model.weights, *model.metrics_variables)}
    return [one for one in model.variables if id(one) not in others]


def strategy_of(model: Any) -> Any:
    return getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()


def bytes_of(variables: Sequence[Any]) -> int:
    return sum(int(np.prod(one.shape)) * tf.as_dtype(one.dtype).size for one in variables)


def is_remote(held: Any) -> bool:
    """Whether variables are on another machine, by the job in their device names."""
    variables = held if isinstance(held, (list, tuple)) else getattr(held, "variables", ())
    return any("/job:" in place and LOCALHOST not in place for place in map(_device, variables))


def _device(variable: Any) -> str:
    value = getattr(variable, "value", variable)
    value = variable if callable(value) else value  # tf.Variable.value is a method, keras.Variable.value a variable
    return str(getattr(next(iter(getattr(value, "values", ())), value), "device", ""))


def options_for(path: str, held: Sequence[Any]) -> Any:
    """A local path is on this machine: it is written and read here, even if the variables are elsewhere."""
    local = is_local(path) and is_remote(list(held))
    return tf.train.CheckpointOptions(experimental_io_device=LOCALHOST if local else None)


@contextlib.contextmanager
def restoring_on_error(variables: Sequence[Any], path: str) -> Iterator[None]:
    """Restore all variables if the block fails or is interrupted."""
    before = [one.numpy() for one in variables]
    try:
        yield
    except BaseException as error:
        for one, value in zip(variables, before, strict=True):
            one.assign(value)
        if not isinstance(error, Exception) or isinstance(error, TpuMagicsError):
            raise
        raise _load_error(path, error) from error


def set_seeds(model: Any, found: Sequence[Any]) -> None:
    seeds = seeds_of(model)
    if len(found) == len(seeds):
        for one, value in zip(seeds, found, strict=True):
            one.assign(np.array(value, one.dtype))


def require_matched(status: Any, model: Any) -> None:
    """Raise AssertionError if a weight of `model` was not in the checkpoint; other objects (the optimizer) may be
    missing. The objects found are in TensorFlow 2.21's `status._checkpoint.object_by_proto_id`; without it, everything
    has to match."""
    found = getattr(getattr(status, "_checkpoint", None), "object_by_proto_id", None)
    if found is None:
        status.assert_existing_objects_matched()
        return
    matched = {id(one) for one in found.values()}
    missing = [one.path for one in model.weights if not matched & {id(one), id(one.value)}]
    if missing:
        raise AssertionError(f"not in the checkpoint: {', '.join(missing)}")


def _load_error(path: str, error: Exception) -> TpuMagicsError:
    first = re.sub(r"\s+", " ", str(error)).strip()
    return TpuMagicsError(
        f"{path} could not be loaded. The model is unchanged.",
        f"{type(error).__name__}: {first[:300]}",
        "Load it into a model with the same layers, shapes and optimizer. If the file is damaged, use "
        "another checkpoint.",
    )
