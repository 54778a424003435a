"""A boolean mask is used as an index.

What it does
    Reports `x[mask]` where `mask` is a boolean tensor: alone, as one of several indices, as a comparison in the
    brackets (`x[labels >= 0]`), negated, or to select elements for a loss (`loss_fn(out[keep], labels[keep])`).
Why this is bad
    The result has as many elements as the mask has true ones, but XLA needs every shape when it compiles. torch_xla
    reads the mask back to the host in each step (`aten::nonzero`) and compiles the graph again for each new number of
    true elements.
Example
    keep = labels >= 0
    loss = F.cross_entropy(out[keep], labels[keep])
Use instead
    keep = labels >= 0
    loss = (F.cross_entropy(out, labels, reduction="none") * keep).sum() / keep.sum()
Limitations
    A mask with an unusual name of unknown origin (`x[chosen]`) and a mask that is returned by a function in another
    file are not found. Masks of NumPy arrays and of CPU tensors are fine.
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
