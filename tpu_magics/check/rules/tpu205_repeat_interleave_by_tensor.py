"""Elements that are repeated by a tensor of counts.

What it does
    Reports `torch.repeat_interleave(x, counts)`, `x.repeat_interleave(counts)` and, in TensorFlow code that XLA
    compiles, `tf.repeat(x, counts)`, if `counts` is a tensor and the size of the result is not given.
Why this is bad
    The result has as many elements as the sum of the counts, but XLA needs every shape when it compiles: torch_xla runs
    the operation on the host in each step (`aten::repeat_interleave.Tensor`), and the code that uses the result
    compiles again for each new size.
Example
    hidden = torch.repeat_interleave(hidden, durations, dim=0)
Use instead
    ends = durations.cumsum(0)
    places = torch.arange(MAX_LENGTH, device=hidden.device)
    owner = (places[:, None] >= ends).sum(1).clamp(max=len(ends) - 1)
    hidden = hidden[owner] * (places < ends[-1])[:, None]
Limitations
    With `output_size` the shape is fixed and nothing is reported, although torch_xla 2.9 still runs the operation on
    the host.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _shapes as shapes

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU205"
NAME = "repeat-interleave-by-tensor"
GROUP = "shapes"
WHY = (
    "XLA needs every shape when it compiles, but this one is the sum of the counts: torch_xla runs the operation on "
    "the host in each step, and the code that uses the result compiles again for each new sum."
)
NODES = (ast.Call,)

_NAMES = ("torch.repeat_interleave", "torch.Tensor.repeat_interleave", "tensorflow.repeat")
_FIX = (
    "Use a fixed length, look up the element for each position, and mask the positions beyond the sum: "
    "`{x}[(places[:, None] >= {counts}.cumsum(0)).sum(1).clamp(max=len({counts}) - 1)]`."
)
_TF_FIX = (
    "Use a fixed length, look up the element for each position, and mask the positions beyond the sum: "
    "`tf.gather({x}, tf.searchsorted(tf.cumsum({counts}), places, side='right'))`."
)


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    func = node.func
    name = ctx.name(node)
    if name not in _NAMES and not (isinstance(func, ast.Attribute) and func.attr == "repeat_interleave"):
        return
    given, counts = _arguments(node, name, ctx)
    if (
        counts is None
        or ctx.has_unknown_arguments(node)
        or _has_size(node, ctx)
        or not shapes.is_array(ctx.value(counts))
    ):
        return
    if not shapes.runs_on_xla(ctx, ctx.value(given), ctx.value(counts)):
        return
    by = shapes.short(ctx, counts, "the counts")
    tf = name.startswith("tensorflow.")
    fix = (_TF_FIX if tf else _FIX).format(
        x=shapes.atom(ctx, given, "x") if given is not None else "x", counts=shapes.atom(ctx, counts, "counts")
    )
    message = f"The shape of {shapes.short(ctx, node, 'the result')} depends on the values of {by}."
    yield ctx.finding(node, message, fix, why=shapes.WHY_TF if tf else None)


def _arguments(node: ast.Call, name: str, ctx: RuleContext) -> tuple[ast.expr | None, ast.expr | None]:
    """What is repeated (None if only counts are given), and the counts."""
    if name:
        counts = ctx.argument(node, "repeats", 1)
        given = node.args[0] if node.args else ctx.argument(node, "input")
        return (given, counts) if counts is not None else (None, given)
    assert isinstance(node.func, ast.Attribute)
    return node.func.value, ctx.argument(node, "repeats", 0)


def _has_size(node: ast.Call, ctx: RuleContext) -> bool:
    size = ctx.argument(node, "output_size")
    return size is not None and ctx.constant(size) is not None
