"""From cells to findings.

What lives here: the walk, then the rules over what it recorded. What does not: either of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Finding, in_order
from tpu_magics.check.nodes import no_collections, nodes_of
from tpu_magics.check.program import Program, Speaker
from tpu_magics.check.syntax import NotPython, problem
from tpu_magics.check.walker import Walker

if TYPE_CHECKING:
    from tpu_magics.check.cells import Cell
    from tpu_magics.check.program import Function
    from tpu_magics.check.rule_context import Place

# Code that names none of these can break no rule, and is not walked.
_OURS = re.compile(r"torch|tensorflow|keras|transformers|accelerate|tpu|XLA_|import tf\b|tokeniz|timm")
_DEEP = 10_000  # stack frames for deeply nested code; the parser itself gives up earlier


def check_program(cells: Sequence[Cell], rules: Sequence[ModuleType]) -> list[Finding]:
    """All findings of these cells, which share their names. A cell that does not parse gives its own finding."""
    broken = [cell.problem for cell in cells if cell.problem is not None]
    if not any(_OURS.search(cell.text) for cell in cells):
        return in_order(broken)
    try:
        with no_collections():
            return in_order([*broken, *_distinct(_found(cells, rules))])
    except RecursionError:
        deep = NotPython("the code is nested too deeply to be followed")
        return in_order([*broken, problem(cells[0].path, cells[0].number, cells[0].text, deep)])


def _distinct(findings: Iterable[Finding]) -> Iterator[Finding]:
    """What is said of a line is said once (`assert nonzero(x).size(0) == 4, nonzero(x).size(0)`)."""
    said = set()
    for one in findings:
        key = (one.code, one.path, one.cell, one.line, one.message)
        if one.edits or key not in said:
            yield one
        said.add(key)


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


@dataclass(frozen=True)
class Part:
    """Lines `first` to `last` of a cell or file."""

    path: str
    cell: int | None
    first: int
    last: int

    def holds(self, one: Finding) -> bool:
        return (one.path, one.cell) == (self.path, self.cell) and self.first <= one.line <= self.last


def parts_of(cells: Sequence[Cell], name: str) -> list[Part]:
    """Where a function, class or method (`Net.forward`) of these cells stands, and what it calls."""
    program = walk(cells)
    wanted = [one for one in program.functions if _name(one) == name][-1:]
    classes = [one for one in program.classes if one.name == name][-1:]
    wanted += [method for cls in classes for method in cls.methods.values()]
    parts = [_part(one.node, one.at.cell) for one in _reached(program, wanted)]
    homes = {id(cls.node): cell for cls in classes for cell in cells if cell.tree and cls.node in nodes_of(cell.tree)}
    return parts + [_part(cls.node, homes[id(cls.node)]) for cls in classes if id(cls.node) in homes]


def _reached(program: Program, wanted: Sequence[Function]) -> list[Function]:
    """These functions, what they call, what they name (`collate_fn=collate`), and what is defined in them."""
    by_name: dict[str, list[Function]] = {}
    called: dict[int, list[Function]] = {}
    for one in program.functions:
        if one.cls is None:
            by_name.setdefault(one.name, []).append(one)
        for call in one.callers:
            if call.at.function is not None:
                called.setdefault(id(call.at.function), []).append(one)
    waiting, reached = list(wanted), {}
    while waiting:
        function = waiting.pop()
        if id(function) in reached:
            continue
        reached[id(function)] = function
        waiting += [*called.get(id(function), ()), *function.inner]
        waiting += [one for name in function.reads for one in by_name.get(name, ())]
    return list(reached.values())


def _name(function: Function) -> str:
    return function.name if function.cls is None else f"{function.cls.name}.{function.name}"


def _part(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef, cell: Cell) -> Part:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return Part(cell.path, cell.number, first, node.end_lineno or node.lineno)
