"""A collective that only some ranks call.

What it does
    Reports collectives (`xm.all_reduce`, `xm.rendezvous`, `xm.mesh_reduce`, `xm.optimizer_step`, `dist.barrier`,
    `accelerator.gather`, `accelerator.wait_for_everyone`, `trainer.evaluate`, ...) inside a branch on the rank, after
    `if not is_main: return`, or in a function for the main process only; and calls there of functions that contain a
    collective.
Why this is bad
    A collective finishes only after all ranks have called it. The ranks that call it wait for the others forever,
    without an error.
Example
    if accelerator.is_main_process:
        mean = accelerator.gather(loss).mean()
        print(mean)
Use instead
    mean = accelerator.gather(loss).mean()
    if accelerator.is_main_process:
        print(mean)
Limitations
    Ranks that leave a loop after different numbers of iterations, and conditions that depend on the rank indirectly,
    are not found. `xm.save` and `accelerator.save_state` wait for no other rank in torch_xla 2.9 and accelerate 1.15
    and are not reported. A collective is fine if the other ranks make the same call in the opposite branch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _ranks, _spelling, _workers
from tpu_magics.check.values import ACCELERATOR, TRAINER

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU406"
NAME = "rank-branch-collective"
GROUP = "launch"
WHY = "A collective finishes only after all ranks have called it: the ranks that call this one wait forever."
_XM = "torch_xla.core.xla_model."
COLLECTIVES = frozenset(
    [_XM + one for one in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute",
        "collective_broadcast", "broadcast_master_param", "rendezvous", "xla_rendezvous", "mesh_reduce",
        "optimizer_step", "reduce_gradients", "do_on_ordinals", "all_reduce_bucketized_gradients")]
    + ["torch.distributed." + one for one in ("all_reduce", "all_gather", "all_gather_into_tensor", "barrier",
        "all_gather_object", "broadcast", "broadcast_object_list", "reduce", "gather", "scatter", "reduce_scatter",
        "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "monitored_barrier", "gather_object")]
    + ["accelerate.utils." + one for one in ("gather", "gather_object", "reduce", "broadcast",
        "broadcast_object_list", "wait_for_everyone", "pad_across_processes")]
)  # fmt: skip
METHODS = {
    ACCELERATOR: frozenset(("gather", "gather_for_metrics", "reduce", "wait_for_everyone", "pad_across_processes",
        "check_trigger")),
    TRAINER: frozenset(("train", "evaluate", "predict")),
}  # fmt: skip
# Arguments that limit a collective to some ranks.
_GROUPS = ("group", "groups", "replicas")
# Methods that only an accelerator has.
_ONLY_THERE = frozenset(("gather_for_metrics", "wait_for_everyone"))


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.xla:
        return
    holders = _holders(program)
    for call in program.all_calls:
        callee = _workers.targets(program).get(id(call.node))
        if is_collective(call):
            yield from _check_branch(call, "", program)
        elif callee in holders and callee is not None:
            yield from _check_branch(call, holders[callee], program)


def is_collective(call: CallSite) -> bool:
    """Whether a call waits for the other ranks."""
    if call.name:
        return call.name in COLLECTIVES and not any(one.arg in _GROUPS for one in call.node.keywords)
    return call.method in METHODS.get(call.receiver.kind, ()) or call.method in _ONLY_THERE


def _check_branch(call: CallSite, inside: str, program: CheckedProgram) -> Iterator[Finding]:
    ctx = call.ctx
    if _is_single_process(ctx):
        return
    found = _ranks.guard(call.node, ctx)
    function = ctx.function
    if found is None:
        if inside or function is None or not _ranks.is_for_one_rank(function):
            return
        where = f"in `{function.name}`, which only one rank runs"
    else:
        if _is_called_by_others(call, found, program):
            return
        where = f"under `{_spelling.shortened(ctx.source(found.test))}`, which depends on the rank"
    name = f"`{_spelling.shortened(ctx.source(call.node.func))}`"
    what = f"{name} contains the collective `{inside}` and is called" if inside else f"The collective {name} is called"
    fix = (
        f"Call {name} on every rank, outside the branch, and keep only the work of one rank (printing, saving) inside."
    )
    yield ctx.finding(call.node, f"{what} {where}.", fix)


def _is_single_process(ctx: RuleContext) -> bool:
    """Whether certainly only one process runs the code."""
    found = _workers.launches_of(ctx)
    return bool(found) and all(one.ranks == 1 for one in found)


# -- the other ranks --------------------------------------------------------------------------------------------------


def _is_called_by_others(call: CallSite, guard: _ranks.RankGuard, program: CheckedProgram) -> bool:
    """Whether the other ranks call the same collective in their branch."""
    spelling = _callee_code(call.node)
    if any(_callee_code(node) == spelling for one in guard.others for node in nodes_of(one)):
        return True
    if guard.main is None:
        return False
    others = (one for one in program.all_calls if one.node is not call.node and one.ctx.function is call.ctx.function)
    found = (_ranks.guard(one.node, one.ctx) for one in others if _callee_code(one.node) == spelling)
    return any(one is not None and one.main is (not guard.main) for one in found)


def _callee_code(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


# -- functions that contain one


def _holders(program: CheckedProgram) -> dict[Function, str]:
    """Functions of the program that call a collective on every rank that runs them, with its code."""
    found: dict[Function, str] = {}
    for call in program.all_calls:
        function = call.ctx.function
        if function is None or function in found or not is_collective(call):
            continue
        if _ranks.guard(call.node, call.ctx) is None and not _ranks.is_for_one_rank(function):
            found[function] = _spelling.shortened(call.ctx.source(call.node.func))
    waiting = list(found)
    while waiting:
        one = waiting.pop()
        for call in one.callers:
            outer = call.ctx.function
            if outer is not None and outer not in found and _ranks.guard(call.node, call.ctx) is None:
                found[outer] = found[one]
                waiting.append(outer)
    return found
