"""Finds the user's line on a stack of library calls, and numbers these lines (sites)."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from types import FrameType
from typing import Any

from tpu_magics.runs.events import Site
from tpu_magics.runs.origin import OWN, is_library, under

_CODE_LENGTH = 200
_OURS = 3  # references to the locals dict if nothing else holds it: the frame's, ours, and getrefcount's
_DECIDING = (ast.If, ast.While, ast.IfExp, ast.Assert)
StackLine = tuple[str, str, int]  # function, path, line
Used = tuple[frozenset[str], frozenset[str]]  # names that occur, and those that are computed with


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame. Before Python 3.13, a function's frame keeps the dict of its locals, and with it
    every tensor in it alive, which would change the next graph. So it is emptied, unless something else holds it."""
    found = frame.f_locals
    names = dict(found)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(found) is dict and sys.getrefcount(found) <= _OURS:
        found.clear()
    return names


class Sites:
    """The sites of one rank. `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the front end's;
    `libraries`: folders of libraries outside the usual places."""

    def __init__(
        self, cell_names: Mapping[str, str], cell_ids: Mapping[str, str], libraries: tuple[str, ...] = ()
    ) -> None:
        self.libraries = libraries
        self.cell_names = cell_names
        self.cell_ids = cell_ids
        self._known: dict[tuple[str, int], Site] = {}
        self._direct: dict[tuple[str, int], Site] = {}  # lines of the user's that call a hook themselves
        self._files: dict[int, str] = {}
        self.is_user_code = lru_cache(maxsize=4096)(self._is_user_code)

    def _is_user_code(self, path: str, function: str = "") -> bool:
        if path in self.cell_names:
            return True
        return not is_library(path, function) and not any(under(path, folder) for folder in self.libraries)

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's code."""
        while frame is not None and not self.is_user_code(frame.f_code.co_filename, frame.f_code.co_name):
            frame = frame.f_back
        return frame

    def of_frame(self, frame: FrameType | None) -> Site:
        """The site of a running stack; the outermost line if none is the user's."""
        line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        if line in self._direct:
            return self._direct[line]
        found = self.user_frame(frame) or next(iter(list(outwards(frame))[-1:]), None)
        if found is None:
            return self._site("", "", 0)
        site = self._site(found.f_code.co_name, found.f_code.co_filename, found.f_lineno)
        if found is frame:
            self._direct[line] = site
        return site

    def of_stack(self, stack: Iterable[StackLine]) -> Site | None:
        """The site of a stack, innermost line first; None if no line of it is the user's."""
        line = next((line for line in stack if self.is_user_code(line[1], line[0])), None)
        return self._site(*line) if line else None

    def of_line(self, path: str, line: int) -> Site:
        """The site of a line that may not be on a stack."""
        return self._site("", path, line)

    def through(self, stack: Iterable[StackLine]) -> tuple[tuple[str, str], ...]:
        """The library functions between the triggering call and the user's line, with their files. Ours are left out:
        which of them are there depends on the hook."""
        inside = takewhile(lambda line: not self.is_user_code(line[1], line[0]), stack)
        return tuple((path, function) for function, path, _line in inside if not under(path, OWN))

    def builds(self, frame: FrameType | None) -> bool:
        """Whether the constructor of a library's object runs, below the user's line."""
        inside = takewhile(
            lambda one: not self.is_user_code(one.f_code.co_filename, one.f_code.co_name), outwards(frame)
        )
        return any(one.f_code.co_name == "__init__" and not under(one.f_code.co_filename, OWN) for one in inside)

    def stack(self, frame: FrameType | None) -> tuple[StackLine, ...]:
        """A running stack, innermost line first."""
        return tuple((one.f_code.co_name, one.f_code.co_filename, one.f_lineno) for one in outwards(frame))

    def decides(self, site: Site) -> bool:
        """Whether a value read there decides which branch Python takes."""
        return decides(self._files.get(site.id, site.path), site.line)

    def _site(self, function: str, path: str, line: int) -> Site:
        known = self._known.get((path, line))
        if known is None:
            shown = self.cell_names.get(path, path)
            code = linecache.getline(path, line).strip()[:_CODE_LENGTH]
            known = Site(len(self._known), shown, line, function, code, self.cell_ids.get(shown, ""))
            self._known[path, line] = known
            self._files[known.id] = path
        return known


# -- branches ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def decides(path: str, line: int) -> bool:
    """Whether a value that is read in `line` of the code at `path` decides which branch Python takes: the statement is
    a condition, or sets a name that a later condition uses."""
    tree = parsed(path)
    if tree is None:
        return False
    tests = list(_tests(tree))
    if any(test.lineno <= line <= (test.end_lineno or test.lineno) for test in tests):
        return True
    names = {name for statement in _statements(tree, line) for name in _set_by(statement)}
    read = {node.id for test in tests if test.lineno > line for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & read)


@lru_cache(maxsize=32)
def parsed(path: str) -> ast.Module | None:
    """The source at `path` (also a cell's); None if there is no Python source."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tests(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, _DECIDING):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            yield node.iter


def _statements(tree: ast.Module, line: int) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        simple = isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr))
        if isinstance(node, ast.stmt) and simple and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node


def _set_by(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


# -- what names are used for ------------------------------------------------------------------------------------------


_TOLD = frozenset({"print", "str", "repr", "format", "range"})  # calls that compute nothing with a number


@lru_cache(maxsize=64)
def names_used(paths: tuple[str, ...], numbers: frozenset[str], function: str = "", line: int = 0) -> Used:
    """The names in the code, and those of them that it computes with: not those of counters that it only counts up,
    tests or prints. `numbers`: the names of Python numbers; `function`, `line`: only in the function around the
    line."""
    trees = [_around(tree, function, line) for path in paths if (tree := parsed(path)) is not None]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    told = {id(one) for node in nodes for one in _only_told(node, numbers)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = (node.id for node in names if isinstance(node.ctx, ast.Load) and id(node) not in told)
    return frozenset(node.id for node in names), frozenset(used)


def _around(tree: ast.AST, function: str, line: int) -> ast.AST:
    found = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function and _holds(node, line):
            found = node
    return found


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _only_told(node: ast.AST, numbers: frozenset[str]) -> Iterator[ast.AST]:
    """Parts of an expression that are no operands of a computation if they are the names of numbers."""
    if isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TOLD:
        yield from node.args
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        if isinstance(node.left.value, str):
            yield from node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if all(isinstance(one, ast.Constant) or (isinstance(one, ast.Name) and one.id in numbers) for one in sides):
            yield from sides
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, _DECIDING):
        yield node.test
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):  # n = n + 1
        own = {target.id for target in node.targets if isinstance(target, ast.Name)}
        yield from (
            one for one in (node.value.left, node.value.right) if isinstance(one, ast.Name) and one.id in own & numbers
        )


def indexed(path: str, line: int) -> tuple[tuple[str, str], ...]:
    """What the statement in this line takes by a name: `y[i]` is ("y", "i"). Of a compound statement, its heading."""
    tree = parsed(path)
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _holds(node, line)] if tree else []
    parts = ast.iter_child_nodes(around[-1]) if around else ()
    return tuple(
        (ast.unparse(node.value), index.id)
        for part in parts
        if isinstance(part, (ast.expr, ast.withitem))
        for node in ast.walk(part)
        if isinstance(node, ast.Subscript)
        for index in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
        if isinstance(index, ast.Name)
    )
