"""From cells to findings.

What lives here: the walk, then the rules over what it recorded. What does not: either of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Finding, in_order
from tpu_magics.check.flow import Walker
from tpu_magics.check.program import Program, Speaker

if TYPE_CHECKING:
    from tpu_magics.check.cells import Cell
    from tpu_magics.check.place import Place

# Code that names none of these can break no rule, and is not walked.
_OURS = re.compile(r"torch|tensorflow|keras|transformers|accelerate|tpu|XLA_|import tf\b|tokeniz|timm")
_DEEP = 10_000  # stack frames for deeply nested code; the parser itself gives up earlier


def check_program(cells: Sequence[Cell], rules: Sequence[ModuleType]) -> list[Finding]:
    """All findings of these cells, which share their names. A cell that does not parse gives its own finding."""
    broken = [cell.problem for cell in cells if cell.problem is not None]
    if not any(_OURS.search(cell.text) for cell in cells):
        return in_order(broken)
    return in_order([*broken, *_found(cells, rules)])


def _found(cells: Sequence[Cell], rules: Sequence[ModuleType]) -> Iterator[Finding]:
    interested: dict[type, list[ModuleType]] = {}
    for rule in rules:
        for kind in getattr(rule, "NODES", ()):
            interested.setdefault(kind, []).append(rule)
    program = walk(cells, frozenset(interested))
    speakers = {rule: Speaker(rule.CODE, rule.GROUP, rule.WHY) for rule in rules}
    for node, at in program.recorded:
        for rule in interested[node.__class__]:
            program.rule = speakers[rule]
            yield from rule.check(node, at)
    for rule in rules:
        if hasattr(rule, "check_program"):
            program.rule = speakers[rule]
            yield from rule.check_program(program)


def walk(cells: Sequence[Cell], interests: frozenset[type] = frozenset()) -> Program:
    """The program behind these cells, its values found. `program.recorded` holds the nodes of these kinds."""
    program = Program(cells)
    walker = Walker(program, interests)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, _DEEP))
        walker.run()
    finally:
        sys.setrecursionlimit(limit)
    program.recorded = _once(walker.recorded)
    return program


def _once(recorded: list[tuple[ast.AST, Place]]) -> list[tuple[ast.AST, Place]]:
    """A node that the walk meets twice (an attribute that is assigned to) is given to rules once, as met last."""
    found = {id(node): (node, at) for node, at in recorded}
    return list(found.values())
