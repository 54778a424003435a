"""The jit policy of a run: XLA compiles steps without a TPU; on a TPU, `jit_compile` is removed."""

# On a TPU the strategy compiles what it runs, and the guide says to remove jit_compile there. Elsewhere nothing is
# compiled without it, so what XLA refuses would first show on the TPU. Everything is restored after the run; traces and
# compiled programs are cached for the next run.
# Keras' own parts were read in Keras 3.15 (src/trainers/trainer.py, src/backend/tensorflow/trainer.py).

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import dropwhile
from traceback import walk_stack
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import DEFAULT, Placement
from tpu_magics.backends.tensorflow import keras_settings
from tpu_magics.backends.tensorflow.jit_functions import (
    ENABLED,
    FunctionJit,
    inside_xla,
    python_of,
    with_tensorflow_filename,
)
from tpu_magics.backends.tensorflow.source_locations import SourceLocations

Cells = Mapping[str, str] | Callable[[], Mapping[str, str]]

_FUNCTIONS = ("train_function", "test_function", "predict_function")
_WAS = {
    True: "it was on",
    False: 'it was off: Keras\' "auto" turns it off without a GPU',
    None: 'it was off: Keras\' "auto" turns it off without a GPU, and the value given to compile() is unknown; --jit '
    "keep leaves it off",
}
_EXPLICIT = (
    "unchanged: compile() got jit_compile=False. XLA does not compile this step here, so an op that XLA cannot "
    "compile would first fail on a TPU"
)
# Two underscores: Keras walks over a model's attributes when it saves it, but skips those.
_CACHE = "__tpu_magics_jit__"


def policy(
    how: str, placed: Placement, cells: Cells | None = None
) -> AbstractContextManager[Callable[[], Sequence[str]]]:
    """Inside it the policy is active.

    Args:
        how: "auto", or "keep" to change nothing.
        placed: where the steps run.
        cells: file names of cells -> "In [n]", or a function that returns them.

    Returns:
        A function that returns the changes so far, one line each.
    """
    return _unchanged() if how == "keep" else _auto(placed.kind == DEFAULT, _ChangeLog(cells or {}))


def has_enabled_jit(lines: Sequence[str]) -> bool:
    """Whether the policy has set jit_compile on something, by its report."""
    return any(ENABLED in line for line in lines)


@contextmanager
def _unchanged() -> Iterator[Callable[[], Sequence[str]]]:
    yield lambda: ()


@contextmanager
def _auto(compiled: bool, log: _ChangeLog) -> Iterator[Callable[[], Sequence[str]]]:
    with ExitStack() as parts:
        parts.enter_context(KerasJit(compiled, log.of_caller).watching())
        parts.enter_context(FunctionJit(compiled, log.is_user_code, log.of_function).watching())
        if compiled:
            parts.enter_context(StrategyRunJit(log.is_user_code, log.of_function).watching())
        yield lambda: tuple(log.lines)


@dataclass
class _ChangeLog:
    """The changes in order; each line is reported once."""

    cells: Cells
    lines: dict[str, None] = field(default_factory=dict)

    def _locations(self) -> SourceLocations:
        return SourceLocations(self.cells() if callable(self.cells) else self.cells)

    def is_user_code(self, path: str) -> bool:
        return self._locations().is_user_code(path)

    def of_function(self, function: Any, name: str, text: str) -> None:
        """A change at the line of a Python function; None: no line."""
        place = self._locations().of_function(function)
        self._add(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def of_caller(self, name: str, text: str) -> None:
        """A change at the user's line that is running."""
        place = self._locations().of_frames(_frames_above())
        self._add(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def _add(self, line: str) -> None:
        self.lines[line] = None


def _frames_above() -> list[tuple[str, int]]:
    """The stack, innermost first, without the calling frames of this file."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe(1)))
    return list(dropwhile(lambda one: one[0] == __file__, frames))


# -- Keras models --------------------------------------------------------------------------------------------------


@dataclass
class _ModelState:
    """A model's jit_compile and the functions that Keras made for its steps."""

    model: Any
    jit: bool
    functions: dict[str, Any]


class KerasJit:
    """`compiled`: the jit_compile for training; `log`: takes a name and a text.

    Keras makes a model's training function when it first trains, with the jit_compile of that moment. It is changed
    there, unless compile() got False; compile()'s own record stays the same.
    """

    def __init__(self, compiled: bool, log: Callable[[str, str], None]) -> None:
        self._compiled = compiled
        self._log = log
        self._changed: dict[int, _ModelState] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it, models are changed before they train."""
        kind = _trainer()
        if kind is None:
            self._log(
                "models", f"jit_compile is unchanged: Keras {keras.__version__} differs from 3.15, which this supports"
            )
            yield
            return
        original = kind.make_train_function

        def make_train_function(model: Any, force: bool = False) -> Any:
            self._apply(model)
            return original(model, force=force)

        kind.make_train_function = make_train_function
        try:
            yield
        finally:
            kind.make_train_function = original
            for before in self._changed.values():
                self._restore(before)

    def _apply(self, model: Any) -> None:
        if bool(model.jit_compile) == self._compiled:
            return
        requested = keras_settings.requested_jit(model)
        if self._compiled and requested is False:
            self._log(_title(model), _EXPLICIT)
            return
        if self._compiled and (why := _ineligible_reason(model)):
            self._log(_title(model), f"jit_compile stays off: {why}")
            return
        before = _ModelState(model, bool(model.jit_compile), {name: getattr(model, name, None) for name in _FUNCTIONS})
        model.jit_compile = self._compiled  # Keras warns, and leaves it off, if the model does not support it
        if bool(model.jit_compile) != self._compiled:
            self._log(_title(model), "jit_compile stays off: Keras reports that the model does not support it")
            return
        self._changed[id(model)] = before
        _set_functions(model, _cached(model, self._compiled))
        was = _WAS[None if self._compiled and requested is None else before.jit]
        self._log(_title(model), f"jit_compile={self._compiled} for this run ({was})")

    def _restore(self, before: _ModelState) -> None:
        model = before.model
        if bool(model.jit_compile) != self._compiled:
            return  # compiled again since, but not trained
        made = {name: getattr(model, name, None) for name in _FUNCTIONS}
        model.__dict__[_CACHE] = (self._compiled, _compiled_as(model), made)
        model.jit_compile = before.jit
        _set_functions(model, before.functions)


def _trainer() -> Any:
    """Keras' trainer on TensorFlow; None if this version has it elsewhere."""
    try:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    except ImportError:
        return None
    return TensorFlowTrainer if hasattr(TensorFlowTrainer, "make_train_function") else None


def _ineligible_reason(model: Any) -> str:
    if model.run_eagerly:
        return "it has run_eagerly=True"
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return "its strategy has several replicas, and XLA cannot compile collectives on a CPU"
    return ""


def _title(model: Any) -> str:
    return f"model {model.name!r}"


def _set_functions(model: Any, functions: Mapping[str, Any]) -> None:
    for name in _FUNCTIONS:
        setattr(model, name, functions.get(name))


def _compiled_as(model: Any) -> Any:
    """An object that compile() replaces; None if this Keras does not have it."""
    return getattr(model, "_compile_config", None)


def _cached(model: Any, compiled: bool) -> Mapping[str, Any]:
    """What an earlier run made of the model's steps, unless it was compiled again since."""
    was, config, functions = model.__dict__.get(_CACHE, (None, None, {}))
    return functions if was is compiled and config is not None and config is _compiled_as(model) else {}


# -- strategy.run ------------------------------------------------------------------------------------------------------
# The TPU guide puts the whole step into one tf.function that takes its batch from an iterator. XLA compiles no input
# pipeline, so on CPU nothing of such a step would be compiled; on a TPU, what `strategy.run` gets is compiled.
# TensorFlow's own parts were read in TensorFlow 2.21 (python/distribute/distribute_lib.py, StrategyBase.run, and
# tpu_strategy.py, validate_run_function).


_ENABLED = "jit_compile=True for this run: on a TPU strategy.run compiles it"
_EAGER = (
    "strategy.run runs it op by op here, which fails on a TPU: make it a tf.function, or call strategy.run inside one"
)


class StrategyRunJit:
    """`is_user_code`: takes a path; `log`: takes a Python function, a name and a text."""

    def __init__(self, is_user_code: Callable[[str], bool], log: Callable[[Any, str, str], None]) -> None:
        self._is_user_code = is_user_code
        self._log = log
        self._made: dict[Any, Any] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it, functions given to strategy.run are inspected."""
        kind = _strategy_class()
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
        try:  # one for each function, however often the user's code calls strategy.run: a TPU compiles it once, too
            if fn not in self._made:
                self._made[fn] = tf.function(fn, jit_compile=True)
            return self._made[fn]
        except TypeError:  # a callable object without a hash
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


def _strategy_class() -> Any:
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
