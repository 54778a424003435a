"""What an iteration of a training loop does: whether it runs the graph and reduces gradients, and its loader."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _workers
from tpu_magics.check.values import ACCELERATOR, DEVICE, LIST, LOADER, UNKNOWN, AbstractValue

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import Loop, RuleContext

XM = "torch_xla.core.xla_model."
OPTIMIZER_STEP = XM + "optimizer_step"
SYNCS = frozenset((XM + "mark_step", "torch_xla.sync", "torch_xla.step", "torch_xla.torch_xla.sync",
    "torch_xla.torch_xla.step", "torch_xla.compile", "torch_xla.torch_xla.compile", XM + "rendezvous",
    XM + "mesh_reduce", XM + "do_on_ordinals"))  # fmt: skip
COMPILERS = ("torch_xla.compile", "torch_xla.torch_xla.compile", "torch.compile")
REDUCES = frozenset((XM + "reduce_gradients", XM + "all_reduce", XM + "all_reduce_bucketized_gradients",
    "torch.distributed.all_reduce"))  # fmt: skip
# Wrappers and modes under which gradients are reduced by something else.
_OTHERS = ("torch.nn.parallel.", "torch.distributed.fsdp.", "torch_xla.distributed.fsdp.",
    "torch_xla.distributed.zero_redundancy_optimizer.", "torch_xla.distributed.spmd.", "torch_xla.runtime.use_spmd",
    "torch_xla.experimental.spmd_fully_sharded_data_parallel.", "pytorch_lightning.", "lightning.")  # fmt: skip
DEVICE_LOADERS = ("MpDeviceLoader", "ParallelLoader")


def round_calls(loop: Loop, calls: list[CallSite], program: CheckedProgram) -> list[CallSite]:
    """The calls of one iteration of `loop`: those of `calls` in it, and those of the functions that it calls."""
    own = [call for call in calls if loop in call.ctx.loops]
    found, seen = list(own), set()
    waiting = list(own)
    while waiting:
        target = _workers.targets(program).get(id(waiting.pop().node))
        if target is not None and target not in seen:
            seen.add(target)
            found += target.calls
            waiting += target.calls
    return found


def top_calls(program: CheckedProgram) -> list[CallSite]:
    """The calls of the notebook's own statements."""
    return [call for call in program.all_calls if call.ctx.function is None]


def loader_of(loop: Loop) -> AbstractValue | None:
    """The loader of a loop, also through enumerate, zip and tqdm; None if it has none."""
    value = loop.loader
    if value.kind == LOADER:
        return value
    return (
        value.ref if value.kind == LIST and isinstance(value.ref, AbstractValue) and value.ref.kind == LOADER else None
    )


def is_device_loader(value: AbstractValue | None) -> bool:
    """Whether a loader certainly syncs at each batch."""
    return value is not None and value.prepared and value.name.endswith(DEVICE_LOADERS)


def never_syncs(loop: Loop, calls: list[CallSite]) -> bool:
    """Whether the iterable of a loop certainly runs no graph: a plain loader, a range, a list; also an unknown loader
    if the loop moves its batches to the device itself."""
    loader = loader_of(loop)
    if loader is not None and (loader.made is not None or loader.prepared):
        return not loader.prepared and loader.name == "torch.utils.data.DataLoader"
    value = loop.loader
    if not isinstance(loop.node, ast.While) and (value.name == "builtins.range" or value.items is not None):
        return True
    return value.kind in (LIST, LOADER, UNKNOWN) and _moves_batches(loop, calls)


def _moves_batches(loop: Loop, calls: list[CallSite]) -> bool:
    """Whether the loop moves its batches: `x = x.to(device)`."""
    if isinstance(loop.node, ast.While):
        return False
    given = {one.id for one in nodes_of(loop.node.target) if isinstance(one, ast.Name)}
    moves = (call for call in calls if call.method == "to" and call.ctx.loops[-1:] == (loop,) and call.node.args)
    return any(
        call.ctx.value(call.node.args[0]).kind == DEVICE
        and any(isinstance(one, ast.Name) and one.id in given for one in nodes_of(call.node.func))
        for call in moves
    )


def syncs(call: CallSite) -> bool:
    """Whether a call runs the pending graph."""
    if call.name == OPTIMIZER_STEP:
        barrier = call.ctx.argument(call.node, "barrier", 1)
        return call.ctx.has_unknown_arguments(call.node) or (
            barrier is not None and call.ctx.constant(barrier) is not False
        )
    return call.name in SYNCS


def is_compiled(function: Function | None, program: CheckedProgram) -> bool:
    """Whether a function is passed to `torch_xla.compile`, which runs its graph, or to another compiler."""
    if function is None:
        return False
    if any(name in SYNCS or name == "torch.compile" for name in function.decorators):
        return True
    calls = program.calls(*COMPILERS)
    return any(call.ctx.value(one).ref is function for call in calls for one in call.node.args[:1])


def in_step_context(call: CallSite) -> bool:
    """`with torch_xla.step():`"""
    contexts = (parent for parent in call.ctx.parents(call.node) if isinstance(parent, (ast.With, ast.AsyncWith)))
    return any(call.ctx.name(item.context_expr) in SYNCS for one in contexts for item in one.items)


def is_handled(ctx: RuleContext) -> bool:
    """Whether accelerate, SPMD, FSDP, DDP or the eager mode handles the steps here: for the whole program, in this
    function, its outer functions and callers, or in the functions that it calls."""
    handlers = _handlers(ctx.program)
    if not handlers or None in handlers or ctx.function is None:
        return bool(handlers)
    around = set(_workers.around(ctx.function))
    return bool(handlers & around) or bool(handlers & _workers.closure({ctx.function}, ctx.program))


def _handlers(program: CheckedProgram) -> set[Function | None]:
    """The functions that call such a handler; None: the program's own statements or its imports."""
    if "step_handlers" not in program.memo:
        calls = [*program.calls(*_OTHERS)]
        for method in ("prepare", "backward", "prepare_optimizer"):
            calls += program.methods(method, ACCELERATOR)
        calls += [call for call in program.calls("torch_xla.experimental.") if "eager" in call.name]
        found = {call.ctx.function for call in calls}
        if any(name.startswith(_OTHERS) for name in program.imported):
            found.add(None)
        program.memo["step_handlers"] = found
    known: set[Function | None] = program.memo["step_handlers"]
    return known


def optimizer_steps(program: CheckedProgram) -> Iterator[CallSite]:
    """`optimizer.step()` of torch optimizers that nothing has prepared."""
    for call in program.methods("step", "optimizer"):
        if not call.receiver.prepared and call.receiver.lib != "tf":
            yield call
