"""A hand-written XLA loop whose step is not reduced, never run, or run twice.

What it does
    Reports, in loops without accelerate, a Trainer, SPMD, FSDP or DDP: `optimizer.step()` in workers of several ranks
    that do not reduce the gradients; a loop with a step that never runs the graph; `xm.optimizer_step(optimizer)`
    without `barrier=True` in a loop over a plain loader; and `barrier=True` where the loader or a sync in the loop
    already runs the graph.
Why this is bad
    `xm.optimizer_step` averages the gradients of all ranks and then updates the parameters; with `optimizer.step()`
    each rank trains its own model. XLA runs nothing before a sync: without one the graph grows from step to step. With
    two, the operations between them become a separate graph.
Example
    for x, y in loader:
        loss_fn(model(x.to(device)), y.to(device)).backward()
        xm.optimizer_step(optimizer)
Use instead
    for x, y in loader:
        loss_fn(model(x.to(device)), y.to(device)).backward()
        xm.optimizer_step(optimizer, barrier=True)

    # or go over an MpDeviceLoader(loader, device), which syncs at each batch
Limitations
    A loader of unknown origin is not checked, unless the loop itself moves its batches to the device. In a single
    process `optimizer.step(); torch_xla.sync()` is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _runtime, _spelling, _steps, _workers

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import Loop, RuleContext

CODE = "TPU405"
NAME = "optimizer-step"
GROUP = "launch"
WHY = "XLA runs nothing before a sync: the graph grows with each step, and each new graph is compiled."
WHY_UNREDUCED = "Each rank uses the gradients of its own batches only: the ranks train different models."
WHY_TWICE = (
    "The operations between the two syncs become a separate graph, which is compiled and run apart from the step."
)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.uses("torch_xla"):
        return
    for call in _steps.optimizer_steps(program):
        if not _steps.is_handled(call.ctx):
            yield from _plain_step(call, program)
    for call in program.calls(_steps.OPTIMIZER_STEP):
        if not _steps.is_handled(call.ctx):
            yield from _xla_step(call, program)


# -- optimizer.step() -------------------------------------------------------------------------------------------------


def _plain_step(call: CallSite, program: CheckedProgram) -> Iterator[Finding]:
    ctx = call.ctx
    if not ctx.on_device:
        return
    unreduced = _workers.in_several(ctx) and not _is_reduced(call, program)
    unrun = _is_on_xla(ctx) and not _has_xla_step_beside(ctx) and _is_never_run(call, program)
    if not unreduced and not unrun:
        return
    name = ctx.source(call.node.func)
    optimizer = ctx.source(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else "optimizer"
    if unreduced:
        written = f"xm.optimizer_step({optimizer}{', barrier=True' if unrun else ''})"
        message = f"`{name}()` runs in several processes without reducing the gradients."
        yield ctx.finding(call.node, message, f"Write `{written}`.", WHY_UNREDUCED, _reducing(call, optimizer, unrun))
    else:
        message = f"`{name}()` is called in a loop that never runs the graph."
        yield ctx.finding(call.node, message, f"Call `torch_xla.sync()` after `{name}()`, in the loop.")


def _reducing(call: CallSite, optimizer: str, barrier: bool) -> tuple[Edit, ...]:
    xm = _spelling.xm(call.ctx)
    if not xm or call.node.args or call.node.keywords:
        return ()
    return (call.ctx.replace(call.node, f"{xm}.optimizer_step({optimizer}{', barrier=True' if barrier else ''})"),)


def _is_reduced(call: CallSite, program: CheckedProgram) -> bool:
    """Whether gradients are reduced, or xm.optimizer_step is called, anywhere in the same workers or function."""
    found = set(_workers.launches_of(call.ctx))
    for other in program.calls(_steps.OPTIMIZER_STEP, *_steps.REDUCES):
        if other.ctx.function is call.ctx.function or found & set(_workers.launches_of(other.ctx)):
            return True
    return False


def _has_xla_step_beside(ctx: RuleContext) -> bool:
    """`if tpu: xm.optimizer_step(optimizer) else: optimizer.step()`: this step is for another device."""
    steps = ctx.program.calls(_steps.OPTIMIZER_STEP)
    return any(one.ctx.function is ctx.function and one.ctx.loops == ctx.loops for one in steps)


def _is_on_xla(ctx: RuleContext) -> bool:
    """Whether the surrounding code certainly uses an XLA device: its function, outer functions and callers, its
    workers, or the notebook."""
    around = {*_workers.around(ctx.function), None}
    mine = set(_workers.launches_of(ctx))
    calls = ctx.program.calls(*_runtime.DEVICES)
    return any(call.ctx.function in around or mine & set(_workers.launches_of(call.ctx)) for call in calls)


def _is_never_run(call: CallSite, program: CheckedProgram) -> bool:
    """Whether the step is in a loop, here or in the only caller, that never runs the graph."""
    ctx, depth = call.ctx, 3
    inside = [call]
    while not ctx.loops and ctx.function is not None and len(ctx.function.callers) == 1 and depth:
        if _steps.is_compiled(ctx.function, program) or any(_steps.syncs(one) for one in ctx.function.calls):
            return False
        inside.append(ctx.function.callers[0])
        ctx, depth = ctx.function.callers[0].ctx, depth - 1
    if not ctx.loops or any(map(_steps.in_step_context, inside)) or _steps.is_compiled(ctx.function, program):
        return False
    return _is_unrun_loop(ctx, program)


def _is_unrun_loop(ctx: RuleContext, program: CheckedProgram) -> bool:
    calls = (
        ctx.function.calls
        if ctx.function is not None
        else [one for one in program.all_calls if one.ctx.function is None]
    )
    if not _steps.never_syncs(ctx.loops[-1], calls):
        return False
    for loop in ctx.loops:
        if _steps.is_device_loader(_steps.loader_of(loop)) or any(map(_ends, _steps.round_calls(loop, calls, program))):
            return False
    return True


def _ends(call: CallSite) -> bool:
    """Whether a call in an iteration runs the graph, or may run it."""
    return _steps.syncs(call) or call.name == "builtins.next"


# -- xm.optimizer_step ------------------------------------------------------------------------------------------------


def _xla_step(call: CallSite, program: CheckedProgram) -> Iterator[Finding]:
    ctx = call.ctx
    if ctx.has_unknown_arguments(call.node):
        return
    barrier = ctx.argument(call.node, "barrier", 1)
    if barrier is None or ctx.constant(barrier) is False:
        if _is_never_run(call, program):
            yield _without_barrier(call, barrier)
    elif ctx.constant(barrier) is True and (again := _synced_again(call)):
        message = f"`barrier=True` syncs in each step, and {again} syncs again."
        fix = "Remove `barrier=True`: one sync per step is enough."
        yield ctx.finding(call.node, message, fix, WHY_TWICE, [ctx.replace(barrier, "False")])


def _without_barrier(call: CallSite, barrier: ast.expr | None) -> Finding:
    ctx = call.ctx
    optimizer = ctx.source(call.node.args[0]) if call.node.args else "optimizer"
    message = f"`{ctx.source(call.node)}` has no barrier, and nothing else in the loop runs the graph."
    fix = f"Write `xm.optimizer_step({optimizer}, barrier=True)`, or use an MpDeviceLoader, which syncs at each batch."
    written = _argument_edits.add_argument(call.node, "barrier=True", ctx)
    return ctx.finding(
        call.node, message, fix, edits=[ctx.replace(barrier, "True")] if barrier is not None else written
    )


def _synced_again(call: CallSite) -> str:
    """The code that syncs in each iteration besides the step; "" if nothing certainly does."""
    ctx = call.ctx
    if not ctx.loops:
        return ""
    loop = ctx.loops[-1]
    loader = _steps.loader_of(loop)
    if _steps.is_device_loader(loader) and loader is not None:
        return f"the `{loader.name.rpartition('.')[2]}`"
    calls = ctx.function.calls if ctx.function is not None else _steps.top_calls(ctx.program)
    names = ("torch_xla.core.xla_model.mark_step", "torch_xla.sync")
    others = [one for one in calls if one.name in names and one.ctx.loops[-1:] == (loop,) and _is_in_body(one, loop)]
    return f"`{ctx.source(others[0].node)}` in the same loop" if others and _is_in_body(call, loop) else ""


def _is_in_body(call: CallSite, loop: Loop) -> bool:
    """Whether a call is an unconditional statement of the loop's body."""
    statement = call.ctx.parent(call.node)
    return isinstance(statement, ast.stmt) and any(one is statement for one in loop.node.body)
