"""The jit policy of a run: XLA compiles steps on CPU and GPU; on a TPU, `jit_compile` is removed."""

# On a TPU the strategy compiles what it runs, and the guide says to remove jit_compile there. Elsewhere nothing is
# compiled without it, so what XLA refuses would first show on the TPU. Everything is restored after the run; traces and
# compiled programs are cached for the next run.
# Keras' own parts were read in Keras 3.15 (src/trainers/trainer.py, src/backend/tensorflow/trainer.py).

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import dropwhile
from traceback import walk_stack
from typing import Any

import keras

from tpu_magics.backends.base import DEFAULT, Placed
from tpu_magics.backends.tensorflow import compile_calls
from tpu_magics.backends.tensorflow.jit_functions import ENABLED, FunctionJit
from tpu_magics.backends.tensorflow.jit_strategy_run import StrategyRunJit
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
# Not "_...": Keras walks over a model's attributes when it saves it, without those that begin with two underscores.
_CACHE = "__tpu_magics_jit__"


def policy(how: str, placed: Placed, cells: Cells | None = None) -> AbstractContextManager[Callable[[], Sequence[str]]]:
    """Within it the policy holds.

    Args:
        how: "auto", or "keep" to leave all as it is.
        placed: where the steps run.
        cells: file names of cells -> "In [n]", or what gives them.

    Returns:
        A function that tells what was changed so far, a line each.
    """
    return _unchanged() if how == "keep" else _auto(placed.kind == DEFAULT, _ChangeLog(cells or {}))


def has_enabled_jit(lines: Sequence[str]) -> bool:
    """Whether the policy has put jit_compile on something, by what it has told."""
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
    """What was changed, in the order in which it was; a line is told once."""

    cells: Cells
    lines: dict[str, None] = field(default_factory=dict)

    def _locations(self) -> SourceLocations:
        return SourceLocations(self.cells() if callable(self.cells) else self.cells)

    def is_user_code(self, path: str) -> bool:
        return self._locations().is_user_code(path)

    def of_function(self, function: Any, name: str, text: str) -> None:
        """At the line where a Python function stands; None: no line."""
        place = self._locations().of_function(function)
        self._tell(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def of_caller(self, name: str, text: str) -> None:
        """At the person's line that is being run."""
        place = self._locations().of_frames(_frames_above())
        self._tell(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def _tell(self, line: str) -> None:
        self.lines[line] = None


def _frames_above() -> list[tuple[str, int]]:
    """The stack, innermost first, without the frames of this file that called."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe(1)))
    return list(dropwhile(lambda one: one[0] == __file__, frames))


# -- Keras models --------------------------------------------------------------------------------------------------


@dataclass
class _ModelState:
    """A model as it was: `jit`: its jit_compile; `functions`: what Keras has made of its steps."""

    model: Any
    jit: bool
    functions: dict[str, Any]


class KerasJit:
    """`compiled`: the jit_compile that models are trained with; `tell`: takes a name and a text.

    Keras makes a model's training function when it is first trained, with what jit_compile is then. There it is
    changed, unless compile() was told False, and compile()'s own record of it stays as it was."""

    def __init__(self, compiled: bool, tell: Callable[[str, str], None]) -> None:
        self._compiled = compiled
        self._tell = tell
        self._changed: dict[int, _ModelState] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it models that are trained are changed first."""
        kind = _trainer()
        if kind is None:
            self._tell(
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
        said = compile_calls.requested_jit(model)
        if self._compiled and said is False:
            self._tell(_title(model), _EXPLICIT)
            return
        if self._compiled and (why := _ineligible_reason(model)):
            self._tell(_title(model), f"jit_compile stays off: {why}")
            return
        before = _ModelState(model, bool(model.jit_compile), {name: getattr(model, name, None) for name in _FUNCTIONS})
        model.jit_compile = self._compiled  # Keras warns, and leaves it off, where the model does not support it
        if bool(model.jit_compile) != self._compiled:
            self._tell(_title(model), "jit_compile stays off: Keras reports that the model does not support it")
            return
        self._changed[id(model)] = before
        _set_functions(model, _cached(model, self._compiled))
        was = _WAS[None if self._compiled and said is None else before.jit]
        self._tell(_title(model), f"jit_compile={self._compiled} for this run ({was})")

    def _restore(self, before: _ModelState) -> None:
        model = before.model
        if bool(model.jit_compile) != self._compiled:
            return  # compiled again since, and not trained
        made = {name: getattr(model, name, None) for name in _FUNCTIONS}
        model.__dict__[_CACHE] = (self._compiled, _compiled_as(model), made)
        model.jit_compile = before.jit
        _set_functions(model, before.functions)


def _trainer() -> Any:
    """Keras' trainer on TensorFlow; None where this version has it elsewhere."""
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
    """What is another object after each compile(); None where this Keras does not have it."""
    return getattr(model, "_compile_config", None)


def _cached(model: Any, compiled: bool) -> Mapping[str, Any]:
    """What an earlier run made of the model's steps, unless it was compiled anew since."""
    was, config, functions = model.__dict__.get(_CACHE, (None, None, {}))
    return functions if was is compiled and config is not None and config is _compiled_as(model) else {}
