"""A size that is read from a tensor.

What it does
    Reports slices whose bounds are tensors or numbers read from tensors (`x[:, : lengths.max()]`, `x[:n]` after `n =
    count.item()`), such sizes passed to `torch.zeros`, `torch.arange`, `expand`, `repeat`, `narrow`, `split`, `topk`,
    `F.pad` and the like, `F.one_hot` without `num_classes`, and `pack_padded_sequence`.
Why this is bad
    The shape then depends on values, but XLA needs every shape when it compiles. torch_xla reads the value back to the
    host in each step, which splits the graph, and compiles again for each new value.
Example
    longest = lengths.max().item()
    hidden = hidden[:, :longest]
Use instead
    keep = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    hidden = hidden * keep[..., None]
Limitations
    A size that depends on data through the length of a list or the shape of a mask is not found; the line where a shape
    first depends on data is reported. Sizes that are read on the host before the step are not checked (`%tpu_pad` helps
    to choose those).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _shapes as shapes
from tpu_magics.check.rules._shapes import is_array
from tpu_magics.check.values import BATCH, FUNCTION, LIST, NUMBER, OUTPUT, TENSOR, UNKNOWN

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext
    from tpu_magics.check.values import AbstractValue

CODE = "TPU204"
NAME = "slice-by-value"
GROUP = "shapes"
WHY = (
    "XLA needs every shape when it compiles, but this one depends on a value: each step reads it back to the host "
    "and waits, and each new value compiles the graph again."
)
NODES = (ast.Subscript, ast.Call)

Sizes = Callable[[ast.Call, "RuleContext"], list[ast.expr]]

_MASK_FIX = "Use the full size and mask the elements beyond it: `torch.arange(size, device=device) < n`."
_PACK_FIX = (
    "Run the network on the padded batch and mask its outputs: "
    "`torch.arange(length, device=device) < lengths[:, None]`."
)
_CLASSES_FIX = "Pass the number of classes: `{function}({x}, num_classes=NUM_CLASSES)`."
_PACKS = ("torch.nn.utils.rnn.pack_padded_sequence", "torch.nn.utils.rnn.pack_sequence")
_ONE_HOT = "torch.nn.functional.one_hot"


def _all(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args, *(one.value for one in node.keywords if one.arg in ("size", "shape", "sizes"))]


def _argument(name: str, position: int) -> Sizes:
    def found(node: ast.Call, ctx: RuleContext) -> list[ast.expr]:
        given = ctx.argument(node, name, position)
        return [] if given is None else [given]

    return found


def _window(dim: int) -> Sizes:
    """`narrow(dim, start, length)`: another start is also another graph."""

    def found(node: ast.Call, ctx: RuleContext) -> list[ast.expr]:
        given = (ctx.argument(node, "start", dim + 1), ctx.argument(node, "length", dim + 2))
        return [one for one in given if one is not None]

    return found


def _first(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args[:1], *(one.value for one in node.keywords if one.arg == "size")]


def _ends(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args, *(one.value for one in node.keywords if one.arg in ("start", "end", "step"))]


# Where the sizes are among the arguments: of functions below `torch.`, and of tensors' methods.
_FUNCTIONS: dict[str, Sizes] = {
    "zeros": _all, "ones": _all, "empty": _all, "rand": _all, "randn": _all, "full": _first, "arange": _ends,
    "linspace": _argument("steps", 2), "eye": _all, "randperm": _argument("n", 0), "narrow": _window(1),
    "split": _argument("split_size_or_sections", 1), "topk": _argument("k", 1), "tile": _argument("dims", 1),
    "broadcast_to": _argument("size", 1), "nn.functional.pad": _argument("pad", 1), "chunk": _argument("chunks", 1),
    "tril_indices": _all, "triu_indices": _all, "repeat_interleave": _argument("repeats", 1),
}  # fmt: skip
_METHODS: dict[str, Sizes] = {
    "narrow": _window(0), "expand": _all, "repeat": _all, "split": _argument("split_size", 0), "tile": _all,
    "new_zeros": _all, "new_ones": _all, "new_empty": _all, "new_full": _first, "topk": _argument("k", 0),
    "broadcast_to": _all, "chunk": _argument("chunks", 0), "view": _all, "reshape": _all, "resize_": _all,
    "repeat_interleave": _argument("repeats", 0),
}  # fmt: skip
_MADE = frozenset(("zeros", "ones", "empty", "rand", "randn", "full", "arange", "linspace", "eye", "randperm"))
# TPU205 reports these for a tensor of counts; a number read from a tensor is a size.
_BY_COUNT = "repeat_interleave"
_LASTS = frozenset(
    (*(one.rpartition(".")[2] for one in _FUNCTIONS), *_METHODS, "one_hot", "pack_padded_sequence", "pack_sequence")
)


def check(node: ast.Subscript | ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, (ast.Slice, ast.Tuple)):
            yield from _check_slices(node, ctx)
        return
    func = node.func
    last = func.attr if isinstance(func, ast.Attribute) else ctx.name(func).rpartition(".")[2]
    if last in _LASTS:
        yield from _check_call(node, last, ctx)


def _check_slices(node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
    base, by = ctx.value(node.value), _bound_of_data(node, ctx)
    if by is None or not _is_sliced_tensor(base, node) or not shapes.runs_on_xla(ctx, base, ctx.value(by)):
        return
    if _is_reported_outside(node, ctx) or _is_reported_before(node, by, ctx):
        return
    what, whose = shapes.short(ctx, node, "this slice"), shapes.short(ctx, by, "a value")
    tf = shapes.is_tf(ctx, base, ctx.value(by))
    places = "tf.range(size)" if tf else "torch.arange(size, device=device)"
    kept = shapes.short(ctx, node.value, "the tensor")
    fix = f"Keep all of {kept} and mask the other elements: `{places} < {whose}`."
    yield ctx.finding(
        node, f"The bounds of {what} depend on the value of {whose}.", fix, why=shapes.WHY_TF if tf else None
    )


def _bound_of_data(node: ast.Subscript, ctx: RuleContext) -> ast.expr | None:
    """The first bound of these slices that data decides."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [one for one in items if isinstance(one, ast.Slice)]
    bounds = [bound for one in slices for bound in (one.lower, one.upper, one.step) if bound is not None]
    return next((_size(one) for one in bounds if is_of_data(one, ctx)), None)


def _is_reported_outside(node: ast.Subscript, ctx: RuleContext) -> bool:
    """`logp[i, :n[i], labels[i, :m[i]]]`: the outer slice is reported."""
    for outer in ctx.parents(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Subscript) and _bound_of_data(outer, ctx) is not None:
            return _is_sliced_tensor(ctx.value(outer.value), outer)
    return False


def _is_reported_before(node: ast.Subscript, by: ast.expr, ctx: RuleContext) -> bool:
    """`return ids[:, :n], mask[:, :n]`: two slices on a line, one finding."""
    top = next((one for one in ctx.parents(node) if isinstance(one, ast.stmt)), None)
    slices = (one for one in (() if top is None else nodes_of(top)) if isinstance(one, ast.Subscript))
    before = (one for one in slices if one.lineno == node.lineno and one.col_offset < node.col_offset)
    found = ((one, _bound_of_data(one, ctx)) for one in before)
    wanted = ctx.source(by)
    return any(
        other is not None and ctx.source(other) == wanted and _is_sliced_tensor(ctx.value(one.value), one)
        for one, other in found
    )


def _is_sliced_tensor(base: AbstractValue, node: ast.Subscript) -> bool:
    """Whether it is a tensor; an unknown value is one if it is sliced along several dimensions."""
    return shapes.is_array(base) or (base.kind == UNKNOWN and isinstance(node.slice, ast.Tuple))


def _size(bound: ast.expr) -> ast.expr:
    """`n` of `x[-n:]`."""
    return bound.operand if isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub) else bound


def _check_call(node: ast.Call, last: str, ctx: RuleContext) -> Iterator[Finding]:
    name = ctx.name(node)
    if name.startswith("torch."):
        yield from _check_function(node, name, ctx)
    elif isinstance(node.func, ast.Attribute) and last in _METHODS:
        receiver = ctx.value(node.func.value)
        if shapes.is_array(receiver) and receiver.lib != "tf" and shapes.runs_on_xla(ctx, receiver):
            yield from _check_sizes(node, last, _METHODS[last], ctx)


def _check_function(node: ast.Call, name: str, ctx: RuleContext) -> Iterator[Finding]:
    given = node.args[0] if node.args else ctx.argument(node, "input") or ctx.argument(node, "tensor")
    if ctx.value(given).where in shapes.ON_CPU or not shapes.runs_on_xla(ctx, ctx.value(given)):
        return
    short = name.removeprefix("torch.")
    if name in _PACKS:
        yield ctx.finding(
            node, f"The shape of {shapes.short(ctx, node, 'the packed sequence')} depends on the lengths.", _PACK_FIX
        )
    elif name == _ONE_HOT:
        yield from _check_one_hot(node, given, ctx)
    elif short in _FUNCTIONS and (short not in _MADE or _is_for_device(node, ctx)):
        yield from _check_sizes(node, short, _FUNCTIONS[short], ctx)


def _check_one_hot(node: ast.Call, given: ast.expr | None, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.has_unknown_arguments(node) or ctx.argument(node, "num_classes", 1) is not None or given is None:
        return
    x, function = shapes.short(ctx, given, "x"), ctx.source(node.func)
    message = f"The shape of {shapes.short(ctx, node, 'the result')} depends on the largest value of {x}."
    yield ctx.finding(node, message, _CLASSES_FIX.format(function=function, x=x))


def _is_for_device(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the new tensor is used on the device: by its device argument, `.to()`, or a size from the device."""
    if ctx.argument(node, "device") is not None or ctx.has_unknown_arguments(node):
        return True
    outer = ctx.parent(node)
    if isinstance(outer, ast.Attribute) and outer.attr in ("to", "type_as"):
        return True
    return any(shapes.is_array(ctx.value(one)) for one in node.args)


def _check_sizes(node: ast.Call, last: str, where: Sizes, ctx: RuleContext) -> Iterator[Finding]:
    by = next(sizes_of_data(where(node, ctx), ctx), None)
    if by is None or (last == _BY_COUNT and shapes.is_array(ctx.value(by))):
        return
    what, whose = shapes.short(ctx, node, f"the result of {last}"), shapes.short(ctx, by, "a value")
    yield ctx.finding(
        node, f"The shape of {what} depends on the value of {whose}.", _MASK_FIX.replace("< n`", f"< {whose}`")
    )


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
            for given, item in _definitions(ctx).get(node.id, ())
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


def _definitions(ctx: RuleContext) -> dict[str, list[Definition]]:
    """The definitions of each name of this function, cached."""
    function = ctx.function
    key = ("definitions", id(function) if function is not None else ctx.cell_index)
    if key not in ctx.program.memo:
        top = function.node if function is not None else ctx.cell.tree
        found: dict[str, list[Definition]] = {}
        for node in () if top is None else nodes_of(top):
            for name, given in _given(node):
                found.setdefault(name, []).append(given)
        ctx.program.memo[key] = found
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
