"""The launches of a program, the code that their workers run, and constants that say how many there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference.values import FUNCTION, NOTHING, AbstractValue
from tpu_magics.check.program import remembered
from tpu_magics.check.syntax import nodes_of, trained_definition

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


def constant(node: ast.expr | None, ctx: RuleContext) -> Any:
    """The constant of an expression; NOTHING if it is unknown or has several values."""
    result = ctx.constant(node)
    if result is not NOTHING or not isinstance(node, ast.Subscript):
        return result
    values = _items(ctx.program).get(_key(node), ())
    constants = {ctx.constant(one) for one in values if _hashable(ctx.constant(one))}
    return constants.pop() if len(constants) == 1 and values else NOTHING


def _hashable(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, type(None), type(NOTHING)))


def _key(node: ast.Subscript) -> tuple[str, str]:
    return ast.unparse(node.value), ast.unparse(node.slice)


@remembered
def _items(program: CheckedProgram) -> dict[tuple[str, str], list[ast.expr]]:
    """The values that items of containers are set to, in the whole program."""
    result: dict[tuple[str, str], list[ast.expr]] = {}
    for cell in program.cells:
        for node in nodes_of(cell.tree) if cell.tree is not None else ():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    result.setdefault(_key(target), []).append(node.value)  # type: ignore[attr-defined]
    return result


NOTEBOOK, SPAWN, LAUNCH, OURS = "notebook_launcher", "xmp.spawn", "torch_xla.launch", "%tpu_train"
NAMES = {
    "accelerate.notebook_launcher": NOTEBOOK,
    "torch_xla.distributed.xla_multiprocessing.spawn": SPAWN,
    "torch_xla.launch": LAUNCH,
    "torch_xla.torch_xla.launch": LAUNCH,
    "tpu_magics.train": OURS,
}
TRAIN = "tpu_train"
Position = tuple[int, float, float]
END = float("inf")
_PROCESSES = re.compile(r"(?:^|\s)(?:-n\s*|--processes[\s=]\s*)(\d+)\b")
_WORD = re.compile(r"[^\W\d]\w*")
_STARTED = re.compile(r"_mp_(\w+_)?fn$|map_fn$")


@dataclass(frozen=True, eq=False)
class LaunchSite:
    """One place that starts workers.

    `kind`: the launcher in the code; `ours`: tpu_magics starts the workers, whatever the code says; `function`: the
    function that they run (None: unknown, or the cell's own statements); `ranks`: how many, None for one per chip,
    NOTHING if unknown; `words`: the arguments of a magic; `call`: None for a magic; `position`: the order in the cells.
    """

    kind: str
    ours: bool
    function: Function | None
    ranks: Any
    position: Position
    words: str = ""
    call: CallSite | None = None

    @property
    def several(self) -> bool:
        """Whether it certainly starts more than one process on a host with more than one chip."""
        return self.ranks is None or (isinstance(self.ranks, int) and self.ranks > 1)

    def passes(self, names: Collection[str]) -> bool:
        """Whether it passes one of these names to the workers."""
        if self.call is None:
            return not set(_WORD.findall(self.words)).isdisjoint(names)
        return any(isinstance(one, ast.Name) and one.id in names for one in nodes_of(self.call.node))

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """An argument of the launching call."""
        return None if self.call is None else self.call.ctx.argument(self.call.node, name, position)


@remembered
def launches(program: CheckedProgram) -> tuple[LaunchSite, ...]:
    """All of them, in order."""
    result = [*_by_calls(program), *_by_magics(program)]
    result += _by_name(program, {id(one.function) for one in result})
    return tuple(sorted(result, key=lambda one: one.position))


def is_ours(program: CheckedProgram) -> bool:
    """Whether tpu_magics starts the workers of this notebook, now or later."""
    begun = any(magic.name == "tpu_init" for cell in program.cells for magic in cell.line_magics)
    return begun or any(one.ours for one in launches(program))


def position_of(ctx: RuleContext, node: ast.AST) -> Position:
    """The position of a node in the order of cells and lines."""
    return (ctx.cell_index, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))


# -- calls ------------------------------------------------------------------------------------------------------------


def _by_calls(program: CheckedProgram) -> Iterator[LaunchSite]:
    for call in program.calls(*NAMES):
        kind = NAMES[call.name]
        ours = kind == OURS or (call.ctx.cell.magic == TRAIN and call.ctx.top_level)
        function = _function(call.ctx.value(call.ctx.argument(call.node, "function" if kind == NOTEBOOK else "fn", 0)))
        yield LaunchSite(kind, ours, function, _ranks_of(call, kind), position_of(call.ctx, call.node), call=call)


def _function(value: AbstractValue) -> Function | None:
    function: Function | None = value.ref if value.kind == FUNCTION else None
    return function


_RANKS = {NOTEBOOK: ("num_processes", 2), SPAWN: ("nprocs", 2), OURS: ("processes", None)}


def _ranks_of(call: CallSite, kind: str) -> Any:
    """The requested number; None if there is none; for tpu_magics NOTHING, which may be one chip or many."""
    ctx = call.ctx
    if kind == LAUNCH:
        return 1 if ctx.constant(ctx.argument(call.node, "debug_single_process", 3)) is True else None
    name, place = _RANKS[kind]
    given = ctx.argument(call.node, name, place)
    ranks = constant(given, ctx) if given is not None else None
    if kind == OURS and given is None:
        return _session_ranks(ctx.program, ctx.cell_index)
    return ranks if ranks is None or (isinstance(ranks, int) and not isinstance(ranks, bool)) else NOTHING


def _by_name(program: CheckedProgram, launched: set[int]) -> Iterator[LaunchSite]:
    """`_mp_fn`, which `xla_spawn.py script.py` and `%tpu_train script.py` start on each chip."""
    for function in program.functions:
        if _STARTED.match(function.name) and id(function) not in launched and function.ctx.top_level:
            yield LaunchSite(SPAWN, False, function, None, (len(program.cells), END, END))


# -- magics -----------------------------------------------------------------------------------------------------------


def _by_magics(program: CheckedProgram) -> Iterator[LaunchSite]:
    for index, cell in enumerate(program.cells):
        if cell.magic == TRAIN and cell_form(cell, index, program) != 2:
            yield LaunchSite(OURS, True, _trained(cell, program), _words_ranks(program, index, cell.magic_line),
                (index, END, END), cell.magic_line)  # fmt: skip
        for magic in cell.line_magics:
            if magic.name == TRAIN:
                value = program.trained_by(magic.words)
                yield LaunchSite(OURS, True, _function(value) if value is not None else None,
                    _words_ranks(program, index, magic.words), (index, magic.line, 0), magic.words)  # fmt: skip


def cell_form(cell: CodeCell, index: int, program: CheckedProgram) -> int:
    """The form of a `%%tpu_train` cell: 2 if it calls a launcher, 1 if it ends in a function, else 3."""
    calls = program.calls(*(name for name, kind in NAMES.items() if kind != OURS))
    if any(call.ctx.cell_index == index and call.ctx.top_level for call in calls):
        return 2
    return 1 if cell.tree is not None and trained_definition(cell.tree) is not None else 3


def _trained(cell: CodeCell, program: CheckedProgram) -> Function | None:
    last = trained_definition(cell.tree) if cell.tree is not None else None
    return next((one for one in program.functions if one.node is last), None)


def _words_ranks(program: CheckedProgram, index: int, words: str) -> Any:
    match = _PROCESSES.search(words)
    return int(match[1]) if match else _session_ranks(program, index)


def _session_ranks(program: CheckedProgram, index: int) -> Any:
    """The number in the last `%tpu_init -n N` before a cell."""
    magics = (magic for cell in program.cells[: index + 1] for magic in cell.line_magics if magic.name == "tpu_init")
    matches = [match for magic in magics if (match := _PROCESSES.search(magic.words))]
    return int(matches[-1][1]) if matches else NOTHING


def has_magics(program: CheckedProgram) -> bool:
    """Whether the notebook uses tpu_magics."""
    if program.uses("tpu_magics") or program.has_our_magics:
        return True
    lines = (magic for cell in program.cells for magic in cell.line_magics)
    return any(magic.name in ("load_ext", "reload_ext") and "tpu_magics" in magic.words for magic in lines)


_XM = "torch_xla.core.xla_model"


@remembered
def targets(program: CheckedProgram) -> dict[int, Function]:
    """The function of this program that a call runs, by the `id` of the call's node."""
    pairs = ((id(call.node), function) for function in program.functions for call in function.callers)
    return dict(pairs)


@remembered
def workers(program: CheckedProgram) -> dict[Function, tuple[LaunchSite, ...]]:
    """The functions that run in workers, with the launches that reach them."""
    result: dict[Function, tuple[LaunchSite, ...]] = {}
    for launch in launches(program):
        for function in worker_functions(launch, program):
            result[function] = (*result.get(function, ()), launch)
    return result


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
    result, waiting = set(start), list(start)
    while waiting:
        one = waiting.pop()
        called = [targets(program).get(id(call.node)) for call in one.calls]
        for other in (*called, *one.inner):
            if other is not None and other not in result:
                result.add(other)
                waiting.append(other)
    return result


def around(function: Function | None, depth: int = 3) -> Iterator[Function]:
    """The function, those that it is defined in, and those that call them."""
    while function is not None:
        yield function
        for call in function.callers if depth else ():
            yield from around(call.ctx.function, depth - 1)
        function = function.outer


def launches_of(ctx: RuleContext) -> tuple[LaunchSite, ...]:
    """The launches whose workers run the code at this place; () for code of the notebook or of a plain script."""
    if ctx.function is not None:
        return workers(ctx.program).get(ctx.function, ())
    own = in_statements(ctx)
    return tuple(one for one in launches(ctx.program) if one.position == (ctx.cell_index, END, END)) if own else ()


def in_statements(ctx: RuleContext) -> bool:
    """Whether the place is in the plain statements of a `%%tpu_train` cell."""
    own = ctx.function is None and ctx.cell.magic == TRAIN
    return own and cell_form(ctx.cell, ctx.cell_index, ctx.program) == 3


def in_several(ctx: RuleContext) -> bool:
    """Whether several processes certainly run the code at this place (on a host with several chips)."""
    return _several(launches_of(ctx), ctx.program)


def starts_several(launch: LaunchSite, program: CheckedProgram) -> bool:
    """Whether a launch certainly starts several processes."""
    return _several((launch,), program)


def _several(result: Sequence[LaunchSite], program: CheckedProgram) -> bool:
    if any(one.several for one in result):
        return True
    return any(one.ranks is NOTHING for one in result) and _mentions_ranks(result, program)


def may_be_several(ctx: RuleContext) -> bool:
    """Whether there may be several ranks, also where the number is left to tpu_magics."""
    return any(one.ranks is NOTHING or one.several for one in launches_of(ctx))


_MULTI = (
    *(f"{_XM}.{one}" for one in ("optimizer_step", "reduce_gradients", "all_reduce", "all_gather", "mesh_reduce",
        "rendezvous", "is_master_ordinal", "get_ordinal", "xrt_world_size", "master_print")),
    *("torch_xla.runtime.world_size", "torch_xla.runtime.global_ordinal", "torch.utils.data.DistributedSampler"),
)  # fmt: skip


def _mentions_ranks(result: Sequence[LaunchSite], program: CheckedProgram) -> bool:
    """Whether the code of these workers is written for several ranks."""
    return any(set(launches_of(call.ctx)) & set(result) for call in program.calls(*_MULTI))
