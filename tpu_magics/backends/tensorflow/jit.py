"""The jit policy of a run: XLA compiles the steps at home, and jit_compile is taken off on a TPU.

What lives here: what of it is put on Keras models, and the list of what was changed. What does not: what compile() was
told (compile_calls.py), tf.functions (jit_functions.py, jit_strategy_run.py), and whether what was compiled is right for a TPU
(check/, preflight/).

On a TPU the strategy compiles what it runs, and the guide has jit_compile taken out there. At home nothing is compiled
without it, so that what XLA refuses would first show on the TPU. All is put back at the end of the run; what was traced
and compiled for it is kept aside for the next one.

Keras' own parts were read in Keras 3.15 (src/trainers/trainer.py, src/backend/tensorflow/trainer.py).
"""

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
from tpu_magics.backends.tensorflow.jit_functions import PUT_ON, Functions
from tpu_magics.backends.tensorflow.jit_strategy_run import Runs
from tpu_magics.backends.tensorflow.source_locations import Places

Cells = Mapping[str, str] | Callable[[], Mapping[str, str]]

_FUNCTIONS = ("train_function", "test_function", "predict_function")
_WAS = {
    True: "it was True",
    False: 'it was off, as Keras\' own "auto" has it without a GPU',
    None: 'it was off: Keras\' own "auto" has it so without a GPU, and what compile() was told is not known; --jit '
    "keep leaves it off",
}
_EXPLICIT = (
    "left as it is: compile() was told jit_compile=False. XLA does not see this step here, and what it cannot compile "
    "would first show on a TPU"
)
# Not "_...": Keras walks over a model's attributes when it saves it, without those that begin with two underscores.
_ASIDE = "__tpu_magics_jit__"


def policy(how: str, placed: Placed, cells: Cells | None = None) -> AbstractContextManager[Callable[[], Sequence[str]]]:
    """Within it the policy holds.

    Args:
        how: "auto", or "keep" to leave all as it is.
        placed: where the steps run.
        cells: file names of cells -> "In [n]", or what gives them.

    Returns:
        A function that tells what was changed so far, a line each.
    """
    return _kept() if how == "keep" else _auto(placed.kind == DEFAULT, _Told(cells or {}))


def was_put_on(lines: Sequence[str]) -> bool:
    """Whether the policy has put jit_compile on something, by what it has told."""
    return any(PUT_ON in line for line in lines)


@contextmanager
def _kept() -> Iterator[Callable[[], Sequence[str]]]:
    yield lambda: ()


@contextmanager
def _auto(compiled: bool, told: _Told) -> Iterator[Callable[[], Sequence[str]]]:
    with ExitStack() as parts:
        parts.enter_context(Models(compiled, told.of_caller).watching())
        parts.enter_context(Functions(compiled, told.is_persons, told.of_function).watching())
        if compiled:
            parts.enter_context(Runs(told.is_persons, told.of_function).watching())
        yield lambda: tuple(told.lines)


@dataclass
class _Told:
    """What was changed, in the order in which it was; a line is told once."""

    cells: Cells
    lines: dict[str, None] = field(default_factory=dict)

    def _places(self) -> Places:
        return Places(self.cells() if callable(self.cells) else self.cells)

    def is_persons(self, path: str) -> bool:
        return self._places().is_persons(path)

    def of_function(self, function: Any, name: str, text: str) -> None:
        """At the line where a Python function stands; None: no line."""
        place = self._places().of_function(function)
        self._tell(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def of_caller(self, name: str, text: str) -> None:
        """At the person's line that is being run."""
        place = self._places().of_frames(_frames_above())
        self._tell(f"{place} {name}: {text}" if place else f"{name}: {text}")

    def _tell(self, line: str) -> None:
        self.lines[line] = None


def _frames_above() -> list[tuple[str, int]]:
    """The stack, innermost first, without the frames of this file that called."""
    frames = ((frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe(1)))
    return list(dropwhile(lambda one: one[0] == __file__, frames))


# -- Keras models --------------------------------------------------------------------------------------------------


@dataclass
class _Before:
    """A model as it was: `jit`: its jit_compile; `functions`: what Keras has made of its steps."""

    model: Any
    jit: bool
    functions: dict[str, Any]


class Models:
    """`compiled`: the jit_compile that models are trained with; `tell`: takes a name and a text.

    Keras makes a model's training function when it is first trained, with what jit_compile is then. There it is
    changed, unless compile() was told False, and compile()'s own record of it stays as it was."""

    def __init__(self, compiled: bool, tell: Callable[[str, str], None]) -> None:
        self._compiled = compiled
        self._tell = tell
        self._changed: dict[int, _Before] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it models that are trained are changed first."""
        kind = _trainer()
        if kind is None:
            self._tell("models", f"jit_compile is as they have it: Keras {keras.__version__} has other parts than 3.15")
            yield
            return
        original = kind.make_train_function

        def make_train_function(model: Any, force: bool = False) -> Any:
            self._see(model)
            return original(model, force=force)

        kind.make_train_function = make_train_function
        try:
            yield
        finally:
            kind.make_train_function = original
            for before in self._changed.values():
                self._put_back(before)

    def _see(self, model: Any) -> None:
        if bool(model.jit_compile) == self._compiled:
            return
        said = compile_calls.told(model)
        if self._compiled and said is False:
            self._tell(_named(model), _EXPLICIT)
            return
        if self._compiled and (why := _unfit(model)):
            self._tell(_named(model), f"left without jit_compile: {why}")
            return
        before = _Before(model, bool(model.jit_compile), {name: getattr(model, name, None) for name in _FUNCTIONS})
        model.jit_compile = self._compiled  # Keras warns, and leaves it off, where the model does not support it
        if bool(model.jit_compile) != self._compiled:
            self._tell(_named(model), "left without jit_compile: Keras says that the model does not support it")
            return
        self._changed[id(model)] = before
        _put(model, _aside(model, self._compiled))
        was = _WAS[None if self._compiled and said is None else before.jit]
        self._tell(_named(model), f"jit_compile={self._compiled} for this run ({was})")

    def _put_back(self, before: _Before) -> None:
        model = before.model
        if bool(model.jit_compile) != self._compiled:
            return  # compiled again since, and not trained
        made = {name: getattr(model, name, None) for name in _FUNCTIONS}
        model.__dict__[_ASIDE] = (self._compiled, _compiled_as(model), made)
        model.jit_compile = before.jit
        _put(model, before.functions)


def _trainer() -> Any:
    """Keras' trainer on TensorFlow; None where this version has it elsewhere."""
    try:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    except ImportError:
        return None
    return TensorFlowTrainer if hasattr(TensorFlowTrainer, "make_train_function") else None


def _unfit(model: Any) -> str:
    if model.run_eagerly:
        return "it has run_eagerly=True"
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return "its strategy has several replicas, and XLA compiles no collectives on a CPU"
    return ""


def _named(model: Any) -> str:
    return f"model {model.name!r}"


def _put(model: Any, functions: Mapping[str, Any]) -> None:
    for name in _FUNCTIONS:
        setattr(model, name, functions.get(name))


def _compiled_as(model: Any) -> Any:
    """What is another object after each compile(); None where this Keras does not have it."""
    return getattr(model, "_compile_config", None)


def _aside(model: Any, compiled: bool) -> Mapping[str, Any]:
    """What an earlier run made of the model's steps, unless it was compiled anew since."""
    was, config, functions = model.__dict__.get(_ASIDE, (None, None, {}))
    return functions if was is compiled and config is not None and config is _compiled_as(model) else {}
