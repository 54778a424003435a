"""A boolean mask used as an index.

What it does
    Finds `x[mask]` where `mask` is a boolean tensor: alone, as one of several indices, as a comparison written in the
    brackets (`x[labels >= 0]`), negated, or of elements chosen for a loss (`loss_fn(out[keep], labels[keep])`).
Why it is bad
    The result has as many elements as the mask has true ones, and XLA needs every shape when it compiles. torch_xla
    reads the mask back to the host at each step (`aten::nonzero`) and compiles the graph again for each number of
    true elements that it has not met.
Example
    keep = labels >= 0
    loss = F.cross_entropy(out[keep], labels[keep])
Use instead
    keep = labels >= 0
    loss = (F.cross_entropy(out, labels, reduction="none") * keep).sum() / keep.sum()
What it cannot see
    A mask of which nothing is known but a name of its own (`x[chosen]`); one that comes out of a function of another
    file; masks of NumPy arrays and of tensors on the CPU, which are no fault.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _masks as masks
from tpu_magics.check.rules import _shapes as shapes

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU201"
NAME = "boolean-mask-index"
GROUP = "shapes"
WHY = shapes.WHY_MASK
NODES = (ast.Subscript,)


def check(node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
    if not isinstance(node.ctx, ast.Load):
        return
    mask = shapes.mask_in(node, ctx)
    if mask is None or not shapes.runs_on_xla(ctx, ctx.value(node.value), ctx.value(mask)):
        return
    if not shapes.is_reported_beside(node, mask, ctx):
        what, by = shapes.short(ctx, node, "this selection"), shapes.short(ctx, mask, "the mask")
        yield ctx.finding(
            node,
            f"The shape of {what} depends on the values of {by}.",
            masks.without_mask(node, node.value, mask, ctx),
            why=shapes.WHY_TF if shapes.is_tf(ctx, ctx.value(node.value), ctx.value(mask)) else None,
        )
