"""How to write without a mask what was written with one.

What lives here: the multiply-and-divide form, in the person's own names. What does not: how a mask is found
(_shapes.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _shapes as shapes
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Place

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


def without_mask(node: ast.expr, base: ast.expr, mask: ast.expr, at: Place) -> str:
    """The sentence that says what to write for `x[mask]` (or the like), where it stands."""
    outer = at.parent(node)
    tf = shapes.is_tf(at, at.value(base), at.value(mask))
    if isinstance(outer, ast.Attribute) and not tf and (said := _reduced(base, outer, mask, at)):
        return said
    if isinstance(outer, ast.Compare) and not tf:
        return _compared(outer, mask, at)
    if isinstance(outer, ast.keyword):
        outer = at.parent(outer)
    if isinstance(outer, ast.Call) and node is not outer.func and (said := _loss(outer, mask, at, {}, tf)):
        return said
    return _later_loss(node, mask, at, tf) or _general(base, mask, at, tf)


def _general(base: ast.expr, mask: ast.expr, at: Place, tf: bool) -> str:
    form = _form("values", mask, at, tf)
    return f"Compute over all of {shapes.short(at, base, 'the tensor')} and {_ZEROED} {form}"


def _form(each: str, mask: ast.expr, at: Place, tf: bool, divided: bool = True) -> str:
    """Multiply by the mask, and divide by its sum."""
    if tf:
        return _AS_NUMBERS.format(mask=shapes.short(at, mask, "mask"), each=each)
    weight = shapes.atom(at, mask)
    return f"`({each} * {weight}).sum(){f' / {weight}.sum()' if divided else ''}`."


# -- x[mask].sum() ----------------------------------------------------------------------------------------------------


def _reduced(base: ast.expr, outer: ast.Attribute, mask: ast.expr, at: Place) -> str:
    """For what is asked of the selected elements as a whole; "" for anything else."""
    kept, weight = shapes.atom(at, base, ""), shapes.atom(at, mask)
    wholes = {
        "sum": f"({kept} * {weight}).sum()",
        "mean": f"({kept} * {weight}).sum() / {weight}.sum()",
        "max": f'torch.where({weight}, {kept}, float("-inf")).max()',
        "min": f'torch.where({weight}, {kept}, float("inf")).min()',
        "numel": f"{weight}.sum()",
    }
    if not kept or not isinstance(at.parent(outer), ast.Call) or outer.attr not in wholes:
        return ""
    return f"Let the mask zero what is left out: `{wholes[outer.attr]}`."


def _compared(outer: ast.Compare, mask: ast.expr, at: Place) -> str:
    """`preds[mask] == labels[mask]`: compare all, and count where the mask is true."""
    bare = _bare(at.source(outer), outer, at, {})
    weight = shapes.atom(at, mask)
    mean = f" / {weight}.sum()" if _is_averaged(outer, at) else ""
    return f"Compare all elements and let the mask drop the rest: `(({bare}) & {weight}).sum(){mean}`."


def _is_averaged(outer: ast.Compare, at: Place) -> bool:
    """Whether a mean is asked for: `(preds[mask] == labels[mask]).float().mean()`."""
    node: ast.AST | None = outer
    while node is not None:
        node = at.parent(node)
        if isinstance(node, ast.Attribute) and node.attr == "mean":
            return True
        if not isinstance(node, (ast.Attribute, ast.Call)):
            return at.name(node) == "torch.mean" if node is not None else False
    return False


# -- a loss of selected elements --------------------------------------------------------------------------------------


def _loss(call: ast.Call, mask: ast.expr, at: Place, names: dict[str, str], tf: bool) -> str:
    """For `loss(out[mask], labels[mask])`; `names` stand for selected elements: each with what it selects from."""
    name, function = at.name(call), at.source(call.func)
    last = name.rpartition(".")[2]
    of_torch = name.startswith("torch.nn.functional.") and last in _TORCH_LOSSES
    if not of_torch and not _is_loss(call, at):
        return ""
    arguments = _arguments(call, at, names)
    if name.startswith("tensorflow.nn."):  # of one element each
        return f"Compute the loss of all elements and {_ZEROED} {_form(_call(function, arguments), mask, at, True)}"
    if not of_torch:
        form = _form(_call(function, arguments), mask, at, tf)
        return f"Make {function} with {_EACH} and {_ZEROED} {form}"
    if last in _IGNORE_INDEX and not any(one.arg == "ignore_index" for one in call.keywords):
        arguments += _ignored(mask, at)
    each = _call(function, [*arguments, _EACH])
    divided = at.constant(at.keyword(call, "reduction")) != "sum"
    weighted = divided and any(one.arg == "weight" for one in call.keywords)
    more = " (With `weight` torch divides by the sum of the chosen elements' weights instead.)" if weighted else ""
    return f"Compute the loss of all elements and {_ZEROED} {_form(each, mask, at, False, divided)}{more}"


def _call(function: str, arguments: list[str]) -> str:
    return f"{function}({', '.join(arguments)})"


def _arguments(call: ast.Call, at: Place, names: dict[str, str]) -> list[str]:
    """The code of a call's arguments, without the mask."""
    given = [("", one) for one in call.args]
    given += [(f"{one.arg}=", one.value) for one in call.keywords if one.arg not in ("reduction", None)]
    found = [name + _bare(at.source(one), one, at, names) for name, one in given]
    return ["..."] if any("\n" in one for one in found) or sum(map(len, found)) > 120 else found


def _is_loss(call: ast.Call, at: Place) -> bool:
    """A loss module or function, by what made it or by its name."""
    if at.name(call).startswith("tensorflow.nn."):
        return "cross_entropy" in at.name(call)
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


def _later_loss(node: ast.expr, mask: ast.expr, at: Place, tf: bool) -> str:
    """For `kept = out[mask]`: the loss call in the same function that is given `kept`."""
    outer = at.parent(node)
    if not (isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name)):
        return ""
    wanted, names = outer.targets[0].id, dict(_selections(mask, at))
    for call in _calls_after(outer, at):
        given = {one.id for one in nodes_of(call) if isinstance(one, ast.Name)}
        if wanted in given and (said := _loss(call, mask, at, names, tf)):
            return said
    return ""


def _selections(mask: ast.expr, at: Place) -> Iterator[tuple[str, str]]:
    """The names in this body that stand for what the same mask selects, with what it selects from."""
    wanted = at.source(mask)
    for one in _assignments(at):
        target, selected = one.targets[0], shapes.selection(one.value, at)
        if isinstance(target, ast.Name) and selected is not None and at.source(selected[1]) == wanted:
            yield target.id, at.source(selected[0])


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
    return iter(()) if top is None else nodes_of(top)


def _bare(text: str, node: ast.AST, at: Place, names: dict[str, str]) -> str:
    """The code of an expression with `x` for each `x[mask]` in it, and what it selects from for each of `names`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, text)
    for child in nodes_of(node):
        if (selected := shapes.selection(child, at)) is not None:
            text = text.replace(at.source(child), at.source(selected[0]))
    root = _root(node)
    if isinstance(root, ast.Name) and root.id in names:
        text = names[root.id] + text[len(root.id) :]
    return text


def _root(node: ast.AST) -> ast.AST:
    """`kept` of `kept.view(-1, 2)`."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
