"""An operation whose result shape depends on values.

What it does
    Reports `nonzero`, `argwhere`, `unique`, `unique_consecutive`, `masked_select`, `where` with one argument and
    `bincount` without `minlength`, as functions and as methods of tensors; in TensorFlow code that XLA compiles
    `tf.where` with one argument, `tf.boolean_mask`, `tf.unique`, `tf.unique_with_counts`, `tf.dynamic_partition`,
    `tf.sparse.from_dense`, `tf.sequence_mask` without `maxlen`, and `tf.image.non_max_suppression`.
Why this is bad
    XLA needs every shape when it compiles. torch_xla splits the graph, runs the operation on the host, and compiles the
    code that uses the result again for each new size. In TensorFlow a TPU does not support some of these operations.
Example
    chosen = torch.nonzero(scores > 0.5)
    kept = torch.masked_select(loss, mask)
Use instead
    weight = (scores > 0.5).float()
    kept = loss * mask          # and divide by mask.sum() for a mean
Limitations
    Operations inside library functions, and tensors that are returned by functions in other files, are not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _masks as masks
from tpu_magics.check.rules import _shapes as shapes
from tpu_magics.check.values import ARRAY, LIST, NUMBER

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU203"
NAME = "dynamic-shape-op"
GROUP = "shapes"
WHY = (
    "XLA needs every shape when it compiles, but this one depends on values: torch_xla runs the operation on the host "
    "in each step, and the code that uses the result compiles again for each new size."
)
NODES = (ast.Call,)

_SELECT = "Keep the shape: multiply by the mask, or choose with `torch.where(mask, x, 0)`."
_COUNT = "Count into a fixed number of classes: `F.one_hot({x}, num_classes).sum(0)`."
_UNIQUE = (
    "Find the distinct values on the host before the step, or count them into a fixed size: "
    "`F.one_hot({x}, num_classes).sum(0)`."
)
_TF_SELECT = (
    "Keep the shape: multiply by the mask (`tf.cast(mask, tf.float32)`) and divide by its sum, or use "
    "`tf.where(mask, x, y)` with three arguments."
)
_TF_COUNT = "Count into a fixed size: `tf.reduce_sum(tf.one_hot({x}, depth), 0)`."

# Operations of torch, as functions and as methods, with the fix; `{x}` is what is given.
_TORCH = {
    "nonzero": _SELECT,
    "argwhere": _SELECT,
    "unique": _UNIQUE,
    "unique_consecutive": _UNIQUE,
    "masked_select": _SELECT,
    "bincount": _COUNT,
    "where": _SELECT,
}
_TF = {
    "where": _TF_SELECT,
    "where_v2": _TF_SELECT,
    "boolean_mask": _TF_SELECT,
    "unique": _TF_COUNT,
    "unique_with_counts": _TF_COUNT,
    "dynamic_partition": "Keep one tensor, and multiply by a mask for each part.",
    "sparse.from_dense": "Keep {x} dense.",
    "sequence_mask": "Pass the length: `tf.sequence_mask({x}, maxlen=LENGTH)`.",
    "image.non_max_suppression": "Use `tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)`.",
}
# Arguments that fix the size, with their positions as functions and as methods.
_SIZES = {"bincount": ("minlength", 2, 1), "sequence_mask": ("maxlen", 1, 1)}
_PARTS = re.compile(r"^(torch|tensorflow)\.(Tensor\.|math\.|compat\.v1\.)?")
_ANY = frozenset((*_TORCH, *(one.rpartition(".")[2] for one in _TF)))
_ON_HOST = (ARRAY, NUMBER, LIST)


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    func = node.func
    last = func.attr if isinstance(func, ast.Attribute) else ctx.name(func).rpartition(".")[2]
    if last not in _ANY:
        return
    name = ctx.name(node)
    if name.startswith("tensorflow."):
        yield from _check_tf(node, _PARTS.sub("", name), ctx)
    elif name.startswith("torch."):
        given = node.args[0] if node.args else ctx.argument(node, "input") or ctx.argument(node, "condition")
        yield from _check_torch(node, _PARTS.sub("", name), given, False, ctx)
    elif isinstance(func, ast.Attribute) and last != "where" and shapes.is_array(ctx.value(func.value)):
        yield from _check_torch(node, last, func.value, True, ctx)


def _check_torch(
    node: ast.Call, last: str, given: ast.expr | None, of_method: bool, ctx: RuleContext
) -> Iterator[Finding]:
    value = ctx.value(given)
    if last not in _TORCH or not shapes.runs_on_xla(ctx, value) or _has_size(node, last, ctx, of_method):
        return
    if value.lib == "tf" or value.where in shapes.ON_CPU or value.kind in _ON_HOST:
        return
    if last == "where" and not _has_one_argument(node, ctx):
        return
    if (selected := shapes.selection(node, ctx)) is not None:
        yield from _check_selection(node, *selected, ctx)
        return
    whose = "its input" if given is None else shapes.short(ctx, given, "its input")
    what = shapes.short(ctx, node, f"the result of {last}")
    fix = _TORCH[last].format(x="x" if given is None else shapes.atom(ctx, given, "x"))
    yield ctx.finding(node, f"The shape of {what} depends on the values of {whose}.", fix)


def _check_tf(node: ast.Call, last: str, ctx: RuleContext) -> Iterator[Finding]:
    if last not in _TF or not ctx.compiled_tf or _has_size(node, last, ctx, of_method=False):
        return
    if last.startswith("where") and not _has_one_argument(node, ctx):
        return
    if (selected := shapes.selection(node, ctx)) is not None:
        yield from _check_selection(node, *selected, ctx)
        return
    given = shapes.short(ctx, node.args[0], "its input") if node.args else "its input"
    what = shapes.short(ctx, node, f"the result of tf.{last}")
    fix = _TF[last].format(x=given if node.args else "x")
    yield ctx.finding(node, f"The shape of {what} depends on the values of {given}.", fix, why=shapes.WHY_TF)


def _check_selection(node: ast.Call, base: ast.expr, mask: ast.expr, ctx: RuleContext) -> Iterator[Finding]:
    """`masked_select` and `boolean_mask` are other forms of `x[mask]`, with the same fix."""
    if not shapes.is_reported_beside(node, mask, ctx):
        what, by = shapes.short(ctx, node, "this selection"), shapes.short(ctx, mask, "the mask")
        why = shapes.WHY_TF if ctx.name(node).startswith("tensorflow.") else None
        fix = masks.without_mask(node, base, mask, ctx)
        yield ctx.finding(node, f"The shape of {what} depends on the values of {by}.", fix, why=why)


def _has_one_argument(node: ast.Call, ctx: RuleContext) -> bool:
    named = sum(one.arg in ("condition", "x", "y", "input", "other") for one in node.keywords)
    return not ctx.has_unknown_arguments(node) and len(node.args) + named == 1


def _has_size(node: ast.Call, last: str, ctx: RuleContext, of_method: bool) -> bool:
    """Whether an argument that fixes the size is given, or may be."""
    if last not in _SIZES:
        return False
    name, position, of_methods = _SIZES[last]
    return (
        ctx.has_unknown_arguments(node) or ctx.argument(node, name, of_methods if of_method else position) is not None
    )
