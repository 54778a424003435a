"""Files, notebooks (the JSON of nbformat 3 and 4) and cells as the checker reads them; sources in a notebook replaced
in place. Nothing is imported or run."""

from __future__ import annotations

import ast
import codecs
import io
import json
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tpu_magics.check import ipython, syntax
from tpu_magics.check.finding import Finding
from tpu_magics.check.ipython import LineMagic
from tpu_magics.check.syntax import PythonParseError, gc_paused
from tpu_magics.runs.files import read_regular

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class NotANotebook(ValueError):
    """JSON that cannot be read, or that is not a notebook; `line` counts from 1."""

    def __init__(self, names: str, line: int = 1) -> None:
        super().__init__(names)
        self.line = line


@dataclass(frozen=True)
class Notebook:
    """`sources` are its code cells in order; `language` is "" for Python, else the language of its kernel."""

    sources: tuple[str, ...]
    language: str = ""


def read_notebook(data: bytes) -> Notebook:
    """The code of a notebook; raises NotANotebook."""
    result = _load(_decode(data))
    language = _language(result)
    if language != "python":
        return Notebook((), language)
    return Notebook(tuple(_text(cell) for cell in _code_cells(result)))


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotANotebook(f"a byte is not valid utf-8: 0x{data[error.start]:02x}", line) from None


def _load(text: str) -> dict[str, Any]:
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotANotebook(f"not valid JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError):
        raise NotANotebook("the JSON cannot be read") from None
    if not isinstance(result, dict) or not isinstance(result.get("cells", result.get("worksheets")), list):
        raise NotANotebook("the JSON has no cells")
    return result


def _language(result: Mapping[str, Any]) -> str:
    """The kernel's language in lower case; Python if it is missing."""
    metadata = _dict(result.get("metadata"))
    names = (
        _dict(metadata.get("language_info")).get("name"),
        _dict(metadata.get("kernelspec")).get("language"),
        metadata.get("language"),
    )
    language = next((word.lower() for word in names if isinstance(word, str) and word), "python")
    return "python" if language.startswith(("python", "ipython")) else language


def _code_cells(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    sheets = [result] if "cells" in result else result["worksheets"]
    for sheet in sheets:
        cells = _dict(sheet).get("cells")
        for cell in cells if isinstance(cells, list) else ():
            if _dict(cell).get("cell_type") == "code":
                yield cell


def _text(cell: Mapping[str, Any]) -> str:
    """The source of a code cell, "" if the cell says that it is in another language."""
    source = cell.get("source", cell.get("input"))
    written = cell.get("language", _dict(_dict(cell.get("metadata")).get("vscode")).get("languageId"))
    if isinstance(written, str) and written.lower() not in ("python", "ipython", ""):
        return ""
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _dict(result: Any) -> Mapping[str, Any]:
    return result if isinstance(result, dict) else {}


# -- positions --------------------------------------------------------------------------------------------------------


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each value of the JSON object that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _after_comma(text, end)


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of each item of the JSON array that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _after_comma(text, end)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _member(text: str, at: int, *keys: str) -> tuple[int, int] | None:
    """The position of the value of the first of `keys`; of duplicate keys the last counts, as in json."""
    result = {key: (start, end) for key, start, end in _members(text, at)}
    return next((result[key] for key in keys if key in result), None)


def _source_places(text: str) -> list[tuple[int, int]]:
    """The position of the source of each code cell, (-1, -1) if it has none."""
    top = _skip(text, 0)
    cells = _member(text, top, "cells")
    arrays = [cells] if cells else _sheets(text, top)
    places = []
    for array in arrays:
        for start, _end in _items(text, array[0]):
            cell, _ = _DECODER.raw_decode(text, start)
            if _dict(cell).get("cell_type") == "code":
                places.append(_member(text, start, "source", "input") or (-1, -1))
    return places


def _sheets(text: str, top: int) -> list[tuple[int, int]]:
    sheets = _member(text, top, "worksheets")
    result = [_member(text, start, "cells") for start, _ in _items(text, sheets[0])] if sheets else []
    return [place for place in result if place]


def notebook_lines(text: str) -> list[list[int]]:
    """For each code cell the lines (from 1) of the file at which its lines start."""
    return [_lines_of_source(text, *place) for place in _source_places(text)]


def _lines_of_source(text: str, start: int, end: int) -> list[int]:
    first = text.count("\n", 0, max(start, 0)) + 1
    if text[start : start + 1] != "[":
        return [first] * (text[start:end].count("\\n") + 1)
    result: list[int] = []
    begins = True  # whether the next item begins a line of code
    for item, _ in _items(text, start):
        code = _DECODER.raw_decode(text, item)[0]
        lines = str(code).split("\n")
        line = first + text.count("\n", start, item)
        result += [line] * (len(lines) - 1 + begins - (lines[-1] == ""))
        begins = lines[-1] == ""
    return result or [first]


# -- writing --------------------------------------------------------------------------------------------------------


def rewrite_notebook(text: str, changes: Mapping[int, str]) -> str:
    """The JSON with new sources for some code cells (from 1). Everything else, and the format of the sources (a list of
    lines or one string, indentation, escapes), is unchanged."""
    places = _source_places(text)
    ascii_only = text.isascii() and "\\u" in text
    for number in sorted(changes, reverse=True):
        start, end = places[number - 1]
        if start >= 0:
            text = text[:start] + _source(text[start:end], changes[number], ascii_only) + text[end:]
    return text


def _lines(code: str) -> list[str]:
    """Its lines with their ends; a form feed ends none."""
    return [line for line in re.split(r"(?<=\n)", code) if line]


def _source(old: str, code: str, ascii_only: bool) -> str:
    if not old.startswith("["):
        return json.dumps(code, ensure_ascii=ascii_only)
    spans = list(_items(old, 0))
    as_written = {_DECODER.raw_decode(old, start)[0]: old[start:end] for start, end in spans}
    parts = [as_written.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in _lines(code)]
    if not spans or not parts:
        return "[" + ", ".join(parts) + "]"
    before, after = old[: spans[0][0]], old[spans[-1][1] :]
    between = old[spans[0][1] : spans[1][0]] if len(spans) > 1 else "," + before[1:]
    return before + between.join(parts) + after


# -- files and cells --------------------------------------------------------------------------------------------------


Note = Callable[[str], None]

_LINE_END = re.compile("\r\n?")
MOST, MOST_NOTEBOOK = 2_000_000, 200_000_000  # bytes of code, and of a notebook with its outputs


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
        argv: the arguments of a script that is about to run.
    """

    path: str
    number: int | None
    text: str
    tree: ast.Module | None
    magic: str = ""
    magic_line: str = ""
    line_magics: tuple[LineMagic, ...] = ()
    problem: Finding | None = None
    argv: tuple[str, ...] = ()

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
    return cells_of(read_regular(path), str(path), note)


@gc_paused()
def cells_of(data: bytes, path: str, note: Note = lambda _: None) -> list[CodeCell]:
    """The cells in a file's bytes."""
    try:
        if path.lower().endswith(".ipynb"):
            result = read_notebook(data) if len(data) <= MOST_NOTEBOOK else Notebook((), "")
            if len(data) > MOST_NOTEBOOK:
                return _too_large(path, len(data), f"notebooks with more than {MOST_NOTEBOOK / 1e6:.0f} MB", note)
            if (size := sum(map(len, result.sources))) > MOST:
                return _too_large(path, size, _MUCH_CODE, note)
            if result.language:
                note(f"{path}: not checked, because it is a notebook in {result.language}")
                return []
            return [cell_of(text, path, number) for number, text in enumerate(result.sources, start=1)]
        if len(data) > MOST:
            return _too_large(path, len(data), _MUCH_CODE, note)
        return [cell_of(decode(data)[0], path)]
    except NotANotebook as error:
        return [_unreadable(path, PythonParseError(str(error), error.line), "This notebook")]
    except PythonParseError as error:
        return [_unreadable(path, error, "This file")]


_MUCH_CODE = f"files with more than {MOST / 1e6:.0f} MB of code"


def _too_large(path: str, size: int, what: str, note: Note) -> list[CodeCell]:
    """Data in the form of code: it would take minutes, and nobody wrote it."""
    note(f"{path}: not checked, because it has {size / 1e6:.1f} MB; {what} are not")
    return []


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
