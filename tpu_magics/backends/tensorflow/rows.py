"""Rows of a dataset in any form: tf.data, Hugging Face, PyDataset, arrays, lists, generators."""

# Hugging Face datasets are recognised by their attributes (datasets 4: `column_names`, `with_format`, slices that give
# columns), and never imported.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.tensorflow.input_pipeline import INFINITE, Batches, outermost_batches, size_of
from tpu_magics.errors import TpuMagicsError

ROWS = "rows"  # name of an unnamed only column
_CHUNK = 1_000  # rows read at once from a Hugging Face dataset
_TODO = (
    "Pass a Hugging Face dataset, a tf.data.Dataset, a keras.utils.PyDataset, arrays (alone, in a tuple or a "
    "mapping), a list of rows, or a function that returns rows."
)


@dataclass(frozen=True)
class RowBlock:
    """`values`: a nest of tuples and mappings; `many`: each value holds several rows, else one row."""

    values: Any
    many: bool = False


@dataclass(frozen=True)
class Rows:
    """`count`: rows, None if unknown; `batch_size`: of the source's batches, None for single rows; `copied`: False for
    arrays that are already in memory; `endless`: it never ends."""

    pieces: Iterable[RowBlock]
    count: int | None = None
    batch_size: int | None = None
    copied: bool = True
    endless: bool = False


def rows_of(given: Any) -> Rows:
    """The rows of `given`. Nothing is read yet. Raises TpuMagicsError for an unknown form."""
    for form in _FORMS:
        found = form(given)
        if found is not None:
            return found
    raise TpuMagicsError(f"A {type(given).__name__} contains no rows.", "It is not iterable.", _TODO)


# -- tf.data ----------------------------------------------------------------------------------------------------------


def _pipeline(given: Any) -> Rows | None:
    if not isinstance(given, tf.data.Dataset):
        return None
    size, batches = size_of(given), outermost_batches(given)
    endless = size == INFINITE
    if batches is None or not _are_batches(given.element_spec, batches):
        return Rows((RowBlock(_dense(one)) for one in given), size if size >= 0 else None, endless=endless)
    most = size * batches.size if size >= 0 else None  # the last batch may be short
    return Rows((RowBlock(_dense(one), many=True) for one in given), most, batches.size, endless=endless)


def _are_batches(spec: Any, batches: Batches) -> bool:
    """Whether each component still has the batch in its first axis: a map() may have changed that."""
    shapes = [one.shape for one in tf.nest.flatten(spec) if getattr(one, "shape", None) is not None]
    firsts = {shape[0] if shape.rank else "none" for shape in shapes if shape.rank is not None}
    return bool(shapes) and firsts <= {None, batches.size}


def _dense(element: Any) -> Any:
    """Tensors as arrays, sparse ones with their zeros, ragged ones as lists of rows."""
    if isinstance(element, Mapping):
        return {key: _dense(one) for key, one in element.items()}
    if isinstance(element, tuple):
        return tuple(_dense(one) for one in element)
    if isinstance(element, tf.SparseTensor):
        return tf.sparse.to_dense(element).numpy()
    if isinstance(element, tf.RaggedTensor):
        return [row.to_tensor().numpy() if isinstance(row, tf.RaggedTensor) else row.numpy() for row in element]
    return element.numpy() if hasattr(element, "numpy") else element


# -- Hugging Face -----------------------------------------------------------------------------------------------------


def _hugging_face(given: Any) -> Rows | None:
    _refuse_splits(given)
    if not (isinstance(getattr(given, "column_names", None), list) and hasattr(given, "with_format")):
        return None
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        return None  # a streamed dataset: it is iterated like any other
    return Rows(_chunks(_as_arrays(given)), len(given))


def _refuse_splits(given: Any) -> None:
    if isinstance(given, Mapping) and given and all(hasattr(one, "column_names") for one in given.values()):
        names = ", ".join(map(repr, given))
        raise TpuMagicsError(
            f"A {type(given).__name__} contains several datasets: {names}.",
            "A pipeline takes one dataset.",
            f"Choose a split: dataset[{next(iter(given))!r}].",
        )


def _as_arrays(given: Any) -> Any:
    """With the columns of its format. Rows that are made on the fly (set_transform) are unchanged."""
    style = getattr(given, "format", None) or {}
    if style.get("type") == "custom":
        return given
    return given.with_format("numpy", columns=style.get("columns") or given.column_names)


def _chunks(given: Any) -> Iterator[RowBlock]:
    for start in range(0, len(given), _CHUNK):
        yield RowBlock(dict(given[start : start + _CHUNK]), many=True)


# -- Keras, arrays, Python --------------------------------------------------------------------------------------------


def _py_dataset(given: Any) -> Rows | None:
    if not isinstance(given, keras.utils.PyDataset):
        return None
    if getattr(given, "num_batches", None) is None:
        return Rows((RowBlock(_dense(given[at]), many=True) for at in count()), None, 1, endless=True)
    first = _dense(given[0])
    size = len(next(iter(leaves(first).values())))
    pieces = (RowBlock(_dense(given[at]), many=True) for at in range(given.num_batches))
    return Rows(pieces, size * given.num_batches, size)


def _arrays(given: Any) -> Rows | None:
    """Arrays and tensors, a tuple or a mapping of them (or of lists), a data frame."""
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        given = {str(name): given[name].to_numpy() for name in given.columns}
    if not (isinstance(given, (Mapping, tuple)) or _is_array(given)):
        return None
    values = _dense(given)
    sizes = {name: len(value) for name, value in leaves(values).items() if hasattr(value, "__len__")}
    if not sizes or len(sizes) < len(leaves(values)):
        raise TpuMagicsError(f"A {type(given).__name__} of single values contains no rows.", "", _TODO)
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise TpuMagicsError(
            f"The columns have different numbers of rows: {said}.",
            "Row n of one belongs to row n of the others.",
            "Give all columns the same length.",
        )
    copied = not all(_is_array(value) for value in leaves(values).values())
    return Rows([RowBlock(values, many=True)], next(iter(sizes.values())), copied=copied)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 0


def _python(given: Any) -> Rows | None:
    """A list of rows, a dataset with an index, a generator, or a function that returns one."""
    if isinstance(given, (str, bytes)):
        return None
    if callable(given) and not hasattr(given, "__iter__") and not hasattr(given, "__getitem__"):
        given = given()
    rows = len(given) if hasattr(given, "__len__") else None
    if hasattr(given, "__iter__"):
        return Rows((RowBlock(_dense(row)) for row in given), rows)
    if hasattr(given, "__getitem__") and rows is not None:
        return Rows((RowBlock(_dense(given[at])) for at in range(rows)), rows)
    return None


_FORMS: tuple[Callable[[Any], Rows | None], ...] = (_pipeline, _hugging_face, _py_dataset, _arrays, _python)


# -- nests ------------------------------------------------------------------------------------------------------------


def leaves(values: Any, path: str = "") -> dict[str, Any]:
    """name -> value of a nest of tuples and mappings; "labels", "[0]", "[0]['ids']"; ROWS for a single one."""
    if isinstance(values, Mapping):
        items = [(f"{path}[{key!r}]" if path else str(key), one) for key, one in values.items()]
    elif isinstance(values, tuple):
        items = [(f"{path}[{number}]", one) for number, one in enumerate(values)]
    else:
        return {path or ROWS: values}
    return {name: leaf for at, one in items for name, leaf in leaves(one, at).items()}


def fill_nest(values: Any, found: Mapping[str, Any], path: str = "") -> Any:
    """A nest of the same form with other values, by name."""
    if isinstance(values, Mapping):
        return {key: fill_nest(one, found, f"{path}[{key!r}]" if path else str(key)) for key, one in values.items()}
    if isinstance(values, tuple):
        made = [fill_nest(one, found, f"{path}[{number}]") for number, one in enumerate(values)]
        return type(values)(*made) if hasattr(values, "_fields") else tuple(made)
    return found[path or ROWS]


def take_rows(values: Any, rows: int) -> Any:
    """The first rows of a block of many."""
    return fill_nest(values, {name: value[:rows] for name, value in leaves(values).items()})


def count_of(values: Any) -> int:
    """Number of rows in a block of many."""
    return len(next(iter(leaves(values).values())))
