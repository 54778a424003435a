"""Binds the arguments of calls to the parameters of the program's own functions, and gives what these return."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.check.evaluate import (
    Evaluator,
    join_all,
)
from tpu_magics.check.program import CallSite, Function
from tpu_magics.check.values import (
    UNKNOWN_VALUE,
    AbstractValue,
    join,
)

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]


def bind_arguments(walk: Evaluator, target: Function, call: CallSite, arguments: Arguments) -> None:
    if walk.recording:
        target.callers.append(call)
    parameters = target.parameters
    bound = target.cls is not None and "staticmethod" not in target.decorators and bool(parameters)
    positional = len(parameters) - len(target.node.args.kwonlyargs)
    own = parameters[1:positional] if bound else parameters[:positional]
    for parameter, node, value in zip(own, call.node.args, arguments, strict=False):
        if isinstance(node, ast.Starred):
            break  # from here on it is unknown which parameter gets which value
        join_parameter(target, parameter.arg, value)
    for keyword in call.node.keywords:
        if keyword.arg is not None:
            join_parameter(target, keyword.arg, walk.ctx.value(keyword.value))


def join_parameter(target: Function, name: str, value: AbstractValue) -> None:
    before = target.argument_values.get(name)
    target.argument_values[name] = value if before is None else join(before, value)


def returned_value(function: Any, arguments: Arguments) -> AbstractValue:
    if isinstance(function, Function) and function.yields is not None:
        return function.yields
    if not isinstance(function, Function) or function.returns is None:
        return UNKNOWN_VALUE
    return _passed_through(function, arguments) or function.returns


def _passed_through(function: Function, arguments: Arguments) -> AbstractValue | None:
    """The arguments that the function returns unchanged: the value of `default(mask, ones)` for this call only."""
    if not arguments or not function.returned_parameters or "" in function.returned_parameters:
        return None
    names = [one.arg for one in function.parameters][1 if function.cls is not None else 0 :]
    given = [value for name, value in zip(names, arguments, strict=False) if name in function.returned_parameters]
    return join_all(given) if len(given) == len(function.returned_parameters) else None
