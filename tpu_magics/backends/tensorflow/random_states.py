"""Save and restore random states of Python, NumPy, TensorFlow and Keras."""

# An op of a tf.function that is not stateless (tf.random.normal) has a counter of its own inside the function, which
# cannot be read or set: after a failed run it continues from where it was.

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

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


def capture() -> RandomStates:
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
