"""Problems of data, checked before the first step: short last batches, and what is given to `model.fit` inside the
cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import DEFAULT, Placement, TrainingProblem
from tpu_magics.backends.tensorflow.checkpoint_paths import destinations, path_problems
from tpu_magics.backends.tensorflow.input_pipeline import INFINITE, Batches, short_batches, size_of
from tpu_magics.errors import TpuMagicsError

# -- input pipelines --------------------------------------------------------------------------------------------------


_DEPTH = 4  # nested containers
_MOST = 1000  # items checked per container
_PLAIN = (str, bytes, int, float, complex, bool, type(None), tf.Tensor, tf.Variable)
_OPEN = "the batch size is unknown when the step is traced, so TPUStrategy pads every batch"
_DROP = (
    "Use batch({size}, drop_remainder=True), a batch size that divides the number of rows, or repeat() before "
    "batch() together with steps_per_epoch."
)


def problems(items: Sequence[tuple[str, Any]], placed: Placement) -> Sequence[TrainingProblem]:
    """Problems of the input pipelines among `items`. Nothing is run, no element is taken.

    Args:
        items: (name, value) of the notebook; also in lists, tuples, mappings, iterators and distributed datasets.
        placed: where training runs.
    """
    found = (data_problem(name, data, placed) for name, data in find_datasets(items))
    return tuple(dict.fromkeys(one for one in found if one))


def find_datasets(items: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """(name, value) of each tf.data.Dataset, once."""
    seen: set[int] = set()
    for name, value in items:
        yield from _find_datasets(name, value, seen, _DEPTH)


def data_problem(name: str, data: Any, placed: Placement) -> TrainingProblem | None:
    """What is wrong with a dataset (also a distributed one)."""
    batches = short_batches(data)
    return short_batch(name, batches, placed) if batches else None


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
    if isinstance(value, tf.data.Dataset):
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
_NAME = "the data given to fit"


@dataclass(frozen=True)
class _FitContext:
    """`known`: data that was already reported, kept alive so that no id is reused; `written`: paths that were already
    tested."""

    placed: Placement
    known: dict[int, Any]
    written: Collection[str]
    on_colab: bool


@contextmanager
def checking_fits(
    placed: Placement,
    report: Report,
    items: Sequence[tuple[str, Any]] = (),
    on_colab: bool = False,
) -> Iterator[None]:
    """Inside it, each `model.fit` raises TpuMagicsError before its first step for data that cannot work and callbacks
    that cannot write.

    Args:
        placed: where training runs.
        report: is called with each problem that does not refuse.
        items: values that `data.problems` and `path_problems` have already checked.
        on_colab: how to log in to a bucket differs on Colab.
    """
    written = tuple(destinations([value for _, value in items]))
    context = _FitContext(placed, {id(data): data for _, data in find_datasets(items)}, written, on_colab)
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
    for problem in (*_of_data(given, context), *_of_callbacks(local, context)):
        yield replace(problem, what=problem.what[:1].upper() + problem.what[1:])


def _of_callbacks(local: Mapping[str, Any], context: _FitContext) -> Sequence[TrainingProblem]:
    items = [("callbacks", local.get("callbacks"))]
    return path_problems(items, context.on_colab, context.written)


def _of_data(given: Mapping[str, Any], context: _FitContext) -> Iterator[TrainingProblem]:
    dataset = dataset_of(given.get("x"))
    if dataset is None:
        yield from _others(given, context)
        return
    if id(dataset) not in context.known:
        context.known[id(dataset)] = dataset
        problem = data_problem(_NAME, dataset, context.placed)
        yield from [problem] if problem else []
    if not given.get("steps_per_epoch"):
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
    """For arrays. A PyDataset may have a `shape` that is not one of rows."""
    data = given.get("x")
    if id(data) in context.known:
        return
    context.known[id(data)] = data
    rows = None if isinstance(data, keras.utils.PyDataset) else _rows(data)
    size = given.get("batch_size") or _BATCH
    if rows is not None and rows > size and rows % size and not given.get("steps_per_epoch"):
        problem = short_batch(_NAME, Batches(size, rows), context.placed)
        yield from [problem] if problem else []


def _rows(data: Any) -> int | None:
    """Number of rows of arrays; None for anything else."""
    leaves = tf.nest.flatten(data)
    shapes = [getattr(leaf, "shape", None) for leaf in leaves]
    first = shapes[0] if shapes and all(shape is not None and len(shape) for shape in shapes) else None
    return None if first is None else int(first[0])
