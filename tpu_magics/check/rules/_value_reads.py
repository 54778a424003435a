"""Calls that read a tensor's value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _values
from tpu_magics.check.values import FUNCTION, LIST, NUMBER

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext
    from tpu_magics.check.values import AbstractValue

_METHODS = frozenset(("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__index__", "__array__"))
_NUMBERS = frozenset(("builtins.float", "builtins.int", "builtins.complex"))
# These move their argument to the host first.
_TO_HOST = frozenset(("torch_xla.core.xla_model.mesh_reduce", "torch_xla.core.xla_model._maybe_convert_to_cpu"))
_OF_LISTS = frozenset(("torch.tensor", "torch.as_tensor"))


def read_tensor(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The tensor whose value a call reads; None if XLA computes none of them."""
    if not isinstance(node, ast.Call):
        return None
    tensor = next(_given(node, ctx), None)
    return None if tensor is None or is_made_on_cpu(tensor, ctx) else tensor


_PASSING = frozenset("builtins." + one for one in ("int", "float", "bool", "max", "min", "abs", "round", "sum"))


def reads_in(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The parts of a number that were read from tensors, here or earlier."""
    if isinstance(node, ast.BinOp):
        yield from reads_in(node.left, ctx)
        yield from reads_in(node.right, ctx)
    elif isinstance(node, ast.Call):
        tensor = read_tensor(node, ctx)
        if tensor is not None:
            yield node
        elif ctx.name(node) in _PASSING or ctx.name(node).startswith("math."):
            for one in node.args:
                yield from reads_in(one, ctx)
        elif not ctx.name(node) and ctx.value(node).kind == NUMBER and ctx.value(node).read and _is_own(node, ctx):
            yield node
    elif ctx.value(node).kind == NUMBER and ctx.value(node).read:
        yield node


def _is_own(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a function of this program is called, which reads and returns the value."""
    return ctx.value(node.func).kind == FUNCTION


def _given(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    func = node.func
    if isinstance(func, ast.Attribute) and _reads_its_receiver(node, func, ctx):
        yield func.value
    name = ctx.name(node)
    if not name or not node.args:
        return
    if name in _NUMBERS or name in _TO_HOST:
        wanted = node.args[1:2] if name in _TO_HOST and len(node.args) > 1 else node.args[:1]
        yield from (one for one in wanted if _readable(ctx.value(one), ctx))
    elif name.startswith(("numpy.", "math.")):
        yield from (one for one in node.args if _values.is_computed(ctx.value(one), ctx) or _is_list(one, ctx))
    elif name in _OF_LISTS:
        yield from (one for one in node.args[:1] if _is_list(one, ctx))


def _reads_its_receiver(node: ast.Call, func: ast.Attribute, ctx: RuleContext) -> bool:
    if func.attr not in _METHODS and (func.attr != "to" or ctx.value(node).where != "host"):
        return False
    return _readable(ctx.value(func.value), ctx)


def _readable(value: AbstractValue, ctx: RuleContext) -> bool:
    return _values.is_readable(value, ctx) or _values.is_eager_result(value, ctx)


def _is_list(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    return value.kind == LIST and _values.holds_readable(value, ctx, 1)


# These create a tensor on the CPU unless they get a device.
MAKERS = frozenset(
    ("torch.tensor", "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.zeros", "torch.ones",
     "torch.full", "torch.arange", "torch.linspace", "torch.empty", "torch.eye", "torch.from_numpy")
)  # fmt: skip


_PERMUTATION = "torch.randperm"


def is_made_on_cpu(tensor: ast.expr, ctx: RuleContext) -> bool:
    """`torch.randint(0, 9, (1,)).item()` has no device argument and runs on the CPU. A tensor with a name may have been
    moved and counts like any other, except a permutation, with which the host shuffles its data."""
    value = ctx.value(tensor)
    if value.name == _PERMUTATION and value.made_ctx is not None:
        return value.made_ctx.argument(value.made, "device") is None and value.where != "device"
    if not isinstance(tensor, ast.Call) or ctx.name(tensor) not in MAKERS:
        return False
    return ctx.argument(tensor, "device") is None and not ctx.program.calls("torch.set_default_device")
