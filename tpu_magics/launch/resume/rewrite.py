"""Finds the `for` loops of the user's code that train, and lets them be iterated by `loops.TrainingLoops`.

`for batch in loader:` becomes `for batch in __tpu_magics_loop__(__tpu_magics_begin__("train#1"), loader):`. Only in a
worker, which ends after its run.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from tpu_magics.launch.hoist.functions import FunctionSource, compile_function, function_source, source_problem
from tpu_magics.launch.object_graph import names_in
from tpu_magics.launch.resume.locals import COMPREHENSIONS

BEGIN, LOOP = "__tpu_magics_begin__", "__tpu_magics_loop__"
RESUMABLE = "resumable"
_LIBRARIES = frozenset({RESUMABLE, "train", "fit"})  # of Trainers, of Keras' models
_TRAINS = frozenset({"backward", "step", "optimizer_step", "apply_gradients", "apply", *_LIBRARIES})
_TRAINS_SURELY = frozenset({"backward", "optimizer_step", "apply_gradients"})
_NO_SOURCE = "its source is not available"
_LONGEST = 80  # characters of a loop that is shown
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Walk = Callable[[ast.AST], Iterator[ast.AST]]


@dataclass(frozen=True)
class LoopSite:
    """A training loop of the user's code. `key`: its function and number there; `outer`: it has training loops in it;
    `head`: its `for ... in ...`; `nexts`: iterators that its body takes items from, with next(); `inside`: loops of
    other kinds in its body that train, between whose items nothing is saved."""

    key: str
    line: int
    outer: bool
    head: str
    nexts: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


@dataclass
class TrainingCode:
    """The training loops that were found, by key; `elsewhere`: those of functions that no name in the run's code leads
    to, such as others of a module that it imports; `left`: why the code of a function could not be changed, by name;
    `others`: loops of other kinds that train; `originals`: the code of the changed functions; `statements`: of a cell,
    as text."""

    sites: dict[str, LoopSite] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    left: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    originals: list[tuple[FunctionType, CodeType]] = field(default_factory=list)
    statements: str = ""

    def expected(self) -> list[LoopSite]:
        """The loops that the run may reach, as far as names tell."""
        return [site for key, site in self.sites.items() if key not in self.elsewhere]

    def reasons(self) -> list[str]:
        """Why there are parts of the training in which nothing can be saved, as far as the code tells."""
        return [*(f"`{name}`: {why}" for name, why in self.left.items()), *self.others]

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


def change_functions(
    functions: Iterable[FunctionType], changed: Mapping[int, ast.Module], begins: Iterable[str]
) -> TrainingCode:
    """Change the code of those of the functions that train. `changed`: by id, the tree from which the code of a
    function was made, where that is not its source; `begins`: the names that the run's own code has."""
    found = TrainingCode()
    functions = list({id(one): one for one in functions}.values())
    reached = _reached(functions, begins)
    sources = {}
    for function in functions:
        source = function_source(function)
        if source is not None:
            sources[id(function)] = function, source
        elif id(function) in reached and _TRAINS_SURELY & {*names_in(function.__code__)}:
            found.left[function.__name__] = _NO_SOURCE
    names = TrainingNames.of(source.node for _, source in sources.values())
    for function, source in sources.values():
        if source.node.name in names.all:
            tree = changed.get(id(function))
            made = TrainingCode()
            problem = source_problem(function, source) if tree is None else ""
            problem = problem or _change(function, source, tree if tree is not None else source.tree, names, made)
            found.sites.update(made.sites)
            found.originals += made.originals
            if id(function) not in reached:
                found.elsewhere.update(made.sites)
                continue
            found.others += made.others
            if problem and any(isinstance(node, ast.For) for node in ast.walk(source.node)):
                found.left[source.node.name] = problem
    return found


def _reached(functions: Sequence[FunctionType], names: Iterable[str]) -> set[int]:
    """The ids of the functions that code with these names may call, and what they call. Python calls special methods by
    no name; a library calls the methods of a class by names that it knows."""
    known = set(names)
    reached: set[int] = set()
    while True:
        found = [
            one
            for one in functions
            if id(one) not in reached and (one.__name__.startswith("__") or not known.isdisjoint(_names_of(one)))
        ]
        if not found:
            return reached
        for one in found:
            reached.add(id(one))
            known.update(names_in(one.__code__))


def _names_of(function: FunctionType) -> list[str]:
    """Its name, and those of the classes or functions that it is defined in."""
    return [one for one in function.__qualname__.split(".") if one != "<locals>"]


def _change(
    function: FunctionType, source: FunctionSource, tree: ast.Module, names: TrainingNames, found: TrainingCode
) -> str:
    """Returns why it cannot be changed, or ""."""
    tree = copy.deepcopy(tree)
    line = source.node.lineno
    node = next(one for one in ast.walk(tree) if isinstance(one, _FUNCTIONS) and one.lineno == line)
    marker = _Marker(function.__qualname__, names)
    marker.visit(node)
    found.others += marker.others
    if not marker.sites:
        return ""
    code = compile_function(ast.fix_missing_locations(tree), function)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        return "its code could not be recompiled with the same closure"
    found.originals.append((function, function.__code__))
    function.__code__ = code
    found.sites.update(marker.sites)
    return ""


def changed_statements(tree: ast.Module, functions: Iterable[FunctionType]) -> tuple[ast.Module, TrainingCode]:
    """The statements of a cell or a script, changed; `functions`: what they may call."""
    sources = [source.node for source in map(function_source, functions) if source is not None]
    own = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    marker = _Marker("<cell>", TrainingNames.of([*sources, *own]))
    changed: ast.Module = marker.visit(copy.deepcopy(tree))
    code = TrainingCode(marker.sites, others=marker.others, statements=ast.unparse(tree))
    return ast.fix_missing_locations(changed), code


def _nexts(loop: ast.For) -> Iterator[str]:
    """The iterators of `next(it)` in a loop that are not made anew by each of its passes."""
    inside = [node for part in loop.body for node in ast.walk(part)]
    always = [node for part in loop.body if isinstance(part, (ast.Assign, ast.AnnAssign)) for node in ast.walk(part)]
    made = {node.id for node in always if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    calls = (node for node in inside if isinstance(node, ast.Call) and _called(node) == "next")
    given = (node.args[0] for node in calls if node.args)
    yield from (one.id for one in given if isinstance(one, ast.Name) and one.id not in made)


@dataclass(frozen=True)
class TrainingNames:
    """`all`: names of calls that train: of an optimizer's and a loss's methods, and of the functions that call them;
    `steps`: those that surely do, and not in a `for` loop of their own."""

    all: frozenset[str]
    steps: frozenset[str]

    @classmethod
    def of(cls, functions: Iterable[ast.AST]) -> TrainingNames:
        functions = list(functions)
        return cls(_names(functions, _TRAINS, ast.walk), _names(functions, _TRAINS_SURELY, _outside_loops))


def _names(functions: Iterable[ast.AST], names: frozenset[str], walk: Walk) -> frozenset[str]:
    defined = [one for outer in functions for one in ast.walk(outer) if isinstance(one, _FUNCTIONS)]
    while True:
        found = {one.name for one in defined if trains(one.body, names, walk)}
        found |= {name for one in defined for name in _aliases(one, names)}
        if found <= names:
            return names
        names |= found


def trains(body: Iterable[ast.AST], names: frozenset[str], walk: Walk = ast.walk) -> bool:
    """Whether one of these statements calls something that trains."""
    return any(_called(node) in names for one in body for node in walk(one) if isinstance(node, ast.Call))


def _outside_loops(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that `ast.walk` gives, without what is in a `for` loop."""
    if not isinstance(node, ast.For):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _outside_loops(child)


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
    """`others`: loops of other kinds that train, and are in no `for` loop that does."""

    def __init__(self, function: str, names: TrainingNames) -> None:
        self.function = function
        self.names = names.all
        self.steps = names.steps
        self.sites: dict[str, LoopSite] = {}
        self.others: list[str] = []
        self._count = 0
        self._resumable: set[str] = set()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        head = self._other_loop(node)
        self.others += [head] if head else []
        return super().generic_visit(node)

    def _other_loop(self, node: ast.AST) -> str:
        """How a loop that trains begins, but is no `for` statement; "" for other nodes."""
        if isinstance(node, ast.While) and trains(node.body, self.steps, _outside_loops):
            return f"`while {ast.unparse(node.test)}` (line {node.lineno})"
        if isinstance(node, COMPREHENSIONS):
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            if trains(parts, self.steps):
                return f"`{ast.unparse(node)[:_LONGEST]}` (line {node.lineno})"
        return ""

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
        known = len(self.others)
        self.generic_visit(node)
        inside, self.others[known:] = tuple(self.others[known:]), []
        nexts = tuple(dict.fromkeys(_nexts(node)))
        self.sites[key] = LoopSite(key, node.lineno, outer, head, nexts, inside)
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
