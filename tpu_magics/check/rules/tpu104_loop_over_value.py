"""A loop as long as a tensor says, or a list indexed by a tensor.

What it does
    Reports `range(t)`, also of a number that was read out of a tensor; a Python list, tuple, `nn.ModuleList` or NumPy
    array that is indexed or sliced with a tensor; a list that is repeated as often as a tensor says.
Why it is bad
    Python needs the number, so XLA must run what it has and hand the value over. What follows differs with that
    value: each number of iterations, and each item chosen, is another graph to compile.
Example
    for i in range(lengths.max()):
        hidden = cell(x[:, i], hidden)
    out = experts[route](hidden)
Use instead
    for i in range(x.shape[1]):  # a shape is known before anything runs
        hidden = torch.where((i < lengths)[:, None], cell(x[:, i], hidden), hidden)
    out = (torch.stack([expert(hidden) for expert in experts]) * one_hot_route).sum(0)
What it cannot see
    Lists that come from functions of other files. A loop over a tensor's rows is unrolled and reads nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _value_reads, _values
from tpu_magics.check.values import ARRAY, LIST, MODEL, Value

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import Place

CODE = "TPU104"
NAME = "loop-over-value"
GROUP = "values"
WHY = (
    "Python needs the number, so XLA stops and hands the value over, and each other number is another graph to compile."
)
NODES = (ast.Call, ast.Subscript, ast.BinOp)
_SEQUENCES = ("torch.nn.ModuleList", "torch.nn.ParameterList", "builtins.range", "builtins.list", "builtins.tuple")


def check(node: ast.Call | ast.Subscript | ast.BinOp, at: Place) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        asked = _of_range(node, at)
    elif isinstance(node, ast.Subscript):
        asked = _of_index(node, at)
    else:
        asked = _of_repeat(node, at)
    if asked is None or not (_values.each_time(at) or _values.is_compiled_tf(at)):
        return
    if not _values.guarded(node, at) and not _values.seldom(node, at):
        yield at.finding(
            node, _MESSAGES[type(node)].format(_values.shown(node, at), _values.shown(asked, at)), _cure(node)
        )


_MESSAGES: dict[type, str] = {
    ast.Call: "{} runs as often as the value of {} says.",
    ast.Subscript: "{} picks by the value of {}.",
    ast.BinOp: "{} is as long as the value of {} says.",
}


def _of_range(node: ast.Call, at: Place) -> ast.expr | None:
    if at.name(node) != "builtins.range":
        return None
    return next((one for part in node.args for one in _data(part, at)), None)


def _data(bound: ast.expr, at: Place) -> Iterator[ast.expr]:
    """The tensors, and numbers read out of tensors, that a bound depends on."""
    if _values.computed(at.value(bound), at) and not _value_reads.is_made_on_cpu(bound, at):
        yield bound
    for one in _value_reads.data(bound, at):
        yield _value_reads.read_tensor(one, at) or one


def _of_index(node: ast.Subscript, at: Place) -> ast.expr | None:
    """What a Python sequence is indexed with. A dict goes by the tensor's identity, and reads nothing."""
    if not isinstance(node.ctx, ast.Load):
        return None
    inside = node.slice
    parts = [inside.lower, inside.upper, inside.step] if isinstance(inside, ast.Slice) else [inside]
    found = next((one for one in parts if one is not None and _values.computed(at.value(one), at)), None)
    if found is None or _is_drawn(found, at):
        return None
    return found if _is_sequence(at.value(node.value)) else None


def _is_drawn(index: ast.expr, at: Place) -> bool:
    """Rows of a corpus at random places: `for at in torch.randint(...): tokens[at : at + width]` is the host's work."""
    return any(
        at.value(one).name in _value_reads.MAKERS for one in nodes_of(index) if isinstance(one, (ast.Name, ast.Call))
    )


def _is_sequence(value: Value) -> bool:
    if value.kind != LIST:
        return value.kind == ARRAY
    if value.items is not None or isinstance(value.made, (ast.List, ast.Tuple, ast.ListComp)):
        return True
    modules = value.item is not None and value.item.kind == MODEL  # of a ModuleDict the keys are strings
    return modules or value.name in _SEQUENCES


def _of_repeat(node: ast.BinOp, at: Place) -> ast.expr | None:
    if not isinstance(node.op, ast.Mult):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, (ast.List, ast.Tuple)) and _values.computed(at.value(other), at):
            return other
    return None


def _cure(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return "Go over a fixed number (a shape, a maximum) and keep what is done with `torch.where`."
    if isinstance(node, ast.BinOp):
        return "Give the list a fixed length, or build a tensor of fixed shape and mask it."
    return "Put what is picked from into a tensor (`torch.stack(items)[index]`), or compute all and choose with a mask."
