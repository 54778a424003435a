"""Arguments of a training step as a flat tuple of named tensors or specs, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.errors import TpuMagicsError

READ_BATCH = (
    "The element spec of the dataset has unknown shapes, so its first batch was read. A pipeline that reshuffles "
    "each epoch has advanced by one epoch."
)


@dataclass(frozen=True)
class Leaf:
    """One tensor of the arguments. `value`: None if only its spec is known."""

    number: int
    name: str
    spec: Any
    value: Any = None


@dataclass(frozen=True)
class StepArguments:
    """`structure`: a nest with Leafs in place of tensors; `leaves`: the Leafs in order."""

    structure: Any
    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()

    def pack(self, tensors: tuple[Any, ...]) -> Any:
        """The nest with a tensor for each leaf."""
        return _mapped(self.structure, "", lambda _, one: _filled(one, tensors))

    def given(self) -> tuple[Any, ...]:
        """Arguments to trace with: the values if all are known, else the specs. (A value that must be a program
        constant, such as a shape, is only known from the values.)"""
        if all(leaf.value is not None for leaf in self.leaves):
            return tuple(leaf.value for leaf in self.leaves)
        return self.specs()

    def specs(self) -> tuple[Any, ...]:
        """(tf.TensorSpec, ...)"""
        return tuple(leaf.spec for leaf in self.leaves)

    def batch(self) -> int | None:
        """Rows of the largest tensor."""
        shaped = [leaf.spec for leaf in self.leaves if leaf.spec.shape.rank]
        largest = max(shaped, key=lambda spec: spec.shape.num_elements() * spec.dtype.size, default=None)
        return None if largest is None else int(largest.shape[0])


class FixedIterator:
    """Replaces an iterator over batches: returns the same batch each time, so that tracing does not consume one."""

    def __init__(self, element: Any) -> None:
        self.element = element

    def __iter__(self) -> FixedIterator:
        return self

    def __next__(self) -> Any:
        return self.element

    def get_next(self) -> Any:
        """As tf.data.Iterator.get_next."""
        return self.element


def flatten_arguments(
    structure: Any, names: Mapping[int, str] | None = None, cast: Callable[[Any], Any] | None = None
) -> StepArguments:
    """Flatten a tuple of arguments.

    Args:
        structure: the tuple.
        names: of its items, by position; "[0]" without a name.
        cast: applied to arrays first.
    Raises:
        TpuMagicsError: a shape with an unknown dimension, a ragged or sparse tensor.
    """
    flattener = _Flattener(cast or (lambda array: array))
    made = tuple(_mapped(one, (names or {}).get(n, f"[{n}]"), flattener.leaf) for n, one in enumerate(structure))
    return StepArguments(made, tuple(flattener.leaves), tuple(dict.fromkeys(flattener.notes)))


def element_of(dataset: Any) -> tuple[Any, bool]:
    """Spec of one element of a dataset or, if that has an unknown dimension, its first element; and whether it was
    read."""
    if all(_is_known(spec) for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset.element_spec, False
    for element in dataset.take(1):
        return element, True
    raise TpuMagicsError(
        "The dataset is empty.", "The shapes are read from a batch.", "Use a dataset with at least one batch."
    )


@dataclass
class _Flattener:
    cast: Callable[[Any], Any]
    leaves: list[Leaf] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def leaf(self, path: str, value: Any) -> Any:
        """A Leaf for a tensor; anything else is returned unchanged, as a constant of the program."""
        if isinstance(value, tf.data.Dataset):
            element, was_read = element_of(value)
            self.notes += [READ_BATCH] * was_read
            return _mapped(element, path, self.leaf)
        if isinstance(value, tf.data.Iterator):
            return FixedIterator(_mapped(value.element_spec, path, self.leaf))
        if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            raise _irregular(path, value)
        if isinstance(value, tf.TensorSpec):
            return self._add(path, value, None)
        if isinstance(value, (tf.Variable, keras.Variable)):
            return value
        if tf.is_tensor(value):
            return self._add(path, tf.TensorSpec(value.shape, value.dtype), value)
        if hasattr(value, "__array__"):
            tensor = tf.convert_to_tensor(self.cast(value.__array__()))
            return self._add(path, tf.TensorSpec(tensor.shape, tensor.dtype), tensor)
        return value

    def _add(self, path: str, spec: Any, value: Any) -> Leaf:
        if not _is_known(spec):
            raise TpuMagicsError(
                f"The shape of {path} is not known: {spec.shape}.",
                "A TPU program is compiled for one shape.",
                "Pass a tf.TensorSpec with every dimension, or a batch; for a dataset: batch(n, drop_remainder=True).",
            )
        self.leaves.append(Leaf(len(self.leaves), path, spec, value))
        return self.leaves[-1]


def _is_known(spec: Any) -> bool:
    return bool(spec.shape.is_fully_defined())


def _irregular(path: str, value: Any) -> TpuMagicsError:
    return TpuMagicsError(
        f"{path} is a {type(value).__name__.removesuffix('Spec')}.",
        "Its rows differ in length, but a TPU program is compiled for one shape.",
        "Pad it to a dense tensor first: tensor.to_tensor(shape=...), or tf.sparse.to_dense(tensor).",
    )


def _mapped(value: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """A nest of tuples, lists and mappings with its leaves changed."""
    if isinstance(value, Mapping):
        return {key: _mapped(one, f"{path}[{key!r}]", change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [_mapped(one, f"{path}[{n}]", change) for n, one in enumerate(value)]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return change(path, value)


def _filled(one: Any, tensors: tuple[Any, ...]) -> Any:
    if isinstance(one, Leaf):
        return tensors[one.number]
    if isinstance(one, FixedIterator):
        return FixedIterator(_mapped(one.element, "", lambda _, inner: _filled(inner, tensors)))
    return one
