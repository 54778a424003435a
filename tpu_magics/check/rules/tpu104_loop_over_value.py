"""A loop or a list index that depends on a tensor's value.

What it does
    Reports `range(t)`, also of a number that was read from a tensor; a Python list, tuple, `nn.ModuleList` or NumPy
    array that is indexed or sliced with a tensor; a list that is repeated by a tensor.
Why this is bad
    Python needs the number, so XLA must run the graph so far and pass the value to Python. Each new number of
    iterations, and each item that is chosen, is another graph to compile.
Example
    for i in range(lengths.max()):
        hidden = cell(x[:, i], hidden)
    out = experts[route](hidden)
Use instead
    for i in range(x.shape[1]):  # a shape is known before anything runs
        hidden = torch.where((i < lengths)[:, None], cell(x[:, i], hidden), hidden)
    out = (torch.stack([expert(hidden) for expert in experts]) * one_hot_route).sum(0)
Limitations
    Lists that are returned by functions in other files are not checked. A loop over a tensor's rows is unrolled and
    reads no value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _value_reads, _values
from tpu_magics.check.values import ARRAY, LIST, MODEL, AbstractValue

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU104"
NAME = "loop-over-value"
GROUP = "values"
WHY = (
    "Python needs the number, so XLA stops and passes the value to Python; each new number is another graph to compile."
)
NODES = (ast.Call, ast.Subscript, ast.BinOp)
_SEQUENCES = ("torch.nn.ModuleList", "torch.nn.ParameterList", "builtins.range", "builtins.list", "builtins.tuple")


def check(node: ast.Call | ast.Subscript | ast.BinOp, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        needed = _of_range(node, ctx)
    elif isinstance(node, ast.Subscript):
        needed = _of_index(node, ctx)
    else:
        needed = _of_repeat(node, ctx)
    if needed is None or not (_values.may_run_each_step(ctx) or _values.is_compiled_tf(ctx)):
        return
    if not _values.guarded(node, ctx) and not _values.runs_rarely(node, ctx):
        yield ctx.finding(
            node,
            _MESSAGES[type(node)].format(_values.short_source(node, ctx), _values.short_source(needed, ctx)),
            _fix_message(node),
        )


_MESSAGES: dict[type, str] = {
    ast.Call: "The number of iterations of {} depends on the value of {}.",
    ast.Subscript: "The item of {} depends on the value of {}.",
    ast.BinOp: "The length of {} depends on the value of {}.",
}


def _of_range(node: ast.Call, ctx: RuleContext) -> ast.expr | None:
    if ctx.name(node) != "builtins.range":
        return None
    return next((one for part in node.args for one in _data(part, ctx)), None)


def _data(bound: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The tensors, and numbers read from tensors, that a bound depends on."""
    if _values.is_computed(ctx.value(bound), ctx) and not _value_reads.is_made_on_cpu(bound, ctx):
        yield bound
    for one in _value_reads.reads_in(bound, ctx):
        yield _value_reads.read_tensor(one, ctx) or one


def _of_index(node: ast.Subscript, ctx: RuleContext) -> ast.expr | None:
    """The index of a Python sequence. A dict uses the tensor's identity and reads nothing."""
    if not isinstance(node.ctx, ast.Load):
        return None
    inside = node.slice
    parts = [inside.lower, inside.upper, inside.step] if isinstance(inside, ast.Slice) else [inside]
    found = next((one for one in parts if one is not None and _values.is_computed(ctx.value(one), ctx)), None)
    if found is None or _is_random(found, ctx):
        return None
    return found if _is_sequence(ctx.value(node.value)) else None


def _is_random(index: ast.expr, ctx: RuleContext) -> bool:
    """Random rows of a corpus: `for at in torch.randint(...): tokens[at : at + width]` runs on the host."""
    return any(
        ctx.value(one).name in _value_reads.MAKERS for one in nodes_of(index) if isinstance(one, (ast.Name, ast.Call))
    )


def _is_sequence(value: AbstractValue) -> bool:
    if value.kind != LIST:
        return value.kind == ARRAY
    if value.items is not None or isinstance(value.made, (ast.List, ast.Tuple, ast.ListComp)):
        return True
    modules = value.item is not None and value.item.kind == MODEL  # of a ModuleDict the keys are strings
    return modules or value.name in _SEQUENCES


def _of_repeat(node: ast.BinOp, ctx: RuleContext) -> ast.expr | None:
    if not isinstance(node.op, ast.Mult):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, (ast.List, ast.Tuple)) and _values.is_computed(ctx.value(other), ctx):
            return other
    return None


def _fix_message(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return "Run a fixed number of iterations (a shape, a maximum) and keep finished rows with `torch.where`."
    if isinstance(node, ast.BinOp):
        return "Use a list of fixed length, or a tensor of fixed shape with a mask."
    return "Stack the items into a tensor (`torch.stack(items)[index]`), or compute all of them and choose with a mask."
