"""A Python number that changes every step and is part of the graph.

What it does
    Reports a Python number that changes from step to step (the counter of the step loop, a number that is counted up in
    the loop or drawn at random) where it is used as a shape, an index or a slice bound, or as a fixed argument of an
    operation: the `k` of topk, the exponent of a power, the shift of roll, the diagonal of tril; and where it is passed
    to a compiled `tf.function`.
Why this is bad
    Such a number is written into the graph, so each new number is another graph and another compile. Measured with
    torch_xla 2.9: one compile for each number in shapes, in indices and slices of a tensor, and in topk, kthvalue, pow,
    roll, tril and triu, diagonal, split, repeat, interpolate, pooling, padding and norm. Numbers that are added to,
    multiplied with or compared to tensors are sent as data and compile nothing new (except 0 and 1, which are separate
    graphs), and so are those in full, clamp, dropout, lerp, masked_fill, alpha= and the lr of optimizers.
Example
    for step, x in enumerate(loader):
        best = torch.topk(model(x), 1 + step % 4).values
Use instead
    for step, x in enumerate(loader):
        rank = torch.arange(4, device=device)
        best = torch.topk(model(x), 4).values * (rank < torch.tensor([1 + step % 4], device=device))
Limitations
    Numbers that change once per epoch (one compile per epoch), numbers that are returned by functions, and lists with a
    different length in each step are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _graph_numbers as numbers
from tpu_magics.check.rules._changing_numbers import changes
from tpu_magics.check.values import FUNCTION, NUMBER, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU303"
NAME = "changing-number"
GROUP = "recompiles"
WHY = "The number is written into the graph, so each new number is another graph that XLA compiles."
_WHY_TRACED = "A tf.function is traced and compiled again for each new Python number."
NODES = (ast.Call, ast.Subscript, ast.BinOp, ast.AugAssign)


def check(node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        yield from _call(node, ctx)
    elif isinstance(node, ast.Subscript):
        yield from _index(node, ctx)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, numbers.FIXED_OPERATORS):
        yield from _power(node, ctx)


def _call(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.value(node.func).kind == FUNCTION:
        yield from _traced(node, ctx)
        return
    use = numbers.use_of(node, ctx)
    if use is None or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    for argument in use.arguments:
        if changes(ctx, argument) and numbers.acts_on_device(node, ctx, use):
            what, number = numbers.short(ctx, node), ctx.source(argument)
            message = f"{use.subject.format(what=what)} {number}, a Python number that changes every step."
            yield ctx.finding(node, message, use.fix.format(number=number))
            return


def _traced(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    """A Python number given to a `tf.function`, which is traced again for each new one."""
    function = ctx.value(node.func).ref
    traced = "tensorflow.function" in getattr(function, "decorators", ())
    if not getattr(function, "compiled", False) and not (traced and ctx.program.tpu_tf):
        return
    for argument in (*node.args, *(one.value for one in node.keywords)):
        if ctx.value(argument).kind == NUMBER and changes(ctx, argument):
            number = ctx.source(argument)
            message = f"{ctx.source(node.func)} gets {number}, a Python number that changes every step."
            yield ctx.finding(node, message, f"Pass a tensor: `tf.constant({number})`.", why=_WHY_TRACED)
            return


def _index(node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
    base = ctx.value(node.value)
    if not numbers.is_tensor(base, node.slice) or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    if not numbers.is_tensor_on_device(base, ctx):
        return
    for bound, sliced in numbers.indices(node.slice):
        if changes(ctx, bound):
            number = ctx.source(bound)
            message = f"{numbers.short(ctx, node)} depends on {number}, a Python number that changes every step."
            fix = numbers.FIX_SLICE if sliced else numbers.FIX_INDEX
            yield ctx.finding(node, message, fix.format(number=number))
            return


def _power(node: ast.BinOp | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    for tensor, number in ((left, right), (right, left)):
        base = ctx.value(tensor)
        if (
            base.kind == TENSOR
            and numbers.is_tensor_on_device(base, ctx)
            and ctx.in_step
            and ctx.on_device
            and not ctx.every_n
        ):
            if changes(ctx, number):
                subject = ctx.source(number)
                message = f"{numbers.short(ctx, node)} uses {subject}, a Python number that changes every step."
                yield ctx.finding(node, message, numbers.FIX_TENSOR.format(number=subject))
            return
