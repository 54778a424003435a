"""The first training step of a run, lowered before it is executed (for preflight)."""

# Keras 3.15, backend/tensorflow/trainer.py: `fit` passes its epoch iterator to `_maybe_symbolic_build` before it traces
# or trains anything. TensorFlow 2.21: every tf.function is called through Function.__call__.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import tensorflow as tf

from tpu_magics.backends.lowered import TraceResult
from tpu_magics.backends.tensorflow.lower import lower

Ask = Callable[[TraceResult], None]
MOST = 5  # tf.functions checked to find one that trains


class _FirstStep:
    """Calls `ask` once. `ask` may raise, and so end the run before its first step."""

    def __init__(self, ask: Ask, precision: str, cells: Mapping[str, str]) -> None:
        self.found = False
        self._ask, self._precision, self._cells = ask, precision, cells
        self._busy = False
        self._seen: set[int] = set()

    def of_fit(self, model: Any, iterator: Any) -> None:
        data = getattr(iterator, "_distributed_dataset", None)
        if not self.found and isinstance(data, tf.data.Dataset):
            self._look(model, (data,), {})

    def of_function(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        wanted = not (self.found or self._busy or id(function) in self._seen) and len(self._seen) < MOST
        theirs = getattr(function.python_function, "__module__", "") or ""
        if wanted and tf.executing_eagerly() and not theirs.startswith(("keras.", "tensorflow.")):
            self._seen.add(id(function))
            self._look(function, args, kwargs)

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._busy = True
        try:
            found = lower(function, args, kwargs, precision=self._precision, cell_names=self._cells)
        finally:
            self._busy = False
        if any(graph.donors for graph in found.graphs):  # it assigns variables, so it trains
            self.found = True
            self._ask(found)


@contextmanager
def before_first_step(ask: Ask, precision: str, cells: Mapping[str, str]) -> Iterator[Callable[[], bool]]:
    """Inside it, `ask` gets the lowered program of the first training step before it is executed: of the model and the
    data of `model.fit`, or of a tf.function that assigns variables. An exception of `ask` ends the run. Yields a
    function that returns whether there was such a step."""
    first_step = _FirstStep(ask, precision, cells)
    with ExitStack() as patches:
        for kind, name, look in _patch_points(first_step):
            patches.enter_context(_wrapped(kind, name, look))
        yield lambda: first_step.found


def _patch_points(first_step: _FirstStep) -> Iterator[tuple[Any, str, Callable[..., None]]]:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    def fit(model: Any, iterator: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if sys._getframe(2).f_code.co_name == "fit":  # not `evaluate`
            first_step.of_fit(model, iterator)

    def call(function: Any, *args: Any, **kwargs: Any) -> None:
        first_step.of_function(function, args, kwargs)

    yield TensorFlowTrainer, "_maybe_symbolic_build", fit
    yield Function, "__call__", call


@contextmanager
def _wrapped(kind: Any, name: str, look: Callable[..., None]) -> Iterator[None]:
    original = getattr(kind, name)

    @wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        look(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(kind, name, called)
    try:
        yield
    finally:
        setattr(kind, name, original)
