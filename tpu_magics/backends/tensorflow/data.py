"""Problems of input pipelines: Python or local files on a remote TPU, short last batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import Placement, TrainingProblem
from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.tensorflow.input_pipeline import Batches, InputPipeline, pipeline_of

REMOTE = "tpu-remote"
HOME = "default"
_DEPTH = 4  # nested containers
_MOST = 1000  # items checked per container
_PLAIN = (str, bytes, int, float, complex, bool, type(None), tf.Tensor, tf.Variable)
_PYTHON_WHY = (
    "The pipeline runs on the TPU's host, which does not have this Python process or its functions (\"No "
    "registered 'PyFunc' OpKernel\")."
)
_FILES_WHY = (
    "The pipeline runs on the TPU's host, which does not have this machine's files (\"File system scheme '[local]' not "
    'implemented").'
)
_IN_MEMORY = (
    "Load it into memory first: tpu_magics.tf.in_memory({name}, batch_size=...). If it does not fit, write "
    'TFRecord files to a bucket and read them with tf.data.TFRecordDataset("gs://bucket/...").'
)
_BUCKET = (
    'Copy the files to a bucket and use "gs://bucket/..." paths, or load the data into memory: '
    "tpu_magics.tf.in_memory({name}, batch_size=...)."
)
_OPEN = "the batch size is unknown when the step is traced, so TPUStrategy pads every batch"
_DROP = (
    "Use batch({size}, drop_remainder=True), a batch size that divides the number of rows, or repeat() before "
    "batch() together with steps_per_epoch."
)


def problems(
    items: Sequence[tuple[str, Any]], placed: Placement, cells: Mapping[str, str] | None = None
) -> Sequence[TrainingProblem]:
    """Problems of the input pipelines among `items`. Nothing is run, no element is taken.

    Args:
        items: (name, value) of the notebook; also in lists, tuples, mappings, iterators and distributed datasets.
        placed: where training runs. Python and local files are a problem only for a TPU on another host.
        cells: file names of cells -> "In [n]".
    """
    found: list[TrainingProblem] = []
    for name, data in find_datasets(items):
        found += data_problems(name, data, placed, cells)
    return tuple(dict.fromkeys(found))


def find_datasets(items: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """(name, value) of each tf.data.Dataset and keras.utils.PyDataset, once."""
    seen: set[int] = set()
    for name, value in items:
        yield from _find_datasets(name, value, seen, _DEPTH)


def data_problems(
    name: str, data: Any, placed: Placement, cells: Mapping[str, str] | None = None
) -> Sequence[TrainingProblem]:
    """Problems of one dataset (also a distributed one) or one PyDataset."""
    if isinstance(data, keras.utils.PyDataset):
        return [python_problem(name, "a keras.utils.PyDataset")] if placed.kind == REMOTE else []
    pipeline = pipeline_of(data, cells)
    found = _remote_problems(name, pipeline) if placed.kind == REMOTE else []
    short = pipeline.batches and short_batch(name, pipeline.batches, placed)
    return [*found, *([short] if short else [])]


def _find_datasets(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if (data := dataset_of(value)) is not None:
        if data is value or id(data) not in seen:
            seen.add(id(data))
            yield name, data
    elif depth and isinstance(value, Mapping):
        for key, one in islice(list(value.items()), _MOST):
            yield from _find_datasets(f"{name}[{key!r}]", one, seen, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, one in enumerate(value[:_MOST]):
            yield from _find_datasets(f"{name}[{number}]", one, seen, depth - 1)
    elif depth and type(value).__module__ == "__main__":  # an instance of a class defined in the notebook
        for key, one in list(getattr(value, "__dict__", {}).items()):
            yield from _find_datasets(f"{name}.{key}", one, seen, depth - 1)


def dataset_of(value: Any) -> Any:
    """The dataset that `value` is or was made from; None if there is none. Attributes as in TensorFlow 2.21
    (distribute/input_lib.py, data/ops/iterator_ops.py); if they are missing, it is not found."""
    if isinstance(value, (tf.data.Dataset, keras.utils.PyDataset)):
        return value
    if isinstance(value, tf.distribute.DistributedDataset):
        parts = (getattr(value, "_original_dataset", None), *(getattr(value, "_datasets", None) or ()))
    elif isinstance(value, tf.data.Iterator):
        parts = (getattr(value, "_dataset", None),)
    elif isinstance(value, tf.distribute.DistributedIterator):
        iterators = getattr(value, "_iterators", None) or ()
        parts = tuple(getattr(one, "_dataset", None) for one in iterators)
    else:
        return None
    return next((part for part in parts if isinstance(part, tf.data.Dataset)), None)


# -- sentences --------------------------------------------------------------------------------------------------------


def _remote_problems(name: str, pipeline: InputPipeline) -> list[TrainingProblem]:
    found = [python_problem(name, one.what, one.place) for one in pipeline.python]
    for one in pipeline.files:
        if one.local:
            what = (
                f"{name} reads {one.local} from this machine ({one.what}{_at(one.place)}), but the TPU is on "
                "another machine."
            )
            found.append(TrainingProblem(what, _FILES_WHY, _BUCKET.format(name=name)))
    return found


def python_problem(name: str, what: str, place: SourceLine | None = None) -> TrainingProblem:
    """Python in the pipeline of a TPU on another host."""
    said = f"{name} runs Python in the input pipeline of a remote TPU: {what}{_at(place)}."
    return TrainingProblem(said, _PYTHON_WHY, _IN_MEMORY.format(name=name))


def short_batch(name: str, batches: Batches, placed: Placement) -> TrainingProblem | None:
    """None if the last batch costs no compile."""
    what = (
        f"The last batch of {name} has {batches.rest:,} of {batches.size:,} rows."
        if batches.rest is not None
        else f"The last batch of {name} may have fewer than {batches.size:,} rows: the number of rows is unknown."
    )
    why = _cost(batches, placed)
    return TrainingProblem(what, why, _DROP.format(size=batches.size), refuses=False) if why else None


def _cost(batches: Batches, placed: Placement) -> str:
    """What a short last batch costs.

    With TPUStrategy (read in TensorFlow 2.21: distribute/input_lib.py and tpu/tpu.py, _pad_all_input; the shares were
    seen with MirroredStrategy over logical CPUs): each replica gets up to ceil(rest / replicas) rows, all are padded to
    the largest share, at least two rows, and the program is compiled for that shape.
    """
    if placed.kind == HOME:
        return "Fewer rows are a new shape, so XLA compiles the training step once more."
    full = _share(batches.size, placed.replicas)
    if batches.rest is None:
        return (
            f"If a replica does not get {full:,} rows of it, XLA compiles the training step once more. Also, {_OPEN}."
        )
    share = _share(batches.rest, placed.replicas)
    if share == full:
        return f"It costs no compile ({share:,} rows per replica, as in the other batches), but {_OPEN}."
    return (
        f"TPUStrategy gives each of {placed.replicas} replicas at most {share:,} rows instead of {full:,}. That "
        f"is a new shape, so XLA compiles the training step once more. Also, {_OPEN}."
    )


def _share(rows: int, replicas: int) -> int:
    return max(2, -(-rows // max(1, replicas)))


def _at(place: SourceLine | None) -> str:
    return f" at {place}" if place else ""
