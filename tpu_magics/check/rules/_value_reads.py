"""Calls that read a tensor's value.

What lives here: which calls do, and where a read costs nothing. What does not: what is said of them
(tpu102_value_read.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _values
from tpu_magics.check.values import FUNCTION, LIST, NUMBER

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Place
    from tpu_magics.check.values import Value

_METHODS = frozenset(("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__index__", "__array__"))
_NUMBERS = frozenset(("builtins.float", "builtins.int", "builtins.complex"))
# These put what they are given on the host first.
_TO_HOST = frozenset(("torch_xla.core.xla_model.mesh_reduce", "torch_xla.core.xla_model._maybe_convert_to_cpu"))
_OF_LISTS = frozenset(("torch.tensor", "torch.as_tensor"))


def read_tensor(node: ast.AST, at: Place) -> ast.expr | None:
    """The tensor whose value a call reads; None where it reads none that XLA computes."""
    if not isinstance(node, ast.Call):
        return None
    tensor = next(_given(node, at), None)
    return None if tensor is None or is_made_on_cpu(tensor, at) else tensor


_PASSING = frozenset("builtins." + one for one in ("int", "float", "bool", "max", "min", "abs", "round", "sum"))


def data(node: ast.expr, at: Place) -> Iterator[ast.expr]:
    """The parts of a number that were read out of tensors, here or before."""
    if isinstance(node, ast.BinOp):
        yield from data(node.left, at)
        yield from data(node.right, at)
    elif isinstance(node, ast.Call):
        tensor = read_tensor(node, at)
        if tensor is not None:
            yield node
        elif at.name(node) in _PASSING or at.name(node).startswith("math."):
            for one in node.args:
                yield from data(one, at)
        elif not at.name(node) and at.value(node).kind == NUMBER and at.value(node).read and _is_own(node, at):
            yield node
    elif at.value(node).kind == NUMBER and at.value(node).read:
        yield node


def _is_own(node: ast.Call, at: Place) -> bool:
    """Whether a function of this program is called, which reads and returns what it read."""
    return at.value(node.func).kind == FUNCTION


def _given(node: ast.Call, at: Place) -> Iterator[ast.expr]:
    func = node.func
    if isinstance(func, ast.Attribute) and _reads_its_receiver(node, func, at):
        yield func.value
    name = at.name(node)
    if not name or not node.args:
        return
    if name in _NUMBERS or name in _TO_HOST:
        wanted = node.args[1:2] if name in _TO_HOST and len(node.args) > 1 else node.args[:1]
        yield from (one for one in wanted if _readable(at.value(one), at))
    elif name.startswith(("numpy.", "math.")):
        yield from (one for one in node.args if _values.computed(at.value(one), at) or _is_list(one, at))
    elif name in _OF_LISTS:
        yield from (one for one in node.args[:1] if _is_list(one, at))


def _reads_its_receiver(node: ast.Call, func: ast.Attribute, at: Place) -> bool:
    if func.attr not in _METHODS and (func.attr != "to" or at.value(node).where != "host"):
        return False
    return _readable(at.value(func.value), at)


def _readable(value: Value, at: Place) -> bool:
    return _values.readable(value, at) or _values.handed_over(value, at)


def _is_list(node: ast.expr, at: Place) -> bool:
    value = at.value(node)
    return value.kind == LIST and _values.holds(value, at, 1)


# These make a tensor on the CPU unless they are told a device.
MAKERS = frozenset(
    ("torch.tensor", "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.zeros", "torch.ones",
     "torch.full", "torch.arange", "torch.linspace", "torch.empty", "torch.eye", "torch.from_numpy")
)  # fmt: skip


_PERMUTATION = "torch.randperm"


def is_made_on_cpu(tensor: ast.expr, at: Place) -> bool:
    """`torch.randint(0, 9, (1,)).item()` names no device, and is drawn on the CPU. What has a name may have been moved:
    it counts as a tensor like any other, but for a permutation, by which the host goes over its data."""
    value = at.value(tensor)
    if value.name == _PERMUTATION and value.made_at is not None:
        return value.made_at.keyword(value.made, "device") is None and value.where != "device"
    if not isinstance(tensor, ast.Call) or at.name(tensor) not in MAKERS:
        return False
    return at.keyword(tensor, "device") is None and not at.program.calls("torch.set_default_device")
