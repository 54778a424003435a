"""Save and load models: weights, optimizer, step and random seeds. And save calls in the user's code
(`model.save_weights("x.h5")` after `model.fit`), checked before training starts."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import TrainingProblem
from tpu_magics.backends.tensorflow.checkpoint_files import (
    adding,
    bytes_of,
    latest,
    local_copy,
    names_in,
    next_prefix,
    read_file,
    replacing,
    require_built,
    require_matched,
    restoring_on_error,
    seeds_of,
    strategy_of,
    variables_of,
    write_file,
)
from tpu_magics.backends.tensorflow.checkpoint_paths import (
    KERAS,
    OLD,
    WEIGHTS,
    ending,
    expand,
    is_local,
    name_refused,
    nearest_folder,
    normalise,
    old_name,
    path_problems,
    writable,
)
from tpu_magics.errors import TpuMagicsError

__all__ = ["Checkpoint", "load", "name_refused", "path_problems", "save", "writable"]


def save(model: Any, path: str | Path, *, on_colab: bool = False) -> str:
    """See tpu_magics.tf.save."""
    text = normalise(path)
    if not ending(text):
        return Checkpoint(text, model=model, on_colab=on_colab).save()
    require_built(model)
    require_writable(text, on_colab, bytes_of(variables_of(model)))
    _require_keras(model, text)
    with replacing(text) as beside:
        write_file(model, beside)
    return text


def load(model: Any, path: str | Path) -> Any:
    """See tpu_magics.tf.load."""
    text = expand(path)
    if not text.endswith((KERAS, ".h5", ".hdf5")):
        found = Checkpoint(text, model=model, trying=False)
        if not found.exists:
            raise _missing_error(text)
        found.restore()
        return model
    if not tf.io.gfile.exists(text):
        raise _missing_error(text)
    require_built(model)
    with restoring_on_error(variables_of(model), text), local_copy(text) as copied:
        read_file(model, copied)
    return model


class Checkpoint:
    """See tpu_magics.tf.checkpoint."""

    def __init__(
        self,
        path: str | Path,
        *,
        model: Any = None,
        optimizer: Any = None,
        step: Any = None,
        keep: int = 1,
        on_colab: bool = False,
        trying: bool = True,
        **more: Any,
    ) -> None:
        self.path = normalise(path) if trying else expand(path)
        self.model, self.keep, self._on_colab, self._more = model, keep, on_colab, more
        self._given_optimizer = optimizer
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self._own_step = step
        self._check()
        if trying:
            require_writable(self.path, on_colab, 0)

    @property
    def exists(self) -> bool:
        """Whether there is a checkpoint to restore."""
        if ending(self.path):
            return bool(tf.io.gfile.exists(self.path))
        return bool(latest(self.path))

    @property
    def step(self) -> int:
        """The value of `step`, else the optimizer's iterations, else 0."""
        counter = self._own_step if self._own_step is not None else getattr(self.optimizer, "iterations", 0)
        return int(counter.numpy() if hasattr(counter, "numpy") else counter)  # a distributed one has no int

    def save(self) -> str:
        """Write a checkpoint; the earlier one is kept until it is complete. Returns its path (in a folder: the
        prefix)."""
        if ending(self.path):
            return save(self.model, self.path, on_colab=self._on_colab)
        self._build()
        require_writable(self.path, self._on_colab, bytes_of(self._variables()))
        prefix = next_prefix(self.path, self.step)
        with adding(self.path, prefix, self.keep):
            self._tracked().write(prefix)
        return prefix

    def restore(self) -> int:
        """Read the newest checkpoint and return its step; without one, change nothing and return 0. An unreadable
        checkpoint changes nothing."""
        if not self.exists:
            return 0
        if ending(self.path):
            load(self.model, self.path)
            return self.step
        self._build()
        with restoring_on_error(self._variables(), self.path):
            prefix = latest(self.path)
            names = names_in(prefix)
            status = self._tracked(names).read(prefix)
            if "optimizer" in names or self.optimizer is None or self._given_optimizer is not None:
                status.assert_existing_objects_matched()
            else:
                require_matched(status, self.model)
            status.expect_partial()
        return self.step

    def _check(self) -> None:
        if self.model is None and self.optimizer is None and not self._more:
            raise TpuMagicsError("There is nothing to save.", "", "Pass model=, optimizer= or variables by name.")
        foreign = self.optimizer is not getattr(self.model, "optimizer", None)
        if ending(self.path) and (self.model is None or foreign or self._own_step is not None or self._more):
            raise TpuMagicsError(
                f"{self.path} can hold only a compiled model.",
                "A Keras file cannot hold an optimizer of your own loop, a step or other variables.",
                f'Remove the ending to save a folder of tf.train.Checkpoint files: "{_stem(self.path)}".',
            )
        if isinstance(self._own_step, int):
            raise TpuMagicsError(
                "step is a Python number, which cannot be restored.",
                "A checkpoint holds only variables.",
                "Pass step=tf.Variable(0, dtype=tf.int64) and count with step.assign_add(1), or omit it to use "
                "the optimizer's iterations.",
            )

    def _build(self) -> None:
        if self.model is not None:
            require_built(self.model)
        optimizer, model = self.optimizer, self.model
        if optimizer is not None and not optimizer.built:
            if model is None:
                raise TpuMagicsError(
                    "The optimizer has no variables yet.",
                    "It creates them from the variables that it trains.",
                    "Call optimizer.build(model.trainable_variables) first, or pass model=.",
                )
            with strategy_of(model).scope():
                optimizer.build(model.trainable_variables)

    def _tracked(self, held: Collection[str] | None = None) -> Any:
        """`held`: names in a checkpoint that is being read. The model's own optimizer and its seeds, which nobody
        requested by name, may be missing there."""
        seeds = {f"seed{number}": one.value for number, one in enumerate(seeds_of(self.model))}
        own = {"optimizer": self.optimizer, "seeds": tf.train.Checkpoint(**seeds) if seeds else None}
        if held is not None:
            requested = ("optimizer",) if self._given_optimizer is not None else ()
            own = {name: one for name, one in own.items() if name in (*held, *requested)}
        named = {"model": self.model, "step": self._own_step, **self._more, **own}
        return tf.train.Checkpoint(**{name: one for name, one in named.items() if one is not None})

    def _variables(self) -> list[Any]:
        found = variables_of(self.model) if self.model is not None else []
        found += list(getattr(self.optimizer, "variables", ()))
        for value in (self._own_step, *self._more.values()):
            found += [value] if hasattr(value, "assign") else list(getattr(value, "variables", ()))
        return list({id(one): one for one in found}.values())


def require_writable(path: str, on_colab: bool, needed: int) -> None:
    """Raise TpuMagicsError if nothing can be written to `path`."""
    problem = writable(path, on_colab, needed=needed)
    if problem is not None:
        raise TpuMagicsError(problem.what, problem.why, problem.todo)


# -- errors -----------------------------------------------------------------------------------------------------------


def _require_keras(model: Any, path: str) -> None:
    if not isinstance(model, keras.Model):
        raise TpuMagicsError(
            f"A {type(model).__name__} cannot be saved as {path}.",
            "Files with this ending hold Keras models.",
            f'Remove the ending to save a folder of tf.train.Checkpoint files: "{_stem(path)}".',
        )


def _missing_error(path: str) -> TpuMagicsError:
    folder = path.rpartition("/")[0] or "."
    try:
        names = sorted(tf.io.gfile.listdir(folder))[:8]
    except tf.errors.OpError:
        names = []
    there = f"{folder} contains {', '.join(names)}." if names else f"{folder} is empty or does not exist."
    return TpuMagicsError(f"There is no checkpoint at {path}.", there, "Correct the path.")


def _stem(path: str) -> str:
    return path.removesuffix(ending(path))


# -- save calls in the code -------------------------------------------------------------------------------------------


# A run that fails in its last line loses everything it has learned, so the check comes first. Only literal paths and
# names of the notebook that hold a path are read.

_OWN = {"tpu_magics.tf.save": 1, "tpu_magics.tf.checkpoint": 0}  # position of `path`
# Endings that Keras 3.15 accepts, () for any (saving/saving_api.py, models/model.py).
_KERAS: Mapping[str, tuple[str, ...]] = {
    "save": (".keras", ".h5", ".hdf5"),
    "save_weights": (WEIGHTS, ".weights.json"),
    "export": (),
}
_SOMETIMES = (ast.If, ast.For, ast.While, ast.Try, ast.AsyncFor, ast.Match, ast.ExceptHandler, ast.IfExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _SaveCall:
    """A call that saves. `endings`: allowed endings of its path, () for any; `always`: it is not inside a branch."""

    path: str
    endings: tuple[str, ...]
    always: bool


def saving_problems(tree: ast.AST, names: Mapping[str, Any], on_colab: bool = False) -> tuple[TrainingProblem, ...]:
    """Problems with paths in save calls of `tree`. A call in a branch, or in a function other than the trained one, may
    never run: its problem does not refuse the run.

    Args:
        tree: of a cell, or a module with the `def` of the trained function.
        names: of the notebook, and the arguments.
    """
    body = getattr(tree, "body", [])
    if len(body) == 1 and isinstance(body[0], _FUNCTIONS):  # the trained function
        tree = ast.Module(body[0].body, [])
    found = {}
    for one in _save_calls(tree, names, True):
        problem = _problem(one, on_colab)
        if problem is not None:
            found[problem] = replace(problem, refuses=one.always)
    return tuple(found.values())


def _problem(one: _SaveCall, on_colab: bool) -> TrainingProblem | None:
    try:
        if one.endings and not one.path.endswith(one.endings):
            raise old_name(one.path)
        place = nearest_folder(one.path) if is_local(one.path) else one.path
        legacy = place.lower().endswith(OLD) and not place.endswith(WEIGHTS)
        return writable(place.rpartition("/")[0] if legacy else place, on_colab)
    except TpuMagicsError as error:
        return TrainingProblem(error.what, error.why, error.todo)


# -- reading the code -------------------------------------------------------------------------------------------------


def _save_calls(node: ast.AST, names: Mapping[str, Any], always: bool) -> Iterator[_SaveCall]:
    if isinstance(node, ast.Call) and (one := _save_call(node, names, always)) is not None:
        yield one
    for inner in ast.iter_child_nodes(node):
        yield from _save_calls(inner, names, always and not isinstance(inner, (*_SOMETIMES, *_FUNCTIONS, ast.Lambda)))


def _save_call(call: ast.Call, names: Mapping[str, Any], always: bool) -> _SaveCall | None:
    own = _OWN.get(_dotted(call.func, names))
    if own is not None:
        path = _path(call, own, "path", names)
        return _SaveCall(path, (), always) if path else None
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _KERAS:
        return None
    path, model = _path(call, 0, "filepath", names), _value(call.func.value, names)
    # Only Keras has save_weights. Any other method of an undefined name may belong to anything.
    known = isinstance(model, keras.Model) or (model is None and call.func.attr == "save_weights")
    return _SaveCall(path, _KERAS[call.func.attr], always) if path and known else None


def _path(call: ast.Call, position: int, keyword: str, names: Mapping[str, Any]) -> str:
    """The path argument of a call; "" if it cannot be read."""
    given = [one.value for one in call.keywords if one.arg == keyword] or call.args[position : position + 1]
    value = _value(given[0], names) if given else None
    return str(value) if isinstance(value, (str, Path)) else ""


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Value of a constant or a name; None for anything else. Nothing is run."""
    if isinstance(node, ast.Constant):
        return node.value
    return names.get(node.id) if isinstance(node, ast.Name) else None


def _dotted(node: ast.AST, names: Mapping[str, Any]) -> str:
    """The full name of a function, "tpu_magics.tf.save"; "" if it has none. Nothing is run or imported."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    value = _value(node, names)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__name__}"
    return node.id if isinstance(node, ast.Name) and value is None else ""
