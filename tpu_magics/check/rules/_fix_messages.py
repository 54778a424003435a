"""Fix messages for branches on a tensor's value (TPU101)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _values, _where_rewrites

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_TORCH = "torch"
_TF = "tf"
_CHOOSE = {
    _TORCH: "Compute both sides and choose with `torch.where(condition, a, b)`.",
    _TF: "Compute both sides and choose with `tf.where(condition, a, b)`, or use `tf.cond`.",
}
_LEAVE = {
    _TORCH: "Check this every N steps (`if step % 100 == 0:`), or after the step with `xm.add_step_closure`.",
    _TF: "Check this outside the compiled function, on the host, every N steps.",
}
_SENTENCES: dict[type, dict[str, str]] = {
    ast.While: {
        _TORCH: "Run a fixed number of iterations and keep finished rows with `torch.where`, or test every N steps.",
        _TF: "Run a fixed number of iterations and keep finished rows with `tf.where`, or use `tf.while_loop`.",
    },
    ast.Assert: {
        _TORCH: "Check it once before the loop, every N steps, or after the step with `xm.add_step_closure`.",
        _TF: "Check it on the host, before the call of the compiled function.",
    },
}
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
    rewritten = _where_rewrites.choice(node, ctx)
    if rewritten:
        indicator = ", or multiply by an indicator (`tf.cast(condition, tf.float32)`)" if tf else ""
        return f"Write `{rewritten}`{indicator}."
    if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Raise, ast.Break, ast.Continue, ast.Return)):
        return _LEAVE[xp]
    sentences = _SENTENCES.get(type(node))
    if sentences is not None:
        return sentences[xp]
    word = _word(node)
    if word:
        return _BOTH.get(word, _COMPARE).format(xp=xp, needed=_values.full_source(needed, ctx) or "t", **_WORDS[xp])
    return _CHOOSE[xp]


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return "and" if isinstance(node.op, ast.And) else "or"
    if isinstance(node, ast.UnaryOp):
        return "not"
    if isinstance(node, ast.Compare):
        return "in" if isinstance(node.ops[0], (ast.In, ast.NotIn)) else "chain"
    return str(getattr(node.func, "id", "equal")) if isinstance(node, ast.Call) else ""
