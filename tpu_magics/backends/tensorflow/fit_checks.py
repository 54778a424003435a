"""Data and callbacks given to `model.fit` inside the cell, checked before the first step."""

# Keras 3.15, backend/tensorflow/trainer.py: `fit` builds one TFEpochIterator from its arguments before it traces or
# trains anything. The check wraps that and not `fit`: a frame of ours around the training would hide the user's line.
# The locals of `fit` are `callbacks`, `val_x` and, once the first iterator is built, `epoch_iterator`.

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from types import GeneratorType
from typing import Any

import tensorflow as tf

from tpu_magics.backends.base import Placement, TrainingProblem
from tpu_magics.backends.tensorflow.checkpoint_paths import Destination, destinations, path_problems
from tpu_magics.backends.tensorflow.data import (
    HOME,
    REMOTE,
    data_problems,
    dataset_of,
    find_datasets,
    python_problem,
    short_batch,
)
from tpu_magics.backends.tensorflow.input_pipeline import INFINITE, Batches, size_of
from tpu_magics.errors import TpuMagicsError

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
        report: is called with each Problem that does not refuse.
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
    elif size < 0 and placed.kind != HOME:
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
    if context.placed.kind == REMOTE and (isinstance(data, GeneratorType) or _is_loader(data)):
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
