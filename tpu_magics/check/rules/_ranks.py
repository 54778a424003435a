"""Code that depends on the rank, the loops of training steps, and the purpose of their loaders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import ACCELERATOR, DEVICE, LIST, LOADER, UNKNOWN, AbstractValue
from tpu_magics.check.program import remembered
from tpu_magics.check.reachability import used_lines
from tpu_magics.check.rules import _launches
from tpu_magics.check.rules._source import EVALUATION, TRAINING, purpose_of, target_names
from tpu_magics.check.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import Loop, RuleContext


RANK = "%rank"
_ATTRIBUTES = frozenset(
    ("is_main_process", "is_local_main_process", "is_last_process", "process_index", "local_process_index",
     "is_world_process_zero", "is_local_process_zero", "is_global_zero", "global_rank", "local_rank", "global_ordinal",
     "local_ordinal", "is_master_ordinal", "is_master", "is_main")
)  # fmt: skip
_PARAMETERS = frozenset(
    ("rank", "local_rank", "global_rank", "ordinal", "is_main", "is_master", "is_main_process", "process_index",
     "is_rank_zero", "is_master_process")
)  # fmt: skip
_DECORATORS = frozenset(
    ("on_main_process", "on_local_main_process", "on_last_process", "on_process", "on_local_process", "rank_zero_only")
)
_VARIABLES = frozenset(("RANK", "LOCAL_RANK"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_DEPTH = 5


@dataclass(frozen=True)
class RankGuard:
    """A condition on the rank before a node. `others`: the code of the other ranks; `main`: whether the ranks that run
    the node are the main one (True), all but it (False), or unknown (None)."""

    test: ast.expr
    others: Sequence[ast.stmt | ast.expr]
    main: bool | None


def guard(node: ast.AST, ctx: RuleContext) -> RankGuard | None:
    """The innermost condition on the rank that decides whether `node` runs, in its own function."""
    child = node
    for parent in ctx.parents(node):
        result = _of_parent(parent, child, ctx)
        if result is not None:
            return result
        if isinstance(parent, _FUNCTIONS):
            return None
        child = parent
    return None


def _of_parent(parent: ast.AST, child: ast.AST, ctx: RuleContext) -> RankGuard | None:
    if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and depends(parent.test, ctx):
        body, orelse = _branches(parent)
        first = child in body
        main = polarity(parent.test, ctx)
        return RankGuard(parent.test, orelse if first else body, main if first or main is None else not main)
    if isinstance(parent, ast.BoolOp):
        before = parent.values[: next((n for n, one in enumerate(parent.values) if one is child), 0)]
        test = next((one for one in before if depends(one, ctx)), None)
        return None if test is None else RankGuard(test, (), polarity(test, ctx))
    return _early_exit(parent, child, ctx) if isinstance(child, ast.stmt) else None


def _branches(node: ast.If | ast.IfExp) -> tuple[Sequence[ast.stmt | ast.expr], Sequence[ast.stmt | ast.expr]]:
    if isinstance(node, ast.IfExp):
        return [node.body], [node.orelse]
    return node.body, node.orelse


def _early_exit(parent: ast.AST, child: ast.stmt, ctx: RuleContext) -> RankGuard | None:
    """`if not is_main: return` before the node."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            for one in block[: block.index(child)]:
                leaves = isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], _LEAVING)
                if leaves and isinstance(one, ast.If) and depends(one.test, ctx):
                    main = polarity(one.test, ctx)
                    return RankGuard(one.test, one.body, None if main is None else not main)
    return None


# -- dependence on the rank


def depends(node: ast.expr, ctx: RuleContext, depth: int = _DEPTH) -> bool:
    """Whether an expression has other values on other ranks."""
    return any(_is_rank(one, ctx, depth) for one in nodes_of(node))


def _is_rank(node: ast.AST, ctx: RuleContext, depth: int) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Constant)):
        return False
    if ctx.value(node).name == RANK:
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    if isinstance(node, ast.Constant):
        return node.value in _VARIABLES if isinstance(node.value, str) else False
    return isinstance(node, ast.Name) and depth > 0 and _is_rank_name(node.id, ctx, depth)


def _is_rank_name(name: str, ctx: RuleContext, depth: int) -> bool:
    function = ctx.function
    while function is not None:
        values = definitions(function).get(name)
        if values:
            return all(depends(one, function_context(function), depth - 1) for one in values)
        if any(one.arg == name for one in function.parameters):
            return name in _PARAMETERS or name == index_parameter(function)
        function = function.outer
    return False


def function_context(function: Function) -> RuleContext:
    """A context inside the function: that of its first call, or of its definition."""
    return function.calls[0].ctx if function.calls else function.ctx


def index_parameter(function: Function) -> str:
    """The parameter in which xmp.spawn and torch_xla.launch pass the rank; "" if there is none."""
    kinds = {one.kind for one in _launches.launches(function.ctx.program) if one.function is function}
    if not kinds & {_launches.SPAWN, _launches.LAUNCH} or not function.parameters:
        return ""
    return function.parameters[0].arg


@remembered
def definitions(function: Function) -> dict[str, list[ast.expr]]:
    """The values of plain assignments to each name of a function."""
    result: dict[str, list[ast.expr]] = {}
    for node in nodes_of(function.node):
        for target, value in _assigned(node):
            if isinstance(target, ast.Name):
                result.setdefault(target.id, []).append(value)
    return result


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value


# -- the ranks --------------------------------------------------------------------------------------------------------


def polarity(test: ast.expr, ctx: RuleContext, depth: int = _DEPTH) -> bool | None:
    """True if the condition holds on the main rank only, False if on all others, None if unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        result = polarity(test.operand, ctx, depth)
        return None if result is None else not result
    if isinstance(test, ast.BoolOp):
        parts = [
            result for one in test.values if depends(one, ctx) and (result := polarity(one, ctx, depth)) is not None
        ]
        return parts[0] if parts else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.ops[0], test.comparators[0], ctx)
    if isinstance(test, ast.Name) and depth and ctx.function is not None:
        values = definitions(ctx.function).get(test.id, [])
        return polarity(values[0], ctx, depth - 1) if len(values) == 1 else "main" in test.id or None
    return True if isinstance(test, (ast.Attribute, ast.Call)) else None


def _compared(op: ast.cmpop, other: ast.expr, ctx: RuleContext) -> bool | None:
    """`rank == 0`, `rank in (-1, 0)`: the main one; `rank != 0`, `rank > 0`, `rank not in [-1, 0]`: the others."""
    if isinstance(op, (ast.In, ast.NotIn)):
        return isinstance(op, ast.In)
    if ctx.constant(other) != 0 or isinstance(ctx.constant(other), bool):
        return None
    if isinstance(op, (ast.Eq, ast.Is, ast.LtE)):
        return True
    return False if isinstance(op, (ast.NotEq, ast.IsNot, ast.Gt)) else None


# -- guards around functions


def is_guarded(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether only some ranks run `node`: by a condition here, a decorator, or a condition around every call."""
    if guard(node, ctx) is not None:
        return True
    return ctx.function is not None and _is_guarded_function(ctx.function)


def _is_guarded_function(function: Function) -> bool:
    memo = function.ctx.program.memo
    key = ("guarded", id(function))
    if key not in memo:
        memo[key] = False
        memo[key] = is_for_one_rank(function) or _is_only_called_guarded(function)
    return bool(memo[key])


def _is_only_called_guarded(function: Function) -> bool:
    if function.launched:
        return False
    # Without callers it is only passed on (a closure, a callback), and its caller is unknown.
    return all(is_guarded(call.node, call.ctx) for call in function.callers)


def is_for_one_rank(function: Function) -> bool:
    """Whether a decorator makes only one rank run the function."""
    return any(last_name(one) in _DECORATORS for one in getattr(function.node, "decorator_list", ()))


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
    "torch_xla.distributed.zero_redundancy_optimizer.", "torch_xla.distributed.spmd.",
    "torch_xla.experimental.spmd_fully_sharded_data_parallel.", "pytorch_lightning.", "lightning.")  # fmt: skip
_MODES = ("torch_xla.runtime.use_spmd",)
DEVICE_LOADERS = ("MpDeviceLoader", "ParallelLoader")


def round_calls(loop: Loop, calls: list[CallSite], program: CheckedProgram) -> list[CallSite]:
    """The calls of one iteration of `loop`: those of `calls` in it, and those of the functions that it calls."""
    own = [call for call in calls if loop in call.ctx.loops]
    result, seen = list(own), set()
    waiting = list(own)
    while waiting:
        target = _launches.targets(program).get(id(waiting.pop().node))
        if target is not None and target not in seen:
            seen.add(target)
            result += target.calls
            waiting += target.calls
    return result


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
    if loader is not None and (loader.creator is not None or loader.prepared):
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
    """Whether accelerate, SPMD, FSDP, DDP or the eager mode handles the steps here: a mode of the whole process, or a
    wrapper, an Accelerator or a library that this code, its callers or the launch of its workers lead to by names."""
    places = _handlers(ctx.program)
    return None in places or (bool(places) and not places.isdisjoint(_used_lines(ctx)))


def uses(ctx: RuleContext, call: CallSite) -> bool:
    """Whether the code at this place uses what a call makes, by any name."""
    return _place(call.node, call.ctx) in _used_lines(ctx)


def _used_lines(ctx: RuleContext) -> set[tuple[CodeCell, int] | None]:
    """The lines that the code at this place uses: its own function or cell, what leads to it, and what they name."""
    key = ("used lines", ctx.cell_index, ctx.function)
    if key not in ctx.program.memo:
        ctx.program.memo[key] = _find_used_lines(ctx)
    found: set[tuple[CodeCell, int] | None] = ctx.program.memo[key]
    return found


def _find_used_lines(ctx: RuleContext) -> set[tuple[CodeCell, int] | None]:
    program = ctx.program
    own = set() if ctx.function is None else {ctx.function}
    functions = {*_launches.around(ctx.function)} | _launches.closure(own, program)
    used = [_place(one.node, one.ctx) for one in functions]
    used += [_place(call.node, call.ctx) for one in functions for call in one.callers if call.ctx.function is None]
    launches = _launches.launches_of(ctx)
    used += [_place(one.call.node, one.call.ctx) for one in launches if one.call is not None]
    if ctx.function is None:
        used.append((ctx.cell, 0))
    words = {word for one in launches for word in re.findall(r"[^\W\d]\w*", one.words)}
    return {*used_lines(program.cells, used, words)}


def _place(node: ast.AST, ctx: RuleContext) -> tuple[CodeCell, int]:
    return ctx.cell, getattr(node, "lineno", 0)


@remembered
def _handlers(program: CheckedProgram) -> set[tuple[CodeCell, int] | None]:
    """The lines of such handlers: calls of them, and imports of libraries that have them; None: a mode of the whole
    process, which the notebook has set."""
    calls = [*program.calls(*_OTHERS)]
    for method in ("prepare", "backward", "prepare_optimizer"):
        calls += program.methods(method, ACCELERATOR)
    modes = [*program.calls(*_MODES)]
    modes += [call for call in program.calls("torch_xla.experimental.") if "eager" in call.name]
    result: set[tuple[CodeCell, int] | None] = {_place(call.node, call.ctx) for call in (*calls, *modes)}
    result |= {None for call in modes if _runs_in_the_notebook(call)}
    return result | {(cell, line) for cell in program.cells for line in _imports_of_handlers(cell)}


def _runs_in_the_notebook(call: CallSite) -> bool:
    """Whether a call is one of the notebook's own statements, or in a function that they call."""
    function = call.ctx.function
    if function is None:
        return not _launches.in_statements(call.ctx)
    callers = (one for each in _launches.around(function) for one in each.callers)
    return any(one.ctx.function is None and not _launches.in_statements(one.ctx) for one in callers)


def _imports_of_handlers(cell: CodeCell) -> Iterator[int]:
    """The lines of imports whose names are handlers. `import torch.nn.parallel` gives the name `torch`: its calls are
    found by themselves."""
    for node in nodes_of(cell.tree) if cell.tree is not None else ():
        if isinstance(node, ast.Import):
            names = [one.name if one.asname else one.name.partition(".")[0] for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{one.name}" for one in node.names]
        else:
            continue
        if any(f"{name}.".startswith(_OTHERS) for name in names):
            yield node.lineno


def optimizer_steps(program: CheckedProgram) -> Iterator[CallSite]:
    """`optimizer.step()` of torch optimizers that nothing has prepared."""
    for call in program.methods("step", "optimizer"):
        if not call.receiver.prepared and call.receiver.lib != "tf":
            yield call


DATA_LOADER = "torch.utils.data.DataLoader"


def purpose(call: CallSite) -> str:
    """TRAINING, EVALUATION, or "" if neither the names nor `shuffle` show it."""
    ctx = call.ctx
    data = ctx.argument(call.node, "dataset", 0)
    function = ctx.function.name if ctx.function is not None else ""
    source = ctx.source(data) if data is not None else ""
    shuffled = ctx.constant(ctx.argument(call.node, "shuffle", 2)) is True
    names = (*target_names(ctx, call.node), source, function if "loader" in function else "")
    return purpose_of(names) or (TRAINING if shuffled else "")


def is_for_evaluation(call: CallSite, program: CheckedProgram) -> bool:
    """Whether a loader is for evaluation only."""
    known = purpose(call)
    return known == EVALUATION or (not known and _has_no_step(call, program))


def _has_no_step(call: CallSite, program: CheckedProgram) -> bool:
    """Whether loops use the loader, but never with a backward pass."""
    loops = [(loop, one) for one in program.all_calls for loop in one.ctx.loops]
    mine = [(loop, one) for loop, one in loops if (value := loader_of(loop)) is not None and value.creator is call.node]
    return bool(mine) and not any(one.method in ("backward", "step") or one.name == OPTIMIZER_STEP for _, one in mine)
