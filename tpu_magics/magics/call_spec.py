"""FUNCTION and ARGs of a preflight: which cell of a file defines the function and which trains it, without running the
cells; their values in the notebook, checked before the trace."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpu_magics.backends.tensorflow import is_step
from tpu_magics.check.cells import CodeCell
from tpu_magics.check.finding import Finding
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.cell import LAUNCHERS, evaluate_all

BY_NAME = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def require_result_name(name: str, args: Sequence[str] = ()) -> None:
    """Raise TpuMagicsError where -o cannot bind the result to this name, would break the notebook by it, or replace one
    of the line's ARGs."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise TpuMagicsError(f"-o {name} is not a name.", "It becomes a Python variable.", "Give -o an identifier.")
    if hasattr(builtins, name) or name in ("In", "Out") or (name[:2] == name[-2:] == "__"):
        raise TpuMagicsError(
            f"-o {name} would replace a name that Python or IPython needs.",
            "Later cells could not use it any more.",
            "Give -o another name.",
        )
    if name in (word.rpartition("=")[2].strip() for word in args):
        raise TpuMagicsError(
            f"-o {name} would replace `{name}`, which the function gets.",
            "The result of the run would have its name, and what was trained would be lost.",
            "Give -o another name.",
        )


def evaluate_call(
    positional: Sequence[str], named: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The values of FUNCTION and its ARGs in `%tpu_preflight`. Raises TpuMagicsError where there is no such function,
    an ARG cannot be evaluated, or the function does not take them."""
    for expression in positional[:1]:
        _require_known(expression, namespace)
    values, keywords = evaluate_all(positional, named, namespace)
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
    if not callable(function) or is_step(function, tuple(args), kwargs):
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


# -- the cells of a file ----------------------------------------------------------------------------------------------


NOT_KEPT = ("tpu_check", "timeit")  # cell magics below which nothing is defined in the notebook
TRAINING = frozenset({name.rpartition(".")[2] for name in LAUNCHERS} | {"train"})  # names of functions that train
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def defining_cell(cells: Sequence[CodeCell], name: str) -> int | None:
    """The index of the last cell that defines `name` (of "a.b", its "a"): with `def` or `class` where one does, else by
    any binding. None where none does, but one may: by `from x import *` or `%run`.

    Raises TpuMagicsError where no cell can.
    """
    root = name.partition(".")[0]
    bound = [_bound(cell) for cell in cells]
    for found in ([root in one and one[root] for one in bound], [root in one for one in bound]):
        if any(found):
            return max(index for index, here in enumerate(found) if here)
    if any("*" in one for one in bound) or any(line.name == "run" for cell in cells for line in cell.line_magics):
        return None
    raise _not_defined(root, cells)


def _not_defined(name: str, cells: Sequence[CodeCell]) -> TpuMagicsError:
    functions = list(dict.fromkeys(name for cell in cells for name in _functions(cell)))
    where = "No cell defines" if cells[0].number is not None else f"{cells[0].path} does not define"
    return TpuMagicsError(
        f"{where} `{name}`{suggestion(name, functions)}",
        " ".join(
            [
                functions_text(functions),
                *(_unread(cell.problem) for cell in cells if cell.problem and cell.tree is None),
            ]
        ),
        "Give --function the name of the training function.",
    )


def suggestion(name: str, functions: Sequence[str]) -> str:
    """The end of a sentence about a missing name: with the nearest of these, if any is near."""
    near = difflib.get_close_matches(name, functions, n=1)
    return f"; did you mean `{near[0]}`?" if near else "."


def functions_text(functions: Sequence[str]) -> str:
    """All of them, in a sentence."""
    return f"Defined functions: {', '.join(functions)}." if functions else "No functions are defined there."


def _unread(problem: Finding) -> str:
    return f"{problem.place} cannot be read: {problem.message}"


def _functions(cell: CodeCell) -> list[str]:
    return [node.name for node in cell.tree.body if isinstance(node, _FUNCTION)] if cell.tree else []


def _bound(cell: CodeCell) -> dict[str, bool]:
    """The names that a cell binds, and whether a `def` or `class` does it."""
    found: dict[str, bool] = {}
    if cell.tree is not None and cell.magic not in NOT_KEPT:
        for name, is_defined in _bindings(cell.tree):
            found[name] = is_defined or found.get(name, False)
    return found


def _bindings(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """What statements bind at the top level; "*" for all names of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*_FUNCTION, ast.ClassDef)):
            yield node.name, True
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0], False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, False
        elif not isinstance(node, _OWN_SCOPE):
            yield from _bindings(node)


def value_of(namespace: dict[str, Any], name: str) -> Any:
    """The value of "a.b". Raises TpuMagicsError where there is none."""
    try:
        return eval(name, namespace)
    except Exception as error:
        raise TpuMagicsError(
            f"--function {name} cannot be evaluated: {type(error).__name__}: {error}.",
            "It has to name a function of the file, or an attribute of an object there.",
            "Give --function the name of the training function.",
        ) from error


def trains(cell: CodeCell, name: str) -> bool:
    """Whether a cell that was not run looks like one that trains the function: `%tpu_train name`, or a call of a
    launcher with it."""
    if any(line.name == "tpu_train" and line.words.split()[:1] == [name] for line in cell.line_magics):
        return True
    calls = [node for node in ast.walk(cell.tree) if isinstance(node, ast.Call)] if cell.tree else []
    return any(_called(call) in TRAINING and _gives(call, name) for call in calls)


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))


def _gives(call: ast.Call, name: str) -> bool:
    given = [*call.args[:1], *(word.value for word in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id == name for value in given)
