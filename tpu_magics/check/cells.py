"""Files, notebooks and cells as the checker reads them. Nothing is imported or run."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tpu_magics.check import ipython, notebook, syntax
from tpu_magics.check.finding import Finding
from tpu_magics.check.ipython import LineMagic
from tpu_magics.check.syntax import PythonParseError, gc_paused

Note = Callable[[str], None]

_LINE_END = re.compile("\r\n?")


@dataclass(eq=False)
class CodeCell:
    """One cell, or a whole Python file.

    Attributes:
        path: the file, or `In [n]` for a cell of a running notebook.
        number: of a code cell in its notebook file, from 1; None for anything else.
        text: as the user sees it; lines end in a line feed, whatever the file has.
        tree: its lines are the lines of `text`, its columns (in UTF-8 bytes, as everywhere in `ast`) those of `text`.
            Empty for a cell in another language, None for one that does not parse.
        magic: the name of the cell magic ("tpu_train", "time", "bash"), "" if there is none.
        magic_line: the words after it.
        line_magics: `%name words` on its lines.
        problem: TPU001 where it does not parse.
    """

    path: str
    number: int | None
    text: str
    tree: ast.Module | None
    magic: str = ""
    magic_line: str = ""
    line_magics: tuple[LineMagic, ...] = ()
    problem: Finding | None = None

    @cached_property
    def lines(self) -> list[str]:
        """The lines, as Python counts them (a form feed ends none)."""
        return self.text.split("\n")

    def column(self, line: int, offset: int) -> int:
        """The column in characters, from 0, of an offset in UTF-8 bytes on a line (from 1)."""
        text = self.lines[line - 1]
        return offset if text.isascii() else len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "ignore"))

    def segment(self, node: ast.AST) -> str:
        """The code of a node as written; "" for a node without a place."""
        first: int = getattr(node, "lineno", 0)
        last: int = getattr(node, "end_lineno", None) or first
        if not 0 < first <= last <= len(self.lines):
            return ""
        start = self.column(first, getattr(node, "col_offset", 0))
        end = self.column(last, getattr(node, "end_col_offset", None) or 0)
        if first == last:
            return self.lines[first - 1][start:end]
        return "\n".join([self.lines[first - 1][start:], *self.lines[first : last - 1], self.lines[last - 1][:end]])


def cell_of(text: str, path: str = "<text>", number: int | None = None) -> CodeCell:
    """Text as a cell. IPython syntax is valid in cells of notebooks (a `number`, or a path `In [n]`) and in `.ipy`
    files; in other files its lines are a problem, and the rest is read."""
    text = _LINE_END.sub("\n", text)
    try:
        return CodeCell(path, number, text, syntax.parse(text))
    except PythonParseError as error:
        interactive = number is not None or path.startswith("In [") or path.endswith(".ipy")
        return _interactive(text, path, number) if interactive else _exported(text, path, error)


def _interactive(text: str, path: str, number: int | None) -> CodeCell:
    masked = ipython.mask(text)
    cell = CodeCell(path, number, text, None, masked.magic, masked.magic_line, tuple(masked.line_magics))
    try:
        cell.tree = _parse_masked(masked.lines) if masked.is_python else ast.Module(body=[], type_ignores=[])
    except PythonParseError as left:
        cell.problem = syntax.syntax_finding(path, number, text, left)
    return cell


def _parse_masked(lines: list[str]) -> ast.Module:
    """IPython removes common indentation; here the lines become the body of an `if`."""
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    text = "\n".join(lines)
    if not first[:1].isspace():
        return syntax.parse(text)
    try:
        tree = syntax.parse("if 1:\n" + text)
    except PythonParseError as error:
        raise PythonParseError(error.message, max(error.line - 1, 1), error.column) from None
    ast.increment_lineno(tree, -1)
    around = tree.body[0]
    if not isinstance(around, ast.If) or around.orelse:
        raise PythonParseError("unexpected indent", lines.index(first) + 1)
    return ast.Module(body=[*around.body, *tree.body[1:]], type_ignores=[])


def _exported(text: str, path: str, error: PythonParseError) -> CodeCell:
    """A Python file that does not parse. Colab exports the `!` lines of a notebook unchanged."""
    masked = ipython.mask(text, cell_magics=False)
    try:
        tree = syntax.parse(masked.python)
    except PythonParseError:
        return CodeCell(path, None, text, None, problem=syntax.syntax_finding(path, None, text, error))
    problem = syntax.ipython_finding(path, text, error)
    return CodeCell(path, None, text, tree, line_magics=tuple(masked.line_magics), problem=problem)


# -- files ----------------------------------------------------------------------------------------------------------


def read_file(path: str | Path, note: Note = lambda _: None) -> list[CodeCell]:
    """The cells of a notebook, or the single cell of another file; raises OSError. `note` gets what is skipped."""
    return cells_of(Path(path).read_bytes(), str(path), note)


@gc_paused()
def cells_of(data: bytes, path: str, note: Note = lambda _: None) -> list[CodeCell]:
    """The same for a file's bytes."""
    try:
        if path.lower().endswith(".ipynb"):
            result = notebook.read(data)
            if result.language:
                note(f"{path}: not checked, because it is a notebook in {result.language}")
                return []
            return [cell_of(text, path, number) for number, text in enumerate(result.sources, start=1)]
        return [cell_of(decode(data)[0], path)]
    except notebook.NotANotebook as error:
        return [_unreadable(path, PythonParseError(str(error), error.line), "This notebook")]
    except PythonParseError as error:
        return [_unreadable(path, error, "This file")]


def _unreadable(path: str, error: PythonParseError, what: str) -> CodeCell:
    lines = "\n" * (error.line - 1)
    return CodeCell(path, None, lines, None, problem=syntax.syntax_finding(path, None, lines, error, what))


def decode(data: bytes) -> tuple[str, str]:
    """The text of a Python file and its encoding (PEP 263; "utf-8-sig" with a byte order mark); raises
    PythonParseError."""
    encoding = "utf-8"
    try:
        if data.startswith(codecs.BOM_UTF8) or b"coding" in b"\n".join(data.split(b"\n", 2)[:2]):
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PythonParseError(f"a byte is not valid {encoding}: 0x{data[error.start]:02x}", line) from None
    except (SyntaxError, LookupError, ValueError) as error:
        raise PythonParseError(str(error)) from None


# -- redefined functions and classes ----------------------------------------------------------------------------------

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def without_redefined(cells: Sequence[CodeCell], name: str = "", home: str = "") -> list[CodeCell]:
    """The cells, in the order in which they ran, without definitions that a later one of the same name has replaced.

    Args:
        name: of a function that is kept as the cell `home` defines it, even where another cell came later.
        home: the path of that cell.
    """
    defined: dict[str, tuple[str, _Definition]] = {}
    for cell in cells:
        for node in _definitions(cell):
            if node.name != name or home in ("", cell.path) or defined.get(name, ("",))[0] != home:
                defined[node.name] = (cell.path, node)
    live = {id(node) for _path, node in defined.values()}
    return [_only(cell, live) for cell in cells]


def _definitions(cell: CodeCell) -> Iterator[_Definition]:
    """Top-level definitions that bind their name; `@show.register` registers its function with another."""
    for node in cell.tree.body if cell.tree is not None else ():
        if isinstance(node, _Definition) and not any(map(registers, node.decorator_list)):
            yield node


def registers(decorator: ast.expr) -> bool:
    """Whether it registers its function with another (`@show.register`)."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "register"


def _only(cell: CodeCell, live: set[int]) -> CodeCell:
    replaced = {id(node) for node in _definitions(cell)} - live
    if cell.tree is None or not replaced:
        return cell
    body = [node for node in cell.tree.body if id(node) not in replaced]
    return replace(cell, tree=ast.Module(body, cell.tree.type_ignores))
