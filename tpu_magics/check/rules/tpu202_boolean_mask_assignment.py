"""An assignment through a boolean mask.

What it does
    Reports `x[mask] = v`, `x[labels == -100] = 0`, `x[mask] += v` and `x.index_put_((mask,), v)` where the mask is a
    boolean tensor.
Why this is bad
    The shape of `x` does not change, but torch_xla still finds the positions of the true elements on the host
    (`aten::nonzero`), even if one number is assigned to all of them: one transfer in each step, and one compile for
    each new number of true elements. `masked_fill_` and `torch.where` compile once.
Example
    labels[labels == tokenizer.pad_token_id] = -100
    scores[mask] = bias
Use instead
    labels.masked_fill_(labels == tokenizer.pad_token_id, -100)
    scores = torch.where(mask, bias, scores)
Limitations
    A mask with an unusual name of unknown origin, and an assignment inside a library, are not found. `--fix` rewrites
    only masks that compare the tensor itself, because `masked_fill_` broadcasts a mask of fewer dimensions over the
    last ones, and an index over the first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _shapes as shapes
from tpu_magics.check.values import NUMBER, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU202"
NAME = "boolean-mask-assignment"
GROUP = "shapes"
WHY = (
    "torch_xla finds the true elements on the host: each step reads the mask back and waits, and each new number of "
    "true elements compiles the graph again, although the shape of the result does not change."
)
NODES = (ast.Assign, ast.AugAssign, ast.Call)

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.Mod: "%", ast.FloorDiv: "//",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_PUTS = ("index_put_", "index_put")


def check(node: ast.Assign | ast.AugAssign | ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        yield from _check_put(node, ctx)
        return
    for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice)):
            yield from _check_target(target, node, ctx)


def _check_target(target: ast.Subscript, node: ast.Assign | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    mask = shapes.mask_in(target, ctx)
    if mask is not None and shapes.runs_on_xla(ctx, ctx.value(target.value), ctx.value(mask)):
        what, by = shapes.short(ctx, target, "the selection"), shapes.short(ctx, mask, "the mask")
        yield ctx.finding(
            target,
            f"The elements that the assignment to {what} changes depend on the values of {by}.",
            _fix(target, mask, node, ctx),
            edits=_edits(target, mask, node, ctx),
        )


def _fix(target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, ctx: RuleContext) -> str:
    filled, spread = _view(target, mask, ctx)
    value = _value(target, mask, node, filled, ctx)
    same = isinstance(target.slice, ast.Tuple) or ctx.source(target.value) in ctx.source(mask)
    more = "" if same else f" (with `{shapes.atom(ctx, mask)}[..., None]` if {filled} has one more dimension)"
    if isinstance(node, ast.Assign) and ctx.value(node.value).kind == NUMBER:
        return f"Write `{filled}.masked_fill_({spread}, {value})`, which also works in place{more}."
    text = f"Write `{filled} = torch.where({spread}, {value}, {filled})`{more}"
    if isinstance(node, ast.Assign) and not _is_selected(node.value):
        text += f"; {value} then needs a value for every element, not only for the selected ones"
    return f"{text}."


def _is_selected(value: ast.expr) -> bool:
    """`x[mask] = y[mask]`: the same elements of another tensor."""
    return isinstance(value, ast.Subscript)


def _view(target: ast.Subscript, mask: ast.expr, ctx: RuleContext) -> tuple[str, str]:
    """The changed tensor without the mask, and the mask in its shape: `x[:, 0]` and `mask` for `x[mask, 0]`."""
    base, by = ctx.source(target.value), shapes.short(ctx, mask, "mask")
    if not isinstance(target.slice, ast.Tuple):
        return base, by
    items = target.slice.elts
    behind = [one for one in items[items.index(mask) + 1 :] if isinstance(one, ast.Slice)]
    plain = [":" if one is mask else ctx.source(one) for one in items]
    view = base if all(one in (":", "...") for one in plain) else f"{base}[{', '.join(plain)}]"
    return view, f"{shapes.atom(ctx, mask)}[:{', None' * len(behind)}]" if behind else by


def _value(
    target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, filled: str, ctx: RuleContext
) -> str:
    value, by = node.value, ctx.source(mask)
    if isinstance(value, ast.Subscript) and ctx.source(value.slice) == ctx.source(target.slice):
        text = ctx.source(value.value)
    else:
        text = ctx.source(value).replace(f"[{by}]", "")
    text = text if len(text) <= 60 and "\n" not in text else "value"
    if isinstance(node, ast.AugAssign):
        return f"{filled} {_OPERATORS.get(type(node.op), '+')} {text}"
    return text


# -- the rewritten code -----------------------------------------------------------------------------------------------


def _edits(target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, ctx: RuleContext) -> Sequence[Edit]:
    """`x[x == 0] = -1` as `x.masked_fill_(x == 0, -1)`: the same elements, the same tensor.

    Not as the last line of a notebook's cell, which would show the tensor, and only for small integers, which fit every
    dtype.
    """
    if not isinstance(node, ast.Assign) or len(node.targets) > 1 or (ctx.function is None and not ctx.loops):
        return ()
    number = ctx.constant(node.value)
    if type(number) is not int or not -128 <= number <= 127 or not isinstance(node.value, (ast.Constant, ast.UnaryOp)):
        return ()
    base = ctx.source(target.value)
    if ctx.value(target.value).kind != TENSOR or not _is_of(target.value, mask, ctx) or "\n" in ctx.source(node):
        return ()
    return (ctx.replace(node, f"{base}.masked_fill_({ctx.source(mask)}, {ctx.source(node.value)})"),)


def _is_of(base: ast.expr, mask: ast.expr, ctx: RuleContext) -> bool:
    """Whether a mask compares the tensor itself with a number, so that both have one shape."""
    if not isinstance(mask, ast.Compare) or len(mask.ops) > 1 or not isinstance(base, (ast.Name, ast.Attribute)):
        return False
    return ast.dump(mask.left) == ast.dump(base) and ctx.value(mask.comparators[0]).kind == NUMBER


# -- index_put --------------------------------------------------------------------------------------------------------


def _check_put(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _PUTS:
        return
    of_module = ctx.name(node) == "torch.index_put"
    indices = ctx.argument(node, "indices", 1 if of_module else 0)
    items = indices.elts if isinstance(indices, (ast.Tuple, ast.List)) else []
    base = (node.args[0] if node.args else node) if of_module else func.value
    mask = next((one for one in items if shapes.is_mask(one, ctx, shapes.is_array(ctx.value(base)))), None)
    if mask is not None and shapes.runs_on_xla(ctx, ctx.value(base)):
        by = shapes.short(ctx, mask, "the mask")
        yield ctx.finding(
            node,
            f"The elements that {func.attr} changes depend on the values of {by}.",
            f"Write `torch.where({by}, value, {shapes.short(ctx, base, 'x')})`.",
        )
