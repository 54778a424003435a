"""A training step in any form (tf.function, Python function, Keras model) as one function of flat tensors."""

# Keras' own parts were read in Keras 3.15.

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.errors import TpuMagicsError

_BATCH = ("x", "y", "sample_weight")
_TRAIN_STEP = "train_step"
_MANY_STEPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

_ONE_STEP = "Only one training step can be compiled."
GIVE_MODEL = "Pass the model and one batch instead of `fit`: (model, x, y), or a dataset for x and y."


@dataclass(frozen=True)
class Step:
    """`call`: takes the tensors of `arguments.leaves` in order; `source`: the user's Python function, if any;
    `prepare`: creates the variables that the first step would create; `model`: the Keras model, if any."""

    name: str
    call: Callable[..., Any]
    arguments: StepArguments
    source: Callable[..., Any] | None = None
    prepare: Callable[[], None] = lambda: None
    model: Any = None
    notes: tuple[str, ...] = ()


def step_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
    """The step that lower.lower was given. Raises TpuMagicsError if it has no shape to compile for."""
    if isinstance(getattr(function, "__self__", None), keras.Model) and function.__name__ in _MANY_STEPS:
        raise TpuMagicsError(f"model.{function.__name__} runs more than one step.", _ONE_STEP, GIVE_MODEL)
    model = _model_of(function)
    return _of_function(function, args, kwargs) if model is None else _of_model(model, args, kwargs)


# -- Keras ----------------------------------------------------------------------------------------------------------


def runs_many_steps(function: Any) -> bool:
    """Whether a Python function calls `fit` or similar, by the names in its code."""
    return bool({*_MANY_STEPS} & {*getattr(getattr(function, "__code__", None), "co_names", ())})


def _model_of(function: Any) -> Any:
    if isinstance(function, keras.Model):
        return function
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, keras.Model) and getattr(function, "__name__", "") == _TRAIN_STEP else None


def _of_model(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
    _require_ready(model)
    data, was_read = _data((*args, *(kwargs[name] for name in _BATCH if name in kwargs)))
    arguments = flatten_arguments(data, dict(enumerate(_BATCH)), _as_floatx)

    def call(*tensors: Any) -> Any:
        return model.train_step(arguments.pack(tensors))

    theirs = type(model).train_step
    return Step(
        name=f"{model.name}.{_TRAIN_STEP}",
        # Keras does not apply AutoGraph to a step either (keras/src/backend/tensorflow/trainer.py).
        call=tf.autograph.experimental.do_not_convert(call),
        arguments=arguments,
        source=None if theirs.__module__.startswith("keras.") else theirs,
        prepare=lambda: _build(model, arguments.pack(arguments.specs())),
        model=model,
        notes=(*([READ_BATCH] if was_read else []), *_notes_of(model)),
    )


def _data(given: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """(x, y, sample_weight), as far as given, from a batch, a dataset or separate values."""
    was_read = False
    if len(given) == 1:
        given, was_read = element_of(given[0]) if isinstance(given[0], tf.data.Dataset) else (given[0], False)
    return tuple(given) if isinstance(given, (tuple, list)) else (given,), was_read


def _require_ready(model: Any) -> None:
    if keras.backend.backend() != "tensorflow":
        raise TpuMagicsError(
            f"Keras uses the {keras.backend.backend()} backend.",
            "TensorFlow lowers the step of a Keras model.",
            'Restart the kernel and set os.environ["KERAS_BACKEND"] = "tensorflow" before Keras is imported.',
        )
    if not model.compiled:
        raise TpuMagicsError(
            f"The model {model.name!r} is not compiled.",
            "Its training step needs an optimizer and a loss.",
            "Call model.compile(optimizer, loss) first.",
        )


def _as_floatx(array: Any) -> Any:
    """Convert to floatx, like Keras' array adapter."""
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _build(model: Any, data: Any) -> None:
    """Create missing weights, metrics and optimizer state. Existing ones keep their values."""
    model._symbolic_build(data_batch=data)  # what `fit` calls before its first step


def _notes_of(model: Any) -> list[str]:
    steps = getattr(model, "steps_per_execution", 1)
    return [f"steps_per_execution is {steps}; the program compiled here is one step."] if steps > 1 else []


# -- functions ------------------------------------------------------------------------------------------------------


def _of_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
    source = getattr(function, "python_function", function)
    positional, was_read = _spread(source, tuple(args), kwargs)
    names = (*_names(source, len(positional)), *kwargs)
    arguments = flatten_arguments((*positional, *kwargs.values()), dict(enumerate(names)))
    traced = function if _is_tf_function(function) else tf.function(function)

    def call(*tensors: Any) -> Any:
        found = arguments.pack(tensors)
        return traced(*found[: len(positional)], **dict(zip(kwargs, found[len(positional) :], strict=True)))

    return Step(
        name=getattr(source, "__name__", type(function).__name__),
        call=tf.autograph.experimental.do_not_convert(call),
        arguments=arguments,
        source=source,
        notes=(READ_BATCH,) if was_read else (),
    )


def _is_tf_function(function: Any) -> bool:
    kinds = tf.types.experimental
    return isinstance(function, (kinds.PolymorphicFunction, kinds.ConcreteFunction))


def _spread(source: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], bool]:
    """The positional arguments; a single dataset of tuples stands for their items if the function takes those."""
    if len(args) != 1 or not isinstance(args[0], tf.data.Dataset):
        return args, False
    element, was_read = element_of(args[0])
    if isinstance(element, tuple) and not _takes(source, 1, kwargs) and _takes(source, len(element), kwargs):
        return element, was_read
    return (element,), was_read


def _takes(source: Any, count: int, kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(source).bind(*range(count), **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _names(source: Any, count: int) -> list[str]:
    try:
        found = list(inspect.signature(source).parameters.values())
    except (TypeError, ValueError):
        found = []
    known = [one.name for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [*known[:count], *(f"argument {n}" for n in range(len(known), count))]


# -- arguments ---------------------------------------------------------------------------------------------------------


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
        return _map_leaves(self.structure, "", lambda _, one: _fill(one, tensors))

    def trace_values(self) -> tuple[Any, ...]:
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
        """The next element, like tf.data.Iterator.get_next."""
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
    made = tuple(_map_leaves(one, (names or {}).get(n, f"[{n}]"), flattener.leaf) for n, one in enumerate(structure))
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
            return _map_leaves(element, path, self.leaf)
        if isinstance(value, tf.data.Iterator):
            return FixedIterator(_map_leaves(value.element_spec, path, self.leaf))
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


def _map_leaves(value: Any, path: str, change: Callable[[str, Any], Any]) -> Any:
    """A nest of tuples, lists and mappings with its leaves changed."""
    if isinstance(value, Mapping):
        return {key: _map_leaves(one, f"{path}[{key!r}]", change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [_map_leaves(one, f"{path}[{n}]", change) for n, one in enumerate(value)]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return change(path, value)


def _fill(one: Any, tensors: tuple[Any, ...]) -> Any:
    if isinstance(one, Leaf):
        return tensors[one.number]
    if isinstance(one, FixedIterator):
        return FixedIterator(_map_leaves(one.element, "", lambda _, inner: _fill(inner, tensors)))
    return one
