"""The jit policy for functions given to `strategy.run`: XLA compiles them on CPU, as TPUStrategy.run does."""

# The TPU guide puts the whole step into one tf.function that takes its batch from an iterator. XLA compiles no input
# pipeline, so on CPU nothing of such a step would be compiled; on a TPU, what `strategy.run` gets is compiled.
# TensorFlow's own parts were read in TensorFlow 2.21 (python/distribute/distribute_lib.py, StrategyBase.run, and
# tpu_strategy.py, validate_run_function).

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from traceback import walk_stack
from typing import Any

import tensorflow as tf

from tpu_magics.backends.tensorflow.jit_functions import inside_xla, python_of, with_tensorflow_filename

_ENABLED = "jit_compile=True for this run: on a TPU strategy.run compiles it"
_EAGER = (
    "strategy.run runs it op by op here, which fails on a TPU: make it a tf.function, or call strategy.run inside one"
)


class StrategyRunJit:
    """`is_user_code`: takes a path; `log`: takes a Python function, a name and a text."""

    def __init__(self, is_user_code: Callable[[str], bool], log: Callable[[Any, str, str], None]) -> None:
        self._is_user_code = is_user_code
        self._log = log

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it, functions given to strategy.run are inspected."""
        kind = _kind()
        if kind is None:
            self._log(
                None, "strategy.run", f"unchanged: TensorFlow {tf.__version__} differs from 2.21, which this supports"
            )
            yield
            return
        original, compiled = kind.run, self._compiled

        @wraps(original)  # AutoGraph does not rewrite functions of TensorFlow's modules
        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            __tracebackhide__ = True
            return original(strategy, compiled(strategy, fn), args, kwargs, options)

        kind.run = with_tensorflow_filename(run)
        try:
            yield
        finally:
            kind.run = original

    def _compiled(self, strategy: Any, fn: Any) -> Any:
        """`fn`, or a tf.function of it that XLA compiles."""
        python = _innermost(fn)
        code = getattr(python, "__code__", None)
        if code is None or strategy.num_replicas_in_sync > 1:
            return fn  # a tf.function is inspected when it is called
        if tf.executing_eagerly():
            if self._is_user_code(code.co_filename):
                self._log(python, python.__name__, _EAGER)
            return fn
        around = _traced()
        if inside_xla() or not self._may_change(around):
            return fn
        self._log(python_of(around), python.__name__, _ENABLED)
        return tf.function(fn, jit_compile=True)

    def _may_change(self, function: Any) -> bool:
        """Whether the tf.function being traced is the user's and has no jit_compile of its own: then jit_functions.py
        sets its traces of this run aside."""
        if function is None or function._jit_compile is not None:
            return False
        code = getattr(python_of(function), "__code__", None)
        return code is not None and self._is_user_code(code.co_filename)


def _innermost(fn: Any) -> Any:
    """The function inside functools.partial."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn


def _kind() -> Any:
    """The class of strategies; None if it differs from TensorFlow 2.21."""
    try:
        from tensorflow.python.distribute.distribute_lib import StrategyBase
    except ImportError:
        return None
    return StrategyBase if hasattr(StrategyBase, "run") else None


def _traced() -> Any:
    """The innermost tf.function that is being traced; None if there is none."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    path = polymorphic_function.__file__
    for frame, _ in walk_stack(None):
        if frame.f_code.co_filename == path:
            found = frame.f_locals.get("self")
            if isinstance(found, polymorphic_function.Function):
                return found
    return None
