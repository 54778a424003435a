"""What to write instead of a branch on a tensor's value.

What lives here: the sentence for each form, and the rewriting with `where` where both forms are provably equal. What does
not: which branches depend on values (tpu101_branch_on_value.py).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit
from tpu_magics.check.rules import _values
from tpu_magics.check.values import TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.place import Place

_PACKAGES = {"torch": "torch", "tf": "tensorflow"}


# -- the sentence ----------------------------------------------------------------------------------------------------


def cure(node: ast.AST, asked: ast.expr, at: Place, tf: bool) -> str:
    """One imperative sentence."""
    rewritten = choice(node, at)
    if rewritten:
        indicator = ", or multiply by an indicator (`tf.cast(condition, tf.float32)`)" if tf else ""
        return f"Write `{rewritten}`{indicator}."
    handler = _CURES.get(type(node))
    return handler(node, asked, at, tf) if handler is not None else _select(tf)


def _select(tf: bool) -> str:
    if tf:
        return "Compute both sides and choose with `tf.where(condition, a, b)`, or use `tf.cond`."
    return "Compute both sides and choose with `torch.where(condition, a, b)`."


def _cure_if(node: ast.If, asked: ast.expr, at: Place, tf: bool) -> str:
    if _leaves(node):
        check = (
            "`tf.debugging` checks outside of the compiled function"
            if tf
            else "a function given to `xm.add_step_closure`"
        )
        return f"Decide this every N steps (`if step % 100 == 0:`), or after the step in {check}."
    return _select(tf)


def _leaves(node: ast.If) -> bool:
    return bool(node.body) and isinstance(node.body[-1], (ast.Raise, ast.Break, ast.Return))


def _cure_while(_: ast.While, __: ast.expr, ___: Place, tf: bool) -> str:
    if tf:
        return "Run a fixed number of iterations and keep what is done with `tf.where`, or use `tf.while_loop`."
    return "Run a fixed number of iterations and keep what is done with `torch.where`, or look at the value every N iterations."


def _cure_assert(_: ast.Assert, __: ast.expr, ___: Place, tf: bool) -> str:
    if tf:
        return "Check it before the compiled function, on the host."
    return "Check it once before the loop, every N steps, or after the step with `xm.add_step_closure`."


def _cure_bool_op(node: ast.BoolOp, _: ast.expr, __: Place, tf: bool) -> str:
    word = "and" if isinstance(node.op, ast.And) else "or"
    return f"Combine the tensors with `{'tf' if tf else 'torch'}.logical_{word}(a, b)`."


def _cure_not(node: ast.UnaryOp, _: ast.expr, at: Place, tf: bool) -> str:
    return f"Write `{'tf' if tf else 'torch'}.logical_not({_values.shown(node.operand, at)})`."


def _cure_compare(node: ast.Compare, asked: ast.expr, at: Place, tf: bool) -> str:
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return "Keep the answer a tensor: `(tensor == value).any()`."
    middle = _values.shown(asked, at)
    return f"Compare twice and combine the tensors: `(low < {middle}) & ({middle} < high)`."


_CALLS = {
    "any": "Keep the answer a tensor: `torch.stack(tensors).any()`, `tensor.any()`.",
    "all": "Keep the answer a tensor: `torch.stack(tensors).all()`, `tensor.all()`.",
    "max": "Keep the answer a tensor: `torch.maximum(a, b)`, `torch.stack(tensors).max()`.",
    "min": "Keep the answer a tensor: `torch.minimum(a, b)`, `torch.stack(tensors).min()`.",
    "sorted": "Sort on the device: `torch.sort(tensor).values`.",
    "bool": "Keep the condition a tensor and choose with `torch.where(condition, a, b)`.",
}
_TF_NAMES = (("torch.stack(tensors).any()", "tf.reduce_any(tensors)"), ("torch.stack(tensors).all()", "tf.reduce_all(tensors)"),
    ("torch.stack(tensors).max()", "tf.reduce_max(tensors)"), ("torch.stack(tensors).min()", "tf.reduce_min(tensors)"),
    (", `tensor.any()`", ""), (", `tensor.all()`", ""), ("torch.sort(tensor).values", "tf.sort(tensor)"), ("torch.", "tf."))  # fmt: skip


def _cure_call(node: ast.Call, _: ast.expr, __: Place, tf: bool) -> str:
    text = _CALLS.get(getattr(node.func, "id", ""), "Keep the comparison on the device: `(a == b).all()`.")
    for torch_name, tf_name in _TF_NAMES if tf else ():
        text = text.replace(torch_name, tf_name)
    return text


_CURES: dict[type, Callable[..., str]] = {
    ast.If: _cure_if,
    ast.While: _cure_while,
    ast.Assert: _cure_assert,
    ast.BoolOp: _cure_bool_op,
    ast.UnaryOp: _cure_not,
    ast.Compare: _cure_compare,
    ast.Call: _cure_call,
}


# -- the rewriting ---------------------------------------------------------------------------------------------------


def edits(node: ast.AST, at: Place) -> tuple[Edit, ...]:
    """`where` for the branch; only where both forms give equal values, shapes and dtypes."""
    parts = _parts(node)
    if parts is None or not choice(node, at) or not _is_scalar_truth(parts[0], at):
        return ()
    names = {_base(side, at) for side in parts[1:]}
    base = names.pop()
    if names or base is None or not _spelling(node, at):
        return ()
    if isinstance(node, ast.If) and "#" in at.source(node):
        return ()  # a comment would be lost
    return (at.replace(node, choice(node, at)),)


def choice(node: ast.AST, at: Place) -> str:
    """`x = torch.where(condition, a, b)` for a branch that only chooses a tensor; "" for any other."""
    parts = _parts(node)
    if parts is None or not any(at.value(side).kind == TENSOR for side in parts[1:]):
        return ""
    if at.value(parts[0]).kind != TENSOR or isinstance(parts[0], ast.BoolOp) or _is_elif(node, at):
        return ""
    where = _spelling(node, at) or ("tf" if _is_tf(parts[0], at) else "torch")
    called = f"{where}.where({', '.join(' '.join(at.source(one).split()) for one in parts)})"
    return f"{at.source(_target(node))} = {called}" if isinstance(node, ast.If) else called


def _is_elif(node: ast.AST, at: Place) -> bool:
    return isinstance(node, ast.If) and not at.source(node).startswith("if")


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


def _is_tf(node: ast.expr, at: Place) -> bool:
    return at.value(node).lib == "tf"


def _spelling(node: ast.AST, at: Place) -> str:
    test = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
    return _values.spelled("tensorflow" if test is not None and _is_tf(test, at) else "torch", at)


_SCALAR_METHODS = frozenset(("sum", "mean", "max", "min", "any", "all", "norm", "prod", "std", "var", "numel"))
_SCALAR_CALLS = frozenset(
    ["torch." + one for one in ("sum", "mean", "max", "min", "any", "all", "norm", "prod")]
    + ["tensorflow.reduce_" + one for one in ("sum", "mean", "max", "min", "any", "all", "prod")]
)
_LOSSES = frozenset(
    "torch.nn.functional." + one
    for one in ("cross_entropy", "mse_loss", "l1_loss", "nll_loss", "smooth_l1_loss", "binary_cross_entropy",
                "binary_cross_entropy_with_logits", "huber_loss", "kl_div")
)  # fmt: skip
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def _is_scalar_truth(test: ast.expr, at: Place) -> bool:
    """Whether a condition certainly is one bool without a dimension: `where` then keeps the shape of what it chooses."""
    if isinstance(test, ast.Compare):
        sides = (test.left, test.comparators[0])
        if len(test.ops) != 1 or not isinstance(test.ops[0], _ORDERS):
            return False
        return all(_is_number(one, at) or _is_scalar(one, at) for one in sides) and any(
            _is_scalar(one, at) for one in sides
        )
    return at.value(test).dtype == "bool" and _is_scalar(test, at)


def _is_number(node: ast.expr, at: Place) -> bool:
    constant = at.constant(node)
    return isinstance(constant, (int, float)) and not isinstance(constant, bool) and math.isfinite(constant)


def _is_scalar(node: ast.expr, at: Place, deep: int = 3) -> bool:
    """Whether a tensor certainly has no dimension."""
    if isinstance(node, ast.Call):
        name = at.name(node)
        if name in _SCALAR_CALLS:
            return len(node.args) == 1 and not node.keywords
        if name in _LOSSES:
            return not at.open_keywords(node) and at.keyword(node, "reduction") is None and len(node.args) == 2
        receiver, method = at.method(node)
        return receiver.kind == TENSOR and method in _SCALAR_METHODS and not node.args and not node.keywords
    value = at.value(node)
    made, place = value.made, value.made_at
    return (
        deep > 0
        and value.kind == TENSOR
        and isinstance(made, ast.Call)
        and place is not None
        and _is_scalar(made, place, deep - 1)
    )


_KEEPING = (ast.Add, ast.Sub, ast.Mult)
_KEEPING_CALLS = frozenset(("torch.zeros_like", "torch.ones_like", "tensorflow.zeros_like", "tensorflow.ones_like"))


def _base(node: ast.expr, at: Place) -> str | None:
    """The name of the float tensor of which this is a copy with other numbers: of `x / 2.0` "x"; None where it is not sure.

    Nothing here can fail or give a gradient that is not finite, so it may be computed in any case.
    """
    if isinstance(node, ast.Name):
        value = at.value(node)
        return node.id if value.kind == TENSOR and value.dtype == "float" else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _base(node.operand, at)
    if isinstance(node, ast.Call):
        return (
            _base(node.args[0], at)
            if at.name(node) in _KEEPING_CALLS and len(node.args) == 1 and not node.keywords
            else None
        )
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Div):
        return _base(node.left, at) if _is_number(node.right, at) and at.constant(node.right) != 0 else None
    if isinstance(node.op, _KEEPING):
        number, other = (node.left, node.right) if _is_number(node.left, at) else (node.right, node.left)
        return _base(other, at) if _is_number(number, at) else None
    return None
