"""Rules about shapes (TPU2xx): no shape that depends on data."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import ARRAY, LIST, NUMBER, TENSOR, UNKNOWN
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _masks as masks
from tpu_magics.check.rules import _shapes
from tpu_magics.check.rules._shapes import is_of_data, sizes_of_data
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.inference.values import AbstractValue
    from tpu_magics.check.rule_context import RuleContext


class BooleanMaskIndex(Rule):
    """A boolean mask is used as an index.

    What it does
        Reports `x[mask]` where `mask` is a boolean tensor: alone, as one of several indices, as a comparison in the
        brackets (`x[labels >= 0]`), negated, or to select elements for a loss (`loss_fn(out[keep], labels[keep])`).
    Why this is bad
        The result has as many elements as the mask has true ones, but XLA needs every shape when it compiles. torch_xla
        reads the mask back to the host in each step (`aten::nonzero`) and compiles the graph again for each new number
        of true elements.
    Example
        keep = labels >= 0
        loss = F.cross_entropy(out[keep], labels[keep])
    Use instead
        keep = labels >= 0
        loss = F.cross_entropy(out, torch.where(keep, labels, -100))  # -100 is ignored
    Limitations
        A mask with an unusual name of unknown origin (`x[chosen]`) and a mask that is returned by a function in another
        file are not found. Masks of NumPy arrays and of CPU tensors are fine.
    """

    code = "TPU201"
    name = "boolean-mask-index"
    group = "shapes"
    why = _shapes.WHY_MASK
    nodes = (ast.Subscript,)

    def check(self, node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
        if not isinstance(node.ctx, ast.Load):
            return
        mask = _shapes.mask_in(node, ctx)
        if mask is None or not _shapes.runs_on_xla(ctx, ctx.value(node.value), ctx.value(mask)):
            return
        if not _shapes.is_reported_beside(node, mask, ctx):
            what, by = _shapes.short(ctx, node, "this selection"), _shapes.short(ctx, mask, "the mask")
            yield ctx.finding(
                node,
                f"The shape of {what} depends on the values of {by}.",
                masks.without_mask(node, node.value, mask, ctx),
                why=_shapes.WHY_TF if _shapes.is_tf(ctx, ctx.value(node.value), ctx.value(mask)) else None,
            )


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.Mod: "%", ast.FloorDiv: "//",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_PUTS = ("index_put_", "index_put")


class BooleanMaskAssignment(Rule):
    """An assignment through a boolean mask.

    What it does
        Reports `x[mask] = v`, `x[labels == -100] = 0`, `x[mask] += v` and `x.index_put_((mask,), v)` where the mask is
        a boolean tensor.
    Why this is bad
        The shape of `x` does not change, but torch_xla still finds the positions of the true elements on the host
        (`aten::nonzero`), even if one number is assigned to all of them: one transfer in each step, and one compile for
        each new number of true elements. `masked_fill_` and `torch.where` compile once.
    Example
        labels[labels == tokenizer.pad_token_id] = -100
        scores[mask] = bias
    Use instead
        labels.masked_fill_(labels == tokenizer.pad_token_id, -100)
        scores = torch.where(mask, bias, scores)
    Limitations
        A mask with an unusual name of unknown origin, and an assignment inside a library, are not found. `--fix`
        rewrites only masks that compare the tensor itself, because `masked_fill_` broadcasts a mask of fewer dimensions
        over the last ones, and an index over the first.
    """

    code = "TPU202"
    name = "boolean-mask-assignment"
    group = "shapes"
    why = (
        "torch_xla finds the true elements on the host: each step reads the mask back and waits, and each new number "
        "of true elements compiles the graph again, although the shape of the result does not change."
    )
    nodes = (ast.Assign, ast.AugAssign, ast.Call)

    def check(self, node: ast.Assign | ast.AugAssign | ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            yield from _check_put(node, ctx)
            return
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice)):
                yield from _check_target(target, node, ctx)


def _check_target(target: ast.Subscript, node: ast.Assign | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    mask = _shapes.mask_in(target, ctx)
    if mask is not None and _shapes.runs_on_xla(ctx, ctx.value(target.value), ctx.value(mask)):
        what, by = _shapes.short(ctx, target, "the selection"), _shapes.short(ctx, mask, "the mask")
        yield ctx.finding(
            target,
            f"The elements that the assignment to {what} changes depend on the values of {by}.",
            _assignment_fix(target, mask, node, ctx),
            edits=_assignment_edits(target, mask, node, ctx),
        )


def _assignment_fix(target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, ctx: RuleContext) -> str:
    filled, spread = _view(target, mask, ctx)
    value = _value(target, mask, node, filled, ctx)
    same = isinstance(target.slice, ast.Tuple) or ctx.source(target.value) in ctx.source(mask)
    more = "" if same else f" (with `{_shapes.atom(ctx, mask)}[..., None]` if {filled} has one more dimension)"
    if isinstance(node, ast.Assign) and ctx.value(node.value).kind == NUMBER:
        return f"Write `{filled}.masked_fill_({spread}, {value})`, which also works in place{more}."
    text = f"Write `{filled} = torch.where({spread}, {value}, {filled})`{more}"
    if isinstance(node, ast.Assign) and not _is_selected(node.value):
        text += f"; {value} then needs a value for every element, not only for the selected ones"
    return f"{text}."


def _is_selected(value: ast.expr) -> bool:
    """`x[mask] = y[mask]`: the same elements of another tensor."""
    return isinstance(value, ast.Subscript)


def _view(target: ast.Subscript, mask: ast.expr, ctx: RuleContext) -> tuple[str, str]:
    """The changed tensor without the mask, and the mask in its shape: `x[:, 0]` and `mask` for `x[mask, 0]`."""
    base, by = ctx.source(target.value), _shapes.short(ctx, mask, "mask")
    if not isinstance(target.slice, ast.Tuple):
        return base, by
    items = target.slice.elts
    behind = [one for one in items[items.index(mask) + 1 :] if isinstance(one, ast.Slice)]
    plain = [":" if one is mask else ctx.source(one) for one in items]
    view = base if all(one in (":", "...") for one in plain) else f"{base}[{', '.join(plain)}]"
    return view, f"{_shapes.atom(ctx, mask)}[:{', None' * len(behind)}]" if behind else by


def _value(
    target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, filled: str, ctx: RuleContext
) -> str:
    value, by = node.value, ctx.source(mask)
    if isinstance(value, ast.Subscript) and ctx.source(value.slice) == ctx.source(target.slice):
        text = ctx.source(value.value)
    else:
        text = ctx.source(value).replace(f"[{by}]", "")
    text = text if len(text) <= 60 and "\n" not in text else "value"
    if isinstance(node, ast.AugAssign):
        return f"{filled} {_OPERATORS.get(type(node.op), '+')} {text}"
    return text


# -- the rewritten code -----------------------------------------------------------------------------------------------


def _assignment_edits(
    target: ast.Subscript, mask: ast.expr, node: ast.Assign | ast.AugAssign, ctx: RuleContext
) -> Sequence[Edit]:
    """`x[x == 0] = -1` as `x.masked_fill_(x == 0, -1)`: the same elements, the same tensor.

    Not as the last line of a notebook's cell, which would show the tensor, and only for small integers, which fit every
    dtype.
    """
    if not isinstance(node, ast.Assign) or len(node.targets) > 1 or (ctx.function is None and not ctx.loops):
        return ()
    number = ctx.constant(node.value)
    if type(number) is not int or not -128 <= number <= 127 or not isinstance(node.value, (ast.Constant, ast.UnaryOp)):
        return ()
    base = ctx.source(target.value)
    if ctx.value(target.value).kind != TENSOR or not _is_of(target.value, mask, ctx) or "\n" in ctx.source(node):
        return ()
    return (ctx.replace(node, f"{base}.masked_fill_({ctx.source(mask)}, {ctx.source(node.value)})"),)


def _is_of(base: ast.expr, mask: ast.expr, ctx: RuleContext) -> bool:
    """Whether a mask compares the tensor itself with a number, so that both have one shape."""
    if not isinstance(mask, ast.Compare) or len(mask.ops) > 1 or not isinstance(base, (ast.Name, ast.Attribute)):
        return False
    return ast.dump(mask.left) == ast.dump(base) and ctx.value(mask.comparators[0]).kind == NUMBER


# -- index_put --------------------------------------------------------------------------------------------------------


def _check_put(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _PUTS:
        return
    of_module = ctx.name(node) == "torch.index_put"
    indices = ctx.argument(node, "indices", 1 if of_module else 0)
    items = indices.elts if isinstance(indices, (ast.Tuple, ast.List)) else []
    base = (node.args[0] if node.args else node) if of_module else func.value
    mask = next((one for one in items if _shapes.is_mask(one, ctx, _shapes.is_array(ctx.value(base)))), None)
    if mask is not None and _shapes.runs_on_xla(ctx, ctx.value(base)):
        by = _shapes.short(ctx, mask, "the mask")
        yield ctx.finding(
            node,
            f"The elements that {func.attr} changes depend on the values of {by}.",
            f"Write `torch.where({by}, value, {_shapes.short(ctx, base, 'x')})`.",
        )


_SELECT = "Keep the shape: multiply by the mask, or choose with `torch.where(mask, x, 0)`."
_COUNT = "Count into a fixed number of classes: `F.one_hot({x}, num_classes).sum(0)`."
_UNIQUE = (
    "Find the distinct values on the host before the step, or count them into a fixed size: "
    "`F.one_hot({x}, num_classes).sum(0)`."
)
_TF_SELECT = (
    "Keep the shape: multiply by the mask (`tf.cast(mask, tf.float32)`) and divide by its sum, or use "
    "`tf.where(mask, x, y)` with three arguments."
)
_TF_COUNT = "Count into a fixed size: `tf.reduce_sum(tf.one_hot({x}, depth), 0)`."

# Operations of torch, as functions and as methods, with the fix; `{x}` is what is given.
_TORCH = {
    "nonzero": _SELECT,
    "argwhere": _SELECT,
    "unique": _UNIQUE,
    "unique_consecutive": _UNIQUE,
    "masked_select": _SELECT,
    "bincount": _COUNT,
    "where": _SELECT,
}
_TF = {
    "where": _TF_SELECT,
    "where_v2": _TF_SELECT,
    "boolean_mask": _TF_SELECT,
    "unique": _TF_COUNT,
    "unique_with_counts": _TF_COUNT,
    "dynamic_partition": "Keep one tensor, and multiply by a mask for each part.",
    "sparse.from_dense": "Keep {x} dense.",
    "sequence_mask": "Pass the length: `tf.sequence_mask({x}, maxlen=LENGTH)`.",
    "image.non_max_suppression": "Use `tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)`.",
}
_BOXES = (
    "Keep a fixed number of boxes: take the best by `scores.topk(k)`, and mask those that are suppressed; or select "
    "them on the host, after the step."
)
_TORCHVISION = ("nms", "batched_nms", "remove_small_boxes")  # of torchvision.ops
# Arguments that fix the size, with their positions as functions and as methods.
_SIZES = {"bincount": ("minlength", 2, 1), "sequence_mask": ("maxlen", 1, 1)}
_PARTS = re.compile(r"^(torch|tensorflow)\.(Tensor\.|math\.|compat\.v1\.)?")
_ANY = frozenset((*_TORCHVISION, *_TORCH, *(one.rpartition(".")[2] for one in _TF)))
_ON_HOST = (ARRAY, NUMBER, LIST)


class DynamicShapeOp(Rule):
    """An operation whose result shape depends on values.

    What it does
        Reports `nonzero`, `argwhere`, `unique`, `unique_consecutive`, `masked_select`, `where` with one argument and
        `bincount` without `minlength`, as functions and as methods of tensors, and `torchvision.ops.nms`; in
        TensorFlow code that XLA compiles `tf.where` with one argument, `tf.boolean_mask`, `tf.unique`,
        `tf.unique_with_counts`, `tf.dynamic_partition`, `tf.sparse.from_dense`, `tf.sequence_mask` without `maxlen`,
        and `tf.image.non_max_suppression`.
    Why this is bad
        XLA needs every shape when it compiles. torch_xla splits the graph, runs the operation on the host, and compiles
        the code that uses the result again for each new size. In TensorFlow a TPU does not support some of these
        operations.
    Example
        chosen = torch.nonzero(scores > 0.5)
        kept = torch.masked_select(loss, mask)
    Use instead
        weight = (scores > 0.5).float()
        kept = torch.where(mask, loss, 0)
    Limitations
        Operations inside library functions, and tensors that are returned by functions in other files, are not checked.
    """

    code = "TPU203"
    name = "dynamic-shape-op"
    group = "shapes"
    why = (
        "XLA needs every shape when it compiles, but this one depends on values: torch_xla runs the operation on the "
        "host in each step, and the code that uses the result compiles again for each new size."
    )
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        func = node.func
        last = func.attr if isinstance(func, ast.Attribute) else ctx.name(func).rpartition(".")[2]
        if last not in _ANY:
            return
        name = ctx.name(node)
        if name.startswith("tensorflow."):
            yield from _check_tf(node, _PARTS.sub("", name), ctx)
        elif name.startswith("torch."):
            given = node.args[0] if node.args else ctx.argument(node, "input") or ctx.argument(node, "condition")
            yield from _check_torch(node, _PARTS.sub("", name), given, False, ctx)
        elif name.startswith("torchvision.ops.") and last in _TORCHVISION and node.args:
            yield from _check_boxes(node, ctx)
        elif isinstance(func, ast.Attribute) and last != "where" and _shapes.is_array(ctx.value(func.value)):
            yield from _check_torch(node, last, func.value, True, ctx)


def _check_boxes(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    boxes = ctx.value(node.args[0])
    if boxes.where not in _shapes.ON_CPU and _shapes.runs_on_xla(ctx, boxes):
        what, whose = _shapes.short(ctx, node, "the result"), _shapes.short(ctx, node.args[0], "the boxes")
        yield ctx.finding(node, f"The number of boxes that {what} keeps depends on the values of {whose}.", _BOXES)


def _check_torch(
    node: ast.Call, last: str, given: ast.expr | None, of_method: bool, ctx: RuleContext
) -> Iterator[Finding]:
    value = ctx.value(given)
    if last not in _TORCH or not _shapes.runs_on_xla(ctx, value) or _has_size(node, last, ctx, of_method):
        return
    if value.lib == "tf" or value.where in _shapes.ON_CPU or value.kind in _ON_HOST:
        return
    if last == "where" and not _has_one_argument(node, ctx):
        return
    if (selected := _shapes.selection(node, ctx)) is not None:
        yield from _check_selection(node, *selected, ctx)
        return
    whose = "its input" if given is None else _shapes.short(ctx, given, "its input")
    what = _shapes.short(ctx, node, f"the result of {last}")
    fix = _TORCH[last].format(x="x" if given is None else _shapes.atom(ctx, given, "x"))
    yield ctx.finding(node, f"The shape of {what} depends on the values of {whose}.", fix)


def _check_tf(node: ast.Call, last: str, ctx: RuleContext) -> Iterator[Finding]:
    if last not in _TF or not ctx.compiled_tf or _has_size(node, last, ctx, of_method=False):
        return
    if last.startswith("where") and not _has_one_argument(node, ctx):
        return
    if (selected := _shapes.selection(node, ctx)) is not None:
        yield from _check_selection(node, *selected, ctx)
        return
    given = _shapes.short(ctx, node.args[0], "its input") if node.args else "its input"
    what = _shapes.short(ctx, node, f"the result of tf.{last}")
    fix = _TF[last].format(x=given if node.args else "x")
    yield ctx.finding(node, f"The shape of {what} depends on the values of {given}.", fix, why=_shapes.WHY_TF)


def _check_selection(node: ast.Call, base: ast.expr, mask: ast.expr, ctx: RuleContext) -> Iterator[Finding]:
    """`masked_select` and `boolean_mask` are other forms of `x[mask]`, with the same fix."""
    if not _shapes.is_reported_beside(node, mask, ctx):
        what, by = _shapes.short(ctx, node, "this selection"), _shapes.short(ctx, mask, "the mask")
        why = _shapes.WHY_TF if ctx.name(node).startswith("tensorflow.") else None
        fix = masks.without_mask(node, base, mask, ctx)
        yield ctx.finding(node, f"The shape of {what} depends on the values of {by}.", fix, why=why)


def _has_one_argument(node: ast.Call, ctx: RuleContext) -> bool:
    named = sum(one.arg in ("condition", "x", "y", "input", "other") for one in node.keywords)
    return not ctx.has_unknown_arguments(node) and len(node.args) + named == 1


def _has_size(node: ast.Call, last: str, ctx: RuleContext, of_method: bool) -> bool:
    """Whether an argument that fixes the size is given, or may be."""
    if last not in _SIZES:
        return False
    name, position, of_methods = _SIZES[last]
    return (
        ctx.has_unknown_arguments(node) or ctx.argument(node, name, of_methods if of_method else position) is not None
    )


Sizes = Callable[[ast.Call, "RuleContext"], list[ast.expr]]

_MASK_FIX = "Use the full size and mask the elements beyond it: `torch.arange(size, device=device) < n`."
_TF_MASK_FIX = "Use the full size and mask the elements beyond it: `tf.range(size) < n`."
_PIECES_FIX = "Give the pieces sizes that are Python numbers: pad each to one size, and mask what is beyond its own."
_SPLITS = ("split", "tensor_split", "chunk")
_PACK_FIX = (
    "Run the network on the padded batch and mask its outputs: "
    "`torch.arange(length, device=device) < lengths[:, None]`."
)
_CLASSES_FIX = "Pass the number of classes: `{function}({x}, num_classes=NUM_CLASSES)`."
_PACKS = ("torch.nn.utils.rnn.pack_padded_sequence", "torch.nn.utils.rnn.pack_sequence")
_ONE_HOT = "torch.nn.functional.one_hot"


def _all_sizes(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args, *(one.value for one in node.keywords if one.arg in ("size", "shape", "sizes"))]


def _size_argument(name: str, position: int) -> Sizes:
    def result(node: ast.Call, ctx: RuleContext) -> list[ast.expr]:
        given = ctx.argument(node, name, position)
        return [] if given is None else [given]

    return result


def _window_sizes(dim: int) -> Sizes:
    """`narrow(dim, start, length)`: another start is also another graph."""

    def result(node: ast.Call, ctx: RuleContext) -> list[ast.expr]:
        given = (ctx.argument(node, "start", dim + 1), ctx.argument(node, "length", dim + 2))
        return [one for one in given if one is not None]

    return result


def _first_size(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args[:1], *(one.value for one in node.keywords if one.arg == "size")]


def _range_bounds(node: ast.Call, _: RuleContext) -> list[ast.expr]:
    return [*node.args, *(one.value for one in node.keywords if one.arg in ("start", "end", "step"))]


# Where the sizes are among the arguments: of functions below `torch.`, and of tensors' methods.
_SIZED_FUNCTIONS: dict[str, Sizes] = {
    **dict.fromkeys(
        ("zeros", "ones", "empty", "rand", "randn", "eye", "tril_indices", "triu_indices"),
        _all_sizes,
    ),
    "full": _first_size,
    "arange": _range_bounds,
    "linspace": _size_argument("steps", 2),
    "randperm": _size_argument("n", 0),
    "narrow": _window_sizes(1),
    "split": _size_argument("split_size_or_sections", 1),
    "topk": _size_argument("k", 1),
    "tile": _size_argument("dims", 1),
    "broadcast_to": _size_argument("size", 1),
    "nn.functional.pad": _size_argument("pad", 1),
    "chunk": _size_argument("chunks", 1),
    "repeat_interleave": _size_argument("repeats", 1),
}
# The same of functions below `tensorflow.`.
_TF_SIZED: dict[str, Sizes] = {
    **dict.fromkeys(("zeros", "ones", "random.normal", "random.uniform"), _size_argument("shape", 0)),
    "range": _all_sizes,
    "fill": _size_argument("dims", 0),
    "reshape": _size_argument("shape", 1),
    "tile": _size_argument("multiples", 1),
    "broadcast_to": _size_argument("shape", 1),
    "linspace": _size_argument("num", 2),
    "one_hot": _size_argument("depth", 1),
}
_SIZED_METHODS: dict[str, Sizes] = {
    **dict.fromkeys(
        (
            "expand",
            "repeat",
            "tile",
            "new_zeros",
            "new_ones",
            "new_empty",
            "broadcast_to",
            "view",
            "reshape",
            "resize_",
        ),
        _all_sizes,
    ),
    "narrow": _window_sizes(0),
    "split": _size_argument("split_size", 0),
    "new_full": _first_size,
    "topk": _size_argument("k", 0),
    "chunk": _size_argument("chunks", 0),
    "repeat_interleave": _size_argument("repeats", 0),
}
_CREATIONS = frozenset(("zeros", "ones", "empty", "rand", "randn", "full", "arange", "linspace", "eye", "randperm"))
# TPU205 reports these for a tensor of counts; a number read from a tensor is a size.
_BY_COUNT = "repeat_interleave"
_LASTS = frozenset(
    (
        *(one.rpartition(".")[2] for one in (*_SIZED_FUNCTIONS, *_TF_SIZED)),
        *_SIZED_METHODS,
        "one_hot",
        "pack_padded_sequence",
        "pack_sequence",
    )
)


class SliceByValue(Rule):
    """A size that is read from a tensor.

    What it does
        Reports slices whose bounds are tensors or numbers read from tensors (`x[:, : lengths.max()]`, `x[:n]` after `n
        = count.item()`), such sizes passed to `torch.zeros`, `torch.arange`, `expand`, `repeat`, `narrow`, `split`,
        `topk`, `F.pad` and the like, `F.one_hot` without `num_classes`, and `pack_padded_sequence`; in TensorFlow code
        that XLA compiles `tf.range`, `tf.zeros`, `tf.reshape` and the like.
    Why this is bad
        The shape then depends on values, but XLA needs every shape when it compiles. torch_xla reads the value back to
        the host in each step, which splits the graph, and compiles again for each new value.
    Example
        longest = lengths.max().item()
        hidden = hidden[:, :longest]
    Use instead
        keep = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        hidden = hidden * keep[..., None]
    Limitations
        A size that depends on data through the length of a list or the shape of a mask is not found; the line where a
        shape first depends on data is reported. Sizes that are read on the host before the step are not checked
        (`%tpu_pad` helps to choose those).
    """

    code = "TPU204"
    name = "slice-by-value"
    group = "shapes"
    why = (
        "XLA needs every shape when it compiles, but this one depends on a value: each step reads it back to the host "
        "and waits, and each new value compiles the graph again."
    )
    nodes = (ast.Subscript, ast.Call)

    def check(self, node: ast.Subscript | ast.Call, ctx: RuleContext) -> Iterator[Finding]:
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
    if by is None or not _is_sliced_tensor(base, node) or not _shapes.runs_on_xla(ctx, base, ctx.value(by)):
        return
    if _is_reported_outside(node, ctx) or _is_reported_before(node, by, ctx):
        return
    what, whose = _shapes.short(ctx, node, "this slice"), _shapes.short(ctx, by, "a value")
    tf = _shapes.is_tf(ctx, base, ctx.value(by))
    places = "tf.range(size)" if tf else "torch.arange(size, device=device)"
    kept = _shapes.short(ctx, node.value, "the tensor")
    fix = f"Keep all of {kept} and mask the other elements"
    if inside := _inside(node, places, ctx):
        fix += f": `{inside}`"
    fix += "."
    yield ctx.finding(
        node, f"The bounds of {what} depend on the value of {whose}.", fix, why=_shapes.WHY_TF if tf else None
    )


def _bound_of_data(node: ast.Subscript, ctx: RuleContext) -> ast.expr | None:
    """The first bound of these slices that data decides."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [one for one in items if isinstance(one, ast.Slice)]
    bounds = [bound for one in slices for bound in (one.lower, one.upper, one.step) if bound is not None]
    return next((_unsigned_bound(one) for one in bounds if is_of_data(one, ctx)), None)


def _inside(node: ast.Subscript, places: str, ctx: RuleContext) -> str:
    """Which positions the slice keeps, as a mask; "" for more than one slice with such bounds, and for steps."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [one for one in items if isinstance(one, ast.Slice)]
    moving = [one for one in slices if any(bound and is_of_data(bound, ctx) for bound in (one.lower, one.upper))]
    if len(moving) != 1 or moving[0].step is not None:
        return ""
    parts = [
        f"{places} {sign} {_position(bound, ctx)}"
        for sign, bound in ((">=", moving[0].lower), ("<", moving[0].upper))
        if bound is not None and ctx.constant(bound) != 0
    ]
    return parts[0] if len(parts) == 1 else " & ".join(f"({one})" for one in parts)


def _position(bound: ast.expr, ctx: RuleContext) -> str:
    """`size - n` of `x[-n:]`."""
    text = _shapes.atom(ctx, _unsigned_bound(bound), "n")
    return text if _unsigned_bound(bound) is bound else f"size - {text}"


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
    result = ((one, _bound_of_data(one, ctx)) for one in before)
    wanted = ctx.source(by)
    return any(
        other is not None and ctx.source(other) == wanted and _is_sliced_tensor(ctx.value(one.value), one)
        for one, other in result
    )


def _is_sliced_tensor(base: AbstractValue, node: ast.Subscript) -> bool:
    """Whether it is a tensor; an unknown value is one if it is sliced along several dimensions."""
    return _shapes.is_array(base) or (base.kind == UNKNOWN and isinstance(node.slice, ast.Tuple))


def _unsigned_bound(bound: ast.expr) -> ast.expr:
    """`n` of `x[-n:]`."""
    return bound.operand if isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub) else bound


def _check_call(node: ast.Call, last: str, ctx: RuleContext) -> Iterator[Finding]:
    name = ctx.name(node)
    if name.startswith("torch."):
        yield from _check_function(node, name, ctx)
    elif name.startswith("tensorflow."):
        where = _TF_SIZED.get(name.removeprefix("tensorflow."))
        if where is not None and ctx.compiled_tf and not _is_iterated(node, ctx):
            yield from _check_sizes(node, last, where, ctx)
    elif isinstance(node.func, ast.Attribute) and last in _SIZED_METHODS:
        receiver = ctx.value(node.func.value)
        if _shapes.is_array(receiver) and receiver.lib != "tf" and _shapes.runs_on_xla(ctx, receiver):
            yield from _check_sizes(node, last, _SIZED_METHODS[last], ctx)


def _is_iterated(node: ast.Call, ctx: RuleContext) -> bool:
    """`for i in tf.range(n)`, which becomes a loop of XLA and no tensor."""
    outer = ctx.parent(node)
    return isinstance(outer, ast.For) and outer.iter is node


def _check_function(node: ast.Call, name: str, ctx: RuleContext) -> Iterator[Finding]:
    given = node.args[0] if node.args else ctx.argument(node, "input") or ctx.argument(node, "tensor")
    if ctx.value(given).where in _shapes.ON_CPU or not _shapes.runs_on_xla(ctx, ctx.value(given)):
        return
    short = name.removeprefix("torch.")
    if name in _PACKS:
        yield ctx.finding(
            node, f"The shape of {_shapes.short(ctx, node, 'the packed sequence')} depends on the lengths.", _PACK_FIX
        )
    elif name == _ONE_HOT:
        yield from _check_one_hot(node, given, ctx)
    elif short in _SIZED_FUNCTIONS and (short not in _CREATIONS or _is_for_device(node, ctx)):
        yield from _check_sizes(node, short, _SIZED_FUNCTIONS[short], ctx)


def _check_one_hot(node: ast.Call, given: ast.expr | None, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.has_unknown_arguments(node) or ctx.argument(node, "num_classes", 1) is not None or given is None:
        return
    x, function = _shapes.short(ctx, given, "x"), ctx.source(node.func)
    message = f"The shape of {_shapes.short(ctx, node, 'the result')} depends on the largest value of {x}."
    yield ctx.finding(node, message, _CLASSES_FIX.format(function=function, x=x))


def _is_for_device(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the new tensor is used on the device: by its device argument, `.to()`, or a size from the device."""
    if ctx.argument(node, "device") is not None or ctx.has_unknown_arguments(node):
        return True
    outer = ctx.parent(node)
    if isinstance(outer, ast.Attribute) and outer.attr in ("to", "type_as"):
        return True
    return any(_shapes.is_array(ctx.value(one)) for one in node.args)


def _check_sizes(node: ast.Call, last: str, where: Sizes, ctx: RuleContext) -> Iterator[Finding]:
    by = next(sizes_of_data(where(node, ctx), ctx), None)
    if by is None or (last == _BY_COUNT and _shapes.is_array(ctx.value(by))):
        return
    what, whose = _shapes.short(ctx, node, f"the result of {last}"), _shapes.short(ctx, by, "a value")
    tf = ctx.name(node).startswith("tensorflow.")
    masked = (_TF_MASK_FIX if tf else _MASK_FIX).replace("< n`", f"< {whose}`")
    fix = _PIECES_FIX if last in _SPLITS else masked
    message = f"The shape of {what} depends on the value of {whose}."
    yield ctx.finding(node, message, fix, why=_shapes.WHY_TF if tf else None)


_REPEATS = ("torch.repeat_interleave", "torch.Tensor.repeat_interleave", "tensorflow.repeat")
_REPEAT_FIX = (
    "Use a fixed length, look up the element for each position, and mask the positions beyond the sum: "
    "`{x}[(places[:, None] >= {counts}.cumsum(0)).sum(1).clamp(max=len({counts}) - 1)]`."
)
_TF_REPEAT_FIX = (
    "Use a fixed length, look up the element for each position, and mask the positions beyond the sum: "
    "`tf.gather({x}, tf.searchsorted(tf.cumsum({counts}), places, side='right'))`."
)


class RepeatInterleaveByTensor(Rule):
    """Elements that are repeated by a tensor of counts.

    What it does
        Reports `torch.repeat_interleave(x, counts)`, `x.repeat_interleave(counts)` and, in TensorFlow code that XLA
        compiles, `tf.repeat(x, counts)`, if `counts` is a tensor and the size of the result is not given.
    Why this is bad
        The result has as many elements as the sum of the counts, but XLA needs every shape when it compiles: torch_xla
        runs the operation on the host in each step (`aten::repeat_interleave.Tensor`), and the code that uses the
        result compiles again for each new size.
    Example
        hidden = torch.repeat_interleave(hidden, durations, dim=0)
    Use instead
        ends = durations.cumsum(0)
        places = torch.arange(MAX_LENGTH, device=hidden.device)
        owner = (places[:, None] >= ends).sum(1).clamp(max=len(ends) - 1)
        hidden = hidden[owner] * (places < ends[-1])[:, None]
    Limitations
        With `output_size` the shape is fixed and nothing is reported, although torch_xla 2.9 still runs the operation
        on the host.
    """

    code = "TPU205"
    name = "repeat-interleave-by-tensor"
    group = "shapes"
    why = (
        "XLA needs every shape when it compiles, but this one is the sum of the counts: torch_xla runs the operation "
        "on the host in each step, and the code that uses the result compiles again for each new sum."
    )
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        func = node.func
        name = ctx.name(node)
        if name not in _REPEATS and not (isinstance(func, ast.Attribute) and func.attr == "repeat_interleave"):
            return
        given, counts = _repeat_arguments(node, name, ctx)
        if (
            counts is None
            or ctx.has_unknown_arguments(node)
            or _has_output_size(node, ctx)
            or not _shapes.is_array(ctx.value(counts))
        ):
            return
        if not _shapes.runs_on_xla(ctx, ctx.value(given), ctx.value(counts)):
            return
        by = _shapes.short(ctx, counts, "the counts")
        tf = name.startswith("tensorflow.")
        fix = (_TF_REPEAT_FIX if tf else _REPEAT_FIX).format(
            x=_shapes.atom(ctx, given, "x") if given is not None else "x", counts=_shapes.atom(ctx, counts, "counts")
        )
        message = f"The shape of {_shapes.short(ctx, node, 'the result')} depends on the values of {by}."
        yield ctx.finding(node, message, fix, why=_shapes.WHY_TF if tf else None)


def _repeat_arguments(node: ast.Call, name: str, ctx: RuleContext) -> tuple[ast.expr | None, ast.expr | None]:
    """What is repeated (None if only counts are given), and the counts."""
    if name:
        counts = ctx.argument(node, "repeats", 1)
        given = node.args[0] if node.args else ctx.argument(node, "input")
        return (given, counts) if counts is not None else (None, given)
    assert isinstance(node.func, ast.Attribute)
    return node.func.value, ctx.argument(node, "repeats", 0)


def _has_output_size(node: ast.Call, ctx: RuleContext) -> bool:
    size = ctx.argument(node, "output_size")
    return size is not None and ctx.constant(size) is not None


_TENSOR_ARRAYS = ("tensorflow.TensorArray", "tensorflow.compat.v1.TensorArray")
_ARRAY_FIX = "Create it with its final size, as a Python number: `tf.TensorArray(dtype, size=LONGEST)`."


class GrowingTensorArray(Rule):
    """A TensorArray that starts empty and grows in code that XLA compiles.

    What it does
        Reports `tf.TensorArray(dtype, size=0, dynamic_size=True)` in TensorFlow code that XLA compiles: under a
        TPUStrategy, or in a function with `jit_compile=True`.
    Why this is bad
        In XLA the array keeps its initial size and never grows. Elements written beyond that are lost: the result is
        empty, without an error. (Seen with TensorFlow 2.21, in loops over values and over numbers.)
    Example
        outs = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(n):
            outs = outs.write(i, values[i])
    Use instead
        outs = tf.TensorArray(tf.float32, size=LONGEST)
        for i in tf.range(LONGEST):
            outs = outs.write(i, tf.where(i < n, values[i], 0.0))
    Limitations
        A size that is decided at run time, and a size above 0 that is too small, are not found.
    """

    code = "TPU206"
    name = "growing-tensor-array"
    group = "shapes"
    why = (
        "In XLA a TensorArray keeps its initial size: elements written to one of size 0 are lost, and the result is "
        "empty, without an error."
    )
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        if ctx.name(node) not in _TENSOR_ARRAYS or not ctx.compiled_tf:
            return
        grows = ctx.constant(ctx.argument(node, "dynamic_size", 2)) is True
        size = ctx.constant(ctx.argument(node, "size", 1))
        if grows and size == 0 and not isinstance(size, bool) and not _is_filled(node, ctx):
            yield ctx.finding(
                node, f"{ctx.source(node.func)} has size 0 and cannot grow in code that XLA compiles.", _ARRAY_FIX
            )


def _is_filled(node: ast.Call, ctx: RuleContext) -> bool:
    """`tf.TensorArray(...).unstack(values)` has the size of the values."""
    parent = ctx.parent(node)
    return isinstance(parent, ast.Attribute) and parent.attr == "unstack"


RULES = (
    BooleanMaskIndex(),
    BooleanMaskAssignment(),
    DynamicShapeOp(),
    SliceByValue(),
    RepeatInterleaveByTensor(),
    GrowingTensorArray(),
)
