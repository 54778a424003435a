"""A tensor's value is read in each step.

What it does
    Reports `.item()`, `.tolist()`, `.numpy()`, `.cpu()`, `.to("cpu")`, `float(t)`, `int(t)`, `complex(t)`,
    `np.array(t)` and other NumPy and `math` functions of a tensor, `torch.tensor([t])` and `xm.mesh_reduce`, if they
    run in each step of a training or evaluation loop.
Why this is bad
    The value exists only after XLA has compiled and run everything before it. The read splits the step into two graphs,
    and the host waits for the device instead of preparing the next step.
Example
    for x, y in loader:
        loss = step(x, y)
        total += loss.item()
Use instead
    for x, y in loader:
        loss = step(x, y)
        total += loss.detach()  # stays on the device
    print(total.item())
Limitations
    Reads inside libraries are not checked. Reads every N steps, after the loop, or in a function passed to
    `xm.add_step_closure` are fine and are not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _graph_work, _sinks, _value_reads, _values

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU102"
NAME = "value-read"
GROUP = "values"
WHY = "XLA must compile and run everything up to this line, and the host waits: the step is split into two graphs."
WHY_AFTER_SYNC = "The host waits here for the device in each step, instead of preparing the next step."
NODES = (ast.Call,)


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if not _runs_often(ctx):
        return
    tensor = _value_reads.read_tensor(node, ctx)
    if (
        tensor is None
        or _values.runs_rarely(node, ctx)
        or _values.guarded(node, ctx)
        or _is_reported_with_parent(node, ctx)
    ):
        return
    if _is_reported_beside(node, ctx):
        return
    read, source = _values.short_source(_whole(node, ctx), ctx), _values.short_source(tensor, ctx)
    yield ctx.finding(
        node,
        f"{read} reads the value of {source} in each step.",
        _fix_message(node, tensor, ctx),
        why=WHY_AFTER_SYNC if _values.after_sync(node, ctx) else None,
    )


def _runs_often(ctx: RuleContext) -> bool:
    return _values.runs_each_step(ctx) or _values.is_compiled_tf(ctx)


def _whole(node: ast.Call, ctx: RuleContext) -> ast.AST:
    """The chain that the read is part of: `preds.cpu().numpy()`."""
    whole: ast.AST = node
    for parent, child in _values.expression_parents(node, ctx):
        in_chain = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is child)
        if not in_chain:
            break
        whole = parent
    return whole if isinstance(whole, ast.Call) else node


def _is_reported_with_parent(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the read is part of another finding: a branch that decides what is computed, or the bounds of a loop."""
    for parent, child in _values.expression_parents(node, ctx):
        if isinstance(parent, ast.Call) and ctx.name(parent) == "builtins.range":
            return True
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and child is parent.test:
            return _graph_work.decides_tensor_work(parent, ctx)
    return False


def _is_reported_beside(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a read stands before it on this line: `add_batch(predictions=preds.cpu(), references=labels.cpu())`."""
    for parent, child in _values.expression_parents(node, ctx):
        if isinstance(parent, ast.stmt):
            return False
        for beside in ast.iter_child_nodes(parent):
            if beside is child:
                break
            if any(
                _value_reads.read_tensor(one, ctx) is not None and _on_one_line(one, node) for one in nodes_of(beside)
            ):
                return True
    return False


def _on_one_line(one: ast.AST, other: ast.AST) -> bool:
    return getattr(one, "lineno", 0) == getattr(other, "lineno", 1)


def _fix_message(node: ast.Call, tensor: ast.expr, ctx: RuleContext) -> str:
    if ctx.value(tensor).lib == "tf":
        return "Update a metric (`tf.keras.metrics.Mean`) in the step, and read its `result()` after the loop."
    name = _values.full_source(tensor, ctx)
    for parent, _ in _values.expression_parents(node, ctx):
        if isinstance(parent, ast.AugAssign):
            target = _values.short_source(parent.target, ctx)
            on_device = f"`{target} += {name}.detach()`" if name and parent.value is node else "without reading it"
            return f"Add it up on the device ({on_device}) and read {target} once after the loop."
        if _sinks.is_sink(parent, ctx):
            return _sinks.fix_message(name or "it", ctx)
    kept = name or "it"
    return f"Keep {kept} on the device and read it once after the loop, every N steps, or with `xm.add_step_closure`."
