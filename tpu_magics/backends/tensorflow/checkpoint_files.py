"""What a checkpoint of a model contains (weights, optimizer, seeds), and its files: the earlier checkpoint survives a
failed write."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tpu_magics.backends.tensorflow.checkpoint_paths import KERAS, WEIGHTS, ending, is_local
from tpu_magics.errors import TpuMagicsError

# -- contents ---------------------------------------------------------------------------------------------------------


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


# -- files ------------------------------------------------------------------------------------------------------------


_NAME = "ckpt"


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield the name of a local file to write. When the block ends, that file is moved to `path`; after an error or an
    interrupt, the old file at `path` is unchanged and nothing else is left."""
    with contextlib.ExitStack() as stack:
        # Only complete files are uploaded to a bucket.
        local = is_local(path)
        folder = Path(path).absolute().parent if local else Path(stack.enter_context(TemporaryDirectory()))
        name = path.rpartition("/")[2]
        suffix = ending(name)
        beside = folder / f".{name.removesuffix(suffix)}-{uuid.uuid4().hex[:8]}{suffix}"
        stack.callback(_remove_file, beside)
        yield str(beside)
        if local:
            _flush(beside)
            beside.replace(path)
        else:
            _upload(str(beside), path)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _upload(local: str, path: str) -> None:
    beside = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex[:8]}-{path.rpartition('/')[2]}"
    try:
        tf.io.gfile.copy(local, beside)
        tf.io.gfile.rename(beside, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(beside)
        raise


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A local file with the content of `path`."""
    if is_local(path):
        yield path
        return
    with TemporaryDirectory() as folder:
        copied = f"{folder}/{path.rpartition('/')[2]}"
        tf.io.gfile.copy(path, copied)
        yield copied


# -- folders of tf.train.Checkpoint -----------------------------------------------------------------------------------


def latest(folder: str) -> str:
    """The prefix of the newest complete checkpoint in a folder (or the prefix itself); "" if there is none."""
    if tf.io.gfile.exists(f"{folder}.index"):
        return folder
    named: str = tf.train.latest_checkpoint(folder) or "" if tf.io.gfile.isdir(folder) else ""
    return named


def names_in(prefix: str) -> set[str]:
    """Names of the top-level objects in a checkpoint ("model", "optimizer", ...). TensorFlow 2.21 keeps them in a
    tensor of this name, a TrackableObjectGraph whose first node is the root."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tf.compat.v1.train.NewCheckpointReader(prefix).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    return {child.local_name for child in graph.nodes[0].children}


def next_prefix(folder: str, step: int | None) -> str:
    """An unused prefix in `folder`, numbered by the step unless later ones exist."""
    taken = [int(found[1]) for name in _names(folder) if (found := re.match(rf"{_NAME}-(\d+)\.", name))]
    number = max(taken, default=-1) + 1
    return f"{folder}/{_NAME}-{number if step is None else max(step, number)}"


def _names(folder: str) -> list[str]:
    return list(tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else []


@contextlib.contextmanager
def adding(folder: str, prefix: str, keep: int) -> Iterator[None]:
    """The files that the block writes at `prefix` become the newest checkpoint of `folder`; then all but `keep` are
    removed. If the block fails, they are removed and the newest stays the same: the file "checkpoint", which names the
    newest, is replaced as a whole."""
    tf.io.gfile.makedirs(folder)
    known = [one for one in _known(folder) if tf.io.gfile.exists(f"{one}.index")]
    try:
        yield
        _write_state(folder, [*known, prefix])
    except BaseException:
        if latest(folder) != prefix:
            _remove(prefix)
        raise
    kept = [*known, prefix][-keep:]
    if len(kept) <= len(known):
        _write_state(folder, kept)
        for old in [one for one in known if one not in kept]:
            _remove(old)


def _known(folder: str) -> list[str]:
    state = tf.train.get_checkpoint_state(folder)
    return list(state.all_model_checkpoint_paths) if state else []


def _write_state(folder: str, prefixes: list[str]) -> None:
    names = [one.rpartition("/")[2] for one in prefixes]
    lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
    beside = f"{folder}/.checkpoint-{uuid.uuid4().hex[:8]}"
    with tf.io.gfile.GFile(beside, "w") as file:
        file.write("\n".join(lines) + "\n")
    if is_local(folder):
        _flush(Path(beside))
    tf.io.gfile.rename(beside, f"{folder}/checkpoint", overwrite=True)


def _remove(prefix: str) -> None:
    """Remove all files of one checkpoint, also those of an unfinished write."""
    folder, _, name = prefix.rpartition("/")
    for one in _names(folder):
        path = f"{folder}/{one}"
        if one.startswith((f"{name}.", f"{name}_temp")):
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)


# -- Keras files ------------------------------------------------------------------------------------------------------
# Keras 3.15 writes the optimizer's variables, with its iterations, into both kinds of file, but not the seeds of
# Dropout and similar layers (SeedGenerator.state). Without them training does not continue identically. They are added
# as an attribute of a `.weights.h5`, and as a member of a `.keras`. Keras ignores both.


_SEEDS = "tpu_magics.seeds"


def write_file(model: Any, path: str) -> None:
    """The file format follows from the ending."""
    WRITERS[ending(path)](model, path)


def read_file(model: Any, path: str) -> None:
    """Read weights, seeds, and the optimizer if the file has it."""
    with warnings.catch_warnings():
        # Keras warns if the file has no optimizer; here that is expected.
        warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
        model.load_weights(path)
    set_seeds(model, _read_seeds(path))


def _write_keras(model: Any, path: str) -> None:
    model.save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{_SEEDS}.json", _seeds_text(model))


def _write_weights(model: Any, path: str) -> None:
    model.save_weights(path)
    with _h5py().File(path, "a") as file:
        file.attrs[_SEEDS] = _seeds_text(model)


WRITERS = {KERAS: _write_keras, WEIGHTS: _write_weights}


def _seeds_text(model: Any) -> str:
    return json.dumps([one.numpy().tolist() for one in seeds_of(model)])


def _h5py() -> Any:
    """Keras writes weights with it, so it is installed with Keras."""
    return import_module("h5py")


def _read_seeds(path: str) -> list[Any]:
    """Seeds in a file that `save` wrote; none in any other file."""
    if path.endswith(KERAS):
        with zipfile.ZipFile(path) as archive:
            has = f"{_SEEDS}.json" in archive.namelist()
            found = json.loads(archive.read(f"{_SEEDS}.json")) if has else []
    else:
        with _h5py().File(path, "r") as file:
            found = json.loads(file.attrs.get(_SEEDS, "[]"))
    return list(found)
