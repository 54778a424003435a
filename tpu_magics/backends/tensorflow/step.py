"""A training step in any form (tf.function, Python function, Keras model) as one function of flat tensors."""

# Keras' own parts were read in Keras 3.15.

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.tensorflow.step_arguments import READ_BATCH, StepArguments, element_of, flatten_arguments
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
    """As Keras' array adapter does."""
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
