"""Hooks into TensorFlow and Keras: calls of traced functions, eager optimizer steps, epochs, iterators."""

# Read in TensorFlow 2.21 and Keras 3.15: Function.__call__ is the call of every tf.function and knows the user's frame;
# ConcreteFunction._call_flat is what each of them, and a concrete function by itself, ends in: it knows the program and
# its tensors, and is also called for inner functions while tracing. A missing method is reported once, and what depends
# on it is not observed.

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.tensorflow.jit_functions import with_tensorflow_filename

if TYPE_CHECKING:
    from tpu_magics.backends.tensorflow.observe.observer import TensorFlowObserver

Wrapped = Callable[..., Any]
Wrap = Callable[[Wrapped, "TensorFlowObserver"], Wrapped]


@contextmanager
def install_hooks(observer: TensorFlowObserver) -> Iterator[list[str]]:
    """Install the hooks until the block ends. Yields what could not be hooked, in words."""
    missing: list[str] = []
    with ExitStack() as around:
        for find, name, wrap, what in _PLACES:
            try:
                owner = find()
                original = getattr(owner, name)
            except (ImportError, AttributeError) as error:
                missing.append(f"{what} ({error})")
                continue
            ours = with_tensorflow_filename(wrap(original, observer))  # errors show the stack of what is traced
            around.enter_context(_replaced(owner, name, ours, original))
        yield missing


@contextmanager
def _replaced(owner: Any, name: str, ours: Wrapped, original: Wrapped) -> Iterator[None]:
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if owner.__dict__.get(name) is ours:  # else it was wrapped again, and ours does nothing any more
            setattr(owner, name, original)


# -- calls ------------------------------------------------------------------------------------------------------------


def _function_call(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    ident = threading.get_ident

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if observer.closed or ident() != observer.thread:
            return original(self, *args, **kwargs)
        traces = _traces(self)
        if observer.inside:
            result = original(self, *args, **kwargs)
            if _traces(self) != traces:
                observer.on_trace(self)
            return result
        observer.inside, observer.called = True, None
        try:
            result = original(self, *args, **kwargs)
        except Exception:
            observer.on_error(self, args, sys._getframe(1))
            raise
        finally:
            observer.inside = False
        if _traces(self) != traces:
            observer.on_trace(self)
        observer.on_call(self, args, result, sys._getframe(1))
        return result

    return __call__


def _traces(function: Any) -> int:
    return len(getattr(function, "_function_cache", ()))  # TensorFlow 2.21: a FunctionCache


def _concrete_call(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    ident = threading.get_ident
    from tensorflow.python.eager import context

    eagerly = context.executing_eagerly

    def _call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        __tracebackhide__ = True
        if observer.closed or ident() != observer.thread:
            return original(self, tensor_inputs, captured_inputs)
        if not eagerly():
            observer.on_inner_call(self)
            return original(self, tensor_inputs, captured_inputs)
        observer.called = self, tensor_inputs
        if observer.inside:
            return original(self, tensor_inputs, captured_inputs)
        observer.inside = True
        try:
            result = original(self, tensor_inputs, captured_inputs)
        except Exception:
            observer.on_error(None, (), sys._getframe(1))
            raise
        finally:
            observer.inside = False
        observer.on_call(None, (), result, sys._getframe(1))
        return result

    return _call_flat


def _apply(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    """An optimizer step outside traced functions."""
    from tensorflow.python.eager import context

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        idle = not (observer.closed or observer.inside or observer.applying)
        if not idle or threading.get_ident() != observer.thread or not context.executing_eagerly():
            return original(self, *args, **kwargs)
        observer.applying = True
        try:
            result = original(self, *args, **kwargs)
        finally:
            observer.applying = False
        observer.step(1)
        return result

    return apply


def _epoch_end(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    def on_epoch_end(self: Any, epoch: Any, logs: Any = None) -> Any:
        __tracebackhide__ = True
        if not observer.closed and threading.get_ident() == observer.thread:
            observer.epoch(logs)
        return original(self, epoch, logs)

    return on_epoch_end


def _epoch_begin(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    def on_epoch_begin(self: Any, epoch: Any, logs: Any = None) -> Any:
        __tracebackhide__ = True
        if not observer.closed and threading.get_ident() == observer.thread:
            observer.epoch_begins(sys._getframe(1), epoch)
        return original(self, epoch, logs)

    return on_epoch_begin


def _train_end(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    def on_train_end(self: Any, logs: Any = None) -> Any:
        __tracebackhide__ = True
        if not observer.closed and threading.get_ident() == observer.thread:
            observer.fit_ends(sys._getframe(1))
        return original(self, logs)

    return on_train_end


def _pass(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    def __iter__(self: Any) -> Any:
        __tracebackhide__ = True
        idle = not (observer.closed or observer.inside or observer.iterating)
        if not idle or threading.get_ident() != observer.thread:
            return original(self)
        observer.progress.on_loader(sys._getframe(1), self, length, one_each=False)
        observer.iterating = True
        try:
            return original(self)
        finally:
            observer.iterating = False

    return __iter__


def length(dataset: Any) -> int | None:
    """The batches of a pass over a dataset of tf.data; None if unknown. A distributed one keeps the number, as an
    attribute (TensorFlow 2.21: distribute/input_lib.py)."""
    found = getattr(dataset, "_cardinality", None)
    if found is None and hasattr(dataset, "cardinality"):
        found = dataset.cardinality()
    return int(found) if found is not None and int(found) >= 0 else None


def _next(original: Wrapped, observer: TensorFlowObserver) -> Wrapped:
    evidence, progress = observer.evidence, observer.progress

    def __next__(self: Any) -> Any:
        __tracebackhide__ = True
        evidence.iterator = self
        if progress.learning:
            progress.on_batch(self)
        return original(self)

    return __next__


# -- what is hooked --------------------------------------------------------------------------------------------------


def _functions() -> Any:
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    return polymorphic_function.Function


def _concretes() -> Any:
    from tensorflow.python.eager.polymorphic_function import concrete_function

    return concrete_function.ConcreteFunction


def _iterators() -> Any:
    from tensorflow.python.data.ops import iterator_ops

    return iterator_ops.OwnedIterator


def _datasets() -> Any:
    from tensorflow.python.data.ops import dataset_ops

    return dataset_ops.DatasetV2


def _distributed_datasets() -> Any:
    from tensorflow.python.distribute import input_lib

    return input_lib.DistributedDataset


def _optimizers() -> Any:
    from keras.src.optimizers import base_optimizer

    return base_optimizer.BaseOptimizer


def _callbacks() -> Any:
    from keras.src.callbacks import callback_list

    return callback_list.CallbackList


_PLACES: tuple[tuple[Callable[[], Any], str, Wrap, str], ...] = (
    (_functions, "__call__", _function_call, "steps, retraces and the lines of compiles"),
    (_concretes, "_call_flat", _concrete_call, "which programs train"),
    (_iterators, "__next__", _next, "which batches are the last ones"),
    (_optimizers, "apply", _apply, "steps of loops without tf.function"),
    (_callbacks, "on_epoch_end", _epoch_end, "the logs of Keras' epochs"),
    (_callbacks, "on_epoch_begin", _epoch_begin, "the number of steps of Keras' training"),
    (_callbacks, "on_train_end", _train_end, "the end of Keras' training"),
    (_datasets, "__iter__", _pass, "the number of steps of a loop over a dataset"),
    (_distributed_datasets, "__iter__", _pass, "the number of steps of a loop over a distributed dataset"),
)
