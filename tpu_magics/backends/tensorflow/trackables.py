"""Python objects that hold training state: Keras objects, tf.Modules, their containers, and tf.functions."""

# Read in TensorFlow 2.21 and Keras 3.15. Attributes are saved and restored as a whole; their meaning is not
# interpreted.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.trackable.base import Trackable

LONGEST = 100_000  # a longer list or dict is data, and not searched

_VARIABLES = (tf.Variable, DistributedVariable)
_LEAVES = (tf.data.Dataset, tf.Tensor, tf.TensorShape, tf.distribute.Strategy)
_MACHINERY = ("tensorflow.python.eager", "tensorflow.python.data", "tensorflow.python.distribute")
# A model, a layer, an optimizer, a loss, a metric; and their containers of variables (Keras 3.15).
_KERAS = ("KerasSaveable", "Tracker", "SeedGenerator", "Variable")


@dataclass
class Trackables:
    """`models`: outermost models, by name; `objects`: objects with attributes that a run can change; `containers`:
    their lists, dicts and sets; `functions`: tf.functions; `variables`: TensorFlow variables."""

    models: dict[str, Any] = field(default_factory=dict)
    objects: list[Any] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)
    ids: set[int] = field(default_factory=set)

    def holds(self, value: object) -> bool:
        """Whether `value` is one of them. (All stay alive as long as this object.)"""
        return id(value) in self.ids


def find(items: Sequence[tuple[str, Any]]) -> Trackables:
    """All trackable objects among `items` and inside them."""
    found = Trackables()
    inner: set[int] = set()
    for name, value in items:
        if not _is_trackable(value) or found.holds(value):
            inner |= {id(value)} & found.ids
            continue
        if _is_model(value):
            found.models[name] = value
        before = set(found.ids)
        _collect(value, found)
        inner |= found.ids - before - {id(value)}
    found.models = {name: model for name, model in found.models.items() if id(model) not in inner}
    return found


def _is_model(value: Any) -> bool:
    if isinstance(value, keras.Model):
        return True
    parts = (keras.Layer, keras.Metric, keras.Optimizer, keras.Variable, tf.random.Generator, tf.distribute.Strategy)
    return isinstance(value, tf.Module) and not isinstance(value, parts)


def _is_trackable(value: Any) -> bool:
    return isinstance(value, (*_VARIABLES, Function)) or has_state(value)


def has_state(value: Any) -> bool:
    """Whether a run can change attributes of `value` that belong to training."""
    return is_state_type(type(value))


def is_state_type(kind: type) -> bool:
    """Whether `has_state` of its instances."""
    if issubclass(kind, (*_LEAVES, *_VARIABLES, Function, type)) or kind.__module__.startswith(_MACHINERY):
        return False
    return issubclass(kind, Trackable) or any(
        base.__name__ in _KERAS and base.__module__.startswith("keras.") for base in kind.__mro__
    )


def _collect(root: Any, found: Trackables) -> None:
    """Add `root` and everything inside it; without recursion, as layers may be nested deeply."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in found.ids:
            continue
        for holds, kept, inside in _KINDS:
            if holds(value):
                found.ids.add(id(value))
                kept(found).append(value)
                waiting.extend(inside(value))
                break


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict, set, tuple)) and len(value) <= LONGEST


def _inside_container(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value
    if not isinstance(_plain(value), tuple):
        yield from _attributes(value).values()  # Keras' and TensorFlow's containers have attributes


def _inside_object(value: Any) -> Iterator[Any]:
    yield from _attributes(value).values()
    yield from _methods(value)


def _methods(value: Any) -> Iterator[Function]:
    """The tf.functions of the class that were called on this object."""
    for shared in _shared_functions(value):
        with suppress(AttributeError, TypeError):
            own = shared._descriptor_cache.get(value)
            if isinstance(own, Function):
                yield own


def _shared_functions(value: Any) -> Iterator[Function]:
    for kind in type(value).__mro__:
        if not kind.__module__.startswith(("keras.", "tensorflow.")):
            yield from (one for one in vars(kind).values() if isinstance(one, Function))


def _attributes(value: Any) -> dict[str, Any]:
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """The list or dict itself, if TensorFlow has wrapped it in a proxy."""
    kinds = (list, dict, set, tuple)
    return value if issubclass(type(value), kinds) else getattr(value, "__wrapped__", value)


_Kind = tuple[Callable[[Any], bool], Callable[[Trackables], list[Any]], Callable[[Any], Iterator[Any]]]


def _nothing(_value: Any) -> Iterator[Any]:
    yield from ()


_KINDS: tuple[_Kind, ...] = (
    (lambda value: isinstance(value, _VARIABLES), lambda found: found.variables, _nothing),
    (lambda value: isinstance(value, Function), lambda found: found.functions, _nothing),
    (_is_container, lambda found: found.containers, _inside_container),
    (has_state, lambda found: found.objects, _inside_object),
)


# -- saved state ------------------------------------------------------------------------------------------------------


class SavedAttributes:
    """Saved attributes of the objects, containers and functions of Trackables."""

    def __init__(self, found: Trackables) -> None:
        self._objects = [(one, dict(_attributes(one))) for one in (*found.objects, *found.containers)]
        self._lists = [(_plain(one), _copy(_plain(one))) for one in found.containers]
        self._untraced = [(one, dict(vars(one))) for one in found.functions if not _traced(one)]
        shared = {id(one): one for value in found.objects for one in _shared_functions(value)}
        self._methods = [(one, _instances(one)) for one in shared.values()]

    def restore(self) -> list[str]:
        """Restore everything. Returns a line for each thing that could not be restored."""
        for one, attributes in self._objects:
            _set(_attributes(one), attributes)
        for one, entries in self._lists:
            _set(one, entries)
        for shared, instances in self._methods:
            _forget_methods(shared, instances)
        return [line for one, attributes in self._untraced for line in _forget_traces(one, attributes)]


def _copy(value: Any) -> Any:
    for kind in (dict, list, set):
        if isinstance(value, kind):
            return kind(value)
    return value


def _set(value: Any, entries: Any) -> None:
    """Restore the entries of a list, dict or set, without the methods of Keras' and TensorFlow's own kinds, which track
    new entries."""
    if isinstance(value, dict):
        _set_dict(value, entries)
    elif isinstance(value, list):
        if len(value) != len(entries) or any(x is not y for x, y in zip(value, entries, strict=True)):
            list.__setitem__(value, slice(None), entries)
    elif isinstance(value, set) and set(value) != entries:
        set.clear(value)
        set.update(value, entries)


def _set_dict(value: dict[Any, Any], entries: dict[Any, Any]) -> None:
    if list(value) == list(entries) and all(value[key] is item for key, item in entries.items()):
        return
    kind = OrderedDict if isinstance(value, OrderedDict) else dict
    kind.clear(value)
    for key, item in entries.items():
        kind.__setitem__(value, key, item)


# -- tf.functions -----------------------------------------------------------------------------------------------------


def _traced(function: Function) -> bool:
    return getattr(function, "_variable_creation_config", None) is not None


def _forget_traces(function: Function, attributes: dict[str, Any]) -> list[str]:
    """Reset a tf.function that had not been called before: its traces hold variables that the run created, and it may
    create variables only at its first call."""
    if not _traced(function):
        return []
    try:
        new = vars(function._clone(function.python_function))
    except (AttributeError, TypeError, ValueError) as error:
        return [f"{function}: its traces ({type(error).__name__}: {error})."]
    _set_dict(vars(function), {**attributes, **new})
    return []


def _instances(shared: Function) -> list[Any]:
    return list(getattr(shared, "_descriptor_cache", {}))


def _forget_methods(shared: Function, instances: list[Any]) -> None:
    """Drop methods of objects that had not been called before the run."""
    with suppress(AttributeError):
        for instance in list(shared._descriptor_cache):
            if not any(instance is one for one in instances):
                del shared._descriptor_cache[instance]
