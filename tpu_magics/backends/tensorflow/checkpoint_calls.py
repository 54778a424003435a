"""Save calls in the user's code (`model.save_weights("x.h5")` after `model.fit`), checked before training starts."""

# A run that fails in its last line loses everything it has learned, so the check comes first. Only literal paths and
# names of the notebook that hold a path are read.

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import keras

from tpu_magics.backends.base import Placement, TrainingProblem
from tpu_magics.backends.tensorflow.checkpoint_paths import OLD, WEIGHTS, is_local, nearest_folder, old_name, writable
from tpu_magics.errors import TpuMagicsError

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


def saving_problems(
    tree: ast.AST, names: Mapping[str, Any], placed: Placement, on_colab: bool = False
) -> tuple[TrainingProblem, ...]:
    """Problems with paths in save calls of `tree`. A call in a branch, or in a function other than the trained one, may
    never run: its problem does not refuse the run.

    Args:
        tree: of a cell, or a module with the `def` of the trained function.
        names: of the notebook, and the arguments.
    """
    body = getattr(tree, "body", [])
    if len(body) == 1 and isinstance(body[0], _FUNCTIONS):  # the trained function
        tree = ast.Module(body[0].body, [])
    remote, found = placed.kind == "tpu-remote", {}
    for one in _save_calls(tree, names, True):
        problem = _problem(one, on_colab, remote)
        if problem is not None:
            found[problem] = replace(problem, refuses=one.always)
    return tuple(found.values())


def _problem(one: _SaveCall, on_colab: bool, remote: bool) -> TrainingProblem | None:
    try:
        if one.endings and not one.path.endswith(one.endings):
            raise old_name(one.path)
        place = nearest_folder(one.path) if is_local(one.path) else one.path
        legacy = place.lower().endswith(OLD) and not place.endswith(WEIGHTS)
        return writable(place.rpartition("/")[0] if legacy else place, on_colab, remote_tpu=remote)
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
