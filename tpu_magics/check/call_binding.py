"""What calls hand over: arguments to the parameters of this program's functions, and what these return.

What lives here: both directions. What does not: which function a call runs (calls.py).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.check.evaluate import (
    Evaluator,
    joined,
)
from tpu_magics.check.program import Call, Function
from tpu_magics.check.values import (
    NO_IDEA,
    Value,
    join,
)

if TYPE_CHECKING:
    Arguments = Sequence[Value]


def give(walk: Evaluator, target: Function, call: Call, arguments: Arguments) -> None:
    if walk.recording:
        target.callers.append(call)
    parameters = target.parameters
    bound = target.cls is not None and "staticmethod" not in target.decorators and bool(parameters)
    positional = len(parameters) - len(target.node.args.kwonlyargs)
    own = parameters[1:positional] if bound else parameters[:positional]
    for parameter, node, value in zip(own, call.node.args, arguments, strict=False):
        if isinstance(node, ast.Starred):
            break  # who gets what is not known from here on
        join_given(target, parameter.arg, value)
    for keyword in call.node.keywords:
        if keyword.arg is not None:
            join_given(target, keyword.arg, walk.at.value(keyword.value))


def join_given(target: Function, name: str, value: Value) -> None:
    before = target.given.get(name)
    target.given[name] = value if before is None else join(before, value)


def returned(function: Any, arguments: Arguments) -> Value:
    if isinstance(function, Function) and function.yields is not None:
        return function.yields
    if not isinstance(function, Function) or function.returns is None:
        return NO_IDEA
    return _passed_through(function, arguments) or function.returns


def _passed_through(function: Function, arguments: Arguments) -> Value | None:
    """Of `default(mask, ones)` what this call gives, and not what other calls have given it."""
    if not arguments or not function.passes or "" in function.passes:
        return None
    names = [one.arg for one in function.parameters][1 if function.cls is not None else 0 :]
    given = [value for name, value in zip(names, arguments, strict=False) if name in function.passes]
    return joined(given) if len(given) == len(function.passes) else None
