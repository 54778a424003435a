"""Rules about what several ranks do together (TPU405 to TPU409 of the group `launch`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import ACCELERATOR, MODEL, NOTHING, NUMBER, TRAINER
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _device, _launches, _ranks, _source
from tpu_magics.check.rules._launches import constant
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import Loop, RuleContext


WHY_UNREDUCED = "Each rank uses the gradients of its own batches only: the ranks train different models."
WHY_TWICE = (
    "The operations between the two syncs become a separate graph, which is compiled and run apart from the step."
)


class OptimizerStep(Rule):
    """A hand-written XLA loop whose step is not reduced, never run, or run twice.

    What it does
        Reports, in loops without accelerate, a Trainer, SPMD, FSDP or DDP: `optimizer.step()` in workers of several
        ranks that do not reduce the gradients; a loop with a step that never runs the graph;
        `xm.optimizer_step(optimizer)` without `barrier=True` in a loop over a plain loader; and `barrier=True` where
        the loader or a sync in the loop already runs the graph.
    Why this is bad
        `xm.optimizer_step` averages the gradients of all ranks and then updates the parameters; with `optimizer.step()`
        each rank trains its own model. XLA runs nothing before a sync: without one the graph grows from step to step.
        With two, the operations between them become a separate graph.
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

    code = "TPU405"
    name = "optimizer-step"
    group = "launch"
    why = "XLA runs nothing before a sync: the graph grows with each step, and each new graph is compiled."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.uses("torch_xla") and not program.xla_in_arguments:
            return
        for call in _ranks.optimizer_steps(program):
            if not _ranks.is_handled(call.ctx):
                yield from _plain_step(call, program)
        for call in program.calls(_ranks.OPTIMIZER_STEP):
            if not _ranks.is_handled(call.ctx):
                yield from _xla_step(call, program)


# -- optimizer.step() -------------------------------------------------------------------------------------------------


def _plain_step(call: CallSite, program: CheckedProgram) -> Iterator[Finding]:
    ctx = call.ctx
    if not ctx.on_device:
        return
    unreduced = _launches.in_several(ctx) and not _is_reduced(call, program)
    unrun = _is_on_xla(ctx) and not _has_xla_step_beside(ctx) and _is_never_run(call, program)
    if not unreduced and not unrun:
        return
    name = ctx.source(call.node.func)
    optimizer = ctx.source(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else "optimizer"
    if unreduced:
        written = f"xm.optimizer_step({optimizer}{', barrier=True' if unrun else ''})"
        message = f"`{name}()` runs in several processes without reducing the gradients."
        yield ctx.finding(
            call.node, message, f"Write `{written}`.", WHY_UNREDUCED, _reducing_edits(call, optimizer, unrun)
        )
    else:
        message = f"`{name}()` is called in a loop that never runs the graph."
        yield ctx.finding(call.node, message, f"Call `torch_xla.sync()` after `{name}()`, in the loop.")


def _reducing_edits(call: CallSite, optimizer: str, barrier: bool) -> tuple[Edit, ...]:
    xm = _source.xm(call.ctx)
    if not xm or call.node.args or call.node.keywords:
        return ()
    return (call.ctx.replace(call.node, f"{xm}.optimizer_step({optimizer}{', barrier=True' if barrier else ''})"),)


def _is_reduced(call: CallSite, program: CheckedProgram) -> bool:
    """Whether gradients are reduced, or xm.optimizer_step is called, anywhere in the same workers or function."""
    result = set(_launches.launches_of(call.ctx))
    for other in program.calls(_ranks.OPTIMIZER_STEP, *_ranks.REDUCES):
        if other.ctx.function is call.ctx.function or result & set(_launches.launches_of(other.ctx)):
            return True
    return False


def _has_xla_step_beside(ctx: RuleContext) -> bool:
    """`if tpu: xm.optimizer_step(optimizer) else: optimizer.step()`: this step is for another device."""
    steps = ctx.program.calls(_ranks.OPTIMIZER_STEP)
    return any(one.ctx.function is ctx.function and one.ctx.loops == ctx.loops for one in steps)


def _is_on_xla(ctx: RuleContext) -> bool:
    """Whether the surrounding code certainly uses an XLA device: its function, outer functions and callers, its
    workers, or the notebook."""
    if ctx.program.xla_in_arguments:
        return True
    around = {*_launches.around(ctx.function), None}
    mine = set(_launches.launches_of(ctx))
    calls = ctx.program.calls(*_device.DEVICES)
    return any(call.ctx.function in around or mine & set(_launches.launches_of(call.ctx)) for call in calls)


def _is_never_run(call: CallSite, program: CheckedProgram) -> bool:
    """Whether the step is in a loop, here or in the only caller, that never runs the graph."""
    ctx, depth = call.ctx, 3
    inside = [call]
    while not ctx.loops and ctx.function is not None and len(ctx.function.callers) == 1 and depth:
        if _ranks.is_compiled(ctx.function, program) or any(_ranks.syncs(one) for one in ctx.function.calls):
            return False
        inside.append(ctx.function.callers[0])
        ctx, depth = ctx.function.callers[0].ctx, depth - 1
    if not ctx.loops or any(map(_ranks.in_step_context, inside)) or _ranks.is_compiled(ctx.function, program):
        return False
    return _is_unrun_loop(ctx, program)


def _is_unrun_loop(ctx: RuleContext, program: CheckedProgram) -> bool:
    calls = (
        ctx.function.calls
        if ctx.function is not None
        else [one for one in program.all_calls if one.ctx.function is None]
    )
    if not _ranks.never_syncs(ctx.loops[-1], calls):
        return False
    for loop in ctx.loops:
        if _ranks.is_device_loader(_ranks.loader_of(loop)) or any(
            map(_may_run_graph, _ranks.round_calls(loop, calls, program))
        ):
            return False
    return True


def _may_run_graph(call: CallSite) -> bool:
    """Whether a call in an iteration runs the graph, or may run it."""
    return _ranks.syncs(call) or call.name == "builtins.next"


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
    written = _source.add_argument(call.node, "barrier=True", ctx)
    return ctx.finding(
        call.node, message, fix, edits=[ctx.replace(barrier, "True")] if barrier is not None else written
    )


def _synced_again(call: CallSite) -> str:
    """The code that syncs in each iteration besides the step; "" if nothing certainly does."""
    ctx = call.ctx
    if not ctx.loops:
        return ""
    loop = ctx.loops[-1]
    loader = _ranks.loader_of(loop)
    if _ranks.is_device_loader(loader) and loader is not None:
        return f"the `{loader.name.rpartition('.')[2]}`"
    calls = ctx.function.calls if ctx.function is not None else _ranks.top_calls(ctx.program)
    names = ("torch_xla.core.xla_model.mark_step", "torch_xla.sync")
    others = [one for one in calls if one.name in names and one.ctx.loops[-1:] == (loop,) and _is_in_body(one, loop)]
    return f"`{ctx.source(others[0].node)}` in the same loop" if others and _is_in_body(call, loop) else ""


def _is_in_body(call: CallSite, loop: Loop) -> bool:
    """Whether a call is an unconditional statement of the loop's body."""
    statement = call.ctx.parent(call.node)
    return isinstance(statement, ast.stmt) and any(one is statement for one in loop.node.body)


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
COLLECTIVE_METHODS = {
    ACCELERATOR: frozenset(("gather", "gather_for_metrics", "reduce", "wait_for_everyone", "pad_across_processes",
        "check_trigger")),
    TRAINER: frozenset(("train", "evaluate", "predict")),
}  # fmt: skip
# Arguments that limit a collective to some ranks.
_GROUPS = ("group", "groups", "replicas")
# Methods that only an accelerator has.
_ACCELERATOR_METHODS = frozenset(("gather_for_metrics", "wait_for_everyone"))


class RankBranchCollective(Rule):
    """A collective that only some ranks call.

    What it does
        Reports collectives (`xm.all_reduce`, `xm.rendezvous`, `xm.mesh_reduce`, `xm.optimizer_step`, `dist.barrier`,
        `accelerator.gather`, `accelerator.wait_for_everyone`, `trainer.evaluate`, ...) inside a branch on the rank,
        after `if not is_main: return`, or in a function for the main process only; and calls there of functions that
        contain a collective.
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
        Ranks that leave a loop after different numbers of iterations, and conditions that depend on the rank
        indirectly, are not found. `xm.save` and `accelerator.save_state` wait for no other rank in torch_xla 2.9 and
        accelerate 1.15 and are not reported. A collective is fine if the other ranks make the same call in the opposite
        branch.
    """

    code = "TPU406"
    name = "rank-branch-collective"
    group = "launch"
    why = "A collective finishes only after all ranks have called it: the ranks that call this one wait forever."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.xla:
            return
        holders = _collective_functions(program)
        for call in program.all_calls:
            callee = _launches.targets(program).get(id(call.node))
            if is_collective(call):
                yield from _check_branch(call, "", program)
            elif callee in holders and callee is not None:
                yield from _check_branch(call, holders[callee], program)


def is_collective(call: CallSite) -> bool:
    """Whether a call waits for the other ranks."""
    if call.name:
        return call.name in COLLECTIVES and not any(one.arg in _GROUPS for one in call.node.keywords)
    return call.method in COLLECTIVE_METHODS.get(call.receiver.kind, ()) or call.method in _ACCELERATOR_METHODS


def _check_branch(call: CallSite, inside: str, program: CheckedProgram) -> Iterator[Finding]:
    ctx = call.ctx
    if _is_single_process(ctx):
        return
    result = _ranks.guard(call.node, ctx)
    function = ctx.function
    if result is None:
        if inside or function is None or not _ranks.is_for_one_rank(function):
            return
        where = f"in `{function.name}`, which only one rank runs"
    else:
        if _is_called_by_others(call, result, program):
            return
        where = f"under `{_source.shortened(ctx.source(result.test))}`, which depends on the rank"
    name = f"`{_source.shortened(ctx.source(call.node.func))}`"
    what = f"{name} contains the collective `{inside}` and is called" if inside else f"The collective {name} is called"
    fix = (
        f"Call {name} on every rank, outside the branch, and keep only the work of one rank (printing, saving) inside."
    )
    yield ctx.finding(call.node, f"{what} {where}.", fix)


def _is_single_process(ctx: RuleContext) -> bool:
    """Whether certainly only one process runs the code."""
    result = _launches.launches_of(ctx)
    return bool(result) and all(one.ranks == 1 for one in result)


# -- the other ranks --------------------------------------------------------------------------------------------------


def _is_called_by_others(call: CallSite, guard: _ranks.RankGuard, program: CheckedProgram) -> bool:
    """Whether the other ranks call the same collective in their branch."""
    spelling = _callee_code(call.node)
    if any(_callee_code(node) == spelling for one in guard.others for node in nodes_of(one)):
        return True
    if guard.main is None:
        return False
    others = (one for one in program.all_calls if one.node is not call.node and one.ctx.function is call.ctx.function)
    result = (_ranks.guard(one.node, one.ctx) for one in others if _callee_code(one.node) == spelling)
    return any(one is not None and one.main is (not guard.main) for one in result)


def _callee_code(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


# -- functions that contain one


def _collective_functions(program: CheckedProgram) -> dict[Function, str]:
    """Functions of the program that call a collective on every rank that runs them, with its code."""
    result: dict[Function, str] = {}
    for call in program.all_calls:
        function = call.ctx.function
        if function is None or function in result or not is_collective(call):
            continue
        if _ranks.guard(call.node, call.ctx) is None and not _ranks.is_for_one_rank(function):
            result[function] = _source.shortened(call.ctx.source(call.node.func))
    waiting = list(result)
    while waiting:
        one = waiting.pop()
        for call in one.callers:
            outer = call.ctx.function
            if outer is not None and outer not in result and _ranks.guard(call.node, call.ctx) is None:
                result[outer] = result[one]
                waiting.append(outer)
    return result


_PLAIN_SAMPLERS = frozenset(
    "torch.utils.data." + one for one in ("RandomSampler", "SequentialSampler", "WeightedRandomSampler")
)
_SPLITS = re.compile(
    r"world_?size|num_?(shards|replicas|processes)|ordinal|\brank\b|process_index|IterableDataset|streaming"
)


class NoDistributedSampler(Rule):
    """Every rank trains on the same data.

    What it does
        Reports a `DataLoader` for training without a distributed sampler in the workers of a hand-written loop:
        launched in several processes, without accelerate or a Trainer.
    Why this is bad
        Each rank then trains on the whole dataset: eight chips do the work of one, eight times, and an epoch takes as
        long as on one chip.
    Example
        def _mp_fn(index):
            loader = DataLoader(dataset, batch_size=32, shuffle=True)
    Use instead
        def _mp_fn(index):
            sampler = DistributedSampler(dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
            loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    Limitations
        A dataset that already differs between ranks is reported if the code does not show it. Loaders for evaluation
        (by name, or used without a step), iterable datasets, and data that depends on the rank are not reported.
    """

    code = "TPU407"
    name = "no-distributed-sampler"
    group = "launch"
    why = (
        "Each rank trains on the whole dataset: all chips do the same work, and an epoch takes as long as on one chip."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.uses("torch_xla") or program.calls("transformers.Trainer"):
            return
        for call in program.calls(_ranks.DATA_LOADER):
            if not _is_in_workers(call, program) or _is_handled(call, program) or _is_split(call):
                continue
            if not _ranks.is_for_evaluation(call, program):
                yield _sampler_finding(call)


def _sampler_finding(call: CallSite) -> Finding:
    ctx = call.ctx
    data = ctx.argument(call.node, "dataset", 0)
    shown = ctx.source(data) if data is not None else "dataset"
    sampler = f"DistributedSampler({shown}, num_replicas=xr.world_size(), rank=xr.global_ordinal())"
    instead = " instead of `shuffle`" if ctx.argument(call.node, "shuffle", 2) is not None else ""
    fix = f"Pass `sampler={sampler}`{instead}."
    return ctx.finding(call.node, f"The DataLoader over `{shown}` gives every rank all of the data.", fix)


def _is_in_workers(call: CallSite, program: CheckedProgram) -> bool:
    """Whether several workers use the loader: they make it, or read it from the notebook, in a function, in the
    statements of a cell, or as an argument."""
    if _launches.in_several(call.ctx):
        return True
    if not call.ctx.top_level or _launches.launches_of(call.ctx):
        return False
    readers = _readers(call, program)
    if any(_launches.in_several(one.ctx) for one in readers):
        return True
    names = set(_source.target_names(call.ctx, call.node))
    return any(one.passes(names) and _launches.starts_several(one, program) for one in _launches.launches(program))


def _readers(call: CallSite, program: CheckedProgram) -> list[CallSite]:
    """A call in each function and each cell of plain statements that reads the loader by its name."""
    names = set(_source.target_names(call.ctx, call.node))
    readers = [one.calls[0] for one in program.functions if one.calls and one.reads & names]
    readers += [one for one in program.all_calls if _launches.in_statements(one.ctx) and _reads(one.ctx.cell, names)]
    return readers


def _is_handled(call: CallSite, program: CheckedProgram) -> bool:
    """Whether something shares the data of a loader out, where it is made or in the workers that use it."""
    if _ranks.is_handled(call.ctx):
        return True
    names = set(_source.target_names(call.ctx, call.node))
    passing = [one.function for one in _launches.launches(program) if one.function is not None and one.passes(names)]
    used = [*_readers(call, program), *(one.calls[0] for one in passing if one.calls)]
    return any(_ranks.is_handled(one.ctx) and _ranks.uses(one.ctx, call) for one in used)


def _reads(cell: CodeCell, names: set[str]) -> bool:
    loads = (one for one in nodes_of(cell.tree) if isinstance(one, ast.Name)) if cell.tree is not None else ()
    return any(one.id in names and isinstance(one.ctx, ast.Load) for one in loads)


def _is_split(call: CallSite) -> bool:
    """Whether the ranks get different data, or it is unknown."""
    ctx, node = call.ctx, call.node
    if ctx.has_unknown_arguments(node) or ctx.argument(node, "batch_sampler", 4) is not None:
        return True
    sampler = ctx.argument(node, "sampler", 3)
    if sampler is not None and not _is_plain(sampler, ctx):
        return True
    data = ctx.argument(node, "dataset", 0)
    return data is None or _is_own(data, ctx)


def _is_plain(sampler: ast.expr, ctx: RuleContext) -> bool:
    """Whether a sampler ignores ranks."""
    value = ctx.value(sampler)
    if value.kind == NUMBER and value.const is not NOTHING:
        return value.const is None and isinstance(sampler, ast.Constant)
    return value.name in _PLAIN_SAMPLERS


def _is_own(data: ast.expr, ctx: RuleContext) -> bool:
    """Whether the dataset depends on the rank, or is an iterable dataset that splits itself."""
    value = ctx.value(data)
    if "IterableDataset" in value.name:
        return True
    if value.ref is not None and any("IterableDataset" in base for base in value.ref.all_bases()):
        return True
    if _ranks.depends(data, ctx) or _SPLITS.search(ctx.source(data)):
        return True
    creator = value.creator
    if creator is not None and _SPLITS.search(ctx.program.cells[value.creator_ctx.cell_index].segment(creator)):
        return True
    values = _ranks.definitions(ctx.function).get(data.id, []) if isinstance(data, ast.Name) and ctx.function else []
    return any(_ranks.depends(one, ctx) or _SPLITS.search(ctx.source(one)) for one in values)


SAVES = ("torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "json.dump", "pickle.dump",
    "safetensors.torch.save_file", "safetensors.torch.save_model", "joblib.dump", "torch.jit.save")  # fmt: skip
XM_SAVE = "torch_xla.core.xla_model.save"
SAVE_METHODS = ("save_pretrained",)
_GUARDS = ("is_main_process", "save_function")


class SaveOnEveryRank(Rule):
    """Every rank writes the same file.

    What it does
        Reports `torch.save`, `xm.save(..., master_only=False)`, `save_pretrained`, `np.save`, `json.dump`,
        `pickle.dump` and safetensors' `save_file` that every rank of launched workers runs; and, in a program that
        launches nothing itself, a function with its own Accelerator that saves a model's weights on every rank.
    Why this is bad
        All ranks write to the same path at the same time: the file may be corrupted, and eight chips wait for the disk.
        A file that `torch.save` writes from an XLA device also needs XLA to be loaded again.
    Example
        def training_function(model):
            ...
            torch.save(model.state_dict(), "model.pt")
    Use instead
        def training_function(model):
            ...
            xm.save(model.state_dict(), "model.pt")  # moved to the CPU, written by the main rank only

        # after %%tpu_train the trained weights are in the notebook's model: it can be saved in the next cell
    Limitations
        Other ways to write (`open(...).write`, `to_csv`, `savefig`) are not checked. Saves under a condition on the
        rank, with `accelerator.save`, with `is_main_process=`, or to a path that contains the rank are fine.
    """

    code = "TPU408"
    name = "save-on-every-rank"
    group = "launch"
    why = "All ranks write the same file at the same time: it may be corrupted, and all of them wait for the disk."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        launched = bool(_launches.launches(program))
        if not launched and not program.uses("accelerate"):
            return
        calls = [
            *program.calls(*SAVES, XM_SAVE),
            *(call for method in SAVE_METHODS for call in program.methods(method)),
        ]
        for call in calls:
            if (_launches.may_be_several(call.ctx) or (not launched and _is_accelerated(call))) and not _is_allowed(
                call
            ):
                yield _save_finding(call)


def _is_accelerated(call: CallSite) -> bool:
    """Whether a function with its own Accelerator saves the model's weights: `accelerate launch` or another launcher
    runs it in each process."""
    sharded = any("Parallel" in name for name in call.ctx.program.imported)  # then all ranks take part in a save
    if sharded or not _saves_model(call) or call.ctx.function is None:
        return False
    own = set(_launches.around(call.ctx.function))
    accelerators = [one for one in call.ctx.program.calls("accelerate.Accelerator") if one.ctx.function in own]
    prepares = any(one.ctx.function in own for one in call.ctx.program.methods("prepare", ACCELERATOR))
    return prepares and bool(accelerators) and not any(map(_device.on_cpu, accelerators))


def _is_allowed(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if call.name == XM_SAVE and ctx.constant(ctx.argument(node, "master_only", 2)) is not False:
        return True
    if any(ctx.argument(node, name) is not None for name in _GUARDS) or ctx.has_unknown_arguments(node):
        return True
    return _is_in_memory(call) or _has_own_path(node, ctx) or _ranks.is_guarded(node, ctx)


def _is_in_memory(call: CallSite) -> bool:
    """`torch.save(x, io.BytesIO())`, also through a name."""
    for given in call.node.args[1:2]:
        values = [given]
        if isinstance(given, ast.Name) and call.ctx.function is not None:
            values += _ranks.definitions(call.ctx.function).get(given.id, [])
        if any("BytesIO" in call.ctx.source(one) for one in values):
            return True
    return False


def _has_own_path(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the rank is part of an argument: each rank writes a file of its own."""
    parts = [*node.args, *(one.value for one in node.keywords)]
    return any(_ranks.depends(one, ctx) for one in (*parts, *_opened_paths(node, ctx)))


def _opened_paths(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    """The path of `with open(path, "w") as file` around `json.dump(x, file)`."""
    for parent in ctx.parents(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in parent.items)
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return


# -- the message ------------------------------------------------------------------------------------------------------


def _save_finding(call: CallSite) -> Finding:
    ctx = call.ctx
    code = _source.quoted(ctx.source(call.node.func))
    fix = _save_fix(call)
    if ctx.notebook and any(one.ours for one in _launches.launches_of(ctx)) and _saves_model(call):
        fix += " After %%tpu_train the notebook's model has the trained weights: save it in the next cell."
    return ctx.finding(
        call.node, f"{code} runs on every rank and writes the same file on each.", fix, edits=_save_edits(call)
    )


def _saves_model(call: CallSite) -> bool:
    return call.name == "torch.save" or call.receiver.kind == MODEL


def _save_fix(call: CallSite) -> str:
    ctx = call.ctx
    hugging_face = bool(ctx.program.methods("prepare", "accelerator"))
    if call.name == XM_SAVE:
        return "Remove `master_only=False`, or include the rank in the path."
    if call.name == "torch.save":
        given = ", ".join(_to_save(call))
        return f"Write `{'accelerator' if hugging_face else 'xm'}.save({given})`: one rank writes it, from the CPU."
    if call.receiver.kind == MODEL and ctx.program.calls("transformers.Trainer"):
        return "Call `trainer.save_model(...)`, which writes on one rank."
    if call.receiver.kind == MODEL and hugging_face:
        return "Pass `is_main_process=accelerator.is_main_process, save_function=accelerator.save`."
    opened = next(filter(None, (_opening(one, ctx) for one in call.node.args)), None)
    what = "it" if opened is None else f"it and {_source.quoted(ctx.source(opened))}, which empties the file,"
    return f"Put {what} under `if {'accelerator.is_main_process' if hugging_face else 'xm.is_master_ordinal()'}:`."


def _to_save(call: CallSite) -> Iterator[str]:
    """The arguments of `torch.save` for `xm.save` and `accelerator.save`: of a whole model the parameters would stay on
    the device, and opening a file for writing empties it, on every rank."""
    for number, one in enumerate(call.node.args):
        source, opened = call.ctx.source(one), _opening(one, call.ctx) if number == 1 else None
        if number == 0 and call.ctx.value(one).kind == MODEL:
            yield f"{source}.state_dict()"
        else:
            yield call.ctx.source(opened.args[0]) if opened is not None else source


def _opening(node: ast.expr | None, ctx: RuleContext) -> ast.Call | None:
    """The `open(path, "wb")` of a file: itself, or that of `with open(path, "wb") as file` for `file`."""
    values = [node]
    if isinstance(node, ast.Name):
        items = (one for parent in ctx.parents(node) if isinstance(parent, ast.With) for one in parent.items)
        bound = ((one.optional_vars, one.context_expr) for one in items)
        values = [value for name, value in bound if isinstance(name, ast.Name) and name.id == node.id]
    for one in values:
        if isinstance(one, ast.Call) and one.args and isinstance(one.func, ast.Name) and one.func.id == "open":
            return one
    return None


def _save_edits(call: CallSite) -> tuple[Edit, ...]:
    """`xm.save` takes the same two arguments."""
    xm = _source.xm(call.ctx)
    if list(_to_save(call)) != [call.ctx.source(one) for one in call.node.args]:
        return ()  # what is in the file is loaded in another way, or the `with` is to go
    if call.name != "torch.save" or not xm or len(call.node.args) != 2 or call.node.keywords:
        return ()
    return (call.ctx.replace(call.node.func, f"{xm}.save"),)


ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
TRAIN, EVALUATION = "per_device_train_batch_size", "per_device_eval_batch_size"
Size = tuple["CallSite", ast.expr, int]


class EvalBatchSize(Rule):
    """Evaluation with another batch size than training.

    What it does
        Reports an evaluation batch size that differs from the training batch size, if both are known: of DataLoaders,
        of `TrainingArguments`, of Keras' `fit`, `evaluate` and `predict`, and of tf.data pipelines for a TPU.
    Why this is bad
        It is advice: evaluation compiles a graph of its own with any batch size. A larger batch needs memory that the
        training has not shown to be there.
    Example
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
        eval_loader = DataLoader(eval_set, batch_size=64)
    Use instead
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
        eval_loader = DataLoader(eval_set, batch_size=32)
    Limitations
        Batch sizes that are known only at run time, and the purpose of a loader whose name does not show it, are
        unknown.
    """

    code = "TPU409"
    name = "eval-batch-size"
    group = "launch"
    in_tests = False
    why = (
        "Evaluation compiles a graph of its own with any batch size, but a larger batch needs memory that the training "
        "has not shown to be there."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if program.xla:
            yield from _unequal_loaders(list(_loader_sizes(program)))
            yield from _unequal_arguments(program)
        if program.tpu_tf or _compiles_keras(program):
            yield from _unequal_fits(program)
            yield from _unequal_pipelines(program)


def _batch_size_finding(size: Size, training: int) -> Finding:
    call, node, result = size
    what = f"Evaluation has a batch size of {result}, training has {training}."
    fix = f"No change is needed where it fits; with the training batch size ({training}) it needs no more memory."
    return call.ctx.finding(node, what, fix, advice=True)


def _known_size(call: CallSite, name: str, position: int | None = None) -> tuple[ast.expr, int] | None:
    node = call.ctx.argument(call.node, name, position)
    result = constant(node, call.ctx)
    return (node, result) if node is not None and isinstance(result, int) and not isinstance(result, bool) else None


# -- torch ------------------------------------------------------------------------------------------------------------


def _loader_sizes(program: CheckedProgram) -> Iterator[tuple[str, Size]]:
    for call in program.calls(_ranks.DATA_LOADER):
        result = _known_size(call, "batch_size", 1)
        purpose = _ranks.purpose(call)
        if result is not None and purpose:
            yield purpose, (call, *result)


def _unequal_loaders(sizes: list[tuple[str, Size]]) -> Iterator[Finding]:
    """Evaluation sizes that no training uses: in the same function, or if it has none, in the program."""
    training = [size for purpose, size in sizes if purpose == _source.TRAINING]
    for purpose, size in sizes:
        if purpose != _source.EVALUATION:
            continue
        near = [one for one in training if one[0].ctx.function is size[0].ctx.function] or training
        if near and size[2] not in {result for _, _, result in near}:
            yield _batch_size_finding(size, near[-1][2])


def _unequal_arguments(program: CheckedProgram) -> Iterator[Finding]:
    for call in program.calls(*ARGUMENTS):
        training, evaluation = _known_size(call, TRAIN), _known_size(call, EVALUATION)
        if training is not None and evaluation is not None and training[1] != evaluation[1]:
            yield _batch_size_finding((call, *evaluation), training[1])


# -- TensorFlow -------------------------------------------------------------------------------------------------------


def _compiles_keras(program: CheckedProgram) -> bool:
    settings = (
        call.ctx.constant(call.ctx.argument(call.node, "jit_compile")) for call in program.methods("compile", MODEL)
    )
    return any(one is True for one in settings)


def _unequal_fits(program: CheckedProgram) -> Iterator[Finding]:
    fits = [call for call in program.methods("fit") if call.receiver.kind == MODEL]
    sizes = [(call, result) for call in fits if (result := _known_size(call, "batch_size", 2)) is not None]
    for call, (_, training) in sizes:
        other = _known_size(call, "validation_batch_size")
        if other is not None and other[1] != training:
            yield _batch_size_finding((call, *other), training)
    known = {training for _, (_, training) in sizes}
    for method, position in (("evaluate", 2), ("predict", 1)):
        for call in program.methods(method):
            result = _known_size(call, "batch_size", position) if call.receiver.kind == MODEL else None
            if result is not None and known and result[1] not in known:
                yield _batch_size_finding((call, *result), max(known))


def _unequal_pipelines(program: CheckedProgram) -> Iterator[Finding]:
    """`train_ds.batch(32)` and `val_ds.batch(64)`."""
    sizes: dict[str, list[Size]] = {_source.TRAINING: [], _source.EVALUATION: []}
    for call in program.methods("batch", "tf.data"):
        result = _known_size(call, "batch_size", 0)
        purpose = _source.purpose_of(_source.target_names(call.ctx, call.node))
        if result is not None and purpose:
            sizes[purpose].append((call, *result))
    known = {result for _, _, result in sizes[_source.TRAINING]}
    for size in sizes[_source.EVALUATION]:
        if known and size[2] not in known:
            yield _batch_size_finding(size, max(known))


RULES = (OptimizerStep(), RankBranchCollective(), NoDistributedSampler(), SaveOnEveryRank(), EvalBatchSize())
