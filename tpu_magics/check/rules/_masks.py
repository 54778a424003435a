"""Fix messages for boolean masks: the same computation without a selection, in the user's own names.

A formula is printed only where it is known to give the same value: where the mask and what it selects from have one
shape. Elsewhere the message says in words what to do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import NOTHING, NUMBER, UNKNOWN
from tpu_magics.check.rules import _shapes
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_FUNCTIONAL = "torch.nn.functional."
_CLASSES = ("cross_entropy", "nll_loss")  # losses of classes, which ignore a label
_CLASS_MODULES = {"torch.nn.CrossEntropyLoss": "cross_entropy", "torch.nn.NLLLoss": "nll_loss"}
_IGNORED = "-100"  # the label that they ignore unless told otherwise
# Losses of each element, and arguments that leave them so. Those of zeros and zeros are zero, but for the last.
_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
_LOGITS = "binary_cross_entropy_with_logits"
_KEEPING = ("reduction", "beta", "delta")
_GIVEN = ("input", "target")

_KEEP = "Keep the whole of {x} and its mask: let the code behind it leave out the other elements, with `torch.where`."
_KEEP_TF = "Keep the whole of {x} and its mask: let the code behind it leave out the other elements, with `tf.where`."
_LIKE = "give the mask as many dimensions as {x}"
_IN_WORDS = {
    "sum": f"Set the elements outside the mask to 0 with `torch.where` before the sum; first {_LIKE}.",
    "mean": (
        "Set the elements outside the mask to 0 with `torch.where`, and divide their sum by the number of elements "
        f"that are inside, along the same dimension; first {_LIKE}."
    ),
    "max": "Set the elements outside the mask to a number below all others with `torch.where`, and take the maximum.",
    "min": "Set the elements outside the mask to a number above all others with `torch.where`, and take the minimum.",
    "numel": "Count the elements of the mask: its sum, times the elements that each of them selects.",
}
_COMPARE = (
    "Compare all elements, and count those that are equal and inside the mask; for a share, divide by the number of "
    "elements inside it."
)
_LABELS = (
    "Keep all rows, and set the labels outside the mask to the label that the loss ignores (-100, or its "
    "`ignore_index`): the loss is that of the others, and no shape depends on the mask."
)
_LOSS = (
    'Compute the loss of every element (`reduction="none"`), set it to 0 outside the mask with `torch.where`, and '
    "{then}; first give the mask as many dimensions as the loss."
)
_DIVIDE = "divide its sum by the number of elements inside the mask"
_LOSS_TF = (
    "Compute the loss of every element, set it to 0 outside the mask with `tf.where`, and divide its sum by the number "
    "of elements inside; first give the mask as many dimensions as the loss."
)


def without_mask(node: ast.expr, base: ast.expr, mask: ast.expr, ctx: RuleContext) -> str:
    """The fix message for `x[mask]` (or the like) in its context."""
    outer = ctx.parent(node)
    if _shapes.is_tf(ctx, ctx.value(base), ctx.value(mask)):
        lost = isinstance(outer, ast.Call) and node is not outer.func and _is_loss(outer, ctx)
        return _LOSS_TF if lost else _KEEP_TF.format(x=_shapes.short(ctx, base, "the tensor"))
    if isinstance(outer, ast.Attribute) and (message := _reduced(base, outer, mask, ctx)):
        return message
    if isinstance(outer, ast.Compare):
        return _compared(outer, mask, ctx)
    if isinstance(outer, ast.keyword):
        outer = ctx.parent(outer)
    if isinstance(outer, ast.Call) and node is not outer.func and (message := _loss(outer, mask, ctx, {})):
        return message
    return _later_loss(node, mask, ctx) or _KEEP.format(x=_shapes.short(ctx, base, "the tensor"))


# -- shapes that are known to be equal --------------------------------------------------------------------------------

_NUMBER_NAME = re.compile(r"(_id|_idx|_index|_token)$|^[A-Z][A-Z_0-9]+$")
_DEEPEST = 6  # names followed from one to the next
HERE = -1
_NO_TENSORS = ("dtype", "device", "p", "training", "dim", "approximate")
_POINTWISE = frozenset(
    ("abs", "neg", "exp", "log", "log1p", "sqrt", "rsqrt", "square", "sign", "sigmoid", "tanh", "relu", "isnan",
     "isinf", "isfinite", "bool", "float", "double", "half", "int", "long", "detach", "clone", "contiguous",
     "logical_not", "logical_and", "logical_or", "logical_xor", "eq", "ne", "lt", "le", "gt", "ge", "zeros_like",
     "ones_like", "clamp", "clip", "where", "maximum", "minimum", "dropout", "gelu", "silu", "softmax", "log_softmax")
)  # fmt: skip


def same_shape(one: ast.expr, other: ast.expr, ctx: RuleContext, deepest: int = _DEEPEST) -> bool:
    """Whether two tensors are known to have one shape: both are computed element by element from the same tensor.
    With HERE both stand at one place, so that each name is one tensor."""
    shape = _shape(one, ctx, deepest)
    return bool(shape) and shape == _shape(other, ctx, deepest)


def _shape(node: ast.expr, ctx: RuleContext, deeper: int) -> str:
    """The tensor, as it is written, whose shape this has; "" if it is not known."""
    if isinstance(node, ast.Name):
        return _shape_of_name(node, ctx, deeper)
    if isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
        return _shape_of_part(node, ctx, deeper)
    if isinstance(node, ast.Compare):
        return _common([node.left, *node.comparators], ctx, deeper)
    if isinstance(node, ast.BinOp):
        return "" if isinstance(node.op, ast.MatMult) else _common([node.left, node.right], ctx, deeper)
    if isinstance(node, ast.UnaryOp):
        return _shape(node.operand, ctx, deeper)
    return _shape_of_call(node, ctx, deeper) if isinstance(node, ast.Call) else ""


def _shape_of_part(node: ast.Attribute | ast.Subscript, ctx: RuleContext, deeper: int) -> str:
    """`self.mask`, `batch["labels"]`: as long as neither it nor what it belongs to is assigned anew."""
    text, owner = ctx.source(node), node.value
    if deeper == HERE:
        return text
    known = (isinstance(owner, ast.Name) and _is_bound_once(owner.id, ctx)) or bool(_shape(owner, ctx, deeper))
    return text if known and text not in _assigned(ctx) else ""


def _is_bound_once(name: str, ctx: RuleContext) -> bool:
    """Otherwise it may have had another shape before."""
    parameters = ctx.function.parameters if ctx.function is not None else ()
    given = _shapes.definitions(ctx).get(name, [])
    return len(given) + any(one.arg == name for one in parameters) <= 1


def _shape_of_name(node: ast.Name, ctx: RuleContext, deeper: int) -> str:
    given = _shapes.definitions(ctx).get(node.id, [])
    if deeper == HERE:
        return node.id
    if deeper == 0 or not _is_bound_once(node.id, ctx):
        return ""
    value, is_item = given[0] if given else (node, True)
    return node.id if is_item else _shape(value, ctx, deeper - 1) or node.id


def _shape_of_call(node: ast.Call, ctx: RuleContext, deeper: int) -> str:
    name = ctx.name(node)
    if name.removeprefix(_FUNCTIONAL) in _CLASSES and ctx.constant(ctx.argument(node, "reduction")) == "none":
        target = ctx.argument(node, "target", 1)
        return "" if target is None else _shape(target, ctx, deeper)
    of_torch = name.startswith("torch.") and name.rpartition(".")[2] in _POINTWISE
    of_tensor = isinstance(node.func, ast.Attribute) and node.func.attr in _POINTWISE and not name
    if not of_torch and not of_tensor:
        return ""
    given = [*node.args, *(one.value for one in node.keywords if one.arg not in _NO_TENSORS)]
    if of_tensor and isinstance(node.func, ast.Attribute):
        given.append(node.func.value)
    return _common(given, ctx, deeper)


def _common(nodes: Sequence[ast.expr], ctx: RuleContext, deeper: int) -> str:
    """The one shape of all that are no plain numbers."""
    shapes = {_shape(one, ctx, deeper) for one in nodes if not _is_number(one, ctx)}
    return shapes.pop() if len(shapes) == 1 else ""


def _is_number(node: ast.expr, ctx: RuleContext) -> bool:
    """Also one whose name says so: `tokenizer.pad_token_id`, `IGNORED`."""
    kind = ctx.value(node).kind
    known = kind == NUMBER or ctx.constant(node) is not NOTHING
    return known or (kind == UNKNOWN and bool(_NUMBER_NAME.search(_shapes.last_part(node))))


def _assigned(ctx: RuleContext) -> frozenset[str]:
    """Attributes and items that this body assigns, as they are written."""
    parts = (one for one in _body(ctx) if isinstance(one, (ast.Attribute, ast.Subscript)))
    return frozenset(ctx.source(one) for one in parts if isinstance(one.ctx, ast.Store))


# -- x[mask].sum() ----------------------------------------------------------------------------------------------------


def _reduced(base: ast.expr, outer: ast.Attribute, mask: ast.expr, ctx: RuleContext) -> str:
    """The fix for a reduction of the selected elements; "" for anything else."""
    call = ctx.parent(outer)
    if not isinstance(call, ast.Call) or outer.attr not in _IN_WORDS:
        return ""
    x, keep = _atom(base, ctx), _atom(mask, ctx)
    floats = ctx.value(base).dtype == "float"
    wholes = {
        "sum": f"torch.where({keep}, {x}, 0).sum()",
        "mean": f"torch.where({keep}, {x}, 0).sum() / {keep}.sum()",
        "max": f'torch.where({keep}, {x}, float("-inf")).max()' if floats else "",
        "min": f'torch.where({keep}, {x}, float("inf")).min()' if floats else "",
        "numel": f"{keep}.sum()",
    }
    known = not call.args and not call.keywords and same_shape(base, mask, ctx)
    if known and (whole := wholes[outer.attr]) and len(whole) <= 120:
        return f"Compute it from all elements: `{whole}`."
    return _IN_WORDS[outer.attr].format(x=_shapes.short(ctx, base, "the tensor"))


# -- preds[mask] == labels[mask] --------------------------------------------------------------------------------------


def _compared(outer: ast.Compare, mask: ast.expr, ctx: RuleContext) -> str:
    """Compare all, and count where the mask is true."""
    reduction = _reduction(outer, ctx)
    keep = _atom(mask, ctx)
    sides = [one for one in (outer.left, *outer.comparators) if not _is_number(one, ctx)]
    bases = [one for one in _bases(sides, mask, ctx, {}) if one is not None]
    if len(bases) < len(sides) or not any(same_shape(one, mask, ctx) for one in bases):
        return _COMPARE
    text = _bare(outer, ctx)
    wholes = {
        "sum": f"(({text}) & {keep}).sum()",
        "mean": f"(({text}) & {keep}).sum() / {keep}.sum()",
        "any": f"(({text}) & {keep}).any()",
        "all": f"(({text}) | ~{keep}).all()",
    }
    known = reduction in wholes and "\n" not in text and len(text) <= 80
    return f"Compare all elements: `{wholes[reduction]}`." if known else _COMPARE


def _reduction(node: ast.AST, ctx: RuleContext) -> str:
    """`mean` of `(preds == labels).float().mean()`; "" where it has arguments, or there is none."""
    outer = ctx.parent(node)
    call = None if outer is None else ctx.parent(outer)
    if isinstance(outer, ast.Call) and ctx.name(outer) in ("torch.mean", "torch.sum", "torch.any", "torch.all"):
        return ctx.name(outer).rpartition(".")[2] if len(outer.args) == 1 and not outer.keywords else ""
    if not isinstance(outer, ast.Attribute) or not isinstance(call, ast.Call) or call.args or call.keywords:
        return ""
    return _reduction(call, ctx) if outer.attr in ("float", "double", "int", "long") else outer.attr


# -- a loss of selected elements --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loss:
    """`name`: of the function of torch.nn.functional, "" for others; `settings`: the call that has its `reduction` and
    `ignore_index`."""

    name: str
    settings: ast.Call | None

    def setting(self, key: str, ctx: RuleContext) -> ast.expr | None:
        return None if self.settings is None else ctx.argument(self.settings, key)


def _loss(call: ast.Call, mask: ast.expr, ctx: RuleContext, names: dict[str, ast.expr]) -> str:
    """For `loss(out[mask], labels[mask])`; `names` stand for selected elements: each with what it selects from."""
    name = ctx.name(call)
    if not name.startswith(_FUNCTIONAL) and not _is_loss(call, ctx):
        return ""
    found = _loss_of(call, ctx)
    given = found.setting("reduction", ctx)
    reduction = None if given is None else ctx.constant(given)
    formula = _formula(call, found, mask, ctx, names) if reduction in (None, "mean", "sum") else ""
    if formula and "\n" not in formula and len(formula) <= 200:
        return f"Compute the loss of all elements, and leave out those outside the mask: `{formula}`."
    then = "add it up" if reduction == "sum" else _DIVIDE
    return _LABELS if found.name in _CLASSES else _LOSS.format(then=then)


def _formula(call: ast.Call, found: _Loss, mask: ast.expr, ctx: RuleContext, names: dict[str, ast.expr]) -> str:
    """The loss of all elements; "" where it is not known to be the same."""
    given = [ctx.argument(call, "input", 0), ctx.argument(call, "target", 1)]
    bases = [one for one in _bases([one for one in given if one is not None], mask, ctx, names) if one is not None]
    if len(bases) < 2:
        return ""
    if found.name in _CLASSES:
        return _of_classes(call, found, bases, mask, ctx)
    plain = len(call.args) <= 2 and all(one.arg in (*_KEEPING, *_GIVEN) for one in call.keywords)
    return _of_elements(call, found, bases, mask, ctx) if plain else ""


def _loss_of(call: ast.Call, ctx: RuleContext) -> _Loss:
    name = ctx.name(call)
    if name.startswith(_FUNCTIONAL):
        return _Loss(name.removeprefix(_FUNCTIONAL), call)
    made = ctx.value(call.func)
    return _Loss(_CLASS_MODULES.get(made.name, ""), made.creator if isinstance(made.creator, ast.Call) else None)


def _of_classes(call: ast.Call, found: _Loss, bases: Sequence[ast.expr], mask: ast.expr, ctx: RuleContext) -> str:
    """The labels outside the mask are set to the one that is ignored, which is what a selection of rows does."""
    out, labels = bases
    if not same_shape(labels, mask, ctx):
        return ""
    given = found.setting("ignore_index", ctx)
    ignored = _IGNORED if given is None else ctx.source(given)
    kept = f"torch.where({ctx.source(mask)}, {ctx.source(labels)}, {ignored}).flatten()"
    more = [ctx.source(one) for one in call.args[2:]]
    more += [f"{one.arg}={ctx.source(one.value)}" for one in call.keywords if one.arg not in _GIVEN]
    return f"{ctx.source(call.func)}({', '.join([f'{_atom(out, ctx)}.flatten(0, -2)', kept, *more])})"


def _of_elements(call: ast.Call, found: _Loss, bases: Sequence[ast.expr], mask: ast.expr, ctx: RuleContext) -> str:
    """The elements outside the mask are 0 in both, and so is their loss: nothing that is not finite comes in."""
    if found.name not in (*_ELEMENTWISE, _LOGITS) or not any(same_shape(one, mask, ctx) for one in bases):
        return ""
    function, keep = ctx.source(call.func), _atom(mask, ctx)
    more = [f"{one.arg}={ctx.source(one.value)}" for one in call.keywords if one.arg not in ("reduction", *_GIVEN)]
    divided = "" if ctx.constant(found.setting("reduction", ctx)) == "sum" else f" / {keep}.sum()"
    if found.name == _LOGITS:
        each = f"{function}({', '.join([*map(ctx.source, bases), *more, 'reduction=' + repr('none')])})"
        return f"torch.where({keep}, {each}, 0).sum(){divided}"
    zeroed = [f"torch.where({keep}, {ctx.source(one)}, 0)" for one in bases]
    return f"{function}({', '.join([*zeroed, *more, 'reduction=' + repr('sum')])}){divided}"


def _bases(
    nodes: Sequence[ast.expr], mask: ast.expr, ctx: RuleContext, names: dict[str, ast.expr]
) -> Iterator[ast.expr | None]:
    """What each of them selects from by this mask; None for one that is no such selection."""
    for node in nodes:
        selected = _shapes.selection(node, ctx)
        if isinstance(node, ast.Name):
            yield names.get(node.id)
        elif selected is not None and ctx.source(selected[1]) == ctx.source(mask) and not _has_more_indices(node):
            yield selected[0]
        else:
            yield None


def _has_more_indices(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)


def _is_loss(call: ast.Call, ctx: RuleContext) -> bool:
    """Whether it is a loss module or function, by its constructor or by its name."""
    if ctx.name(call).startswith("tensorflow.nn."):
        return "cross_entropy" in ctx.name(call)
    name = ctx.value(call.func).name.rpartition(".")[2]
    called = _shapes.last_part(call.func)
    return name.endswith("Loss") or "loss" in called.lower() or called == "criterion"


def _later_loss(node: ast.expr, mask: ast.expr, ctx: RuleContext) -> str:
    """For `kept = out[mask]`: the loss call in the same function that is given `kept`."""
    outer = ctx.parent(node)
    if not (isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name)):
        return ""
    wanted, names = outer.targets[0].id, dict(_selections(mask, ctx))
    for call in _calls_after(outer, ctx):
        given = {one.id for one in nodes_of(call) if isinstance(one, ast.Name)}
        if wanted in given and (message := _loss(call, mask, ctx, names)):
            return message
    return ""


def _selections(mask: ast.expr, ctx: RuleContext) -> Iterator[tuple[str, ast.expr]]:
    """The names in this body for selections by the same mask, with the selected tensors."""
    for one in _assignments(ctx):
        [base] = _bases([one.value], mask, ctx, {})
        target = one.targets[0]
        if isinstance(target, ast.Name) and base is not None and len(_shapes.definitions(ctx)[target.id]) == 1:
            yield target.id, base


def _assignments(ctx: RuleContext) -> Iterator[ast.Assign]:
    return (one for one in _body(ctx) if isinstance(one, ast.Assign))


def _calls_after(node: ast.AST, ctx: RuleContext) -> Iterator[ast.Call]:
    line = getattr(node, "lineno", 0)
    return (one for one in _body(ctx) if isinstance(one, ast.Call) and one.lineno >= line)


def _body(ctx: RuleContext) -> Iterator[ast.AST]:
    top = ctx.function.node if ctx.function is not None else ctx.cell.tree
    return iter(()) if top is None else nodes_of(top)


def _bare(node: ast.expr, ctx: RuleContext) -> str:
    """The code of an expression with `x` for each `x[mask]` in it."""
    text = ctx.source(node)
    for child in nodes_of(node):
        if (selected := _shapes.selection(child, ctx)) is not None:
            text = text.replace(ctx.source(child), ctx.source(selected[0]))
    return text


def _atom(node: ast.expr, ctx: RuleContext) -> str:
    """The code of an expression on one line, in brackets where an operator would need them."""
    text = " ".join(ctx.source(node).split())
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
    return text if plain else f"({text})"
