"""The training state before a run, kept on disk and restored if the run fails."""

# The bytes of all variables stand one after the other in `values.bin`; `values.json` has the name, dtype, shape and
# offset of each, so that both are readable after the process has died.

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_magics.backends.base import DEFAULT, Placement, TrainingProblem
from tpu_magics.backends.tensorflow import trackables

VALUES, INDEX = "values.bin", "values.json"


def state_bytes(items: Sequence[tuple[str, Any]]) -> int:
    """Bytes that a TrainingSnapshot of `items` writes."""
    return sum(_size(one) for one in _parts(trackables.find(items).variables))


def _parts(variables: Sequence[Any]) -> Iterator[Any]:
    """Variables on single devices: for a distributed variable, each replica's, because those of a metric differ."""
    for variable in variables:
        copies = getattr(variable, "values", None)
        yield from copies if isinstance(copies, (list, tuple)) else (variable,)


def _size(variable: Any) -> int:
    """Bytes of a variable on one device; 0 if its values are not plain bytes (strings)."""
    if not variable.shape.is_fully_defined() or variable.dtype in (tf.string, tf.resource, tf.variant):
        return 0
    return int(variable.dtype.size * math.prod(variable.shape))


@dataclass(frozen=True)
class _StoredVariable:
    """One variable's bytes in the file; `held`: its value, if that is not plain bytes."""

    variable: Any
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    held: Any = None

    @property
    def length(self) -> int:
        return int(self.dtype.itemsize) * math.prod(self.shape)


class TrainingSnapshot:
    """Everything reachable from `items` that training can change (SavedState in backends/protocols.py).

    Raises OSError if it cannot be written; then nothing is left in `folder`.
    """

    def __init__(self, items: Sequence[tuple[str, Any]], folder: Path) -> None:
        self.folder = folder
        self._found = trackables.find(items)
        self._before = trackables.SavedAttributes(self._found)
        self._random = random_states()
        self._stored: list[_StoredVariable] = []
        try:
            folder.mkdir(mode=0o700)
            self._write()
        except BaseException:
            self.drop()
            raise

    @property
    def models(self) -> Mapping[str, Any]:
        return self._found.models

    def holds(self, value: object) -> bool:
        return self._found.holds(value)

    def drop(self) -> None:
        self._stored = []
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- writing --------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        with _private(self.folder / VALUES) as file:
            for variable in _parts([*self._found.variables, *self._random.variables]):
                self._stored.append(_store(variable, file))
        lines = [
            {"name": one.variable.name, "dtype": one.dtype.name, "shape": one.shape, "offset": one.offset}
            for one in self._stored
        ]
        with _private(self.folder / INDEX) as file:
            file.write(json.dumps(lines).encode())

    # -- putting back ---------------------------------------------------------------------------------------------
    def put_back(self) -> Sequence[str]:
        failed = [*self._before.restore()]
        with open(self.folder / VALUES, "rb") as file:
            for one in self._stored:
                failed += _restore_variable(one, file)
        self._random.restore()
        return failed


def _private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _store(variable: Any, file: Any) -> _StoredVariable:
    value = variable.numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        return _StoredVariable(variable, file.tell(), np.dtype("V0"), array.shape, held=value)
    written = _StoredVariable(variable, file.tell(), array.dtype, array.shape)
    file.write(array.tobytes())
    return written


def _restore_variable(one: _StoredVariable, file: Any) -> list[str]:
    try:
        if one.held is not None:
            one.variable.assign(one.held)
            return []
        file.seek(one.offset)
        value = np.frombuffer(file.read(one.length), one.dtype).reshape(one.shape)
        one.variable.assign(tf.constant(value, dtype=one.variable.dtype))
        return []
    except Exception as error:  # the others are restored anyway
        return [f"{one.variable.name} ({type(error).__name__}: {error})."]


# -- placement ---------------------------------------------------------------------------------------------------------


def not_finite(models: Mapping[str, Any]) -> str:
    """See LocalBackend."""
    for name, model in models.items():
        for variable in model.trainable_variables:
            value = tf.convert_to_tensor(variable)
            if value.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(value))):
                what = "NaN" if bool(tf.reduce_any(tf.math.is_nan(value))) else "Inf"
                path = getattr(variable, "path", variable.name)
                return f"The trained weights are not finite: parameter `{path}` of `{name}` contains {what}."
    return ""


def placement_problems(items: Sequence[tuple[str, Any]], placed: Placement) -> Sequence[TrainingProblem]:
    """Models, optimizers and metrics among `items` whose variables belong to another strategy, one problem each."""
    if placed.kind == DEFAULT and placed.strategy is tf.distribute.get_strategy():
        return []
    found = trackables.find(items)
    outside = [name for name, value in found.models.items() if not _in_scope(value, placed.strategy)]
    if outside:
        return [_outside(name, placed) for name in outside]
    loose = [one.name for one in found.variables if not _owned(one, placed.strategy)]
    return [_loose(loose)] if loose else []


def _in_scope(model: Any, strategy: Any) -> bool:
    own = getattr(model, "distribute_strategy", None)  # Keras models have it, even if not built
    variables = trackables.find([("", model)]).variables
    return (own is None or own is strategy) and all(_owned(one, strategy) for one in variables)


def _owned(variable: Any, strategy: Any) -> bool:
    with suppress(Exception):  # the strategy does not know this kind of variable
        return bool(strategy.extended.variable_created_in_scope(variable))
    return True


def _outside(name: str, placed: Placement) -> TrainingProblem:
    return TrainingProblem(
        f"The model `{name}` was built outside strategy.scope().",
        f"Its variables, or its optimizer's, do not belong to {type(placed.strategy).__name__} ({placed.replicas} "
        "replicas), so model.fit and strategy.run cannot train them together.",
        "Build and compile it in a cell below %tpu_init under `with strategy.scope():`, or in the cell under "
        "%%tpu_train, which runs inside the scope.",
    )


def _loose(names: Sequence[str]) -> TrainingProblem:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return TrainingProblem(
        f"Created outside strategy.scope(): {shown}.",
        "Replicas cannot have their own copies of them.",
        "If strategy.run uses them, create them under `with strategy.scope():`.",
        refuses=False,
    )


# -- random states -----------------------------------------------------------------------------------------------------
# An op of a tf.function that is not stateless (tf.random.normal) has a counter of its own inside the function, which
# cannot be read or set: after a failed run it continues from where it was.


GLOBAL_SEED_GENERATOR = "global_seed_generator"  # keras.src.random.seed_generator, Keras 3.15


@dataclass(frozen=True)
class RandomStates:
    """Saved states. `variables`: of generators, whose values the snapshot saves."""

    variables: tuple[Any, ...]
    _undo: tuple[Callable[[], None], ...]

    def restore(self) -> None:
        """Restore everything except the values of `variables`."""
        for one in self._undo:
            one()


def random_states() -> RandomStates:
    """The current states."""
    numbers, arrays = random.getstate(), np.random.get_state()
    generators = (_global_generator(), _keras_generator())
    undo = [lambda: random.setstate(numbers), lambda: np.random.set_state(arrays), _eager()]
    return RandomStates(
        tuple(variable for variables, _ in generators for variable in variables),
        (*undo, *(one for _, one in generators)),
    )


def _eager() -> Callable[[], None]:
    """The seed of tf.random.set_seed, and how far eager operations have drawn from it. TensorFlow 2.21:
    tensorflow/python/eager/context.py keeps both in `_seed` and `_rng`, without a public name."""
    try:
        from tensorflow.python.eager import context

        now = context.context()
        seed, rng = now._seed, now._rng
        state = rng.getstate() if rng is not None else None
    except (ImportError, AttributeError):
        return _nothing

    def undo() -> None:
        now._seed, now._rng = seed, rng
        if rng is not None:
            rng.setstate(state)

    return undo


def _global_generator() -> tuple[tuple[Any, ...], Callable[[], None]]:
    """tf.random.get_global_generator(), without creating it. TensorFlow 2.21:
    tensorflow/python/ops/stateful_random_ops.py."""
    try:
        from tensorflow.python.ops import stateful_random_ops

        generator = stateful_random_ops.global_generator
    except (ImportError, AttributeError):
        return (), _nothing

    def undo() -> None:
        stateful_random_ops.global_generator = generator

    return (() if generator is None else (generator.state,)), undo


def _keras_generator() -> tuple[tuple[Any, ...], Callable[[], None]]:
    """The seed generator of keras.random without a seed, without creating it. Keras 3.15."""
    try:
        from keras.src.backend.common import global_state

        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    except (ImportError, AttributeError):
        return (), _nothing

    def undo() -> None:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)

    return (() if generator is None else (generator.state.value,)), undo


def _nothing() -> None:
    pass
