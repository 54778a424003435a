"""Fixes for branches on a tensor's value (TPU101): messages, and `where` if both forms are provably equal."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit
from tpu_magics.check.inference.library_results import is_torch_loss
from tpu_magics.check.inference.values import NUMBER, TENSOR
from tpu_magics.check.rules import _masks, _tensor_values

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_TORCH = "torch"
_TF = "tf"
_CHOOSE = {
    _TORCH: "Compute both sides, in one shape, and choose with `torch.where(condition, a, b)`.",
    _TF: "Compute both sides, in one shape, and choose with `tf.where(condition, a, b)`, or use `tf.cond`.",
}
_LEAVE = {
    _TORCH: "Check this every N steps (`if step % 100 == 0:`), or after the {later}.",
    _TF: "Check this outside the compiled function, on the host, every N steps.",
}
_SENTENCES: dict[type, dict[str, str]] = {
    ast.While: {
        _TORCH: "Run a fixed number of iterations and keep finished rows with `torch.where`, or test every N steps.",
        _TF: "Run a fixed number of iterations and keep finished rows with `tf.where`, or use `tf.while_loop`.",
    },
    ast.Assert: {
        _TORCH: "Check it once before the loop, every N steps, or after the {later}.",
        _TF: "Check it on the host, before the call of the compiled function.",
    },
}
_SKIP = "Compute this iteration all the same, and keep what was there with `torch.where(condition, before, after)`."
_ITERATE = "Run a fixed number of iterations and keep finished rows with `torch.where`."
# `xp` is torch or tf, `needed` the tensor.
_BOTH = {
    "and": "Combine the tensors with `{xp}.logical_and(a, b)`.",
    "or": "Combine the tensors with `{xp}.logical_or(a, b)`.",
    "not": "Write `{xp}.logical_not({needed})`.",
    "in": "Keep the result as a tensor: `{all}`.",
    "chain": "Compare twice and combine the tensors: `(low < {needed}) & ({needed} < high)`.",
    "any": "Keep the result as a tensor: `{any}`.",
    "all": "Keep the result as a tensor: `{every}`.",
    "max": "Keep the result as a tensor: `{xp}.maximum(a, b)`.",
    "min": "Keep the result as a tensor: `{xp}.minimum(a, b)`.",
    "sorted": "Sort on the device: `{xp}.sort({needed})`.",
    "bool": "Keep the condition as a tensor and choose with `{xp}.where(condition, a, b)`.",
}
_WORDS = {
    _TORCH: {
        "all": "(tensor == value).any()",
        "any": "torch.stack(tensors).any()",
        "every": "torch.stack(tensors).all()",
    },
    _TF: {"all": "tf.reduce_any(t == value)", "any": "tf.reduce_any(tensors)", "every": "tf.reduce_all(tensors)"},
}
_COMPARE = "Keep the comparison on the device: `(a == b).all()`."


def fix_message(node: ast.AST, needed: ast.expr, ctx: RuleContext, tf: bool) -> str:
    """One imperative sentence, with the rewritten code where it is known."""
    xp = _TF if tf else _TORCH
    rewritten = choice(node, ctx)
    if rewritten and _has_one_shape(node, ctx):
        indicator = ", or multiply by an indicator (`tf.cast(condition, tf.float32)`)" if tf else ""
        return f"Write `{rewritten}`{indicator}."
    if not tf and _tensor_values.in_module(ctx) and (message := _in_module(node)):
        return message
    if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Raise, ast.Break, ast.Continue, ast.Return)):
        return _LEAVE[xp].format(later=_tensor_values.later(ctx))
    sentences = _SENTENCES.get(type(node))
    if sentences is not None:
        return sentences[xp].format(later=_tensor_values.later(ctx))
    word = _word(node)
    if word:
        return _BOTH.get(word, _COMPARE).format(
            xp=xp, needed=_tensor_values.full_source(needed, ctx) or "t", **_WORDS[xp]
        )
    return _CHOOSE[xp]


def _has_one_shape(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether both sides of the branch are known to be alike: `where` gives what the branch gave."""
    parts = _parts(node)
    sides = [] if parts is None else [one for one in parts[1:] if ctx.value(one).kind != NUMBER]
    return len(sides) < 2 or _masks.same_shape(sides[0], sides[1], ctx, _masks.HERE)


def _in_module(node: ast.AST) -> str:
    """In a model, where there is no step to count."""
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue):
        return _SKIP
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break):
        return _ITERATE
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
        return "Compute both results and choose with `torch.where`, or decide outside of the model."
    if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)):
        return "Check it on the host, before the batch reaches the model."
    return _ITERATE if isinstance(node, ast.While) else ""


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return "and" if isinstance(node.op, ast.And) else "or"
    if isinstance(node, ast.UnaryOp):
        return "not"
    if isinstance(node, ast.Compare):
        return "in" if isinstance(node.ops[0], (ast.In, ast.NotIn)) else "chain"
    return str(getattr(node.func, "id", "equal")) if isinstance(node, ast.Call) else ""


# -- the branch as `where` --------------------------------------------------------------------------------------------


def edits(node: ast.AST, ctx: RuleContext) -> tuple[Edit, ...]:
    """`where` for the branch; only if both forms have equal values, shapes and dtypes."""
    if isinstance(node, ast.BoolOp):
        return _combined(node, ctx)
    parts = _parts(node)
    if parts is None or not choice(node, ctx) or not _spelling(parts[0], ctx):
        return ()
    names = {_base(side, ctx) for side in parts[1:]}
    base = names.pop()
    if names or base is None or not (_is_scalar_truth(parts[0], ctx) or _is_about(parts[0], base, ctx)):
        return ()
    return (ctx.replace(node, choice(node, ctx)),) if _is_plain(node, parts, ctx) else ()


def _is_plain(node: ast.AST, parts: tuple[ast.expr, ...], ctx: RuleContext) -> bool:
    """Whether no comment is lost, and no line break of an expression."""
    return "#" not in ctx.source(node) and not any("\n" in ctx.source(one) for one in parts)


def _combined(node: ast.BoolOp, ctx: RuleContext) -> tuple[Edit, ...]:
    """`logical_and(a, b)` for `a and b` of two bools without a dimension, which is the same tensor."""
    where = _spelling(node.values[0], ctx)
    if not where or len(node.values) != 2 or not all(_is_scalar_truth(one, ctx) for one in node.values):
        return ()
    if not _is_plain(node, tuple(node.values), ctx):
        return ()
    word = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
    return (ctx.replace(node, f"{where}.{word}({', '.join(_on_one_line(one, ctx) for one in node.values)})"),)


def _on_one_line(node: ast.expr, ctx: RuleContext) -> str:
    text = ctx.source(node)
    return " ".join(text.split()) if "\n" in text else text


def choice(node: ast.AST, ctx: RuleContext) -> str:
    """`x = torch.where(condition, a, b)` for a branch that only chooses a tensor; "" for any other."""
    parts = _parts(node)
    if parts is None or not any(ctx.value(side).kind == TENSOR for side in parts[1:]):
        return ""
    if ctx.value(parts[0]).kind != TENSOR or isinstance(parts[0], ast.BoolOp) or _is_elif(node, ctx):
        return ""
    where = _spelling(parts[0], ctx) or ("tf" if _is_tf(parts[0], ctx) else "torch")
    called = f"{where}.where({', '.join(_on_one_line(one, ctx) for one in parts)})"
    return f"{ctx.source(_target(node))} = {called}" if isinstance(node, ast.If) else called


def _is_elif(node: ast.AST, ctx: RuleContext) -> bool:
    return isinstance(node, ast.If) and not ctx.source(node).startswith("if")


def _parts(node: ast.AST) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Condition, value if true, value if false."""
    if isinstance(node, ast.IfExp):
        return node.test, node.body, node.orelse
    if not isinstance(node, ast.If) or (first := _only_assignment(node.body)) is None:
        return None
    target = first.targets[0]
    if not node.orelse:
        return node.test, first.value, target
    other = _only_assignment(node.orelse)
    if other is None or ast.unparse(other.targets[0]) != ast.unparse(target):
        return None
    return node.test, first.value, other.value


def _only_assignment(block: list[ast.stmt]) -> ast.Assign | None:
    only = block[0] if len(block) == 1 else None
    if not isinstance(only, ast.Assign) or len(only.targets) != 1 or not isinstance(only.targets[0], ast.Name):
        return None
    return only


def _target(node: ast.If) -> ast.expr:
    only = _only_assignment(node.body)
    assert only is not None
    return only.targets[0]


def _is_tf(node: ast.expr, ctx: RuleContext) -> bool:
    return ctx.value(node).lib == "tf"


def _spelling(test: ast.expr, ctx: RuleContext) -> str:
    """The name of the imported library; "" if it is not imported."""
    return _tensor_values.imported_name("tensorflow" if _is_tf(test, ctx) else "torch", ctx)


_SCALAR_METHODS = frozenset(("sum", "mean", "max", "min", "any", "all", "norm", "prod", "std", "var"))
_SCALAR_CALLS = frozenset(
    ["torch." + one for one in ("sum", "mean", "max", "min", "any", "all", "norm", "prod")]
    + ["tensorflow.reduce_" + one for one in ("sum", "mean", "max", "min", "any", "all", "prod")]
)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def _is_scalar_truth(test: ast.expr, ctx: RuleContext) -> bool:
    """Whether a condition certainly is one bool without a dimension: `where` then keeps the shape of its choices."""
    if isinstance(test, ast.Compare):
        sides = (test.left, test.comparators[0])
        if len(test.ops) != 1 or not isinstance(test.ops[0], _ORDERS):
            return False
        scalars = [_is_scalar(one, ctx) for one in sides]
        numbers = [ctx.value(one).kind == NUMBER for one in sides]
        return any(scalars) and all(scalar or number for scalar, number in zip(scalars, numbers, strict=True))
    return ctx.value(test).dtype == "bool" and _is_scalar(test, ctx)


def _is_about(test: ast.expr, base: str, ctx: RuleContext) -> bool:
    """Whether a condition compares the chosen tensor itself with a number, and so has its one element and its shape."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], _ORDERS):
        return False
    left, right = test.left, test.comparators[0]
    return any(
        isinstance(one, ast.Name) and one.id == base and ctx.value(other).kind == NUMBER
        for one, other in ((left, right), (right, left))
    )


def _is_number(node: ast.expr, ctx: RuleContext) -> bool:
    constant = ctx.constant(node)
    return isinstance(constant, (int, float)) and not isinstance(constant, bool) and math.isfinite(constant)


def _is_scalar(node: ast.expr, ctx: RuleContext, deep: int = 3) -> bool:
    """Whether a tensor certainly has no dimension."""
    if isinstance(node, ast.Call):
        name = ctx.name(node)
        if name in _SCALAR_CALLS:
            return len(node.args) == 1 and not node.keywords
        if is_torch_loss(name):
            return (
                not ctx.has_unknown_arguments(node) and ctx.argument(node, "reduction") is None and len(node.args) == 2
            )
        receiver, method = ctx.method(node)
        return receiver.kind == TENSOR and method in _SCALAR_METHODS and not node.args and not node.keywords
    value = ctx.value(node)
    creator, place = value.creator, value.creator_ctx
    return (
        deep > 0
        and value.kind == TENSOR
        and isinstance(creator, ast.Call)
        and place is not None
        and _is_scalar(creator, place, deep - 1)
    )


_KEEPING = (ast.Add, ast.Sub, ast.Mult)
_KEEPING_CALLS = frozenset(("torch.zeros_like", "torch.ones_like", "tensorflow.zeros_like", "tensorflow.ones_like"))


def _base(node: ast.expr, ctx: RuleContext) -> str | None:
    """The name of the float tensor that this scales or shifts: "x" for `x / 2.0`; None if it is not certain.

    Nothing here can fail or give a non-finite gradient, so it can be computed unconditionally.
    """
    if isinstance(node, ast.Name):
        value = ctx.value(node)
        return node.id if value.kind == TENSOR and value.dtype == "float" else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _base(node.operand, ctx)
    if isinstance(node, ast.Call):
        return (
            _base(node.args[0], ctx)
            if ctx.name(node) in _KEEPING_CALLS and len(node.args) == 1 and not node.keywords
            else None
        )
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Div):
        return _base(node.left, ctx) if _is_number(node.right, ctx) and ctx.constant(node.right) != 0 else None
    if isinstance(node.op, _KEEPING):
        number, other = (node.left, node.right) if _is_number(node.left, ctx) else (node.right, node.left)
        return _base(other, ctx) if _is_number(number, ctx) else None
    return None
