"""Which code runs in workers, and in how many of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules._launches import END, TRAIN, LaunchSite, cell_form, launches
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

_XM = "torch_xla.core.xla_model"


def targets(program: CheckedProgram) -> dict[int, Function]:
    """The function of this program that a call runs, by the `id` of the call's node."""
    if "call_targets" not in program.memo:
        pairs = ((id(call.node), function) for function in program.functions for call in function.callers)
        program.memo["call_targets"] = dict(pairs)
    known: dict[int, Function] = program.memo["call_targets"]
    return known


def workers(program: CheckedProgram) -> dict[Function, tuple[LaunchSite, ...]]:
    """The functions that run in workers, with the launches that reach them."""
    if "workers" not in program.memo:
        found: dict[Function, tuple[LaunchSite, ...]] = {}
        for launch in launches(program):
            for function in worker_functions(launch, program):
                found[function] = (*found.get(function, ()), launch)
        program.memo["workers"] = found
    known: dict[Function, tuple[LaunchSite, ...]] = program.memo["workers"]
    return known


def worker_functions(launch: LaunchSite, program: CheckedProgram) -> set[Function]:
    """The functions of a launch's workers: its function, the functions that it calls, and inner functions."""
    if launch.function is not None:
        return closure({launch.function}, program)
    if launch.call is not None or launch.position[1] != END:
        return set()
    index = launch.position[0]
    own = [call for call in program.all_calls if call.ctx.cell_index == index and call.ctx.top_level]
    return closure({one for call in own if (one := targets(program).get(id(call.node))) is not None}, program)


def closure(start: set[Function], program: CheckedProgram) -> set[Function]:
    """The functions, those that they call, and those that are defined in them."""
    found, waiting = set(start), list(start)
    inner = _inner(program)
    while waiting:
        one = waiting.pop()
        called = [targets(program).get(id(call.node)) for call in one.calls]
        for other in (*called, *inner.get(one, ())):
            if other is not None and other not in found:
                found.add(other)
                waiting.append(other)
    return found


def around(function: Function | None, depth: int = 3) -> Iterator[Function]:
    """The function, those that it is defined in, and those that call them."""
    while function is not None:
        yield function
        for call in function.callers if depth else ():
            yield from around(call.ctx.function, depth - 1)
        function = function.outer


def _inner(program: CheckedProgram) -> dict[Function, list[Function]]:
    if "inner_functions" not in program.memo:
        found: dict[Function, list[Function]] = {}
        for function in program.functions:
            if function.outer is not None:
                found.setdefault(function.outer, []).append(function)
        program.memo["inner_functions"] = found
    known: dict[Function, list[Function]] = program.memo["inner_functions"]
    return known


def launches_of(ctx: RuleContext) -> tuple[LaunchSite, ...]:
    """The launches whose workers run the code at this place; () for code of the notebook or of a plain script."""
    if ctx.function is not None:
        return workers(ctx.program).get(ctx.function, ())
    own = ctx.cell.magic == TRAIN and cell_form(ctx.cell, ctx.cell_index, ctx.program) == 3
    return tuple(one for one in launches(ctx.program) if one.position == (ctx.cell_index, END, END)) if own else ()


def in_several(ctx: RuleContext) -> bool:
    """Whether several processes certainly run the code at this place (on a host with several chips)."""
    found = launches_of(ctx)
    if any(one.several for one in found):
        return True
    return any(one.ranks is NOTHING for one in found) and _mentions_ranks(found, ctx.program)


def may_be_several(ctx: RuleContext) -> bool:
    """The same, also where the number is left to tpu_magics."""
    return any(one.ranks is NOTHING or one.several for one in launches_of(ctx))


_MULTI = (
    *(f"{_XM}.{one}" for one in ("optimizer_step", "reduce_gradients", "all_reduce", "all_gather", "mesh_reduce",
        "rendezvous", "is_master_ordinal", "get_ordinal", "xrt_world_size", "master_print")),
    *("torch_xla.runtime.world_size", "torch_xla.runtime.global_ordinal", "torch.utils.data.DistributedSampler"),
)  # fmt: skip


def _mentions_ranks(found: tuple[LaunchSite, ...], program: CheckedProgram) -> bool:
    """Whether the code of these workers is written for several ranks."""
    return any(set(launches_of(call.ctx)) & set(found) for call in program.calls(*_MULTI))
