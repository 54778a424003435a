"""TensorFlow helpers: data in memory, and checkpoints that work wherever the TPU is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.host.environments import find_environment
from tpu_magics.host.memory import host_memory

if TYPE_CHECKING:
    from tpu_magics.backends.tensorflow.checkpoints import Checkpoint

__all__ = ["checkpoint", "in_memory", "load", "save"]


def in_memory(
    dataset: Any,
    batch_size: int | None = None,
    *,
    limit: int | None = None,
    drop_remainder: bool = True,
    shuffle: bool | int | None = None,
    pad: str | int | None = None,
    fill: Any = 0,
) -> Any:
    """A tf.data.Dataset of arrays in memory: without Python and files in its pipeline, so it works with any TPU; with
    one batch shape and a known size.

        train = tpu_magics.tf.in_memory(hugging_face_dataset, batch_size=64, pad=32, fill={"labels": -100})

    Args:
        dataset: a Hugging Face dataset; a tf.data.Dataset (may contain a generator, a py_function or local files); a
            keras.utils.PyDataset; arrays or tensors, alone or in a tuple or mapping (columns); a list of rows; a
            generator, or a function that returns one. All rows are read once, immediately.
        batch_size: rows per batch. None: as in the source, in batches if the source has batches.
        limit: maximum number of rows.
        drop_remainder: drop a short last batch, which would be another shape and another compile.
        shuffle: True: a new order of all rows in each epoch; a number: the same, with that seed; None: no shuffle.
        pad: for rows of different lengths: "longest" pads all to the longest, a number to the next multiple of it that
            fits the longest. None: different lengths are an error, which names the column.
        fill: the padding value, or {column: value} (others get 0).

    Returns:
        The dataset. Its elements have the structure, order and values of the source; Python numbers become int32 (int64
        if needed) and float32.

    Raises:
        TpuMagicsError: it will not fit in memory (estimated from the first rows, before memory is full), a column
            contains text or other things that a TPU does not accept, rows differ in shape, or there are none.
    """
    from tpu_magics.backends.tensorflow import in_memory as backend

    return backend.in_memory(
        dataset,
        batch_size,
        limit=limit,
        drop_remainder=drop_remainder,
        shuffle=shuffle,
        pad=pad,
        fill=fill,
        available=host_memory(Path("/")).available,
    )


def save(model: Any, path: str | Path) -> str:
    """Save a Keras model: weights, the optimizer with its step, and the seeds of its random layers, so that training
    continues after `load` as if it had not stopped.

        tpu_magics.tf.save(model, "model.keras")

    An earlier checkpoint at `path` is kept until the new one is complete: an error or an interrupt never destroys it.

    Args:
        model: a built Keras model.
        path: ending in ".keras" (the whole model), in ".weights.h5" (weights and optimizer), or without an ending: a
            folder of tf.train.Checkpoint files. On this machine, even if the TPU is on another; or "gs://bucket/...".

    Returns:
        What was written: the path; for a folder, the prefix of the checkpoint in it.

    Raises:
        TpuMagicsError: nothing can be written there (checked first), or Keras 3 does not accept the name.
    """
    from tpu_magics.backends.tensorflow import checkpoints

    return checkpoints.save(model, path, on_colab=_on_colab())


def load(model: Any, path: str | Path) -> Any:
    """Load what `save` (or Keras) wrote into a model with the same layers: weights, optimizer, step, seeds.

    Args:
        model: built, and compiled with the same optimizer if that is to be loaded too.
        path: as in `save`; a folder stands for its newest checkpoint, a prefix in it for that one.

    Returns:
        The model.

    Raises:
        TpuMagicsError: there is none, or it does not fit the model, which then is unchanged.
    """
    from tpu_magics.backends.tensorflow import checkpoints

    return checkpoints.load(model, path)


def checkpoint(
    path: str | Path, *, model: Any = None, optimizer: Any = None, step: Any = None, keep: int = 1, **more: Any
) -> Checkpoint:
    """A checkpoint for a custom training loop:

        saved = tpu_magics.tf.checkpoint("checkpoints", model=model, optimizer=optimizer)
        for step in range(saved.restore(), 1000):  # 0 if nothing was saved yet
            train_step(...)
            if step % 100 == 99:
                saved.save()

    Args:
        path: a folder, here or in a bucket ("gs://bucket/..."); whether it can be written is tested immediately. Files
            (".keras", ".weights.h5") hold only a compiled model.
        model, optimizer: of Keras; without an optimizer, the model's own.
        step: a tf.Variable that counts; by default the optimizer's iterations.
        keep: number of checkpoints to keep in the folder.
        more: variables and other trackable objects, by name.

    Returns:
        An object with `.save()` (returns the path), `.restore()` (returns the step), `.exists`, `.step`.

    Raises:
        TpuMagicsError: as `save` and `load`.
    """
    from tpu_magics.backends.tensorflow.checkpoints import Checkpoint

    return Checkpoint(path, model=model, optimizer=optimizer, step=step, keep=keep, on_colab=_on_colab(), **more)


def _on_colab() -> bool:
    return find_environment(os.environ, sys.modules).key == "colab"
