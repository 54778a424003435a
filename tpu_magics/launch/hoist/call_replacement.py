"""Replaces the hoisted calls in the training function: `Net(cfg)` becomes `__tpu_magics_hoisted__(0, Net, cfg)`.

Nothing else of the function changes: closure, defaults, decorators, names and lines stay.
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
    """A copy of `tree` in which the calls at these positions are replaced."""
    changed: ast.Module = _CallReplacer(numbers).visit(copy.deepcopy(tree))
    return changed


def source_problem(function: FunctionType, source: FunctionSource) -> str:
    """Why the code of `function` cannot be recompiled from its source; "" if it can."""
    code = compiled(source.tree, function)
    if code is None or not same_code(code, function.__code__):
        return "the available source is not that of the running function (edited since, or changed at import)"
    return ""


def replaced_code(
    function: FunctionType, source: FunctionSource, numbers: Mapping[SourcePosition, int]
) -> CodeType | None:
    """The function's code with the calls replaced; None if it does not match the function's closure."""
    code = compiled(replaced(source.tree, numbers), function)
    return code if code is not None and code.co_freevars == function.__code__.co_freevars else None
