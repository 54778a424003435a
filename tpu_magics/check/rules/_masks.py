"""Fix messages for boolean masks: the same computation without a mask, in the user's own names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.stubs import is_torch_loss
from tpu_magics.check.inference.values import NOTHING
from tpu_magics.check.rules import _shapes
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_IGNORE_INDEX = ("cross_entropy", "nll_loss")
_DEFAULT_IGNORED = -100
_EACH = 'reduction="none"'
_AS_NUMBERS = "`mask = tf.cast({mask}, tf.float32)`, then `tf.reduce_sum({each} * mask) / tf.reduce_sum(mask)`."
_ZEROED = "use the mask to zero the rest:"


def without_mask(node: ast.expr, base: ast.expr, mask: ast.expr, ctx: RuleContext) -> str:
    """The fix message for `x[mask]` (or the like) in its context."""
    outer = ctx.parent(node)
    tf = _shapes.is_tf(ctx, ctx.value(base), ctx.value(mask))
    if isinstance(outer, ast.Attribute) and not tf and (message := _reduced(base, outer, mask, ctx)):
        return message
    if isinstance(outer, ast.Compare) and not tf:
        return _compared(outer, mask, ctx)
    if isinstance(outer, ast.keyword):
        outer = ctx.parent(outer)
    if isinstance(outer, ast.Call) and node is not outer.func and (message := _loss(outer, mask, ctx, {}, tf)):
        return message
    return _later_loss(node, mask, ctx, tf) or _general(base, mask, ctx, tf)


def _general(base: ast.expr, mask: ast.expr, ctx: RuleContext, tf: bool) -> str:
    form = _form("values", mask, ctx, tf)
    return f"Compute over all of {_shapes.short(ctx, base, 'the tensor')} and {_ZEROED} {form}"


def _form(each: str, mask: ast.expr, ctx: RuleContext, tf: bool, divided: bool = True) -> str:
    """Multiply by the mask, and divide by its sum."""
    if tf:
        return _AS_NUMBERS.format(mask=_shapes.short(ctx, mask, "mask"), each=each)
    weight = _shapes.atom(ctx, mask)
    return f"`({each} * {weight}).sum(){f' / {weight}.sum()' if divided else ''}`."


# -- x[mask].sum() ----------------------------------------------------------------------------------------------------


def _reduced(base: ast.expr, outer: ast.Attribute, mask: ast.expr, ctx: RuleContext) -> str:
    """The fix for a reduction of the selected elements; "" for anything else."""
    kept, weight = _shapes.atom(ctx, base, ""), _shapes.atom(ctx, mask)
    wholes = {
        "sum": f"({kept} * {weight}).sum()",
        "mean": f"({kept} * {weight}).sum() / {weight}.sum()",
        "max": f'torch.where({weight}, {kept}, float("-inf")).max()',
        "min": f'torch.where({weight}, {kept}, float("inf")).min()',
        "numel": f"{weight}.sum()",
    }
    if not kept or not isinstance(ctx.parent(outer), ast.Call) or outer.attr not in wholes:
        return ""
    return f"Use the mask to zero the other elements: `{wholes[outer.attr]}`."


def _compared(outer: ast.Compare, mask: ast.expr, ctx: RuleContext) -> str:
    """`preds[mask] == labels[mask]`: compare all, and count where the mask is true."""
    bare = _bare(ctx.source(outer), outer, ctx, {})
    weight = _shapes.atom(ctx, mask)
    mean = f" / {weight}.sum()" if _is_averaged(outer, ctx) else ""
    return f"Compare all elements and use the mask to drop the rest: `(({bare}) & {weight}).sum(){mean}`."


def _is_averaged(outer: ast.Compare, ctx: RuleContext) -> bool:
    """Whether it is averaged: `(preds[mask] == labels[mask]).float().mean()`."""
    node: ast.AST | None = outer
    while node is not None:
        node = ctx.parent(node)
        if isinstance(node, ast.Attribute) and node.attr == "mean":
            return True
        if not isinstance(node, (ast.Attribute, ast.Call)):
            return ctx.name(node) == "torch.mean" if node is not None else False
    return False


# -- a loss of selected elements --------------------------------------------------------------------------------------


def _loss(call: ast.Call, mask: ast.expr, ctx: RuleContext, names: dict[str, str], tf: bool) -> str:
    """For `loss(out[mask], labels[mask])`; `names` stand for selected elements: each with what it selects from."""
    name, function = ctx.name(call), ctx.source(call.func)
    last = name.rpartition(".")[2]
    of_torch = is_torch_loss(name)
    if not of_torch and not _is_loss(call, ctx):
        return ""
    arguments = _arguments(call, ctx, names)
    if name.startswith("tensorflow.nn."):  # one loss per element
        return f"Compute the loss of all elements and {_ZEROED} {_form(_call(function, arguments), mask, ctx, True)}"
    if not of_torch:
        form = _form(_call(function, arguments), mask, ctx, tf)
        return f"Create {function} with {_EACH} and {_ZEROED} {form}"
    if last in _IGNORE_INDEX and not any(one.arg == "ignore_index" for one in call.keywords):
        arguments += _ignored(mask, ctx)
    each = _call(function, [*arguments, _EACH])
    divided = ctx.constant(ctx.argument(call, "reduction")) != "sum"
    weighted = divided and any(one.arg == "weight" for one in call.keywords)
    more = (
        " (With `weight`, torch divides by the sum of the weights of the chosen elements instead.)" if weighted else ""
    )
    return f"Compute the loss of all elements and {_ZEROED} {_form(each, mask, ctx, False, divided)}{more}"


def _call(function: str, arguments: list[str]) -> str:
    return f"{function}({', '.join(arguments)})"


def _arguments(call: ast.Call, ctx: RuleContext, names: dict[str, str]) -> list[str]:
    """The code of a call's arguments, without the mask."""
    given = [("", one) for one in call.args]
    given += [(f"{one.arg}=", one.value) for one in call.keywords if one.arg not in ("reduction", None)]
    result = [name + _bare(ctx.source(one), one, ctx, names) for name, one in given]
    return ["..."] if any("\n" in one for one in result) or sum(map(len, result)) > 120 else result


def _is_loss(call: ast.Call, ctx: RuleContext) -> bool:
    """Whether it is a loss module or function, by its constructor or by its name."""
    if ctx.name(call).startswith("tensorflow.nn."):
        return "cross_entropy" in ctx.name(call)
    name = ctx.value(call.func).name.rpartition(".")[2]
    called = _shapes.last_part(call.func)
    return name.endswith("Loss") or "loss" in called.lower() or called == "criterion"


def _ignored(mask: ast.expr, ctx: RuleContext) -> list[str]:
    """`labels != -1` drops labels that cross_entropy raises an error for unless it ignores them."""
    compared = _definition(mask, ctx)
    if isinstance(compared, ast.Compare) and len(compared.ops) == 1 and isinstance(compared.ops[0], ast.NotEq):
        number = ctx.constant(compared.comparators[0])
        if number is not NOTHING and isinstance(number, int) and number != _DEFAULT_IGNORED:
            return [f"ignore_index={ctx.source(compared.comparators[0])}"]
    return []


def _later_loss(node: ast.expr, mask: ast.expr, ctx: RuleContext, tf: bool) -> str:
    """For `kept = out[mask]`: the loss call in the same function that is given `kept`."""
    outer = ctx.parent(node)
    if not (isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name)):
        return ""
    wanted, names = outer.targets[0].id, dict(_selections(mask, ctx))
    for call in _calls_after(outer, ctx):
        given = {one.id for one in nodes_of(call) if isinstance(one, ast.Name)}
        if wanted in given and (message := _loss(call, mask, ctx, names, tf)):
            return message
    return ""


def _selections(mask: ast.expr, ctx: RuleContext) -> Iterator[tuple[str, str]]:
    """The names in this body for selections by the same mask, with the selected tensors."""
    wanted = ctx.source(mask)
    for one in _assignments(ctx):
        target, selected = one.targets[0], _shapes.selection(one.value, ctx)
        if isinstance(target, ast.Name) and selected is not None and ctx.source(selected[1]) == wanted:
            yield target.id, ctx.source(selected[0])


def _definition(mask: ast.expr, ctx: RuleContext) -> ast.expr:
    """The expression behind a mask's name, where it is assigned once in this body."""
    if isinstance(mask, ast.Name):
        result = [
            one.value
            for one in _assignments(ctx)
            if isinstance(one.targets[0], ast.Name) and one.targets[0].id == mask.id
        ]
        if len(result) == 1:
            return result[0]
    return mask


def _assignments(ctx: RuleContext) -> Iterator[ast.Assign]:
    return (one for one in _body(ctx) if isinstance(one, ast.Assign))


def _calls_after(node: ast.AST, ctx: RuleContext) -> Iterator[ast.Call]:
    line = getattr(node, "lineno", 0)
    return (one for one in _body(ctx) if isinstance(one, ast.Call) and one.lineno >= line)


def _body(ctx: RuleContext) -> Iterator[ast.AST]:
    top = ctx.function.node if ctx.function is not None else ctx.cell.tree
    return iter(()) if top is None else nodes_of(top)


def _bare(text: str, node: ast.AST, ctx: RuleContext, names: dict[str, str]) -> str:
    """The code of an expression with `x` for each `x[mask]` in it, and what it selects from for each of `names`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, text)
    for child in nodes_of(node):
        if (selected := _shapes.selection(child, ctx)) is not None:
            text = text.replace(ctx.source(child), ctx.source(selected[0]))
    root = _root(node)
    if isinstance(root, ast.Name) and root.id in names:
        text = names[root.id] + text[len(root.id) :]
    return text


def _root(node: ast.AST) -> ast.AST:
    """`kept` of `kept.view(-1, 2)`."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
