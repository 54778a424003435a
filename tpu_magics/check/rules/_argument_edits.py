"""Edits that add or remove an argument of a call, with its comma and its line."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_magics.check.rule_context import RuleContext

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


def remove_entry(made: ast.Dict, key: ast.expr, ctx: RuleContext) -> tuple[Edit, ...]:
    """The same for a key and its value in a dict literal."""
    pairs = [(one or value, value) for one, value in zip(made.keys, made.values, strict=True)]
    spans = [_span(first, last, ctx) for first, last in pairs]
    wanted = next(span for span, (first, _) in zip(spans, pairs, strict=True) if first is key)
    return _without(wanted, spans, ctx.replace(made, "").end, ctx)


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
