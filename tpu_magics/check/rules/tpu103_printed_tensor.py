"""A tensor is printed or logged in each step.

What it does
    Reports tensors that are converted to text in each step of a loop: `print(t)`, f-strings, `%` and `.format()`,
    `str(t)`, `repr(t)`, `logging`, `tqdm` (`set_postfix`, `set_description`, `write`), `accelerator.print`,
    `xm.master_print`, and trackers such as `wandb.log` and `writer.add_scalar`.
Why this is bad
    To show a tensor, its value must be read: XLA compiles and runs everything up to that line, and the host waits. A
    line that looks harmless splits the step into two graphs.
Example
    for step, (x, y) in enumerate(loader):
        loss = train_step(x, y)
        print(f"loss {loss}")
Use instead
    for step, (x, y) in enumerate(loader):
        loss = train_step(x, y)
        if step % 100 == 0:
            print(f"loss {loss}")
Limitations
    Which log levels are enabled is unknown. A shape or a dtype can be printed at any time. A print of `loss.item()` is
    reported as TPU102.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _sinks, _values
from tpu_magics.check.values import BATCH, LIST, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU103"
NAME = "printed-tensor"
GROUP = "values"
WHY = "To show a tensor, its value must be read: XLA runs everything up to this line, and the host waits in each step."
WHY_AFTER_SYNC = "The host waits here for the device in each step, instead of preparing the next step."
NODES = (ast.Call, ast.JoinedStr, ast.BinOp)


def check(node: ast.Call | ast.JoinedStr | ast.BinOp, ctx: RuleContext) -> Iterator[Finding]:
    if not _makes_text(node, ctx) or not _values.runs_each_step(ctx):
        return
    tensor = _shown_tensor(node, ctx)
    if (
        tensor is None
        or _is_in_reported_call(node, ctx)
        or _values.runs_rarely(node, ctx)
        or _values.guarded(node, ctx)
    ):
        return
    yield ctx.finding(
        node,
        f"{_what(node)} reads the value of {_values.short_source(tensor, ctx)} in each step.",
        _sinks.fix_message(_values.full_source(tensor, ctx) or "it", ctx),
        why=WHY_AFTER_SYNC if _values.after_sync(node, ctx) else None,
    )


def _makes_text(node: ast.AST, ctx: RuleContext) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and _is_text(node.left, ctx)
    return isinstance(node, ast.JoinedStr) or _sinks.is_sink(node, ctx)


def _is_text(node: ast.expr, ctx: RuleContext) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(ctx.constant(node), str)


def _shown_tensor(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The first tensor that becomes text here."""
    return next((one for part in _parts(node) for one in _tensors(part, ctx)), None)


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr):
        yield from (one.value for one in node.values if isinstance(one, ast.FormattedValue))
    elif isinstance(node, ast.BinOp):
        yield node.right
    elif isinstance(node, ast.Call):
        yield from node.args
        yield from (one.value for one in node.keywords if one.arg not in ("file", "global_step", "step"))


def _tensors(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The tensors in what is shown, also inside a tuple, a dict or another text."""
    if isinstance(node, ast.Starred):
        node = node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        inside = [one for part in node.elts for one in _tensors(part, ctx)]
    elif isinstance(node, ast.Dict):
        inside = [one for part in node.values for one in _tensors(part, ctx)]
    elif _makes_text(node, ctx):
        inside = [one for part in _parts(node) for one in _tensors(part, ctx)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and ctx.value(node).kind != TENSOR:
        inside = [one for part in (node.left, node.right) for one in _tensors(part, ctx)]
    elif isinstance(node, ast.IfExp):
        inside = [one for part in (node.body, node.orelse) for one in _tensors(part, ctx)]
    else:
        inside = [node] if _reads_when_shown(node, ctx) else []
    yield from inside


def _reads_when_shown(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    if value.lib == "tf":
        return _values.is_eager_result(value, ctx)
    if value.kind == BATCH or (value.kind == LIST and value.item is not None and value.item.kind == BATCH):
        return value.where == "device"
    return _values.holds_readable(value, ctx)


def _is_in_reported_call(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this text is inside a call that is reported itself."""
    return any(_makes_text(parent, ctx) for parent, _ in _values.expression_parents(node, ctx))


def _what(node: ast.Call | ast.JoinedStr | ast.BinOp) -> str:
    if isinstance(node, ast.JoinedStr):
        return "The f-string"
    if isinstance(node, ast.BinOp):
        return "The text"
    return f"{ast.unparse(node.func) if not isinstance(node.func, ast.Attribute) else _method(node.func)}()"


def _method(func: ast.Attribute) -> str:
    return ast.unparse(func) if isinstance(func.value, (ast.Name, ast.Attribute)) else f".{func.attr}"
