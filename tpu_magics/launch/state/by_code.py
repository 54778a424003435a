"""Functions and classes that a worker defined, pickled by their code, for the same globals in the notebook."""

from __future__ import annotations

import abc
import builtins
import dataclasses
import functools
import importlib
import marshal
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any

from tpu_magics.launch.resume.rewrite import BEGIN, LOOP
from tpu_magics.runs.origin import is_library_type, is_user_function

# What must be there as a class is made (typing.Generic looks for the second).
_OF_CREATION = frozenset({"__module__", "__orig_bases__"})
# What Python makes itself for each class.
_OF_EVERY_CLASS = frozenset({"__dict__", "__weakref__", "__module__", "__qualname__", "_abc_impl"})


def reduced_function(function: types.FunctionType) -> tuple[Any, ...]:
    """What `__reduce__` returns for a function. Raises PicklingError if it cannot be made again from its code."""
    space, code = function.__globals__, function.__code__
    if vars(sys.modules.get(str(space.get("__name__")), builtins)) is not space:
        raise pickle.PicklingError(f"`{function.__name__}` has globals of no module")
    if {BEGIN, LOOP} & set(_names(code)):  # launch/resume has changed it
        raise pickle.PicklingError(f"`{function.__name__}` was defined in a run that can be resumed")
    state = {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__annotations__": function.__annotations__,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__dict__": vars(function),
    }
    made = marshal.dumps(code), space["__name__"], function.__name__, function.__qualname__, function.__closure__
    return make_function, made, state, None, None, set_attributes


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def make_function(code: bytes, module: str, name: str, qualname: str, closure: Any) -> types.FunctionType:
    """A function without its attributes."""
    space = vars(importlib.import_module(module))
    made = types.FunctionType(marshal.loads(code), space, name, None, closure)
    made.__qualname__ = qualname
    return made


def set_attributes(made: Any, state: dict[str, Any]) -> None:
    """Pickle's last step, when all that refers to itself exists."""
    for name, item in state.items():
        if name == "__dict__":
            vars(made).update(item)
        else:
            setattr(made, name, item)


def reduced_cell(cell: types.CellType) -> tuple[Any, ...]:
    """A variable of a closure, which may contain the function."""
    try:
        return make_cell, (), (cell.cell_contents,), None, None, _fill_cell  # pickle leaves out a state that is None
    except ValueError:
        return make_cell, ()


def make_cell() -> types.CellType:
    """An empty one; pickle does not find the type itself."""
    return types.CellType()


def _fill_cell(cell: types.CellType, content: tuple[Any]) -> None:
    (cell.cell_contents,) = content


def reduced_class(kind: type) -> tuple[Any, ...]:
    """What `__reduce__` returns for a class. Raises PicklingError if it cannot be made again from its attributes."""
    own = dict(vars(kind))
    if type(kind) not in (type, abc.ABCMeta) or "__slots__" in own:
        raise pickle.PicklingError(f"`{kind.__qualname__}` was defined in the worker")
    state = {name: item for name, item in own.items() if name not in _OF_EVERY_CLASS}
    named = {name: item for name, item in own.items() if name in _OF_CREATION}
    made = type(kind), kind.__name__, kind.__bases__, {**named, "__qualname__": kind.__qualname__}
    return make_class, made, state, None, None, _fill_class


def make_class(meta: Any, name: str, bases: tuple[type, ...], own: dict[str, Any]) -> type:
    """A class without its attributes."""
    made: type = meta(name, bases, own)
    return made


def _fill_class(made: Any, state: dict[str, Any]) -> None:
    for name, item in state.items():
        type.__setattr__(made, name, item)
    if isinstance(made, abc.ABCMeta):
        abc.update_abstractmethods(made)  # type: ignore[arg-type]


CACHE = type(functools.lru_cache(len))
BY_NAME = (type, types.FunctionType, CACHE, typing.TypeVar)
"""What pickle takes by its name."""


def reduced(value: Any) -> tuple[Any, ...]:
    """What `__reduce__` returns for an instance of BY_NAME that the notebook does not have."""
    if issubclass(type(value), type):
        return reduced_class(value)
    if issubclass(type(value), types.FunctionType):
        return reduced_function(value)
    if issubclass(type(value), typing.TypeVar):
        return make_type_variable, (value.__name__, value.__constraints__, value.__bound__, _variance(value))
    return make_cache, (value.__wrapped__, value.cache_parameters())


def make_cache(function: Any, parameters: dict[str, Any]) -> Any:
    """A function of functools.lru_cache, whose cache is empty."""
    return functools.lru_cache(**parameters)(function)


def _variance(variable: Any) -> dict[str, bool]:
    return {"covariant": variable.__covariant__, "contravariant": variable.__contravariant__}


def make_type_variable(name: str, constraints: tuple[Any, ...], bound: Any, variance: dict[str, bool]) -> Any:
    """A typing.TypeVar of the notebook."""
    made: Any = typing.TypeVar(name, *constraints, bound=bound, **variance)  # type: ignore[misc]
    made.__module__ = "__main__"
    return made


def _reduced_exception(error: BaseException) -> tuple[Any, ...] | None:
    """One of the user's, without its `__init__`, which may have other arguments than those that it keeps."""
    of_python: Any = BaseException.__reduce__
    if is_library_type(type(error)) or type(error).__reduce__ is not of_python:
        return None
    return make_exception, (type(error), error.args), vars(error) or None


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of the user's class, without its attributes."""
    return kind.__new__(kind, *args)


def make_cached_property(function: Any, name: str | None) -> Any:
    """Without its lock, which Python 3.12 does not have any more."""
    made = functools.cached_property(function)
    made.attrname = name
    return made


def make_reference(target: Any) -> Any:
    """A weak reference, without its callback; to nothing where the object has gone."""
    return weakref.ref(_Gone() if target is None else target)


def make_weak_proxy(target: Any) -> Any:
    """A weak proxy; to nothing where the object has gone."""
    return weakref.proxy(_Gone() if target is None else target)


def _target_of(proxy: Any) -> Any:
    """What a weak proxy stands for: a method of it is bound to that."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


class _Gone:
    pass


def make_proxy(content: dict[Any, Any]) -> Any:
    """A read-only view of a dict."""
    return types.MappingProxyType(content)


def reduced_attribute(value: Any) -> Any:
    """What `__reduce__` returns for what classes contain and pickle does not take; None for anything else."""
    kind = type(value)
    if kind in (classmethod, staticmethod):
        return kind, (value.__func__,)
    if kind is types.MethodType and getattr(type(value.__self__), value.__name__, None) is not value.__func__:
        return (types.MethodType, (value.__func__, value.__self__)) if is_user_function(value.__func__) else None
    if issubclass(type(value), BaseException):
        return _reduced_exception(value)
    if kind is weakref.ref:
        return make_reference, (value(),)
    if kind in weakref.ProxyTypes:
        return make_weak_proxy, (_target_of(value),)
    if kind is functools.cached_property:
        return make_cached_property, (value.func, value.attrname)
    if kind is property:
        return property, (value.fget, value.fset, value.fdel, value.__doc__)
    if kind is types.MappingProxyType:
        return make_proxy, (dict(value),)
    if value is dataclasses.MISSING:
        return "MISSING"
    if kind is type(_FIELD):
        return value.name
    return None


# Python 3.11, dataclasses.py: the kind of a field, which is compared by identity.
_FIELD: Any = vars(dataclasses)["_FIELD"]
