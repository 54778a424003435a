"""Which code runs in workers, and what started it.

What lives here: the launches of a program (calls of a launcher, `%tpu_train`, `%%tpu_train`), the functions that they
reach, and the order of things in the notebook. What does not: ranks (_ranks.py), steps (_steps.py), and the rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.values import FUNCTION, NOTHING, Value

if TYPE_CHECKING:
    from tpu_magics.check.cells import Cell
    from tpu_magics.check.place import Place
    from tpu_magics.check.program import Call, Function, Program

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
_XM = "torch_xla.core.xla_model"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Launch:
    """One start of workers.

    `kind`: which launcher is written; `ours`: tpu_magics starts the workers, whatever is written; `function`: what they
    run (None: not known, or the cell's own statements); `ranks`: how many, None for one on each chip, NOTHING where that
    is not known; `words`: behind a magic; `call`: None for a magic; `position`: when it happens, in order of the cells.
    """

    kind: str
    ours: bool
    function: Function | None
    ranks: Any
    position: Position
    words: str = ""
    call: Call | None = None

    @property
    def several(self) -> bool:
        """Whether it certainly starts more than one process where the host has more than one chip."""
        return self.ranks is None or (isinstance(self.ranks, int) and self.ranks > 1)

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """An argument of the launching call."""
        return None if self.call is None else self.call.at.keyword(self.call.node, name, position)


def launches(program: Program) -> tuple[Launch, ...]:
    """All of them, in order."""
    if "launches" not in program.memo:
        found = [*_by_calls(program), *_by_magics(program)]
        program.memo["launches"] = tuple(sorted(found, key=lambda one: one.position))
    known: tuple[Launch, ...] = program.memo["launches"]
    return known


def position_of(at: Place, node: ast.AST) -> Position:
    """Where a node stands in the order of cells and lines."""
    return (at.cell_index, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))


# -- calls ------------------------------------------------------------------------------------------------------------


def _by_calls(program: Program) -> Iterator[Launch]:
    for call in program.calls(*NAMES):
        kind = NAMES[call.name]
        ours = kind == OURS or (call.at.cell.magic == TRAIN and call.at.top_level)
        function = _function(call.at.value(call.at.keyword(call.node, "function" if kind == NOTEBOOK else "fn", 0)))
        yield Launch(kind, ours, function, _ranks_of(call, kind), position_of(call.at, call.node), call=call)


def _function(value: Value) -> Function | None:
    function: Function | None = value.ref if value.kind == FUNCTION else None
    return function


_RANKS = {NOTEBOOK: ("num_processes", 2), SPAWN: ("nprocs", 2), OURS: ("processes", None)}


def _ranks_of(call: Call, kind: str) -> Any:
    """The number asked for; None where nothing is said, which for tpu_magics may be one chip or many: NOTHING."""
    at = call.at
    if kind == LAUNCH:
        return 1 if at.constant(at.keyword(call.node, "debug_single_process", 3)) is True else None
    name, place = _RANKS[kind]
    given = at.keyword(call.node, name, place)
    asked = at.constant(given) if given is not None else None
    if kind == OURS and given is None:
        return _session_ranks(at.program, at.cell_index)
    return asked if asked is None or (isinstance(asked, int) and not isinstance(asked, bool)) else NOTHING


# -- magics -----------------------------------------------------------------------------------------------------------


def _by_magics(program: Program) -> Iterator[Launch]:
    for index, cell in enumerate(program.cells):
        if cell.magic == TRAIN and form(cell, index, program) != 2:
            yield Launch(OURS, True, _trained(cell, program), _words_ranks(program, index, cell.magic_line),
                (index, END, END), cell.magic_line)  # fmt: skip
        for magic in cell.line_magics:
            if magic.name == TRAIN:
                value = program.globals.get((magic.words.split() or [""])[0])
                yield Launch(OURS, True, _function(value) if value is not None else None,
                    _words_ranks(program, index, magic.words), (index, magic.line, 0), magic.words)  # fmt: skip


def form(cell: Cell, index: int, program: Program) -> int:
    """Of a `%%tpu_train` cell: 2 where it calls a launcher, 1 where it ends in a function, else 3."""
    calls = program.calls(*(name for name, kind in NAMES.items() if kind != OURS))
    if any(call.at.cell_index == index and call.at.top_level for call in calls):
        return 2
    body = cell.tree.body if cell.tree is not None else []
    return 1 if body and isinstance(body[-1], _DEFINITIONS) else 3


def _trained(cell: Cell, program: Program) -> Function | None:
    last = cell.tree.body[-1] if cell.tree is not None and cell.tree.body else None
    return next((one for one in program.functions if one.node is last), None)


def _words_ranks(program: Program, index: int, words: str) -> Any:
    said = _PROCESSES.search(words)
    return int(said[1]) if said else _session_ranks(program, index)


def _session_ranks(program: Program, index: int) -> Any:
    """What the last `%tpu_init -n N` before a cell says."""
    magics = (magic for cell in program.cells[: index + 1] for magic in cell.line_magics if magic.name == "tpu_init")
    said = [found for magic in magics if (found := _PROCESSES.search(magic.words))]
    return int(said[-1][1]) if said else NOTHING


def has_magics(program: Program) -> bool:
    """Whether the notebook works with tpu_magics."""
    if program.uses("tpu_magics"):
        return True
    lines = (magic for cell in program.cells for magic in cell.line_magics)
    return any(
        magic.name.startswith("tpu_") or (magic.name in ("load_ext", "reload_ext") and "tpu_magics" in magic.words)
        for magic in lines
    ) or any(cell.magic.startswith("tpu_") for cell in program.cells)


# -- who runs in workers ----------------------------------------------------------------------------------------------


def targets(program: Program) -> dict[int, Function]:
    """The function of this program that a call runs, by the `id` of the call's node."""
    if "call_targets" not in program.memo:
        pairs = ((id(call.node), function) for function in program.functions for call in function.callers)
        program.memo["call_targets"] = dict(pairs)
    known: dict[int, Function] = program.memo["call_targets"]
    return known


def workers(program: Program) -> dict[Function, tuple[Launch, ...]]:
    """The functions that run in workers, with the launches that reach them."""
    if "workers" not in program.memo:
        found: dict[Function, tuple[Launch, ...]] = {}
        for launch in launches(program):
            for function in reached(launch, program):
                found[function] = (*found.get(function, ()), launch)
        program.memo["workers"] = found
    known: dict[Function, tuple[Launch, ...]] = program.memo["workers"]
    return known


def reached(launch: Launch, program: Program) -> set[Function]:
    """What a launch's workers run: its function, what that calls, and what is defined inside of these."""
    if launch.function is not None:
        return _closure({launch.function}, program)
    if launch.call is not None or launch.position[1] != END:
        return set()
    index = launch.position[0]
    own = [call for call in program.all_calls if call.at.cell_index == index and call.at.top_level]
    return _closure({one for call in own if (one := targets(program).get(id(call.node))) is not None}, program)


def _closure(start: set[Function], program: Program) -> set[Function]:
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


def _inner(program: Program) -> dict[Function, list[Function]]:
    if "inner_functions" not in program.memo:
        found: dict[Function, list[Function]] = {}
        for function in program.functions:
            if function.outer is not None:
                found.setdefault(function.outer, []).append(function)
        program.memo["inner_functions"] = found
    known: dict[Function, list[Function]] = program.memo["inner_functions"]
    return known


def launches_of(at: Place) -> tuple[Launch, ...]:
    """The launches whose workers run the code at this place; () for code of the notebook or of a plain script."""
    if at.function is not None:
        return workers(at.program).get(at.function, ())
    own = at.cell.magic == TRAIN and form(at.cell, at.cell_index, at.program) == 3
    return tuple(one for one in launches(at.program) if one.position == (at.cell_index, END, END)) if own else ()


def in_several(at: Place) -> bool:
    """Whether several processes certainly run the code at this place (on a host with several chips)."""
    found = launches_of(at)
    if any(one.several for one in found):
        return True
    return any(one.ranks is NOTHING for one in found) and _speaks_of_ranks(found, at.program)


def may_be_several(at: Place) -> bool:
    """The same, also where the number is left to tpu_magics."""
    return any(one.ranks is NOTHING or one.several for one in launches_of(at))


_MULTI = (
    *(f"{_XM}.{one}" for one in ("optimizer_step", "reduce_gradients", "all_reduce", "all_gather", "mesh_reduce",
        "rendezvous", "is_master_ordinal", "get_ordinal", "xrt_world_size", "master_print")),
    *("torch_xla.runtime.world_size", "torch_xla.runtime.global_ordinal", "torch.utils.data.DistributedSampler"),
)  # fmt: skip


def _speaks_of_ranks(found: tuple[Launch, ...], program: Program) -> bool:
    """Whether the code of these workers is written for several ranks."""
    return any(set(launches_of(call.at)) & set(found) for call in program.calls(*_MULTI))


def spelled(module: str, at: Place, candidates: tuple[str, ...]) -> str:
    """The name under which code at this place has a module; "" where none of the usual ones is bound to it."""
    scopes = [at.program.globals]
    function = at.function
    while function is not None:
        scopes.append(function.env)
        function = function.outer
    values = ((name, scope[name]) for name in candidates for scope in reversed(scopes) if name in scope)
    return next((name for name, value in values if value.kind == "module" and value.name == module), "")


def xm(at: Place) -> str:
    """How code here spells torch_xla.core.xla_model; "" where it has no name for it."""
    return spelled(_XM, at, ("xm", "xla_model", "xla"))


def shown(text: str, most: int = 60) -> str:
    """Code for a message: on one line, cut where it is long."""
    line = " ".join(text.split())
    return f"`{line}`" if len(line) <= most else f"`{line[: most - 3]}...`"
