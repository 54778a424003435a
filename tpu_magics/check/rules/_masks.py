"""How to write without a mask what was written with one.

What lives here: the multiply-and-divide form, in the person's own names. What does not: how a mask is found
(_shapes.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _shapes as shapes
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.place import Place

_TORCH_LOSSES = frozenset(
    ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss",
     "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "hinge_embedding_loss",
     "cosine_embedding_loss")
)  # fmt: skip
_IGNORE_INDEX = ("cross_entropy", "nll_loss")
_DEFAULT_IGNORED = -100
_EACH = 'reduction="none"'
_AS_NUMBERS = "`mask = tf.cast({mask}, tf.float32)`, then `tf.reduce_sum({each} * mask) / tf.reduce_sum(mask)`."
_ZEROED = "let the mask zero the rest:"


def without_mask(node: ast.Subscript, mask: ast.expr, at: Place) -> str:
    """The sentence that says what to write for `x[mask]`, where it stands."""
    outer = at.parent(node)
    if isinstance(outer, ast.Attribute) and (said := _reduced(node, outer, mask, at)):
        return said
    if isinstance(outer, ast.Compare):
        return _compared(outer, mask, at)
    if isinstance(outer, ast.keyword):
        outer = at.parent(outer)
    if isinstance(outer, ast.Call) and node is not outer.func and (said := _loss(outer, mask, at, {})):
        return said
    if (call := _later_loss(node, mask, at)) is not None:
        return call
    return _general(node, mask, at)


def _general(node: ast.Subscript, mask: ast.expr, at: Place) -> str:
    kept, weight = shapes.short(at, node.value, "the tensor"), shapes.atom(at, mask)
    if is_tf(node, at):
        return f"Compute over all of {kept} and {_ZEROED} {_tf_form(mask, 'values', at)}"
    return f"Compute over all of {kept} and {_ZEROED} `(values * {weight}).sum() / {weight}.sum()`."


def _tf_form(mask: ast.expr, each: str, at: Place) -> str:
    return _AS_NUMBERS.format(mask=shapes.short(at, mask, "mask"), each=each)


def is_tf(node: ast.Subscript, at: Place) -> bool:
    values = (at.value(node.value), at.value(node.slice))
    return any(one.lib == "tf" for one in values) or (at.program.uses("tensorflow") and not at.program.uses("torch"))


# -- x[mask].sum() ----------------------------------------------------------------------------------------------------


def _reduced(node: ast.Subscript, outer: ast.Attribute, mask: ast.expr, at: Place) -> str:
    """For what is asked of the selected elements as a whole; "" for anything else."""
    kept, weight = shapes.atom(at, node.value, ""), shapes.atom(at, mask)
    if not kept or is_tf(node, at):
        return ""
    wholes = {
        "sum": f"({kept} * {weight}).sum()",
        "mean": f"({kept} * {weight}).sum() / {weight}.sum()",
        "max": f'torch.where({weight}, {kept}, float("-inf")).max()',
        "min": f'torch.where({weight}, {kept}, float("inf")).min()',
        "numel": f"{weight}.sum()",
    }
    if not isinstance(at.parent(outer), ast.Call) or outer.attr not in wholes:
        return ""
    return f"Let the mask zero what is left out: `{wholes[outer.attr]}`."


def _compared(outer: ast.Compare, mask: ast.expr, at: Place) -> str:
    """`preds[mask] == labels[mask]`: compare all, and count where the mask is true."""
    bare = _bare(at.source(outer), outer, at, {})
    weight = shapes.atom(at, mask)
    return f"Compare all elements and let the mask drop the rest: `(({bare}) & {weight}).sum() / {weight}.sum()`."


# -- a loss of selected elements --------------------------------------------------------------------------------------


def _loss(call: ast.Call, mask: ast.expr, at: Place, names: dict[str, str]) -> str:
    """For `loss(out[mask], labels[mask])`; `names` stand for selected elements: each with what it selects from."""
    name = at.name(call)
    last = name.rpartition(".")[2]
    torch_loss = name.startswith("torch.nn.functional.") and last in _TORCH_LOSSES
    if not torch_loss and not _is_loss(call, at):
        return ""
    arguments = [_bare(at.source(one), one, at, names) for one in call.args]
    arguments += [
        f"{one.arg}={_bare(at.source(one.value), one.value, at, names)}"
        for one in call.keywords
        if one.arg != "reduction"
    ]
    function, weight = at.source(call.func), shapes.atom(at, mask)
    if any("\n" in one for one in arguments) or sum(map(len, arguments)) > 120:
        arguments = ["..."]
    if not torch_loss:
        return _loss_object(function, arguments, mask, call, at)
    if last in _IGNORE_INDEX and not any(one.arg == "ignore_index" for one in call.keywords):
        arguments += _ignored(mask, at)
    each = f"{function}({', '.join([*arguments, _EACH])})"
    return f"Compute the loss of all elements and {_ZEROED} `({each} * {weight}).sum() / {weight}.sum()`."


def _loss_object(function: str, arguments: list[str], mask: ast.expr, call: ast.Call, at: Place) -> str:
    each, weight = f"{function}({', '.join(arguments)})", shapes.atom(at, mask)
    if _is_tf_call(call, at):
        return f"Make {function} with {_EACH} and {_ZEROED} {_tf_form(mask, each, at)}"
    return f"Make {function} with {_EACH} and {_ZEROED} `({each} * {weight}).sum() / {weight}.sum()`."


def _is_tf_call(call: ast.Call, at: Place) -> bool:
    values = (at.value(call.func), *(at.value(one) for one in call.args))
    return any(one.lib == "tf" for one in values) or (at.program.uses("tensorflow") and not at.program.uses("torch"))


def _is_loss(call: ast.Call, at: Place) -> bool:
    """A loss module or function, by what made it or by its name."""
    made = at.value(call.func).name.rpartition(".")[2]
    called = shapes.last_name(call.func)
    return made.endswith("Loss") or "loss" in called.lower() or called == "criterion"


def _ignored(mask: ast.expr, at: Place) -> list[str]:
    """`labels != -1` drops labels that cross_entropy would refuse if it were not told to ignore them."""
    compared = _definition(mask, at)
    if isinstance(compared, ast.Compare) and len(compared.ops) == 1 and isinstance(compared.ops[0], ast.NotEq):
        number = at.constant(compared.comparators[0])
        if number is not NOTHING and isinstance(number, int) and number != _DEFAULT_IGNORED:
            return [f"ignore_index={at.source(compared.comparators[0])}"]
    return []


def _later_loss(node: ast.Subscript, mask: ast.expr, at: Place) -> str | None:
    """For `kept = out[mask]`: the loss call in the same function that is given `kept`."""
    outer = at.parent(node)
    if not (isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name)):
        return None
    wanted, names = outer.targets[0].id, dict(_selections(mask, at))
    for call in _calls_after(outer, at):
        given = {one.id for one in ast.walk(call) if isinstance(one, ast.Name)}
        if wanted in given and (said := _loss(call, mask, at, names)):
            return said
    return None


def _selections(mask: ast.expr, at: Place) -> Iterator[tuple[str, str]]:
    """The names in this body that stand for what the same mask selects, with what it selects from."""
    wanted = at.source(mask)
    for one in _assignments(at):
        value = one.value
        if (
            isinstance(value, ast.Subscript)
            and at.source(value.slice) == wanted
            and isinstance(one.targets[0], ast.Name)
        ):
            yield one.targets[0].id, at.source(value.value)


def _definition(mask: ast.expr, at: Place) -> ast.expr:
    """The expression behind a mask's name, where it is assigned once in this body."""
    if isinstance(mask, ast.Name):
        found = [
            one.value
            for one in _assignments(at)
            if isinstance(one.targets[0], ast.Name) and one.targets[0].id == mask.id
        ]
        if len(found) == 1:
            return found[0]
    return mask


def _assignments(at: Place) -> Iterator[ast.Assign]:
    return (one for one in _body(at) if isinstance(one, ast.Assign))


def _calls_after(node: ast.AST, at: Place) -> Iterator[ast.Call]:
    line = getattr(node, "lineno", 0)
    return (one for one in _body(at) if isinstance(one, ast.Call) and one.lineno >= line)


def _body(at: Place) -> Iterator[ast.AST]:
    top = at.function.node if at.function is not None else at.cell.tree
    return iter(()) if top is None else ast.walk(top)


def _bare(text: str, node: ast.AST, at: Place, names: dict[str, str]) -> str:
    """The code of an expression with `x` for each `x[mask]` in it, and what it selects from for each of `names`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, text)
    if isinstance(node, ast.Subscript) and shapes.mask_in(node, at) is not None:
        return at.source(node.value)
    for child in ast.walk(node):
        if child is not node and isinstance(child, ast.Subscript) and shapes.mask_in(child, at) is not None:
            text = text.replace(at.source(child), at.source(child.value))
        elif child is not node and isinstance(child, ast.Name) and child.id in names and child is _root(node):
            text = names[child.id] + text[len(child.id) :]
    return text


def _root(node: ast.AST) -> ast.AST:
    """`kept` of `kept.view(-1, 2)`."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
