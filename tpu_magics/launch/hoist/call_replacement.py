"""The call in the training function, replaced: `Net(cfg)` becomes `__tpu_magics_hoisted__(0, Net, cfg)`.

What lives here: that change of a tree and of a function's code. Nothing else of the function changes: closure,
defaults, decorators, names and lines stay. What does not: what the new name does (worker.py).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from types import CodeType, FunctionType

from tpu_magics.launch.hoist.build import SourcePosition, position_of
from tpu_magics.launch.hoist.source import FunctionSource, compiled, same_code

NAME = "__tpu_magics_hoisted__"


class _CallReplacer(ast.NodeTransformer):
    def __init__(self, numbers: Mapping[SourcePosition, int]) -> None:
        self.numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.Call:
        number = self.numbers.get(position_of(node))
        self.generic_visit(node)
        if number is not None:
            first = ast.copy_location(ast.Constant(number), node.func)
            node.args = [first, node.func, *node.args]
            node.func = ast.copy_location(ast.Name(NAME, ast.Load()), node.func)
        return node


def replaced(tree: ast.Module, numbers: Mapping[SourcePosition, int]) -> ast.Module:
    """A copy of `tree` in which the calls at these places carry their number. The original stays as it is."""
    changed: ast.Module = _CallReplacer(numbers).visit(copy.deepcopy(tree))
    return changed


def source_problem(function: FunctionType, source: FunctionSource) -> str:
    """Why the code of `function` cannot be made again from its source; "" where it can."""
    code = compiled(source.tree, function)
    if code is None or not same_code(code, function.__code__):
        return (
            "the source at hand is not that of the function that runs (edited since, or changed while it was imported)"
        )
    return ""


def replaced_code(
    function: FunctionType, source: FunctionSource, numbers: Mapping[SourcePosition, int]
) -> CodeType | None:
    """The function's code with the calls replaced; None where it does not fit the function's closure."""
    code = compiled(replaced(source.tree, numbers), function)
    return code if code is not None and code.co_freevars == function.__code__.co_freevars else None
