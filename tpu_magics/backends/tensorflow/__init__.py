"""TensorFlow: tf.functions, Keras models, custom loops.

What lives here: telling a TensorFlow step from another function. Importing this imports no framework. What does not:
lowering a step (lower.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

_NAMES = ("tensorflow", "keras")


def is_step(function: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether lower.py is the one to lower `function`: a tf.function, a Keras model, a method of one, or a Python
    function that takes TensorFlow's values or names TensorFlow. False where TensorFlow was never imported."""
    if not any(name in sys.modules for name in _NAMES):
        return False
    found = (function, getattr(function, "__self__", None), *args, *(kwargs or {}).values())
    return any(_is_tensorflows(value) for value in found) or _names_tensorflow(function)


def _is_tensorflows(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_tensorflows(item) for item in value)
    if isinstance(value, Mapping):
        return any(_is_tensorflows(item) for item in value.values())
    return any(kind.__module__.partition(".")[0] in _NAMES for kind in type(value).__mro__)


def _names_tensorflow(function: object) -> bool:
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if not isinstance(code, CodeType):
        return False
    values = (known.get(name) for one in _with_inner(code) for name in one.co_names)
    return any(isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _NAMES for value in values)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
