"""File names of checkpoints: the endings that Keras 3 accepts, and its errors for old ones explained."""

from __future__ import annotations

import re
from collections.abc import Callable

from tpu_magics.errors import TpuMagicsError

KERAS, WEIGHTS = ".keras", ".weights.h5"
OLD = (".h5", ".hdf5", ".tf", ".ckpt")
USE_SAVE = "tpu_magics.tf.save(model, path), which accepts a local path also with a remote TPU"
_RECEIVED = re.compile(r"[Rr]eceived: filepath=(\S+?)\.?(?:\s|$)|not supported: filepath=(\S+?)\.?\s")


def ending(path: str) -> str:
    """ ".keras", ".weights.h5", or "" for a folder of tf.train.Checkpoint files."""
    return next((one for one in (WEIGHTS, KERAS) if path.endswith(one)), "")


def old_name(path: str) -> TpuMagicsError:
    """The error for a file name that only Keras 2 accepts."""
    stem = re.sub(r"(?:\.weights)?\.(?:h5|hdf5|tf|ckpt|keras)$", "", path)
    return TpuMagicsError(
        f"Keras 3 does not accept the file name {path}.",
        "The ending sets the file format: .weights.h5 for weights, .keras for a whole model.",
        f'Use "{stem}.weights.h5" for the weights and the optimizer (model.save_weights), "{stem}.keras" for the '
        f'whole model (model.save), or "{stem}" for a folder of tf.train.Checkpoint files (tpu_magics.tf.save '
        "only).",
    )


def name_refused(error: BaseException) -> TpuMagicsError | None:
    """Keras 3's error about a file name, or TensorFlow's about a local path with a remote TPU, explained; None for any
    other error. The texts are those of Keras 3.15 (saving/saving_api.py, callbacks/model_checkpoint.py)."""
    text = str(error)
    received = _RECEIVED.search(text)
    path = next((one for one in received.groups() if one), "") if received else "the path"
    for signs, explain in _NAMES:
        if all(sign in text for sign in signs):
            return explain(path)
    return None


def _load_error(path: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"Keras 3 cannot load {path}.",
        "It loads .keras, .weights.h5 and old .h5 files, but no folders of a SavedModel or of tf.train.Checkpoint.",
        f'For a tf.train.Checkpoint: tpu_magics.tf.load(model, "{path}"). For a SavedModel (inference only): '
        f'keras.layers.TFSMLayer("{path}", call_endpoint="serving_default").',
    )


def _save_format(_: str) -> TpuMagicsError:
    return TpuMagicsError(
        "Keras 3 does not accept the argument save_format.",
        "The ending of the name sets the file format.",
        'Remove it and use model.save("model.keras") or model.save_weights("model.weights.h5").',
    )


def _on_client(_: str) -> TpuMagicsError:
    return TpuMagicsError(
        "The path is on this machine, but the TPU is on another one.",
        "TensorFlow reads and writes on the TPU's host (\"File system scheme '[local]' not implemented\").",
        f'Use a path in a bucket ("gs://bucket/..."), {USE_SAVE}, or '
        'options=tf.train.CheckpointOptions(experimental_io_device="/job:localhost").',
    )


_NAMES: tuple[tuple[tuple[str, ...], Callable[[str], TpuMagicsError]], ...] = (
    (("The filename must end in `.weights.h5`",), old_name),
    (("Invalid filepath extension for saving",), old_name),
    (("the filepath provided must end in `.weights.h5`",), old_name),
    (("The filepath provided must end in `.keras`",), old_name),
    (("`save_format` argument is deprecated",), _save_format),
    (("File format not supported: filepath=",), _load_error),
    (("File system scheme '[local]' not implemented",), _on_client),
)
