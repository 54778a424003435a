"""Source code: what a name was assigned, what it says, names of modules, edits of arguments, code in messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.finding import Edit
from tpu_magics.check.program import CheckedProgram, Function, remembered
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_magics.check.rule_context import RuleContext


_FAR = 12  # assignments from name to name that are followed
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))  # newer than the oldest Python we run on
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Match, *_TRIES)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class NameAssignment(NamedTuple):
    """One assignment: its position, the assigned value, and the path to the item if it was unpacked."""

    cell: int
    line: int
    value: ast.expr
    path: tuple[int, ...]


def origin(ctx: RuleContext, node: ast.expr) -> tuple[ast.expr, tuple[int, ...]]:
    """The expression that a name was assigned, and the path of items to it; any other node is its own origin."""
    path: tuple[int, ...] = ()
    for _ in range(_FAR):
        if not isinstance(node, ast.Name):
            break
        given = _last(ctx, node)
        if given is None or given.value is node:
            break
        node, path = given.value, (*given.path, *path)
        while path and isinstance(node, (ast.Tuple, ast.List)) and path[0] < len(node.elts):
            node, path = node.elts[path[0]], path[1:]
    return node, path


def _last(ctx: RuleContext, node: ast.Name) -> NameAssignment | None:
    """The last assignment above the name, in its function or at the level of the notebook."""
    if ctx.function is not None:
        here = _assigned_in_function(ctx.function).get(node.id)
        if here is not None:
            return next((one for one in reversed(here) if one.line < node.lineno), None)
        if any(one.arg == node.id for one in ctx.function.parameters):
            return None
    result = _assigned_at_top(ctx.program).get(node.id, [])
    if ctx.function is not None:
        return result[-1] if result else None
    return next((one for one in reversed(result) if (one.cell, one.line) < (ctx.cell_index, node.lineno)), None)


@remembered
def _assigned_in_function(function: Function) -> dict[str, list[NameAssignment]]:
    body = function.node.body
    return _gathered(body if isinstance(body, list) else [], function.ctx.cell_index)


@remembered
def _assigned_at_top(program: CheckedProgram) -> dict[str, list[NameAssignment]]:
    result: dict[str, list[NameAssignment]] = {}
    for index, cell in enumerate(program.cells):
        for name, given in _gathered(cell.tree.body if cell.tree is not None else [], index).items():
            result.setdefault(name, []).extend(given)
    return result


def _gathered(body: list[ast.stmt], cell: int) -> dict[str, list[NameAssignment]]:
    result: dict[str, list[NameAssignment]] = {}
    for node in own_statements(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _add_assignment(target, node.value, (), cell, node.lineno, result)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _add_assignment(node.target, node.value, (), cell, node.lineno, result)
    return result


def _add_assignment(
    target: ast.expr,
    value: ast.expr,
    path: tuple[int, ...],
    cell: int,
    line: int,
    result: dict[str, list[NameAssignment]],
) -> None:
    if isinstance(target, ast.Name):
        result.setdefault(target.id, []).append(NameAssignment(cell, line, value, path))
    elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(one, ast.Starred) for one in target.elts):
        for number, one in enumerate(target.elts):
            _add_assignment(one, value, (*path, number), cell, line, result)


def own_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a body in order, with those of its loops and branches, without those of inner functions."""
    waiting = list(body)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _BLOCKS):
            inner = [one for name in ("body", "orelse", "finalbody") for one in getattr(node, name, ())]
            inner += [one for case in _cases(node) for one in case.body]
            waiting.extend(inner[::-1])


def _cases(node: ast.stmt) -> list[ast.ExceptHandler | ast.match_case]:
    return [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]


def own_nodes(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of these statements in order, without those of inner functions and classes."""
    waiting: list[ast.AST] = []
    waiting.extend(list(body)[::-1])
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting.extend(list(ast.iter_child_nodes(node))[::-1])


# -- what names say ----------------------------------------------------------------------------------------------------

TRAINING, EVALUATION = "training", "evaluation"
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_OF_DATA = re.compile(r"(data)?(loader|set|dl|ds)?$")  # `trainloader`, `valset`
_PURPOSES = {
    **dict.fromkeys(("train", "training", "trn", "fit"), TRAINING),
    **dict.fromkeys(
        ("eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test", "testing", "dev",
         "predict", "prediction", "predictions", "infer", "inference", "holdout"), EVALUATION,
    ),
}  # fmt: skip


def purpose_of(names: Iterable[str]) -> str:
    """TRAINING, EVALUATION or "", by the first of these names that means one of them: `train_loader`, `valDataset`."""
    for name in names:
        words = (_OF_DATA.sub("", word.lower()) for word in _WORDS.findall(name))
        purposes = {_PURPOSES[word] for word in words if word in _PURPOSES}
        if len(purposes) == 1:
            return purposes.pop()
    return ""


def target_names(ctx: RuleContext, node: ast.AST) -> list[str]:
    """The names for the value of an expression: its target, keyword, dict key, or returning function."""
    result: list[str] = []
    for outer in ctx.parents(node):
        if isinstance(outer, ast.keyword) and outer.arg:
            result.append(outer.arg)
        elif isinstance(outer, ast.Dict):
            pairs = zip(outer.keys, outer.values, strict=True)
            result += [str(key.value) for key, value in pairs if value is node and isinstance(key, ast.Constant)]
        elif isinstance(outer, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
            return [*result, *(name for target in targets for name in _target_names(target))]
        elif isinstance(outer, ast.Return):
            return [*result, ctx.function.name if ctx.function is not None else ""]
        elif isinstance(outer, ast.stmt):
            return result
        node = outer
    return result


def _target_names(target: ast.expr) -> Iterable[str]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (target.attr,)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return (str(target.slice.value),)
    if isinstance(target, (ast.Tuple, ast.List)):  # as one name: which of them it is, is not known
        return (", ".join(name for one in target.elts for name in _target_names(one)),)
    return ()


def names_in_expression(node: ast.AST | None) -> list[str]:
    """The names and string keys in an expression: `raw_datasets["validation"]`."""
    if node is None:
        return []
    nodes = list(nodes_of(node))
    names = [one.id for one in nodes if isinstance(one, ast.Name)]
    names += [one.attr for one in nodes if isinstance(one, ast.Attribute)]
    return [*(one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)), *names]


# -- edits -------------------------------------------------------------------------------------------------------------

Position = tuple[int, int]
Span = tuple[Position, Position]


def add_argument(call: ast.Call, text: str, ctx: RuleContext) -> tuple[Edit, ...]:
    """The edit that adds a keyword to a call: before its last keyword, so that comments stay in place."""
    if call.keywords:
        before = call.keywords[-1]
        start = ctx.replace(before, "").start
        line = ctx.cell.lines[start[0] - 1]
        indent = line[: start[1]]
        between = f",\n{indent}" if not indent.strip() else ", "
        return (Edit(start, start, text + between),)
    if call.args:
        return (ctx.insert_after(call.args[-1], f", {text}"),)
    line_number, column = ctx.replace(call, "").end
    return (Edit((line_number, column - 1), (line_number, column - 1), text),)


def remove_argument(call: ast.Call, keyword: ast.keyword, ctx: RuleContext) -> tuple[Edit, ...]:
    """The edit that removes a keyword from a call; none if it would split a comment."""
    spans = sorted(_span(one, one, ctx) for one in (*call.args, *call.keywords))
    return _without(_span(keyword, keyword, ctx), spans, ctx.replace(call, "").end, ctx)


def remove_entry(literal: ast.Dict, key: ast.expr, ctx: RuleContext) -> tuple[Edit, ...]:
    """The edits that remove a key and its value from a dict literal."""
    pairs = [(one or value, value) for one, value in zip(literal.keys, literal.values, strict=True)]
    spans = [_span(first, last, ctx) for first, last in pairs]
    wanted = next(span for span, (first, _) in zip(spans, pairs, strict=True) if first is key)
    return _without(wanted, spans, ctx.replace(literal, "").end, ctx)


def _span(first: ast.AST, last: ast.AST, ctx: RuleContext) -> Span:
    return ctx.replace(first, "").start, ctx.replace(last, "").end


def _without(wanted: Span, spans: Sequence[Span], closed: Position, ctx: RuleContext) -> tuple[Edit, ...]:
    """Removes one of the items in a bracket that ends at `closed`."""
    start, end = wanted
    whole = _whole_lines(start, end, ctx)
    if whole is not None:
        return (whole,)
    number = spans.index(wanted)
    if number + 1 < len(spans):
        following = spans[number + 1][0]
        return (Edit(start, following, ""),) if _is_only_comma(end, following, ctx) else ()
    if number == 0:
        stop = (closed[0], closed[1] - 1)
        return (Edit(start, stop, ""),) if _is_only_comma(end, stop, ctx) else ()
    before = spans[number - 1][1]
    return (Edit(before, end, ""),) if _is_only_comma(before, start, ctx) else ()


def _whole_lines(start: Position, end: Position, ctx: RuleContext) -> Edit | None:
    """The whole lines, if they contain nothing else but a comment."""
    before = ctx.cell.lines[start[0] - 1][: start[1]]
    after = ctx.cell.lines[end[0] - 1][end[1] :].strip()
    alone = not before.strip() and (after in ("", ",") or after.lstrip(", ").startswith("#"))
    if not alone or start[0] == 1 or end[0] >= len(ctx.cell.lines):
        return None
    return Edit((start[0], 0), (end[0] + 1, 0), "")


def _text(start: Position, end: Position, ctx: RuleContext) -> str:
    lines = ctx.cell.lines[start[0] - 1 : end[0]]
    if len(lines) == 1:
        return lines[0][start[1] : end[1]]
    return "\n".join([lines[0][start[1] :], *lines[1:-1], lines[-1][: end[1]]])


def _is_only_comma(start: Position, end: Position, ctx: RuleContext) -> bool:
    return not _text(start, end, ctx).replace(",", "", 1).strip()


_XM = "torch_xla.core.xla_model"


def module_name(module: str, ctx: RuleContext, candidates: tuple[str, ...]) -> str:
    """The name of a module in this code; "" if none of the candidates is bound to it."""
    scopes = [ctx.program.globals]
    function = ctx.function
    while function is not None:
        scopes.append(function.env)
        function = function.outer
    values = ((name, scope[name]) for name in candidates for scope in reversed(scopes) if name in scope)
    return next((name for name, value in values if value.kind == "module" and value.name == module), "")


def xm(ctx: RuleContext) -> str:
    """The name of torch_xla.core.xla_model in this code; "" if it has none."""
    return module_name(_XM, ctx, ("xm", "xla_model", "xla"))


def quoted(text: str) -> str:
    """Code for a message: on one line, shortened."""
    return f"`{shortened(text)}`"


def shortened(text: str, most: int = 60) -> str:
    """Code on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
