"""Problems of data, checked before the first step: input pipelines with Python or local files on a remote TPU, short
last batches, and what is given to `model.fit` inside the cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from itertools import islice
from types import GeneratorType
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import DEFAULT, TPU_REMOTE, Placement, TrainingProblem
from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.tensorflow.checkpoint_paths import Destination, destinations, path_problems
from tpu_magics.backends.tensorflow.input_pipeline import INFINITE, Batches, InputPipeline, pipeline_of, size_of
from tpu_magics.errors import TpuMagicsError

# -- input pipelines --------------------------------------------------------------------------------------------------


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
        return [python_problem(name, "a keras.utils.PyDataset")] if placed.kind == TPU_REMOTE else []
    pipeline = pipeline_of(data, cells)
    found = _remote_problems(name, pipeline) if placed.kind == TPU_REMOTE else []
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
    if placed.kind == DEFAULT:
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


# -- calls of fit -----------------------------------------------------------------------------------------------------


# Keras 3.15, backend/tensorflow/trainer.py: `fit` builds one TFEpochIterator from its arguments before it traces or
# trains anything. The check wraps that and not `fit`: a frame of ours around the training would hide the user's line.
# The locals of `fit` are `callbacks`, `val_x` and, once the first iterator is built, `epoch_iterator`.

Report = Callable[[TrainingProblem], None]
_TRAINER, _ITERATOR = "keras.src.backend.tensorflow.trainer", "TFEpochIterator"
_NOT_CHECKED = TrainingProblem(
    "Data and callbacks given to model.fit inside the cell are not checked.",
    f"This Keras version has no {_TRAINER}.{_ITERATOR} (Keras 3.15 has it).",
    refuses=False,
)
_BATCH = 32  # Keras' default
_NAME, _VALIDATION = "the data given to fit", "the validation data given to fit"


@dataclass(frozen=True)
class _FitContext:
    """`known`: data that was already reported, kept alive so that no id is reused; `written`: paths that were already
    tested."""

    placed: Placement
    known: dict[int, Any]
    written: Collection[Destination]
    cells: Mapping[str, str]
    on_colab: bool


@contextmanager
def checking_fits(
    placed: Placement,
    report: Report,
    items: Sequence[tuple[str, Any]] = (),
    cells: Mapping[str, str] | None = None,
    on_colab: bool = False,
) -> Iterator[None]:
    """Inside it, each `model.fit` raises TpuMagicsError before its first step for data that cannot work and callbacks
    that cannot write.

    Args:
        placed: where training runs.
        report: is called with each problem that does not refuse.
        items: values that `data.problems` and `path_problems` have already checked.
        cells: file names of cells -> "In [n]".
        on_colab: how to log in to a bucket differs on Colab.
    """
    written = tuple(destinations([value for _, value in items]))
    context = _FitContext(placed, {id(data): data for _, data in find_datasets(items)}, written, cells or {}, on_colab)
    kind = _iterator()
    if kind is None:
        report(_NOT_CHECKED)
        yield
        return
    original = kind.__init__

    @wraps(original)
    def init_with_checks(self: Any, *args: Any, **given: Any) -> None:
        __tracebackhide__ = True
        caller = sys._getframe(1)
        if caller.f_code.co_name == "fit" and "epoch_iterator" not in caller.f_locals:  # else it is the validation's
            for problem in _problems(given, caller.f_locals, context):
                _raise_or_report(problem, report)
        original(self, *args, **given)

    kind.__init__ = init_with_checks
    try:
        yield
    finally:
        kind.__init__ = original


def _iterator() -> Any:
    try:
        return getattr(import_module(_TRAINER), _ITERATOR, None)
    except ImportError:
        return None


def _raise_or_report(problem: TrainingProblem, report: Report) -> None:
    if problem.refuses:
        raise TpuMagicsError(problem.what, problem.why, problem.todo)
    report(problem)


def _problems(given: Mapping[str, Any], local: Mapping[str, Any], context: _FitContext) -> Iterator[TrainingProblem]:
    """For the arguments of fit's iterator and the locals of fit. Each problem is reported once."""
    for problem in (*_of_data(given, context), *_of_validation(local, context), *_of_callbacks(local, context)):
        yield replace(problem, what=problem.what[:1].upper() + problem.what[1:])


def _of_callbacks(local: Mapping[str, Any], context: _FitContext) -> Sequence[TrainingProblem]:
    items = [("callbacks", local.get("callbacks"))]
    return path_problems(items, context.placed, context.on_colab, context.written)


def _of_validation(local: Mapping[str, Any], context: _FitContext) -> Iterator[TrainingProblem]:
    """Only what cannot work: a short batch costs no compile of the training step there, and Keras finds its end."""
    data = local.get("val_x")
    dataset = dataset_of(data)
    if dataset is not None and id(dataset) not in context.known:
        context.known[id(dataset)] = dataset
        found = data_problems(_VALIDATION, dataset, context.placed, context.cells)
        yield from (problem for problem in found if problem.refuses)
    elif dataset is None:
        yield from _python_batches(_VALIDATION, data, context)


def _of_data(given: Mapping[str, Any], context: _FitContext) -> Iterator[TrainingProblem]:
    dataset = dataset_of(given.get("x"))
    if dataset is None:
        yield from _others(given, context)
        return
    if id(dataset) not in context.known:
        context.known[id(dataset)] = dataset
        yield from data_problems(_NAME, dataset, context.placed, context.cells)
    if isinstance(dataset, tf.data.Dataset) and not given.get("steps_per_epoch"):
        yield from _unknown_size(size_of(dataset), context.placed)


def _unknown_size(size: int, placed: Placement) -> Iterator[TrainingProblem]:
    if size == INFINITE:
        yield TrainingProblem(
            "The dataset given to fit is infinite, and steps_per_epoch is not set.",
            "The first epoch would never end.",
            "Set steps_per_epoch=rows // batch_size in fit, or remove repeat().",
            refuses=False,
        )
    elif size < 0 and placed.kind != DEFAULT:
        yield TrainingProblem(
            "The size of the dataset given to fit is unknown, and steps_per_epoch is not set.",
            "Its cardinality is UNKNOWN (a generator, a filter or files), so fit would find the end only through "
            "an OutOfRange error of steps that were already sent to the TPU.",
            "Set steps_per_epoch=rows // batch_size in fit and add repeat() to the dataset; or declare its size: "
            "dataset.apply(tf.data.experimental.assert_cardinality(batches)); or use tpu_magics.tf.in_memory.",
        )


def _others(given: Mapping[str, Any], context: _FitContext) -> Iterator[TrainingProblem]:
    """For arrays, and for Python objects that yield batches."""
    data = given.get("x")
    if id(data) in context.known:
        return
    context.known[id(data)] = data
    rows = _rows(data)
    if rows is not None:
        size = given.get("batch_size") or _BATCH
        if rows > size and rows % size and not given.get("steps_per_epoch"):
            problem = short_batch(_NAME, Batches(size, rows), context.placed)
            yield from [problem] if problem else []
    else:
        yield from _python_batches(_NAME, data, context)


def _python_batches(name: str, data: Any, context: _FitContext) -> Iterator[TrainingProblem]:
    if context.placed.kind == TPU_REMOTE and (isinstance(data, GeneratorType) or _is_loader(data)):
        yield python_problem(name, f"a {type(data).__name__}, which Keras turns into Dataset.from_generator")


def _rows(data: Any) -> int | None:
    """Number of rows of arrays; None for anything else."""
    leaves = tf.nest.flatten(data)
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    first = shapes[0] if shapes and all(shape is not None and len(shape) for shape in shapes) else None
    return None if first is None else int(first[0])


def _is_loader(data: Any) -> bool:
    """As Keras does it: by class names, without imports."""
    names = {(kind.__name__, kind.__module__.partition(".")[0]) for kind in type(data).__mro__}
    return bool(names & {("DataLoader", "torch"), ("MapDataset", "grain"), ("IterDataset", "grain")})
