"""Checks cells: infers values, applies the rules to the recorded nodes, and leaves out what comments suppress."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.cells import CodeCell
from tpu_magics.check.finding import Finding, in_order
from tpu_magics.check.inference.walker import Walker
from tpu_magics.check.noqa import unused_noqa, without_suppressed
from tpu_magics.check.program import CheckedProgram
from tpu_magics.check.rule import Rule
from tpu_magics.check.rule_context import is_test_of
from tpu_magics.check.syntax import PythonParseError, failed_finding, gc_paused, nodes_of, syntax_finding

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.config import CheckConfig
    from tpu_magics.check.program import Function
    from tpu_magics.check.rule_context import RuleContext


# Code without any of these words cannot break a rule and is skipped.
_OURS = re.compile(r"torch|tensorflow|keras|transformers|accelerate|tpu|XLA_|import tf\b|tokeniz|timm")
_DEEP = 10_000  # stack frames for deeply nested code; the parser gives up earlier


def check_program(cells: Sequence[CodeCell], rules: Sequence[Rule]) -> list[Finding]:
    """All findings of these cells, which share their names. A cell that does not parse gives its own finding."""
    broken = [cell.problem for cell in cells if cell.problem is not None]
    if not any(_OURS.search(cell.text) for cell in cells):
        return in_order(broken)
    try:
        with gc_paused():
            return in_order([*broken, *_distinct(_found(cells, rules))])
    except RecursionError:
        deep = PythonParseError("the code is nested too deeply")
        return in_order([*broken, syntax_finding(cells[0].path, cells[0].number, cells[0].text, deep)])


def check_cells_of_file(cells: Sequence[CodeCell], config: CheckConfig) -> list[Finding]:
    """The findings of one file that comments and the configuration do not suppress."""
    used = config.used
    unasked = {rule.code for rule in config.rules.rules} - {rule.code for rule in used}
    result = [*check_program(cells, used), *(cell.problem for cell in cells if cell.problem)]
    kept = [*without_suppressed(result, cells), *unused_noqa(result, cells, unasked)]
    return in_order([finding for finding in kept if config.wants(finding)])


def _distinct(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One message per line (`assert nonzero(x).size(0) == 4, nonzero(x).size(0)`)."""
    seen = set()
    for one in findings:
        key = (one.code, one.path, one.cell, one.line, one.message)
        if one.edits or key not in seen:
            yield one
        seen.add(key)


def _found(cells: Sequence[CodeCell], rules: Sequence[Rule]) -> list[Finding]:
    interested: dict[type, list[Rule]] = {}
    for rule in rules:
        for kind in rule.nodes:
            interested.setdefault(kind, []).append(rule)
    found: list[Finding] = []
    with _guarded(found, cells[-1], "The check of this code"):
        program = walk(cells, frozenset(interested))
        of_tests = is_test_of(program)
        for node, ctx in program.recorded:
            for rule in interested[node.__class__]:
                with _guarded(found, ctx.cell, _named(program, rule), getattr(node, "lineno", 1)):
                    found += rule.check(node, ctx)
        for rule in rules:
            if rule.in_tests or not of_tests:
                with _guarded(found, cells[-1], _named(program, rule)):
                    found += rule.check_program(program)
    return found


def _named(program: CheckedProgram, rule: Rule) -> str:
    program.rule = rule  # its findings have its code
    return f"The rule {rule.code} ({rule.name})"


@contextmanager
def _guarded(found: list[Finding], cell: CodeCell, what: str, line: int = 1) -> Iterator[None]:
    """An error in one rule is a finding of its own, and takes no other finding away."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise
    except Exception as error:
        failed = failed_finding(cell, line, what, error)
        if all(one.message != failed.message for one in found):
            found.append(failed)


def walk(cells: Sequence[CodeCell], interests: frozenset[type] = frozenset()) -> CheckedProgram:
    """The program of these cells with its inferred values. `program.recorded` holds the nodes of the kinds in
    `interests`."""
    program = CheckedProgram(cells)
    walker = Walker(program, interests)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, _DEEP))
        walker.run()
    finally:
        sys.setrecursionlimit(limit)
    program.recorded = _once(walker.recorded)
    return program


def _once(recorded: list[tuple[ast.AST, RuleContext]]) -> list[tuple[ast.AST, RuleContext]]:
    """A node that the walk visits twice (an attribute that is assigned to) is checked once, with the last context."""
    result = {id(node): (node, ctx) for node, ctx in recorded}
    return list(result.values())


@dataclass(frozen=True)
class CodeSpan:
    """Lines `first` to `last` of a cell or file."""

    path: str
    cell: int | None
    first: int
    last: int

    def holds(self, one: Finding) -> bool:
        return (one.path, one.cell) == (self.path, self.cell) and self.first <= one.line <= self.last


def code_spans(cells: Sequence[CodeCell], name: str) -> list[CodeSpan]:
    """The source lines of a function, class or method (`Net.forward`) of these cells, and of the functions that it
    calls."""
    program = walk(cells)
    wanted = [one for one in program.functions if _name(one) == name][-1:]
    classes = [one for one in program.classes if one.name == name][-1:]
    wanted += [method for cls in classes for method in cls.methods.values()]
    parts = [_span(one.node, one.ctx.cell) for one in _reached(program, wanted)]
    homes = {id(cls.node): cell for cls in classes for cell in cells if cell.tree and cls.node in nodes_of(cell.tree)}
    return parts + [_span(cls.node, homes[id(cls.node)]) for cls in classes if id(cls.node) in homes]


def _reached(program: CheckedProgram, wanted: Sequence[Function]) -> list[Function]:
    """These functions, the functions that they call or mention (`collate_fn=collate`), and those defined in them."""
    value_of_name: dict[str, list[Function]] = {}
    called: dict[int, list[Function]] = {}
    for one in program.functions:
        if one.cls is None:
            value_of_name.setdefault(one.name, []).append(one)
        for call in one.callers:
            if call.ctx.function is not None:
                called.setdefault(id(call.ctx.function), []).append(one)
    waiting, reached = list(wanted), {}
    while waiting:
        function = waiting.pop()
        if id(function) in reached:
            continue
        reached[id(function)] = function
        waiting += [*called.get(id(function), ()), *function.inner]
        waiting += [one for name in function.reads for one in value_of_name.get(name, ())]
    return list(reached.values())


def _name(function: Function) -> str:
    return function.name if function.cls is None else f"{function.cls.name}.{function.name}"


def _span(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef, cell: CodeCell) -> CodeSpan:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return CodeSpan(cell.path, cell.number, first, node.end_lineno or node.lineno)
