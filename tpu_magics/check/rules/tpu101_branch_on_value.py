"""A branch on a tensor's value.

What it does
    Reports Python code in the step that needs a tensor's value to go on: `if`, `elif`, `while`, `assert`, the
    conditional expression, `and`, `or`, `not`, `bool()`, the condition of a comprehension, `match`, `in`, chained
    comparisons, `any()`, `all()`, `max()`, `min()`, `sorted()`, `torch.equal()`, `torch.allclose()`. Also an `if` on a
    number that was read from a tensor, if it decides what is computed. TensorFlow code is checked where XLA compiles
    it: in `tf.function(jit_compile=True)`, in a Keras model that is compiled with it, and under a TPUStrategy.
Why this is bad
    XLA compiles a graph before any value exists. PyTorch/XLA has to stop there, run the graph so far and pass the value
    to Python; each side of the branch is then another graph to compile. TensorFlow fails to trace the code, or turns it
    into control flow that a TPU may not support.
Example
    def training_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        if loss > 10:
            loss = loss / 2.0
        return loss
Use instead
    def training_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        return torch.where(loss > 10, loss / 2.0, loss)
Limitations
    Tensors that are returned by functions in other files, and branches inside libraries, are not checked. A branch on a
    shape, on `None`, on a flag or on a CPU tensor is fine and is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _fix_messages, _truthiness, _value_reads, _values

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU101"
NAME = "branch-on-value"
GROUP = "values"
WHY = "XLA must stop, run the graph so far and pass the value to Python; each side of the branch is another graph."
WHY_CPU = "The tensor is on the CPU, so reading it is cheap, but each side of the branch is another graph to compile."
WHY_TF = (
    "XLA compiles the graph before any value exists: tracing fails here, or a TPU may not support the control flow."
)
_STATEMENTS = (ast.If, ast.While, ast.Assert)
_HOLDERS = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Call)
NODES = (
    *_STATEMENTS,
    ast.IfExp,
    ast.BoolOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Call,
    *_truthiness.COMPREHENSIONS,
    ast.Match,
)


def check(node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
    if not _truthiness.may_need_value(node, ctx) or not (_values.may_run_each_step(ctx) or _values.is_compiled_tf(ctx)):
        return
    needed = _truthiness.first_needed(node, ctx)
    if needed is None or _values.runs_rarely(node, ctx) or _values.guarded(node, ctx):
        return
    if _value_reads.is_made_on_cpu(_operand(needed, ctx), ctx) and not ctx.in_step:
        return
    if isinstance(node, _STATEMENTS) or not _is_in_test(node, ctx):
        yield _finding(node, needed, ctx)


def _is_in_test(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this is part of a larger test, which is reported instead."""
    for parent, child in _values.expression_parents(node, ctx):
        if getattr(parent, "test", None) is child or (isinstance(parent, ast.comprehension) and child in parent.ifs):
            return True
        if (
            isinstance(parent, _HOLDERS)
            and _truthiness.may_need_value(parent, ctx)
            and _truthiness.first_needed(parent, ctx)
        ):
            return True
    return False


# -- the message ----------------------------------------------------------------------------------------------


def _finding(node: ast.AST, needed: ast.expr, ctx: RuleContext) -> Finding:
    tf = ctx.value(needed).lib == "tf"
    why = WHY_TF if tf else WHY_CPU if _value_reads.is_made_on_cpu(_operand(needed, ctx), ctx) else None
    place = getattr(node, "test", None) or (node.subject if isinstance(node, ast.Match) else node)
    return ctx.finding(
        place,
        f"{_subject(node)} the value of {_values.short_source(_operand(needed, ctx), ctx)}.",
        _fix_messages.fix_message(node, needed, ctx, tf),
        why=why,
        edits=_fix_messages.edits(node, ctx),
    )


_SUBJECTS: dict[type, str] = {
    ast.If: "The branch depends on",
    ast.While: "The loop's condition depends on",
    ast.Assert: "The assertion depends on",
    ast.IfExp: "The conditional expression depends on",
    ast.Match: "The match depends on",
    **dict.fromkeys(_truthiness.COMPREHENSIONS, "The comprehension's condition depends on"),
}


def _subject(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return f"`{'and' if isinstance(node.op, ast.And) else 'or'}` needs"
    if isinstance(node, ast.UnaryOp):
        return "`not` needs"
    if isinstance(node, ast.Compare):
        return "`in` needs" if len(node.ops) == 1 else "The chained comparison needs"
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func).rpartition('.')[2]}() needs"
    return _SUBJECTS[type(node)]


def _operand(needed: ast.expr, ctx: RuleContext) -> ast.expr:
    """Of `loss > best` the loss."""
    if isinstance(needed, ast.Compare):
        sides = (needed.left, *needed.comparators)
        return next((one for one in sides if _values.is_readable(ctx.value(one), ctx)), needed)
    return needed
