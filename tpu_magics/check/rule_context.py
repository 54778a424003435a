"""What a rule can ask about the code around a node, and how it reports a finding there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.inference import regions
from tpu_magics.check.inference.values import LIST, MODULE, NOTHING, UNKNOWN_VALUE, AbstractValue

if TYPE_CHECKING:
    from typing import Any

    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.program import CheckedProgram, Function

NAMED = (MODULE,)


class Loop:
    """A `for` or `while`. `is_step`: a step runs directly in it; `loader`: its iterable."""

    __slots__ = ("is_step", "loader", "node")

    def __init__(self, node: ast.For | ast.AsyncFor | ast.While, loader: AbstractValue) -> None:
        self.node = node
        self.loader = loader
        self.is_step = False


class RuleContext:
    """The surroundings of a node: program, cell, function and loops. Shared by all nodes with the same surroundings."""

    __slots__ = ("cell", "cell_index", "every_n", "function", "loops", "program", "withs")

    def __init__(
        self,
        program: CheckedProgram,
        cell: CodeCell,
        cell_index: int,
        function: Function | None,
        loops: tuple[Loop, ...],
        every_n: bool,
        withs: tuple[AbstractValue, ...] = (),
    ) -> None:
        self.program = program
        self.cell = cell
        self.cell_index = cell_index
        self.function = function
        self.loops = loops
        self.every_n = every_n
        self.withs = withs  # what the enclosing `with` statements entered, outermost first

    # -- values and names -----------------------------------------------------------------------------------------

    def value(self, node: ast.AST | None) -> AbstractValue:
        """The inferred value of an expression."""
        result: AbstractValue = getattr(node, "_value", UNKNOWN_VALUE)
        return result

    def name(self, node: ast.AST | None) -> str:
        """The canonical name of an expression, for a call that of its callee; "" if it has none."""
        if isinstance(node, ast.Call):
            node = node.func
        value = self.value(node)
        return value.name if value.kind in NAMED else ""

    def method(self, call: ast.AST) -> tuple[AbstractValue, str]:
        """The receiver and the method's name of `x.m(...)`; (UNKNOWN_VALUE, "") if the callee is not a method of a
        value."""
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            receiver = self.value(call.func.value)
            if receiver.kind != MODULE:
                return receiver, call.func.attr
        return UNKNOWN_VALUE, ""

    def constant(self, node: ast.AST | None) -> Any:
        """The Python constant of an expression, also through names; NOTHING if it is unknown."""
        return NOTHING if node is None else self.value(node).const

    def argument(self, call: ast.AST | None, name: str, position: int | None = None) -> ast.expr | None:
        """An argument by its keyword (also in a `**` dict literal), else by its position."""
        if not isinstance(call, ast.Call):
            return None
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
            if keyword.arg is None and (result := self._in_dict(keyword.value, name)) is not None:
                return result
        if position is None or position >= len(call.args):
            return None
        before = call.args[: position + 1]
        return None if any(isinstance(one, ast.Starred) for one in before) else call.args[position]

    def has_unknown_arguments(self, call: ast.Call) -> bool:
        """Whether the call has an unknown `*` or `**` argument: then a missing keyword proves nothing."""
        hidden = any(one.arg is None and self._dict(one.value) is None for one in call.keywords)
        return hidden or any(isinstance(one, ast.Starred) for one in call.args)

    def _dict(self, node: ast.expr) -> ast.AST | None:
        """The literal (or `dict(...)` call) behind a `**` argument, if all its keys are known."""
        value = self.value(node)
        if value.kind != LIST:
            return None
        creator = value.creator
        if isinstance(creator, ast.Dict):
            return creator if all(isinstance(key, ast.Constant) for key in creator.keys) else None
        if isinstance(creator, ast.Call):
            return creator if not creator.args and all(one.arg for one in creator.keywords) else None
        return None

    def _in_dict(self, node: ast.expr, name: str) -> ast.expr | None:
        creator = self._dict(node)
        if isinstance(creator, ast.Dict):
            pairs = zip(creator.keys, creator.values, strict=True)
            return next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)
        if isinstance(creator, ast.Call):
            return next((one.value for one in creator.keywords if one.arg == name), None)
        return None

    # -- where the code runs ------------------------------------------------------------------------------------------

    @property
    def top_level(self) -> bool:
        return self.function is None

    @property
    def notebook(self) -> bool:
        return self.program.notebook

    @property
    def on_device(self) -> bool:
        """Whether torch code here runs on the XLA device."""
        return regions.on_device(self)

    @property
    def in_step(self) -> bool:
        """Whether this code runs in each step of training or evaluation."""
        return regions.in_step(self)

    @property
    def compiled_tf(self) -> bool:
        """Whether TensorFlow code here is compiled by XLA."""
        return regions.compiled_tf(self)

    # -- code -----------------------------------------------------------------------------------------------------

    def source(self, node: ast.AST) -> str:
        """The source code of a node."""
        return self.cell.segment(node) if hasattr(node, "end_lineno") else ""

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The parent of a node."""
        key = ("parents", self.cell_index)
        if key not in self.program.memo:
            tree = self.cell.tree
            self.program.memo[key] = dict(_parents(tree)) if tree is not None else {}
        result: ast.AST | None = self.program.memo[key].get(node)
        return result

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """All ancestors of a node, innermost first."""
        result = self.parent(node)
        while result is not None:
            yield result
            result = self.parent(result)

    def replace(self, node: ast.AST, text: str) -> Edit:
        """The edit that writes `text` for a node."""
        start, end = self._span(node)
        return Edit(start, end, text)

    def insert_after(self, node: ast.AST, text: str) -> Edit:
        _, end = self._span(node)
        return Edit(end, end, text)

    def _span(self, node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        last, stop = getattr(node, "end_lineno", None) or line, getattr(node, "end_col_offset", None) or column
        return (line, self.cell.column(line, column)), (last, self.cell.column(last, stop))

    def _line(self, line: int) -> str:
        lines = self.cell.lines
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def finding(
        self,
        node: ast.AST,
        message: str,
        fix: str,
        why: str | None = None,
        edits: Sequence[Edit] = (),
        advice: bool = False,
    ) -> Finding:
        """A finding of the current rule at this node."""
        (line, column), (last, stop) = self._span(node)
        return self.finding_at(line, column, message, fix, why, edits, advice, (last, stop))

    def finding_at(
        self,
        line: int,
        column: int,
        message: str,
        fix: str,
        why: str | None = None,
        edits: Sequence[Edit] = (),
        advice: bool = False,
        end: tuple[int, int] | None = None,
    ) -> Finding:
        """A finding at a position without a node (a line magic): line from 1, column from 0."""
        last, stop = end or (line, len(self._line(line)))
        rule = self.program.rule
        return Finding(
            code=rule.code,
            group=rule.group,
            path=self.cell.path,
            cell=self.cell.number,
            line=line,
            column=column + 1,
            end_line=last,
            end_column=stop + 1,
            message=message,
            why=rule.why if why is None else why,
            fix=fix,
            source=self._line(line),
            advice=advice,
            edits=tuple(edits),
        )


def _parents(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            yield child, node
