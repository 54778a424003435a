"""Copies for the second device of a worker (v2, v3), since two threads cannot move one model to two devices.

Copied are the models, all objects that contain one, and the arguments; tied weights stay tied among the copies.
Functions that read a copied name are created again with the copies as globals. What cannot be copied (a lock, a
generator) is shared."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.launch import object_graph

DEPTH = 6  # levels to follow: an optimizer's parameters are four levels below it, a scheduler's five


class Copies:
    """The copies for one device. Made before any device's thread runs: later, the first one has moved its models."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._memo: dict[int, Any] = {}
        copy.deepcopy(list(models.values()), self._memo)
        self._copied = frozenset(self._memo)
        self._spaces: dict[int, dict[str, Any]] = {}

    def argument(self, value: Any) -> Any:
        """A copy; if the whole cannot be copied, copies of its parts."""
        if isinstance(value, (types.FunctionType, types.MethodType)):
            return self.function(value)
        trial = dict(self._memo)  # a failed copy leaves parts in its memo
        try:
            made = copy.deepcopy(value, trial)
        except Exception:
            return self._copy_parts(value)
        self._memo.update(trial)
        return made

    def _copy_parts(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self.argument(item) for item in value)
        if type(value) is dict:
            return {key: self.argument(item) for key, item in value.items()}
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or isinstance(value, (type, types.ModuleType)):
            return value
        try:
            made = copy.copy(value)
        except Exception:
            return value
        self._memo[id(value)] = made
        vars(made).update({name: self.argument(item) for name, item in attributes.items()})
        return made

    def space(self, names: dict[str, Any]) -> dict[str, Any]:
        """Globals for a function or a cell, with copies of all values that contain a model."""
        if id(names) not in self._spaces:
            self._spaces[id(names)] = space = dict(names)
            space.update({name: self._copy_named(name, value, names) for name, value in names.items()})
        return self._spaces[id(names)]

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with copies in place of the copied objects that it reads."""
        if isinstance(function, types.MethodType):
            return types.MethodType(self.function(function.__func__), self.argument(function.__self__))
        if not isinstance(function, types.FunctionType):
            return function
        return self._copy_function(function)

    def _copy_named(self, name: str, value: Any, names: dict[str, Any]) -> Any:
        if isinstance(value, types.FunctionType):
            return self._copy_function(value) if value.__globals__ is names else value
        return self.argument(value) if self._holds_a_model(name, value) else value

    def _holds_a_model(self, name: str, value: Any) -> bool:
        return any(id(part) in self._copied for _, part in object_graph.contents(name, value, DEPTH))

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        closure = tuple(self._copy_cell(cell) for cell in function.__closure__ or ()) or None
        defaults = tuple(self.argument(value) for value in function.__defaults__ or ()) or None
        space = self.space(function.__globals__)
        twin = types.FunctionType(function.__code__, space, function.__name__, defaults, closure)
        twin.__kwdefaults__ = {k: self.argument(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
        twin.__dict__.update(function.__dict__)
        return twin

    def _copy_cell(self, cell: types.CellType) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:
            return cell
        return types.CellType(self.argument(value)) if self._holds_a_model("", value) else cell
