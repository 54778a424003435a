"""Which statements of the cells a run of one function depends on, by the names that it reads.

Nothing is evaluated: a name leads to everything that binds or changes it (`callbacks.append(Stop())`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.cells import registers
from tpu_magics.check.finding import Finding
from tpu_magics.check.syntax import RULE_FAILED, nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell

_OF_THE_PROCESS = ("TPU402", "TPU404", "TPU410", "TPU501", RULE_FAILED.code)  # whatever the function reads
_OF_WHAT_RUNS = ("values", "shapes")  # rules about operations: in a cell that ran before, they are not part of the run

_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(eq=False)
class _Statement:
    """A statement outside functions; of `if`, `for`, `with` and `try` only the header."""

    cell: CodeCell
    node: ast.stmt
    heads: Sequence[ast.AST]  # its parts
    outside: bool  # of every `if`, loop and `try`

    @property
    def is_definition(self) -> bool:
        return isinstance(self.node, _Definition)

    def lines(self) -> set[int]:
        return _lines(self.node) if self.heads[0] is self.node else set().union(*map(_lines, self.heads))

    def lines_that_run_later(self) -> set[int]:
        """Lines of the definition, or of the lambdas in the statement."""
        if self.is_definition:
            return self.lines()
        nodes = (node for head in self.heads for node in nodes_of(head))
        return {line for node in nodes if isinstance(node, ast.Lambda) for line in _lines(node)}

    def lines_of_inner_functions(self) -> set[int]:
        """Lines of functions that it makes; for a definition, of those in it."""
        nodes = (node for head in self.heads for node in nodes_of(head) if node is not self.node)
        return {line for node in nodes if isinstance(node, _Function) for line in _lines(node)}

    def trained(self) -> set[str]:
        """The functions that a training cell of its own calls: what they return is used, but they do not run again."""
        if self.is_definition or self.cell.magic != "tpu_train":
            return set()
        calls = (node for head in self.heads for node in nodes_of(head) if isinstance(node, ast.Call))
        return {call.func.id for call in calls if isinstance(call.func, ast.Name)}

    def reads(self) -> set[str]:
        return _names(self.heads)[0]

    def binds_anew(self, word: str) -> bool:
        """Whether, after it, the name stands for another object, whatever it was before: an assignment or a loop that
        no condition guards and that does not read the name."""
        targets: Sequence[ast.expr] = self.node.targets if isinstance(self.node, ast.Assign) else ()
        targets = [self.node.target] if isinstance(self.node, (ast.For, ast.AsyncFor)) else targets
        names = (each for one in targets for each in getattr(one, "elts", [one]))
        return (
            self.outside
            and word not in self.reads()
            and any(isinstance(one, ast.Name) and one.id == word for one in names)
        )

    def binds(self) -> set[str]:
        """The names that it binds, or whose values it changes (`callbacks.append(Stop())`)."""
        if isinstance(self.node, _Definition):
            return {self.node.name, *map(_root, filter(registers, self.node.decorator_list))}
        result = _names(self.heads)[1]
        for node in (node for head in self.heads for node in nodes_of(head)):
            if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                result.add(_root(node))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                result.add(_root(node.value))
        return result


def reachable_findings(findings: Sequence[Finding], cells: Sequence[CodeCell], name: str) -> list[Finding]:
    """The findings that concern a run of the function `name`: those in it, in the code that it reaches by name
    (functions, classes with their methods, and the statements that created its models, loaders and arguments), and
    those about the process. The last cell is the one that runs. For a function that no cell defines (imported, a
    lambda), all code that plain cells reach.

    Args:
        findings: of these cells.
        cells: in the order in which they ran, without definitions that were replaced.
        name: of the function; "" for a cell of plain statements.
    """
    anything, runs_later = set(), set()
    unread = {(cell.path, cell.number) for cell in cells if cell.tree is None}
    names = _Names(cells)
    starts, words = [*_first(names.statements, cells, name)], _named_by_magics(cells)
    runs_again = {*names.followed(starts, words, lambda one, word: one.cell is cells[-1] or word not in one.trained())}
    for one in names.followed(starts, words):
        anything |= {(one.cell.path, one.cell.number, line) for line in one.lines()}
        later = one.lines_that_run_later() if one in runs_again else one.lines_of_inner_functions()
        runs = one.lines() if one.cell is cells[-1] else later
        runs_later |= {(one.cell.path, one.cell.number, line) for line in runs}

    def counts(one: Finding) -> bool:
        lines = runs_later if one.group in _OF_WHAT_RUNS else anything
        always = one.code in _OF_THE_PROCESS or (one.path, one.cell) in unread
        return always or (one.path, one.cell, one.line) in lines

    return [one for one in findings if counts(one)]


def used_lines(
    cells: Sequence[CodeCell], places: Iterable[tuple[CodeCell, int]], words: Iterable[str] = ()
) -> set[tuple[CodeCell, int]]:
    """The lines of the statements that the code at these places depends on by name, with those of the places.

    Args:
        cells: in the order in which they ran.
        places: cells and lines: a line of a definition stands for the definition, any other for all statements of its
            cell that are no definitions.
        words: names that the code uses besides, such as the arguments of a magic.
    """
    names = _Names(cells)
    starts = set(names.statements_at(places))
    return {(one.cell, line) for one in names.followed(starts, words) for line in one.lines()}


class _Names:
    """The statements of cells, and which of them bind each name."""

    def __init__(self, cells: Sequence[CodeCell]) -> None:
        self.statements = [one for cell in cells if cell.tree is not None for one in _statements(cell, cell.tree.body)]
        self._at = {one: number for number, one in enumerate(self.statements)}
        imports = [one for one in self.statements if isinstance(one.node, (ast.Import, ast.ImportFrom))]
        modules = {word for each in imports for word in each.binds()}
        self._given: dict[str, list[_Statement]] = {}
        for one in self.statements:
            # `torch.manual_seed(0)` does not change `torch`
            for word in one.binds() - (set() if one in imports else modules):
                self._given.setdefault(word, []).append(one)

    def statements_at(self, places: Iterable[tuple[CodeCell, int]]) -> Iterator[_Statement]:
        for cell, line in places:
            own = [one for one in self.statements if one.cell is cell]
            definitions = [one for one in own if one.is_definition and line in one.lines()]
            yield from definitions or (one for one in own if not one.is_definition)

    def followed(
        self,
        starts: Iterable[_Statement],
        words: Iterable[str],
        leads: Callable[[_Statement, str], bool] = lambda _one, _word: True,
    ) -> Iterator[_Statement]:
        """These statements, and all that what they read depends on; `words` are read when all cells have run; `leads`:
        whether a name in a statement is followed."""
        waiting, seen = list(starts), set()
        for word in words:
            waiting += self._in_force(word, len(self.statements))
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                yield one
                now = len(self.statements) if one.is_definition else self._at[one]
                names = [word for word in one.reads() if leads(one, word)]
                waiting += [other for word in names for other in self._in_force(word, now)]

    def _in_force(self, word: str, now: int) -> Sequence[_Statement]:
        """The statements that make what a name stands for when statement `now` runs: from the one that bound it anew
        to the next such one (`model = other` replaces a model of an earlier cell)."""
        bindings = self._given.get(word, ())
        anew = [number for number, one in enumerate(bindings) if one.binds_anew(word)]
        first = max((number for number in anew if self._at[bindings[number]] < now), default=0)
        last = min(
            (number for number in anew if number > first and self._at[bindings[number]] > now), default=len(bindings)
        )
        return bindings[first:last]


def _statements(cell: CodeCell, body: Sequence[ast.stmt], outside: bool = True) -> Iterator[_Statement]:
    for node in body:
        parts = [] if isinstance(node, _Definition) else list(_parts(node))
        inside = [one for one in parts if isinstance(one, ast.stmt)]
        heads = [one for one in parts if not isinstance(one, ast.stmt)] if inside else [node]
        if heads:
            yield _Statement(cell, node, heads, outside)
        yield from _statements(cell, inside, outside and isinstance(node, (ast.With, ast.AsyncWith)))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What a statement consists of, `except` and `case` taken apart."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, (ast.ExceptHandler, ast.match_case)):
            yield from _parts(one)
        else:
            yield one


def _first(statements: Sequence[_Statement], cells: Sequence[CodeCell], name: str) -> Iterator[_Statement]:
    """The function, and the other statements of the cell that runs."""
    last = cells[-1] if cells else None
    homes = [one for one in statements if name and _defines(one.node, name)]
    classes = {one.node.name for one in homes if isinstance(one.node, ast.ClassDef)}
    unknown = bool(name) and not homes  # what it uses is not known
    plain = {cell for cell in cells if cell is last or (unknown and cell.magic != "tpu_train")}
    for one in statements:
        runs = not one.is_definition and one.cell in plain
        if runs or one in homes or classes & one.reads():
            yield one


def _named_by_magics(cells: Sequence[CodeCell]) -> set[str]:
    """The words of the magics of the cell that runs: its arguments, and values of options."""
    lines = [cells[-1].magic_line, *(one.words for one in cells[-1].line_magics)] if cells else []
    words = (word for word in " ".join(lines).split() if not word.startswith("-"))
    return set(_WORD.findall(" ".join(words)))


def _defines(node: ast.stmt, name: str) -> bool:
    """Whether it is the function, or a class with this method."""
    inside = node.body if isinstance(node, ast.ClassDef) else ()
    return any(isinstance(one, _Definition) and one.name == name for one in (node, *inside))


def _lines(node: ast.AST) -> set[int]:
    nodes = [one for one in (node, *getattr(node, "decorator_list", ())) if hasattr(one, "lineno")]
    first = min((one.lineno for one in nodes), default=1)
    return set(range(first, max((one.end_lineno or one.lineno for one in nodes), default=0) + 1))


def _root(node: ast.expr) -> str:
    """`callbacks` of `callbacks[0].append(x)`; "" if there is no name, or nothing but a call of it."""
    inner: ast.expr = node.func if isinstance(node, ast.Call) else node
    if inner is not node and isinstance(inner, ast.Name):
        return ""
    while isinstance(inner, (ast.Attribute, ast.Subscript, ast.Call)):
        inner = inner.func if isinstance(inner, ast.Call) else inner.value
    return inner.id if isinstance(inner, ast.Name) else ""


def _reads(node: ast.AST) -> set[str]:
    """The names that code reads but does not bind itself: names of the cells and of Python."""
    if isinstance(node, _Function):
        arguments = node.args
        bound = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        own = {one.arg for one in bound if one is not None}
        body = node.body if isinstance(node.body, list) else [node.body]
        outside = [*arguments.defaults, *filter(None, arguments.kw_defaults), *getattr(node, "decorator_list", [])]
        reads, stores, everywhere = _names(body)
        return (reads - ((own | stores) - everywhere)) | _names(outside)[0]
    reads, _, _ = _names([node])
    return reads


def _names(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str], set[str]]:
    """The names that are read, bound, and declared global; of inner functions only their free names."""
    reads: set[str] = set()
    stores: set[str] = set()
    everywhere: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            everywhere.update(node.names)
        elif isinstance(node, ast.alias):
            stores.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, _Function):
            reads |= _reads(node)
            stores |= {getattr(node, "name", "")}
            continue
        elif isinstance(node, ast.ClassDef):
            stores.add(node.name)
        waiting.extend(ast.iter_child_nodes(node))
    return reads, stores, everywhere
