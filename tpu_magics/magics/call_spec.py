"""FUNCTION and ARGs of a preflight: evaluated in the notebook and checked before the trace."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_magics.backends import tensorflow
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import arguments
from tpu_magics.magics.definitions import functions_text, suggestion

BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def evaluate_call(
    positional: Sequence[str], named: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The values of FUNCTION and its ARGs in `%tpu_preflight`. Raises TpuMagicsError where there is no such function,
    an ARG cannot be evaluated, or the function does not take them."""
    for expression in positional[:1]:
        _require_known(expression, namespace)
    values, keywords = arguments.evaluate_all(positional, named, namespace)
    if values:
        check_call(values[0], values[1:], keywords, f"%tpu_preflight {positional[0]} {{}} --target ...")
    return values, keywords


def _require_known(expression: str, namespace: Mapping[str, Any]) -> None:
    name = expression.partition(".")[0].strip()
    if not name.isidentifier() or name in namespace or hasattr(builtins, name):
        return
    functions = [one for one, value in namespace.items() if inspect.isfunction(value) and not one.startswith("_")]
    raise TpuMagicsError(
        f"The notebook has no `{name}`{suggestion(name, functions)}",
        functions_text([one for one in functions if namespace[one].__module__ == "__main__"]),
        "Correct the name, or run the cell that defines it first.",
    )


def check_call(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    written: str = "tpu_magics.preflight(function, {}, target=...)",
) -> None:
    """Raise TpuMagicsError where `function` does not take these arguments. `written`: the call to suggest, with {} for
    its arguments. TensorFlow's steps are not checked here: a Dataset is passed for one of its elements."""
    if not callable(function) or tensorflow.is_step(function, tuple(args), kwargs):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        name = getattr(function, "__name__", type(function).__name__)
        between = ", " if "(" in written else " "
        raise TpuMagicsError(
            f"{name}{signature} does not take these arguments: {problem}.",
            f"Given: {len(args)} positional{''.join(f', {word}' for word in kwargs)}.",
            "Give a value for each parameter without a default: "
            + " ".join(written.format(between.join(map(parameter_text, required_parameters(signature)))).split()),
        ) from None


def required_parameters(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters without a default."""
    return [one for one in signature.parameters.values() if one.default is one.empty and one.kind in BY_NAME]


def parameter_text(parameter: inspect.Parameter) -> str:
    """The parameter as an argument of a call."""
    return f"{parameter.name}=..." if parameter.kind is parameter.KEYWORD_ONLY else parameter.name
