"""A list of tensors that grows with every step.

What it does
    Reports tensors that are kept step after step: a list or dict of an outer scope to which the step loop adds a
    tensor, and which the loop also computes with (`torch.stack(losses)`, `sum(losses)`); one that keeps the loss or the
    output with its autograd graph; and a tensor that grows by `x = torch.cat([x, new])`.
Why this is bad
    Operations on the list have one more input in each step: another graph, another compile. Measured with torch_xla
    2.9: 8 steps that stack or sum a growing list, or grow a tensor by cat, compile 8 times. A list that is only read
    after the loop compiles nothing new, but each entry stays on the device, and an entry that is not detached keeps its
    autograd graph.
Example
    losses.append(loss)
    mean = torch.stack(losses).mean()
Use instead
    total += loss.detach()
    mean = total / (step + 1)
Limitations
    Lists inside objects from other files are not found, nor are dicts that get one more key in each step because a loop
    inside the step has one more iteration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _growing_containers as growing
from tpu_magics.check.rules._growing_tensors import grown_tensor

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU304"
NAME = "growing-list"
GROUP = "recompiles"
WHY = "Operations on it have one more input in each step: another graph, which XLA compiles again."
NODES = (ast.Call, ast.Assign, ast.AugAssign)
_WHY_GRAPH = (
    "Each entry stays on the device together with its autograd graph, and anything that is computed from the growing "
    "list is a new graph to compile."
)
_WHY_CAT = "The tensor has another shape in each step, and XLA compiles again for each."


def check(node: ast.Call | ast.Assign | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    if isinstance(node, ast.Assign) and (name := grown_tensor(node, ctx)):
        yield ctx.finding(
            node,
            f"{name} grows by {ctx.source(node.value.func)} at every step.",  # type: ignore[attr-defined]
            "Write into a tensor of the final size, or keep detached pieces and concatenate them after the loop.",
            why=_WHY_CAT,
        )
        return
    container = growing.growing_container(node, ctx)
    if container is None or not growing.outlives_step(container, ctx):
        return
    if (use := growing.use_in_step(container, ctx)) is not None:
        yield ctx.finding(
            node,
            f"{container.name} grows by a tensor at every step, and {ctx.source(use)} computes with all of it.",
            "Keep a running sum (`total += loss.detach()`), or compute after the loop.",
        )
    elif (graph := growing.undetached_loss(container, ctx)) is not None:
        yield ctx.finding(
            node,
            f"{container.name} keeps {ctx.source(graph)} of every step with its autograd graph.",
            f"Keep `{ctx.source(graph)}.detach()`.",
            why=_WHY_GRAPH,
            edits=(ctx.insert_after(graph, ".detach()"),) if growing.is_only_read(container, ctx) else (),
        )
