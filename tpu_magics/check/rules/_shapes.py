"""Shapes that depend on data: masks, sizes, and code for XLA."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import BATCH, FUNCTION, LIST, NUMBER, OUTPUT, TENSOR, UNKNOWN
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.inference.values import AbstractValue
    from tpu_magics.check.rule_context import RuleContext


WHY_MASK = (
    "XLA needs every shape when it compiles, but this one is the number of true elements: each step reads the mask "
    "back to the host and waits, and each new number of true elements compiles the graph again."
)
WHY_TF = (
    "XLA needs every shape when it compiles, but this one depends on values: it may work on a CPU and still fail "
    "on a TPU."
)

# Names of masks, not of positions (`index`, `ids`, `order`) or lengths.
_MASK_NAME = re.compile(r"(^|_)masks?$|^(is_)?(keep|kept|valid|invalid)$", re.IGNORECASE)
# Names of masks for unknown values: `keep = nms(...)` are positions.
_SURE_NAME = re.compile(r"(^|_)mask$", re.IGNORECASE)
_ASKED = ("tpu_check", "tpu_train")
_TENSOR_NAMES = (
    "labels",
    "targets",
    "logits",
    "outputs",
    "preds",
    "predictions",
    "input_ids",
    "scores",
    "loss",
    "losses",
)
_SELECTIONS = ("torch.masked_select", "torch.Tensor.masked_select", "tensorflow.boolean_mask")
# The same in each step, unlike random ones.
_MADE_ON_HOST = frozenset(f"torch.{name}" for name in ("arange", "linspace", "zeros", "ones", "full", "eye"))
_RESHAPING = frozenset(("squeeze", "unsqueeze", "view", "reshape", "flatten", "contiguous", "expand_as", "detach", "t"))
_COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_BITS = (ast.BitAnd, ast.BitOr, ast.BitXor)
_ON_DEVICE = (TENSOR, OUTPUT, BATCH)
ON_CPU = ("host",)


def runs_on_xla(ctx: RuleContext, *values: AbstractValue) -> bool:
    """Whether XLA runs code with these tensors here: compiled TensorFlow code, or torch code on the device."""
    if is_tf(ctx, *values):
        return ctx.compiled_tf
    return ctx.on_device or (ctx.top_level and ctx.program.uses("torch_xla") and any(_is_sent(one) for one in values))


def _is_sent(value: AbstractValue) -> bool:
    """Whether it was moved to the device; at top level other tensors are usually on the host."""
    return value.where == "device"


def is_tf(ctx: RuleContext, *values: AbstractValue) -> bool:
    """Whether this is TensorFlow code: by the values, else by the imports."""
    if any(value.lib for value in values):
        return any(value.lib == "tf" for value in values)
    return ctx.program.uses("tensorflow") and not ctx.program.uses("torch")


def is_array(value: AbstractValue) -> bool:
    """Whether it may be a tensor on the device."""
    return value.kind in _ON_DEVICE and value.where not in ON_CPU


def mask_in(node: ast.Subscript, ctx: RuleContext) -> ast.expr | None:
    """The boolean mask by which `x[...]` is indexed, alone or as one of several indices; None if there is none."""
    index = node.slice
    if isinstance(index, (ast.Constant, ast.Slice)) or not _may_be_indexed(ctx.value(node.value)):
        return None
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    sure = is_array(ctx.value(node.value))
    return next((one for one in items if is_mask(one, ctx, sure)), None)


def _may_be_indexed(value: AbstractValue) -> bool:
    return is_array(value) or value.kind == UNKNOWN


def is_mask(node: ast.expr, ctx: RuleContext, of_tensor: bool) -> bool:
    """Whether an index is a boolean tensor.

    A tensor of unknown dtype is a mask if its name says so (`mask`, `keep`, `valid`). An unknown value is a mask only
    if a tensor is indexed (`of_tensor`) and the form shows it (`ids != 0`).
    """
    if isinstance(node, (ast.Constant, ast.Slice, ast.List, ast.ListComp)):
        return False
    value = ctx.value(node)
    if value.where == "host" or value.kind not in (*_ON_DEVICE, UNKNOWN):
        return False
    if isinstance(node, ast.Compare) and any(
        _is_made_on_host(ctx.value(one)) for one in (node.left, *node.comparators)
    ):
        return _compares_data(node, ctx)
    if value.dtype and value.kind == TENSOR:
        return value.dtype == "bool"
    if value.kind == UNKNOWN and ((asked := _is_asked_about(node, ctx)) or not of_tensor):
        return asked
    return _has_form_of_mask(node, ctx, of_tensor)


def _is_asked_about(node: ast.expr, ctx: RuleContext) -> bool:
    """`labels >= 0` in a cell that is to be checked or trained, where nothing says what `labels` is but its name."""
    if ctx.cell.magic not in _ASKED or not isinstance(node, ast.Compare):
        return False
    return any(
        ctx.value(one).kind == UNKNOWN and last_part(one) in _TENSOR_NAMES for one in (node.left, *node.comparators)
    )


def _has_form_of_mask(node: ast.expr, ctx: RuleContext, of_tensor: bool) -> bool:
    if isinstance(node, ast.Compare):
        return all(isinstance(one, _COMPARED) for one in node.ops) and _compares_data(node, ctx)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return of_tensor or is_mask(node.operand, ctx, of_tensor)  # positions are not inverted
    if isinstance(node, ast.BinOp) and isinstance(node.op, _BITS):
        return is_mask(node.left, ctx, of_tensor) or is_mask(node.right, ctx, of_tensor)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RESHAPING:
        return is_mask(node.func.value, ctx, of_tensor)
    value = ctx.value(node)
    if of_tensor and (value.dtype == "bool" or (isinstance(node, ast.Name) and node.id in _inverted(ctx))):
        return True
    names = _SURE_NAME if value.kind == UNKNOWN else _MASK_NAME
    return bool(names.search(last_part(node)))


def _inverted(ctx: RuleContext) -> frozenset[str]:
    """The names that this function inverts (`~pos`), which must be bool."""
    function = ctx.function
    key = ("inverted", id(function) if function is not None else ctx.cell_index)
    if key not in ctx.program.memo:
        top = function.node if function is not None else ctx.cell.tree
        unary = (one for one in (() if top is None else nodes_of(top)) if isinstance(one, ast.UnaryOp))
        operands = (one.operand for one in unary if isinstance(one.op, ast.Invert))
        ctx.program.memo[key] = frozenset(one.id for one in operands if isinstance(one, ast.Name))
    result: frozenset[str] = ctx.program.memo[key]
    return result


def _compares_data(node: ast.Compare, ctx: RuleContext) -> bool:
    """`x[i == 0]` with a Python number is not a mask: one side must be a tensor, not one that is made on the host."""
    values = [ctx.value(one) for one in (node.left, *node.comparators)]
    return any(one.kind in _ON_DEVICE and not _is_made_on_host(one) for one in values)


def _is_made_on_host(value: AbstractValue) -> bool:
    """`torch.arange(n)` without a device, which nothing has moved."""
    made = value.creator
    if value.where or not isinstance(made, ast.Call) or value.name not in _MADE_ON_HOST:
        return False
    return not any(one.arg in ("device", "out", None) for one in made.keywords)


def selection(node: ast.AST, ctx: RuleContext) -> tuple[ast.expr, ast.expr] | None:
    """The selected tensor and the mask of `x[mask]`, `x.masked_select(mask)`, `tf.boolean_mask(x, mask)`."""
    if isinstance(node, ast.Subscript):
        mask = mask_in(node, ctx)
        return None if mask is None else (node.value, mask)
    if not isinstance(node, ast.Call):
        return None
    if ctx.name(node) in _SELECTIONS:
        base, mask = ctx.argument(node, "input", 0) or ctx.argument(node, "tensor"), ctx.argument(node, "mask", 1)
        return None if base is None or mask is None else (base, mask)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "masked_select":
        mask = ctx.argument(node, "mask", 0)
        return None if mask is None else (node.func.value, mask)
    return None


def is_reported_beside(node: ast.expr, mask: ast.expr, ctx: RuleContext) -> bool:
    """Whether the same mask is reported earlier on the same line, or in the target of this assignment."""
    by = ctx.source(mask)
    for outer in ctx.parents(node):
        if isinstance(outer, (ast.Assign, ast.AugAssign)):
            targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
            return any(isinstance(one, ast.Subscript) and ctx.source(one.slice) == by for one in targets)
        if isinstance(outer, ast.stmt):
            return False
        if any(_selects_before(one, node, by, ctx) for one in ast.iter_child_nodes(outer)):
            return True
    return False


def _selects_before(other: ast.AST, node: ast.expr, by: str, ctx: RuleContext) -> bool:
    for result in nodes_of(other):
        if not isinstance(result, (ast.Subscript, ast.Call)) or result.lineno != node.lineno:
            continue
        if result.col_offset < node.col_offset and (selected := selection(result, ctx)) is not None:
            inside = any(child is node for child in nodes_of(result))
            if ctx.source(selected[1]) == by and not inside:
                return True
    return False


def last_part(node: ast.AST) -> str:
    """`mask` of `mask`, `self.mask` and `batch["mask"]`; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return ""


def short(ctx: RuleContext, node: ast.AST, otherwise: str = "it") -> str:
    """The code of a node, if it is short enough for a sentence."""
    text = " ".join(ctx.source(node).split())
    return text if 0 < len(text) <= 60 else otherwise


def atom(ctx: RuleContext, node: ast.AST, otherwise: str = "mask") -> str:
    """The short text of an expression, in brackets for use with an operator."""
    text = short(ctx, node, otherwise)
    plain = text == otherwise or isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
    return text if plain else f"({text})"


# -- sizes that depend on data ----------------------------------------------------------------------------------------
#
# A value that may be a tensor is not enough: layers pass heights and widths next to their tensors. So a size is traced
# back to the code that computed it.


_DEEPEST = 6  # names followed from one to the next
# Methods of tensors that compute a size.
_COMPUTES = frozenset(
    ("max", "min", "amax", "amin", "sum", "mean", "prod", "cumsum", "argmax", "argmin", "count_nonzero", "median",
     "long", "int", "round", "ceil", "floor", "clamp", "squeeze", "unsqueeze", "flatten", "view", "reshape", "to",
     "detach", "add", "sub", "mul", "div", "abs", "any", "all", "float")
)  # fmt: skip

Definition = tuple[ast.expr, bool]  # the assigned value, and whether the name gets an item of it


def sizes_of_data(nodes: list[ast.expr], ctx: RuleContext) -> Iterator[ast.expr]:
    """The sizes (also inside tuples and lists) that depend on data."""
    for node in nodes:
        if isinstance(node, (ast.Tuple, ast.List)):
            yield from sizes_of_data(node.elts, ctx)
        elif is_of_data(node.value if isinstance(node, ast.Starred) else node, ctx):
            yield node


def is_of_data(node: ast.expr, ctx: RuleContext) -> bool:
    """Whether a size is a number read from a tensor, or a tensor that was computed."""
    value = ctx.value(node)
    if value.kind in (NUMBER, LIST):
        return value.read or _is_list_of_data(value)
    if value.shape:  # tf.shape(x)[0]
        return False
    return value.kind in (TENSOR, OUTPUT) and is_array(value) and _is_computed(node, ctx, _DEEPEST)


def _is_list_of_data(value: AbstractValue) -> bool:
    items = value.items or (() if value.item is None else (value.item,))
    return value.kind == LIST and any(one.read for one in items)


def _is_computed(node: ast.expr, ctx: RuleContext, deeper: int) -> bool:
    if deeper == 0:
        return False
    if isinstance(node, ast.BinOp):
        return _is_computed(node.left, ctx, deeper) or _is_computed(node.right, ctx, deeper)
    if isinstance(node, ast.UnaryOp):
        return _is_computed(node.operand, ctx, deeper)
    if isinstance(node, ast.Call):
        return _computes(node, ctx)
    if isinstance(node, ast.Subscript):
        return _is_item_of_data(node.value, ctx, deeper)
    if isinstance(node, ast.Name) and _is_annotated_as_tensor(node.id, ctx):
        return True
    if isinstance(node, ast.Name):
        return any(
            _is_item_of_data(given, ctx, deeper - 1) if item else _is_computed(given, ctx, deeper - 1)
            for given, item in definitions(ctx).get(node.id, ())
        )
    return False


def _is_annotated_as_tensor(name: str, ctx: RuleContext) -> bool:
    """A parameter annotated as a tensor and nothing else."""
    parameters = ctx.function.parameters if ctx.function is not None else ()
    given = next((one.annotation for one in parameters if one.arg == name), None)
    return given is not None and re.search(r"(^|\.)\w*Tensor'?$", ast.unparse(given)) is not None


def _computes(node: ast.Call, ctx: RuleContext) -> bool:
    """A function of torch or TensorFlow, a reduction of a tensor, or a function of the program that returns one."""
    if ctx.value(node).kind != TENSOR:
        return False
    if ctx.name(node).startswith(("torch.", "tensorflow.")):
        return True
    receiver, method = ctx.method(node)
    return ctx.value(node.func).kind == FUNCTION or (method in _COMPUTES and is_array(receiver))


def _is_item_of_data(node: ast.expr, ctx: RuleContext, deeper: int) -> bool:
    """`lengths[i]`, and what a loop over `lengths` gives: items of a tensor or of a batch, not of a model's output."""
    value = ctx.value(node)
    if isinstance(node, ast.Call) and ctx.name(node) in ("builtins.enumerate", "builtins.zip"):
        return any(_is_item_of_data(one, ctx, deeper) for one in node.args)
    if not is_array(value):
        return False
    return value.kind in (TENSOR, BATCH) or _is_computed(node, ctx, deeper)


def definitions(ctx: RuleContext) -> dict[str, list[Definition]]:
    """The definitions of each name of this function, cached."""
    function = ctx.function
    key = ("definitions", id(function) if function is not None else ctx.cell_index)
    if key not in ctx.program.memo:
        top = function.node if function is not None else ctx.cell.tree
        result: dict[str, list[Definition]] = {}
        for node in () if top is None else nodes_of(top):
            for name, given in _given(node):
                result.setdefault(name, []).append(given)
        ctx.program.memo[key] = result
    known: dict[str, list[Definition]] = ctx.program.memo[key]
    return known


def _given(node: ast.AST) -> Iterator[tuple[str, Definition]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _bound(target, node.value, False)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
        yield from _bound(node.target, node.value, False)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _bound(node.target, node.iter, True)


def _bound(target: ast.expr, value: ast.expr, item: bool) -> Iterator[tuple[str, Definition]]:
    if isinstance(target, ast.Name):
        yield target.id, (value, item)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else None
        for index, one in enumerate(target.elts):
            yield from _bound(one, parts[index], item) if parts is not None else _bound(one, value, True)
