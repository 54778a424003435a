"""Python constants, also of items that are set one by one (`FLAGS["num_cores"] = 8`)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


def constant(node: ast.expr | None, ctx: RuleContext) -> Any:
    """The constant of an expression; NOTHING if it is unknown or has several values."""
    found = ctx.constant(node)
    if found is not NOTHING or not isinstance(node, ast.Subscript):
        return found
    values = _items(ctx.program).get(_key(node), ())
    constants = {ctx.constant(one) for one in values if _hashable(ctx.constant(one))}
    return constants.pop() if len(constants) == 1 and values else NOTHING


def _hashable(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, type(None), type(NOTHING)))


def _key(node: ast.Subscript) -> tuple[str, str]:
    return ast.unparse(node.value), ast.unparse(node.slice)


def _items(program: CheckedProgram) -> dict[tuple[str, str], list[ast.expr]]:
    """The values that items of containers are set to, in the whole program."""
    if "items_set" not in program.memo:
        found: dict[tuple[str, str], list[ast.expr]] = {}
        for cell in program.cells:
            for node in nodes_of(cell.tree) if cell.tree is not None else ():
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                        found.setdefault(_key(target), []).append(node.value)  # type: ignore[attr-defined]
        program.memo["items_set"] = found
    known: dict[tuple[str, str], list[ast.expr]] = program.memo["items_set"]
    return known
