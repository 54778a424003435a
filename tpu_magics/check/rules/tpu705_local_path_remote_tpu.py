"""A local path for a remote TPU.

What it does
    Reports data, checkpoints, models and logs that TensorFlow reads or writes under a local path, in a program whose
    TPU is another host (TPUClusterResolver with a name or an address).
Why this is bad
    TensorFlow reads and writes on the TPU's host, which does not have this machine's files: "File system scheme
    '[local]' not implemented". Python writes and reads HDF5 and `.keras` files on this machine, which works: a bucket
    is recommended for files that are written.
Example
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="my-tpu-node")
    train = tf.data.TFRecordDataset("data/train.tfrecord")
Use instead
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="my-tpu-node")
    train = tf.data.TFRecordDataset("gs://bucket/data/train.tfrecord")
Limitations
    A path from outside the program is unknown. Nothing is reported if `options=` decide on which host the file is
    (`experimental_io_device="/job:localhost"`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _tensorflow
from tpu_magics.check.values import MODEL, TFDATA

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram

CODE = "TPU705"
NAME = "local-path-remote-tpu"
GROUP = "tensorflow"
WHY = (
    "TensorFlow reads and writes it on the TPU's host, which does not have this machine's files (\"File system scheme "
    "'[local]' not implemented\")."
)

_WHY_PYTHON = (
    "Python writes this format on this machine, not on the TPU's host, and the file is lost with this machine."
)
_BUCKET = 'Use a path in a bucket ("gs://bucket/...").'
_DATA = 'Copy the data into a bucket and read it from there ("gs://bucket/..."), or use arrays in memory.'
_DEVICE = 'Use a path in a bucket ("gs://bucket/..."), or options=tf.{0}(experimental_io_device="/job:localhost").'
_SAVE, _LOAD, _POINT = (
    _DEVICE.format(one) for one in ("saved_model.SaveOptions", "saved_model.LoadOptions", "train.CheckpointOptions")
)
# Canonical name: (keyword of the path, its position, what to do).
_NAMES: dict[str, tuple[str, int, str]] = {
    "tensorflow.data.TFRecordDataset": ("filenames", 0, _DATA),
    "tensorflow.data.TextLineDataset": ("filenames", 0, _DATA),
    "tensorflow.data.FixedLengthRecordDataset": ("filenames", 0, _DATA),
    "tensorflow.data.experimental.CsvDataset": ("filenames", 0, _DATA),
    "tensorflow.data.experimental.make_csv_dataset": ("file_pattern", 0, _DATA),
    "tensorflow.data.experimental.load": ("path", 0, _DATA),
    "tensorflow.data.experimental.save": ("path", 1, _DATA),
    "tensorflow.data.Dataset.load": ("path", 0, _DATA),
    "tensorflow.data.Dataset.list_files": ("file_pattern", 0, _DATA),
    "tensorflow.io.read_file": ("filename", 0, _DATA),
    "keras.utils.image_dataset_from_directory": ("directory", 0, _DATA),
    "keras.preprocessing.image_dataset_from_directory": ("directory", 0, _DATA),
    "keras.utils.text_dataset_from_directory": ("directory", 0, _DATA),
    "keras.preprocessing.text_dataset_from_directory": ("directory", 0, _DATA),
    "keras.utils.audio_dataset_from_directory": ("directory", 0, _DATA),
    "tensorflow_datasets.load": ("data_dir", 2, _DATA),
    "keras.models.load_model": ("filepath", 0, _LOAD),
    "keras.saving.load_model": ("filepath", 0, _LOAD),
    "keras.models.save_model": ("filepath", 1, _SAVE),
    "keras.saving.save_model": ("filepath", 1, _SAVE),
    "tensorflow.saved_model.save": ("export_dir", 1, _SAVE),
    "tensorflow.saved_model.load": ("export_dir", 0, _LOAD),
    "tensorflow.train.CheckpointManager": ("directory", 1, _POINT),
    "tensorflow.summary.create_file_writer": ("logdir", 0, _BUCKET),
    "keras.callbacks.ModelCheckpoint": ("filepath", 0, _POINT),
    "keras.callbacks.TensorBoard": ("log_dir", 0, _BUCKET),
    "keras.callbacks.BackupAndRestore": ("backup_dir", 0, _BUCKET),
    "keras.callbacks.experimental.BackupAndRestore": ("backup_dir", 0, _BUCKET),
}
_MODEL_METHODS: dict[str, tuple[str, int, str]] = {
    "save": ("filepath", 0, _SAVE),
    "save_weights": ("filepath", 0, _POINT),
    "load_weights": ("filepath", 0, _POINT),
    "export": ("filepath", 0, _SAVE),
}
_CHECKPOINT = "tensorflow.train.Checkpoint"
_CHECKPOINT_METHODS: dict[str, tuple[str, int, str]] = {
    "save": ("file_prefix", 0, _POINT),
    "write": ("file_prefix", 0, _POINT),
    "restore": ("save_path", 0, _POINT),
    "read": ("save_path", 0, _POINT),
}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BY_PYTHON = (".h5", ".hdf5", ".keras")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.tpu_tf or not _tensorflow.is_remote(program):
        return
    for name, spec in _NAMES.items():
        for call in program.calls(name):
            yield from _found(call, spec)
    for method, spec in _MODEL_METHODS.items():
        for call in program.methods(method, MODEL):
            yield from _found(call, spec)
    for call in program.methods("save", TFDATA):
        yield from _found(call, ("path", 0, _DATA))
    for method, spec in _CHECKPOINT_METHODS.items():
        for call in program.methods(method):
            if _is_checkpoint(call):
                yield from _found(call, spec)
    for call in program.calls("tensorflow_datasets.load"):
        yield from _default_directory(call)


def _is_checkpoint(call: CallSite) -> bool:
    """`tf.train.Checkpoint(...).save(...)`, also through a name."""
    func, ctx = call.node.func, call.ctx
    receiver = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(receiver, ast.Call):
        return ctx.name(receiver) == _CHECKPOINT
    return receiver is not None and ctx.source(receiver) in _checkpoints(ctx.program)


def _checkpoints(program: CheckedProgram) -> set[str]:
    """The names that checkpoints are bound to."""
    targets = ((_tensorflow.assignment_target(call.node, call.ctx), call.ctx) for call in program.calls(_CHECKPOINT))
    return {ctx.source(target) for target, ctx in targets if target is not None}


def _found(call: CallSite, spec: tuple[str, int, str]) -> Iterator[Finding]:
    keyword, position, fix = spec
    ctx = call.ctx
    path = ctx.argument(call.node, keyword, position)
    if path is None or ctx.argument(call.node, "options") is not None:
        return
    start = _tensorflow.known_prefix(path, ctx)
    if not start or _SCHEME.match(start) or start.startswith("/job:") or _tensorflow.is_on_client(call):
        return
    source, callee = (" ".join(ctx.source(one).split()) for one in (path, call.node.func))
    message = f"{callee} gets {source}, a local path, in a program for a remote TPU."
    if not _ending(path, start, ctx.source(path)).endswith(_BY_PYTHON):
        yield ctx.finding(call.node, message, fix)
    elif "load" not in callee:
        yield ctx.finding(call.node, message, _BUCKET, _WHY_PYTHON, advice=True)


def _ending(path: ast.expr, start: str, source: str) -> str:
    return start.lower() if isinstance(path, (ast.Constant, ast.Name)) else source.rstrip("\"')").lower()


def _default_directory(call: CallSite) -> Iterator[Finding]:
    """tfds.load without a directory prepares the data in the local home directory."""
    ctx, node = call.ctx, call.node
    if ctx.argument(node, "data_dir", 2) is not None or ctx.has_unknown_arguments(node):
        return
    if ctx.constant(ctx.argument(node, "try_gcs")) is True or ctx.constant(ctx.argument(node, "batch_size", 3)) == -1:
        return
    message = f"{ctx.source(node.func)} reads from the local home directory, in a program for a remote TPU."
    yield ctx.finding(node, message, 'Add try_gcs=True, or data_dir="gs://bucket/...".')
