"""TensorFlow helpers: data in memory, and checkpoints that work wherever the TPU is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.host.memory import host_memory
from tpu_magics.host.places import find_place

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
    """A tf.data.Dataset of arrays held in memory: no Python and no file in its pipeline, so that any TPU can be fed
    from it; all batches of one shape, and a size that is known.

        train = tpu_magics.tf.in_memory(hugging_face_dataset, batch_size=64, pad=32, fill={"labels": -100})

    Args:
        dataset: a Hugging Face dataset; a tf.data.Dataset (with a generator, a py_function or local files in it); a
            keras.utils.PyDataset; arrays or tensors, alone or in a tuple or mapping (columns); a list of rows; a
            generator, or a function that gives one. All of its rows are read once, now.
        batch_size: rows of a batch. None: the elements as they are, in batches where the source gives batches.
        limit: rows at most.
        drop_remainder: leave out the last batch where it is short, which would be another shape and another compile.
        shuffle: True: another order of all rows in each pass; a number: the same, with that seed; None: as they come.
        pad: for rows that differ in length: "longest" pads all to the longest, a number to the next multiple of it
            that holds the longest. None: they are an error, which names the column.
        fill: what is padded with: one value, or {column: value} (others get 0).

    Returns:
        The dataset. Its elements have the nest, the order and the values of the source's; Python's numbers become int32
        (int64 where they do not fit) and float32.

    Raises:
        TpuMagicsError: it will not fit in memory (told before memory is gone, from the rows so far), a column holds
            texts or other things that a TPU cannot take, rows differ in shape, or there are none.
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
    """Save a Keras model: weights, the optimizer with its step, and the seeds of its random layers, so that a training
    goes on after `load` as if it had not stopped.

        tpu_magics.tf.save(model, "model.keras")

    An earlier checkpoint at `path` is there until the new one is whole: an error or an interrupt never destroys it.

    Args:
        model: a Keras model that is built.
        path: ending in ".keras" (the whole model), in ".weights.h5" (weights and optimizer), or without an ending: a
            folder of tf.train.Checkpoint's. On this machine, also where the TPU is another's; or "gs://bucket/...".

    Returns:
        What was written: the path; for a folder, the prefix of the checkpoint in it.

    Raises:
        TpuMagicsError: nothing can be written there (before anything is), or Keras 3 refuses the name.
    """
    from tpu_magics.backends.tensorflow import checkpoints

    return checkpoints.save(model, path, on_colab=_on_colab())


def load(model: Any, path: str | Path) -> Any:
    """Read what `save` (or Keras) wrote into a model of the same layers: weights, optimizer, step, seeds.

    Args:
        model: built, and compiled with the same optimizer where that is to be read too.
        path: as in `save`; a folder gives its newest checkpoint, a prefix in it that one.

    Returns:
        The model.

    Raises:
        TpuMagicsError: there is none, or it does not fit the model, which then is as it was.
    """
    from tpu_magics.backends.tensorflow import checkpoints

    return checkpoints.load(model, path)


def checkpoint(
    path: str | Path, *, model: Any = None, optimizer: Any = None, step: Any = None, keep: int = 1, **more: Any
) -> Checkpoint:
    """A checkpoint for a loop of your own:

        saved = tpu_magics.tf.checkpoint("checkpoints", model=model, optimizer=optimizer)
        for step in range(saved.restore(), 1000):  # 0 where nothing was saved yet
            train_step(...)
            if step % 100 == 99:
                saved.save()

    Args:
        path: a folder, here or in a bucket ("gs://bucket/..."); whether it can be written is tried now. ".keras" and
            ".weights.h5" hold a compiled model and nothing else.
        model, optimizer: of Keras; the model's own optimizer where none is given.
        step: a tf.Variable that counts; the optimizer's iterations where none is given.
        keep: how many checkpoints of the folder are kept.
        more: variables and other trackable objects, by name.

    Returns:
        An object with `.save()` (gives the path), `.restore()` (gives the step), `.exists`, `.step`.

    Raises:
        TpuMagicsError: as `save` and `load`.
    """
    from tpu_magics.backends.tensorflow.checkpoints import Checkpoint

    return Checkpoint(path, model=model, optimizer=optimizer, step=step, keep=keep, on_colab=_on_colab(), **more)


def _on_colab() -> bool:
    return find_place(os.environ, sys.modules).key == "colab"
