"""Facts about a traced function (arguments by name, Python values, variables that it assigns), and its retraces with
the part of TensorFlow's cache key that changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tpu_magics.backends import hlo
from tpu_magics.backends.hlo.text import framework_name
from tpu_magics.runs.events import Input

# TensorFlow's own parts were read in TensorFlow 2.21: ConcreteFunction.function_type and the trace types of its
# parameters (core/function/trace_type/default_types.py), framework/auto_control_deps_utils.py.

Literal = int | float | bool | str | None
_KERAS_BATCH = {"data": "x", "data[0]": "x", "data[1]": "y", "data[2]": "sample_weight"}


# -- types ------------------------------------------------------------------------------------------------------------


def leaves(parameters: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, trace type) of each value among the parameters of a function type, in the order in which TensorFlow passes
    the tensors. Items of mappings are named by key, those of sequences by position."""
    return [leaf for name, one in parameters.items() for leaf in _leaves(one.type_constraint, name)]


def _leaves(kind: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = _inner(kind, name)
    if inner is None:
        yield name, kind
    else:
        for path, one in inner:
            yield from _leaves(one, path)


def _inner(kind: Any, name: str) -> list[tuple[str, Any]] | None:
    """The parts of a container's type, in TensorFlow's order; None if it is no container."""
    shape = type(kind).__name__
    if shape == "Dict":
        return [
            (key if isinstance(key, str) else f"{name}[{key!r}]", kind.mapping[key]) for key in sorted(kind.mapping)
        ]
    if shape == "NamedTuple":
        return [
            (f"{name}.{key}", one) for key, one in zip(kind.attribute_names, kind.attributes.components, strict=True)
        ]
    if shape == "Attrs":
        return _inner(kind.named_attributes, name)
    if shape in ("Tuple", "List"):
        parts = kind.components if shape == "Tuple" else kind.components_tuple.components
        return [(f"{name}[{number}]", one) for number, one in enumerate(parts)]
    return None


def literals(parameters: Mapping[str, Any]) -> dict[str, Literal]:
    """Python values that a function was traced for, by name."""
    found = ((name, kind) for name, kind in leaves(parameters) if type(kind).__name__ == "Literal")
    return {name: kind.value for name, kind in found}


def parameters_of(concrete: Any) -> Mapping[str, Any]:
    """The parameters of a function's type, by name."""
    kind = getattr(concrete, "function_type", None)
    return kind.parameters if kind is not None else {}


def as_batch(one: Input) -> Input:
    """An input of a function that Keras makes (it takes one batch as "data"), with the name that users know."""
    head, bracket, rest = one.name.partition("]")
    known = _KERAS_BATCH.get(head + bracket)
    return one if known is None else replace(one, name=known + rest)


def text_of(name: str | bytes) -> str:
    """The name of a function; bytes in TensorFlow 2.21."""
    return name.decode() if isinstance(name, bytes) else name


# -- inputs -----------------------------------------------------------------------------------------------------------


def inputs_of_call(concrete: Any, tensors: Sequence[Any]) -> tuple[Input, ...]:
    """Tensors of a call with their names and real shapes, without variables and iterators."""
    names = _tensor_names(parameters_of(concrete))
    names += [f"argument {number}" for number in range(len(names), len(tensors))]
    given = zip(names, tensors, strict=False)
    return tuple(
        Input(name, tuple(one.shape.as_list()), one.dtype.name) for name, one in given if not _is_handle(one.dtype)
    )


def inputs_of_graph(names: Sequence[tuple[str, str]], graph: hlo.Graph | None) -> tuple[Input, ...]:
    """Inputs of an inner program: names and dtypes of its arguments, with the shapes that XLA compiled for. Its
    parameters are in the order of the arguments, without those that became constants."""
    left = list(graph.parameters) if graph is not None else []
    found = []
    for name, dtype in names:
        place = next((n for n, one in enumerate(left) if framework_name(one.dtype) == dtype), None)
        if place is not None:
            found.append(Input(name, left[place].shape, dtype))
            del left[: place + 1]
    return tuple(found)


def names_of_arguments(concrete: Any) -> list[tuple[str, str]]:
    """(name, dtype) of the tensors that a traced function takes."""
    kinds = [(name, kind) for name, kind in leaves(parameters_of(concrete)) if _is_tensor_type(kind)]
    return [(name, kind.dtype.name) for name, kind in kinds]


def names_of_definition(definition: Any) -> list[tuple[str, str]]:
    """Argument names of a FunctionDef, if nothing else is known."""
    import tensorflow as tf

    found = []
    for number, one in enumerate(definition.signature.input_arg):
        dtype = tf.dtypes.as_dtype(one.type)
        attribute = (
            definition.arg_attr[number].attr.get("_user_specified_name") if number in definition.arg_attr else None
        )
        if not _is_handle(dtype) and attribute is not None:
            found.append((attribute.s.decode("utf-8", "replace"), dtype.name))
    return found


def _tensor_names(parameters: Mapping[str, Any]) -> list[str]:
    """One name for each tensor of a call."""
    return [name for name, kind in leaves(parameters) for _ in range(_tensors_in(kind))]


def _tensors_in(kind: Any) -> int:
    return len(kind.flatten()) if type(kind).__name__ != "Literal" else 0


def _is_tensor_type(kind: Any) -> bool:
    return type(kind).__name__ == "TensorSpec" and not _is_handle(kind.dtype)


def _is_handle(dtype: Any) -> bool:
    return dtype.name in ("resource", "variant")


# -- what it assigns --------------------------------------------------------------------------------------------------


def trains(concrete: Any) -> bool:
    """Whether calling a function assigns a trainable variable."""
    from tensorflow.python.framework import auto_control_deps_utils as effects

    graph = concrete.graph
    if not any(one.dtype.name == "resource" for one in graph.inputs):
        return False
    read_only = set(effects.get_read_only_resource_input_indices_graph(graph))
    written = {id(one) for n, one in enumerate(graph.inputs) if one.dtype.name == "resource" and n not in read_only}
    trained = {id(handle) for variable in graph.trainable_variables for handle in _handles(variable)}
    captured = any(id(inner) in written and id(outer) in trained for outer, inner in graph.captures)
    return captured or _trains_argument(concrete, graph, written)


def _handles(variable: Any) -> Iterator[Any]:
    """Handles of a variable, and of each part of a distributed one."""
    parts = getattr(variable, "values", None)
    for one in parts if isinstance(parts, (tuple, list)) else (variable,):
        handle = getattr(one, "handle", None)
        if handle is not None:
            yield handle


def _trains_argument(concrete: Any, graph: Any, written: set[int]) -> bool:
    """A variable can be an argument, too."""
    kinds = [flat for _, kind in leaves(parameters_of(concrete)) for flat in _flat(kind)]
    given = zip(kinds, graph.inputs, strict=False)
    return any(getattr(kind, "trainable", False) and id(inner) in written for kind, inner in given)


def _flat(kind: Any) -> list[Any]:
    return [kind] * _tensors_in(kind)


def trainable_dtypes(concrete: Any) -> dict[str, int]:
    """Number of trainable variables of each dtype that a function uses."""
    found: dict[str, int] = {}
    for variable in concrete.graph.trainable_variables:
        found[variable.dtype.name] = found.get(variable.dtype.name, 0) + 1
    return found


# -- retraces ---------------------------------------------------------------------------------------------------------


# Read in TensorFlow 2.21: Function._function_cache._primary (core/function/polymorphism/function_cache.py) holds
# (context, function type); a call is traced when no type in it is a supertype of its own. TensorFlow's own warning says
# only that it happened, after five in a row.

REPORTED_EACH = 3  # retraces of one function that are reported
REPORTED_IN_ALL = 24
_SHOWN, _LONGEST = 3, 60
_ADVICE = "Pass Python numbers as tensors and keep shapes and dtypes the same, or give the function an input_signature."
_KERAS_ADVICE = "Give it batches of the same shapes and dtypes each time."
_KERAS_STEP = "one_step_on_data"
_ABSENT = "Literal[None]"  # e.g. omitted sample weights of train_on_batch

_UID = re.compile(r"_(\d+)$")

Key = tuple[str, dict[str, str]]  # where it was traced, and each argument's type


class Retraces:
    """The traces of all functions so far. `started`: TensorFlow's last function number before the run; one with a lower
    number was traced earlier (and may come back: the jit policy caches its traces of a run for the next one)."""

    def __init__(self, started: int) -> None:
        self.started = started
        self.keys: WeakKeyDictionary[Any, list[Key]] = WeakKeyDictionary()
        self.counts: dict[str, int] = {}
        self.reported = 0

    def find(self, function: Any, name: str) -> str:
        """The sentence to report after a call that changed the cache, or "". Of Keras' functions only the innermost is
        reported; the outer ones are traced again with it."""
        known = self.keys.setdefault(function, [])
        keras = _is_keras(function)
        sentence = ""
        for key, number in _keys(function):
            if key in known:
                continue
            if known and number > self.started and not (keras and name != _KERAS_STEP):
                sentence = self._describe(f"Keras' {name}" if keras else name, key, known, keras)
            known.append(key)
        return sentence

    def _describe(self, name: str, key: Key, known: list[Key], keras: bool) -> str:
        """ "" if the key differs only in things that users do not know: a function that creates variables is traced
        twice at its first call."""
        nearest = min(reversed(known), key=lambda one: len(list(_differences(key, one))))
        differences = [one for one in _differences(key, nearest) if not (keras and _ABSENT in one)]
        if not differences:
            return ""
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] > REPORTED_EACH or self.reported >= REPORTED_IN_ALL:
            return ""
        self.reported += 1
        more = f" and {len(differences) - _SHOWN} more" if differences[_SHOWN:] else ""
        advice = _KERAS_ADVICE if keras else _ADVICE
        return f"{name} was traced again: {'; '.join(differences[:_SHOWN])}{more}. {advice}"

    def rest(self) -> Iterator[str]:
        """At the end: functions with more retraces than were reported."""
        for name, count in self.counts.items():
            if count > REPORTED_EACH:
                yield f"{name} was traced again {count} times in this run; only the first {REPORTED_EACH} are listed."


def _keys(function: Any) -> list[tuple[Key, int]]:
    """Each key with the number of its trace."""
    found = function._function_cache._primary.items()
    return [
        ((_where(context), {name: _short(one) for name, one in leaves(kind.parameters)}), _number(concrete.name))
        for (context, kind), concrete in found
    ]


def _is_keras(function: Any) -> bool:
    """Whether its Python function belongs to Keras, as that of `fit`."""
    return str(getattr(function.python_function, "__module__", "")).partition(".")[0] == "keras"


def _number(name: str | bytes) -> int:
    """The number in __inference_step_123: TensorFlow counts up in a process."""
    match = _UID.search(text_of(name))
    return int(match[1]) if match else 0


def _where(context: Any) -> str:
    """The parts of a call's context that users know: strategy, device, colocation."""
    inner = getattr(context, "context", None)
    parts = (getattr(inner, name, None) for name in ("device_functions", "in_cross_replica_context", "variable_policy"))
    return " ".join(str(part) for part in parts)


def _differences(new: Key, old: Key) -> Iterator[str]:
    now, before = new[1], old[1]
    for name in (*now, *(one for one in before if one not in now)):
        if now.get(name) != before.get(name):
            yield f"{name} is now {now.get(name, 'absent')}, before {before.get(name, 'absent')}"
    if new[0] != old[0]:
        yield "it was called in another context (device, strategy scope)"


def _short(kind: Any) -> str:
    """TensorSpec(shape=(3,), dtype=tf.float32, name=None) -> TensorSpec((3,), float32)"""
    if type(kind).__name__ == "TensorSpec":
        return f"TensorSpec({kind.shape}, {kind.dtype.name})"
    text = str(kind)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
