"""A Python number that changes every step and is part of the graph.

What it does
    Reports a Python number that changes from step to step (the counter of the step loop, a number that is counted up in
    the loop or drawn at random) where it is used as a shape, an index or a slice bound, or as a fixed argument of an
    operation: the `k` of topk, the exponent of a power, the shift of roll, the diagonal of tril; and where it is passed
    to a compiled `tf.function`.
Why this is bad
    Such a number is written into the graph, so each new number is another graph and another compile. Measured with
    torch_xla 2.9: one compile for each number in shapes, in indices and slices of a tensor, and in topk, kthvalue, pow,
    roll, tril and triu, diagonal, split, repeat, interpolate, pooling, padding and norm. Numbers that are added to,
    multiplied with or compared to tensors are sent as data and compile nothing new (except 0 and 1, which are separate
    graphs), and so are those in full, clamp, dropout, lerp, masked_fill, alpha= and the lr of optimizers.
Example
    for step, x in enumerate(loader):
        best = torch.topk(model(x), 1 + step % 4).values
Use instead
    for step, x in enumerate(loader):
        rank = torch.arange(4, device=device)
        best = torch.topk(model(x), 4).values * (rank < torch.tensor([1 + step % 4], device=device))
Limitations
    Numbers that change once per epoch (one compile per epoch), numbers that are returned by functions, and lists with a
    different length in each step are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.rules import _spelling
from tpu_magics.check.rules._changing_numbers import changes
from tpu_magics.check.values import BATCH, FUNCTION, NUMBER, OUTPUT, TENSOR, AbstractValue

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU303"
NAME = "changing-number"
GROUP = "recompiles"
WHY = "The number is written into the graph, so each new number is another graph that XLA compiles."
_WHY_TRACED = "A tf.function is traced and compiled again for each new Python number."
NODES = (ast.Call, ast.Subscript, ast.BinOp, ast.AugAssign)


def check(node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        yield from _call(node, ctx)
    elif isinstance(node, ast.Subscript):
        yield from _index(node, ctx)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, FIXED_OPERATORS):
        yield from _power(node, ctx)


def _call(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.value(node.func).kind == FUNCTION:
        yield from _traced(node, ctx)
        return
    use = use_of(node, ctx)
    if use is None or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    for argument in use.arguments:
        if changes(ctx, argument) and acts_on_device(node, ctx, use):
            what, number = _spelling.shortened(ctx.source(node)), ctx.source(argument)
            message = f"{use.subject.format(what=what)} {number}, a Python number that changes every step."
            yield ctx.finding(node, message, use.fix.format(number=number))
            return


def _traced(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    """A Python number given to a `tf.function`, which is traced again for each new one."""
    function = ctx.value(node.func).ref
    traced = "tensorflow.function" in getattr(function, "decorators", ())
    if not getattr(function, "compiled", False) and not (traced and ctx.program.tpu_tf):
        return
    for argument in (*node.args, *(one.value for one in node.keywords)):
        if ctx.value(argument).kind == NUMBER and changes(ctx, argument):
            number = ctx.source(argument)
            message = f"{ctx.source(node.func)} gets {number}, a Python number that changes every step."
            yield ctx.finding(node, message, f"Pass a tensor: `tf.constant({number})`.", why=_WHY_TRACED)
            return


def _index(node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
    base = ctx.value(node.value)
    if not is_tensor(base, node.slice) or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    if not is_tensor_on_device(base, ctx):
        return
    for bound, sliced in indices(node.slice):
        if changes(ctx, bound):
            number = ctx.source(bound)
            message = (
                f"{_spelling.shortened(ctx.source(node))} depends on {number}, a Python number that changes every step."
            )
            fix = FIX_SLICE if sliced else FIX_INDEX
            yield ctx.finding(node, message, fix.format(number=number))
            return


def _power(node: ast.BinOp | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    for tensor, number in ((left, right), (right, left)):
        base = ctx.value(tensor)
        if base.kind == TENSOR and is_tensor_on_device(base, ctx) and ctx.in_step and ctx.on_device and not ctx.every_n:
            if changes(ctx, number):
                subject = ctx.source(number)
                message = (
                    f"{_spelling.shortened(ctx.source(node))} uses {subject}, a Python number that changes every step."
                )
                yield ctx.finding(node, message, FIX_TENSOR.format(number=subject))
            return


# -- numbers in the graph ---------------------------------------------------------------------------------------------
#
# Measured with torch_xla 2.9 on XLA:CPU: each new number compiled again. Operations that are not listed take their
# numbers as data, or were not measured.


FIXED_OPERATORS = (ast.Pow, ast.LShift, ast.RShift)
FIX_INDEX = "Index with a tensor: `torch.tensor([{number}], device=device)`."
FIX_SLICE = "Keep all elements and mask: `torch.arange(size, device=device) < torch.tensor([{number}], device=device)`."
FIX_TENSOR = "Pass the number as data: `torch.tensor(float({number}), device=device)`."
_FIX_SHAPE = "Pad to one fixed length, or to one of a few."
_FIX_ARGUMENT = "Keep {number} fixed, or use a mask with the number as data: `torch.tensor([{number}], device=device)`."
_SAID_SHAPE = "The shape of {what} uses"
_SAID_ARGUMENT = "{what} uses"

_ALL = -1
# Operation: the positions of its numbers as a method (as a function, the tensor comes before), and their keywords.
_ARGUMENTS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "topk": ((0,), ("k",)),
    "kthvalue": ((0,), ("k",)),
    "pow": ((0,), ("exponent",)),
    "pow_": ((0,), ("exponent",)),
    "roll": ((0,), ("shifts",)),
    "tril": ((0,), ("diagonal",)),
    "triu": ((0,), ("diagonal",)),
    "diag": ((0,), ("diagonal",)),
    "diagonal": ((0,), ("offset",)),
    "select": ((1,), ("index",)),
    "norm": ((0,), ("p",)),
    "normalize": ((0,), ("p",)),
    "threshold": ((0, 1), ("threshold", "value")),
    "std": ((), ("correction",)),
    "var": ((), ("correction",)),
    "logit": ((0,), ("eps",)),
    "layer_norm": ((), ("eps",)),
    "batch_norm": ((), ("eps",)),
}
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "narrow": ((1, 2), ("start", "length")),
    "repeat": ((_ALL,), ("repeats",)),
    "tile": ((_ALL,), ("dims",)),
    "expand": ((_ALL,), ("size",)),
    "broadcast_to": ((0,), ("size", "shape")),
    "view": ((_ALL,), ("size",)),
    "reshape": ((_ALL,), ("shape",)),
    "split": ((0,), ("split_size_or_sections", "split_size")),
    "tensor_split": ((0,), ("indices_or_sections",)),
    "chunk": ((0,), ("chunks",)),
    "repeat_interleave": ((0,), ("repeats",)),
    "one_hot": ((0,), ("num_classes",)),
    "pad": ((0,), ("pad", "value")),
    "interpolate": ((0, 1), ("size", "scale_factor")),
    "avg_pool1d": ((0, 1), ("kernel_size", "stride")),
    "avg_pool2d": ((0, 1), ("kernel_size", "stride")),
    "max_pool1d": ((0, 1), ("kernel_size", "stride")),
    "max_pool2d": ((0, 1), ("kernel_size", "stride")),
    "adaptive_avg_pool1d": ((0,), ("output_size",)),
    "adaptive_avg_pool2d": ((0,), ("output_size",)),
    "new_zeros": ((_ALL,), ("size",)),
    "new_ones": ((_ALL,), ("size",)),
    "new_empty": ((_ALL,), ("size",)),
    "new_full": ((0,), ("size",)),
}
# Functions that make a tensor of a shape: the positions that are the shape.
_MAKERS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "zeros": ((_ALL,), ("size",)),
    "ones": ((_ALL,), ("size",)),
    "empty": ((_ALL,), ("size",)),
    "rand": ((_ALL,), ("size",)),
    "randn": ((_ALL,), ("size",)),
    "full": ((0,), ("size",)),
    "arange": ((_ALL,), ("start", "end", "step")),
    "eye": ((_ALL,), ("n", "m")),
    "randperm": ((0,), ("n",)),
    "linspace": ((2,), ("steps",)),
    "logspace": ((2,), ("steps",)),
}
_TORCH = ("torch.", "torch.nn.functional.", "torch.linalg.")
_MOVES = frozenset(("to", "cuda"))


class FixedArguments(NamedTuple):
    """The arguments of a call that are written into the graph; `made`: the call makes a tensor of that shape."""

    arguments: tuple[ast.expr, ...]
    subject: str
    fix: str
    made: bool = False


def use_of(node: ast.Call, ctx: RuleContext) -> FixedArguments | None:
    func = node.func
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    name = ctx.name(node)
    if name:
        last = name.rpartition(".")[2]
        if name.rpartition(".")[0] + "." not in _TORCH:
            return None
        if last == "randint":
            return _use(_randint(node), (_SAID_SHAPE, _FIX_SHAPE), made=True)
        if last in _MAKERS:
            return _use(_chosen(node, _MAKERS[last], 0), (_SAID_SHAPE, _FIX_SHAPE), made=True)
    shift = 1 if name else 0
    if last in _ARGUMENTS:
        fix = FIX_TENSOR if last in ("pow", "pow_") else _FIX_ARGUMENT
        return _use(_chosen(node, _ARGUMENTS[last], shift), (_SAID_ARGUMENT, fix))
    if last in _SHAPES:
        return _use(_chosen(node, _SHAPES[last], shift), (_SAID_SHAPE, _FIX_SHAPE))
    return None


def _use(chosen: list[ast.expr], words: tuple[str, str], made: bool = False) -> FixedArguments | None:
    found = tuple(leaf for one in chosen for leaf in _leaves(one) if not isinstance(leaf, ast.Constant))
    return FixedArguments(found, *words, made) if found else None


def _chosen(node: ast.Call, spec: tuple[tuple[int, ...], tuple[str, ...]], shift: int) -> list[ast.expr]:
    positions, keywords = spec
    found = [one.value for one in node.keywords if one.arg in keywords]
    if positions == (_ALL,):
        return [*found, *node.args[shift:]]
    return [*found, *(node.args[one + shift] for one in positions if one + shift < len(node.args))]


def _randint(node: ast.Call) -> list[ast.expr]:
    """The size of `torch.randint(low, high, size)`; its bounds are data."""
    found = [one.value for one in node.keywords if one.arg == "size"]
    return found or node.args[-1:]


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _leaves(one)
    else:
        yield node


def indices(node: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """The positions and bounds in the brackets; True for bounds of slices. A list of positions is data."""
    for one in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(one, ast.Slice):
            yield from ((bound, True) for bound in (one.lower, one.upper, one.step) if bound is not None)
        elif not isinstance(one, (ast.List, ast.Constant)):
            yield one, False


def is_tensor(base: AbstractValue, index: ast.expr) -> bool:
    """Whether `base` is a tensor: an output or a batch may be a tuple, which has no column slices."""
    if base.kind in (OUTPUT, BATCH):
        return isinstance(index, ast.Tuple) and any(isinstance(one, ast.Slice) for one in index.elts)
    return base.kind == TENSOR


# -- tensors on the device --------------------------------------------------------------------------------------------


def acts_on_device(node: ast.Call, ctx: RuleContext, use: FixedArguments) -> bool:
    if use.made:
        return ctx.value(node).where == "device" or _is_moved(node, ctx)
    if ctx.name(node):
        return bool(node.args) and is_tensor_on_device(ctx.value(node.args[0]), ctx)
    return isinstance(node.func, ast.Attribute) and is_tensor_on_device(ctx.value(node.func.value), ctx)


def is_tensor_on_device(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether a tensor is certainly on the device: moved there, or in a module's forward."""
    if value.kind not in (TENSOR, OUTPUT, BATCH):
        return False
    function = ctx.function
    in_module = function is not None and function.cls is not None and function.cls.is_module
    return value.where == "device" or (not value.where and in_module)


def _is_moved(node: ast.Call, ctx: RuleContext) -> bool:
    """`torch.randn(4, n).to(device)`, also later in its chain: `torch.randn(4, n).abs().to(device)`."""
    inner: ast.AST = node
    for outer in ctx.parents(node):
        if isinstance(outer, ast.Call) and outer.func is inner:
            if isinstance(inner, ast.Attribute) and inner.attr in _MOVES:
                return ctx.value(outer).where != "host"
        elif not isinstance(outer, ast.Attribute):
            return False
        inner = outer
    return False
