"""Finds the `for` loops of the user's code that train, and lets them be iterated by `loops.TrainingLoops`.

`for batch in loader:` becomes `for batch in __tpu_magics_loop__(__tpu_magics_begin__("train#1"), loader):`. Only in a
worker, which ends after its run.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from tpu_magics.launch.hoist.functions import FunctionSource, compile_function, function_source, source_problem

BEGIN, LOOP = "__tpu_magics_begin__", "__tpu_magics_loop__"
RESUMABLE = "resumable"
_LIBRARIES = frozenset({RESUMABLE, "train", "fit"})  # of Trainers, of Keras' models
_TRAINS = frozenset({"backward", "step", "optimizer_step", "apply_gradients", "apply", *_LIBRARIES})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class LoopSite:
    """A training loop of the user's code. `key`: its function and number there; `outer`: it has training loops in it;
    `head`: its `for ... in ...`; `nexts`: iterators that its body takes items from, with next()."""

    key: str
    path: str
    line: int
    outer: bool
    head: str
    nexts: tuple[str, ...] = ()


@dataclass
class TrainingCode:
    """The training loops that were found, by key; `left`: why the code of a function could not be changed, by name;
    `originals`: the code of the changed functions; `statements`: of a cell, as text."""

    sites: dict[str, LoopSite] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    originals: list[tuple[FunctionType, CodeType]] = field(default_factory=list)
    statements: str = ""

    def restore(self) -> None:
        """In a process that goes on after the run: give all functions their own code again."""
        while self.originals:
            function, code = self.originals.pop()
            function.__code__ = code
        for name in (BEGIN, LOOP):
            vars(builtins).pop(name, None)


def install(begin: Any, loop: Any) -> None:
    """Under these names, for all code of this process."""
    vars(builtins).update({BEGIN: begin, LOOP: loop})


def change_functions(functions: Iterable[FunctionType], changed: Mapping[int, ast.Module]) -> TrainingCode:
    """Change the code of those of the functions that train. `changed`: by id, the tree from which the code of a
    function was made, where that is not its source."""
    found = TrainingCode()
    sources = {}
    for function in {id(one): one for one in functions}.values():
        source = function_source(function)
        if source is not None:
            sources[id(function)] = function, source
    names = training_names(source.node for _, source in sources.values())
    for function, source in sources.values():
        own = source.node
        if own.name not in names or not any(isinstance(node, ast.For) for node in ast.walk(own)):
            continue
        tree = changed.get(id(function))
        problem = source_problem(function, source) if tree is None else ""
        if problem:
            found.left[own.name] = problem
            continue
        _change(function, source, tree if tree is not None else source.tree, names, found)
    return found


def _change(
    function: FunctionType, source: FunctionSource, tree: ast.Module, names: frozenset[str], found: TrainingCode
) -> None:
    tree = copy.deepcopy(tree)
    line = source.node.lineno
    node = next(one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS) and one.lineno == line)
    marker = _Marker(function.__qualname__, function.__code__.co_filename, names)
    marker.visit(node)
    code = compile_function(ast.fix_missing_locations(tree), function) if marker.sites else None
    if code is not None and code.co_freevars == function.__code__.co_freevars:
        found.originals.append((function, function.__code__))
        function.__code__ = code
        found.sites.update(marker.sites)


def changed_statements(
    tree: ast.Module, filename: str, functions: Iterable[FunctionType]
) -> tuple[ast.Module, TrainingCode]:
    """The statements of a cell or a script, changed; `functions`: what they may call."""
    sources = [source.node for source in map(function_source, functions) if source is not None]
    own = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    marker = _Marker("<cell>", filename, training_names([*sources, *own]))
    changed: ast.Module = marker.visit(copy.deepcopy(tree))
    return ast.fix_missing_locations(changed), TrainingCode(marker.sites, statements=ast.unparse(tree))


def _nexts(loop: ast.For) -> Iterator[str]:
    """The iterators of `next(it)` in a loop that are not made in it."""
    inside = [node for part in loop.body for node in ast.walk(part)]
    made = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    calls = (node for node in inside if isinstance(node, ast.Call) and _called(node) == "next")
    given = (node.args[0] for node in calls if node.args)
    yield from (one.id for one in given if isinstance(one, ast.Name) and one.id not in made)


def training_names(functions: Iterable[ast.AST]) -> frozenset[str]:
    """The names of calls that train: of an optimizer's and a loss's methods, and of the functions that call them."""
    inside = [one for outer in functions for one in ast.walk(outer)]
    defined = [one for one in inside if isinstance(one, _FUNCTIONS)]
    names: frozenset[str] = _TRAINS
    while True:
        found = {one.name for one in defined if trains(one.body, names)}
        found |= {name for one in defined for name in _aliases(one, names)}
        if found <= names:
            return names
        names |= found


def trains(body: Iterable[ast.AST], names: frozenset[str]) -> bool:
    """Whether one of these statements calls something that trains."""
    return any(_called(node) in names for one in body for node in ast.walk(one) if isinstance(node, ast.Call))


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def _aliases(function: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """`step` of `step = torch.compile(train_step)`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            given = {one.id for one in node.value.args if isinstance(one, ast.Name)}
            if given & names:
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))


class _Marker(ast.NodeTransformer):
    def __init__(self, function: str, path: str, names: frozenset[str]) -> None:
        self.function = function
        self.path = path
        self.names = names
        self.sites: dict[str, LoopSite] = {}
        self._count = 0
        self._resumable: set[str] = set()

    def visit_For(self, node: ast.For) -> ast.For:
        if not trains(node.body, self.names) or self._is_resumable(node.iter):
            self.generic_visit(node)
            return node
        key = f"{self.function}#{self._count}"
        self._count += 1
        head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        outer = trains(node.body, self.names - _TRAINS | _LIBRARIES) or any(
            isinstance(one, ast.For) and trains(one.body, self.names) for part in node.body for one in ast.walk(part)
        )
        self.sites[key] = LoopSite(key, self.path, node.lineno, outer, head, tuple(dict.fromkeys(_nexts(node))))
        self.generic_visit(node)
        at = partial(ast.copy_location, old_node=node.iter)
        begun = at(ast.Call(at(ast.Name(BEGIN, ast.Load())), [at(ast.Constant(key))], []))
        node.iter = at(ast.Call(at(ast.Name(LOOP, ast.Load())), [begun, node.iter], []))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if self._is_resumable(node.value):
            self._resumable.update(one.id for one in node.targets if isinstance(one, ast.Name))
        self.generic_visit(node)
        return node

    def _is_resumable(self, node: ast.expr) -> bool:
        """Whether it iterates over `resumable(...)`, which is a loop itself."""
        inside = list(ast.walk(node))
        calls = any(isinstance(one, ast.Call) and _called(one) == RESUMABLE for one in inside)
        return calls or any(isinstance(one, ast.Name) and one.id in self._resumable for one in inside)
