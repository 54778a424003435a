"""Replaces IPython syntax (magics, shell commands, help) by Python with the same lines and columns."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

# Cell magics whose body is Python code of this process. Others are other languages, or run elsewhere.
PYTHON_MAGICS = frozenset((
    "time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "scalene", "snakeviz", "pyinstrument", "debug",
    "px", "notify", "wandb", "heat",
))  # fmt: skip
# Line magics whose words are a Python statement, after options.
STATEMENT_MAGICS = frozenset((
    "time", "timeit", "prun", "memit", "mprun", "lprun", "scalene", "snakeviz", "pyinstrument",
))  # fmt: skip
# Magics that run without % as a cell's only line, except common variable names.
AUTOMAGICS = frozenset((
    "pip", "conda", "mamba", "uv", "cd", "ls", "ll", "mkdir", "rm", "rmdir", "cp", "mv", "cat", "load_ext",
    "reload_ext", "env", "matplotlib",
))  # fmt: skip

_PROMPT = re.compile(r"(\s*(?:>>>|\.\.\.|In \[\d+\]:|\.{3,}:)(?: |$))")
_FIRST_PROMPT = re.compile(r"\s*(?:>>>|In \[\d+\]:)(?: |$)")
_CELL_MAGIC = re.compile(r"\s*%%([A-Za-z_][\w.]*)(.*)")
_LINE_MAGIC = re.compile(r"(\s*)%{1,2}([A-Za-z_][\w.]*)(.*)")
_SHELL_OR_HELP = re.compile(r"(\s*)(?:!|\?{1,2}\s*[%\w])")
_ENDS_IN_HELP = re.compile(r"(\s*)[^#'\"]*[\w\])*]\s*\?{1,2}\s*(?:#.*)?$")
_OPTIONS = re.compile(r"(?:\s+-(?:[nrNRpslTDf]\s*\S+|[a-zA-Z]+))*\s+")
_TOKEN = re.compile(
    r"""(?P<triple>\"\"\"|''')|(?P<string>"(?:\\.|[^"\\])*(?P<end1>"?)|'(?:\\.|[^'\\])*(?P<end2>'?))|(?P<comment>\#.*)"""
    r"""|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<assigned>(?<![=!<>:+\-*/%&|^@])=\s*[!%](?!=))|(?P<continued>\\$)""",
)
_CLOSING = {mark: re.compile(rf"(?:[^\\]|\\.)*?{mark}") for mark in ('"""', "'''", '"', "'")}


class LineMagic(NamedTuple):
    """`%name words` on a line (from 1)."""

    line: int
    name: str
    words: str


@dataclass
class MaskedCell:
    """A cell as Python: as many `lines` as the cell has, with only the IPython syntax replaced.

    `magic` and `magic_line` are those of the cell magic; with two (`%%time` above `%%tpu_train`), ours. `is_python` is
    False if the body is in another language.
    """

    lines: list[str]
    magic: str = ""
    magic_line: str = ""
    is_python: bool = True
    line_magics: list[LineMagic] = field(default_factory=list)

    @property
    def python(self) -> str:
        return "\n".join(self.lines)


def mask(text: str, cell_magics: bool = True) -> MaskedCell:
    """The cell with Python in place of IPython syntax."""
    masked = MaskedCell(text.split("\n"))
    if cell_magics:
        _take_prompts(masked.lines)
        _take_cell_magics(masked)
        _take_automagic(masked)
    if masked.is_python:
        _take_lines(masked)
    return masked


def _take_prompts(lines: list[str]) -> None:
    """A pasted session: `>>> ` and `In [1]: ` become as many spaces."""
    first = next((line for line in lines if line.strip()), "")
    if _FIRST_PROMPT.match(first):
        lines[:] = [_PROMPT.sub(lambda result: " " * len(result.group()), line, count=1) for line in lines]


def _take_cell_magics(masked: MaskedCell) -> None:
    """The `%%` lines at the top, also below comments, and several of them."""
    for index, line in enumerate(masked.lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _CELL_MAGIC.match(line)
        if match is None:
            return
        name, words = match.groups()
        if not masked.magic or name.startswith("tpu_"):
            masked.magic, masked.magic_line = name, words.strip()
        if name not in PYTHON_MAGICS and not name.startswith("tpu_"):
            masked.is_python = False
            return
        masked.lines[index] = _statement(line, words) if name == "timeit" else ""


def _take_automagic(masked: MaskedCell) -> None:
    """`pip install x` as the only line of a cell."""
    code = [index for index, line in enumerate(masked.lines) if line.strip() and not line.lstrip().startswith("#")]
    if len(code) != 1:
        return
    line = masked.lines[code[0]]
    name, _, words = line.strip().partition(" ")
    if name in AUTOMAGICS and words and words.lstrip()[0] not in "=(.,[:":
        masked.lines[code[0]] = line[: len(line) - len(line.lstrip())] + "%" + line.lstrip()


def _take_lines(masked: MaskedCell) -> None:
    """Every line at which a statement can begin, so nothing inside a string or bracket."""
    lexer = _Lexer()
    index = 0
    while index < len(masked.lines):
        taken = 0 if lexer.inside else _take_magic(masked, index)
        if not taken:
            assigned = lexer.read(masked.lines[index])
            taken = _take_assigned(masked, index, assigned) if assigned else 1
        index += taken


def _take_magic(masked: MaskedCell, index: int) -> int:
    """The number of lines of the magic, command or help at this line; 0 if there is none."""
    line = masked.lines[index]
    result = _LINE_MAGIC.match(line)
    if result:
        indent, name, words = result.groups()
        count = _continued(masked.lines, index)
        masked.line_magics.append(LineMagic(index + 1, name, _joined(words, masked.lines[index + 1 : index + count])))
        _replace(masked.lines, index, count, indent, name, words)
        return count
    result = _SHELL_OR_HELP.match(line) or ("?" in line and _ENDS_IN_HELP.match(line)) or None
    if not result:
        return 0
    count = _continued(masked.lines, index)
    _blank(masked.lines, index, count, result.group(1) + "pass")
    return count


def _replace(lines: list[str], index: int, count: int, indent: str, name: str, words: str) -> None:
    statement = _statement(lines[index], words) if name in STATEMENT_MAGICS else ""
    if statement and count > 1:
        whole = "\n".join([statement, *lines[index + 1 : index + count]])
        if _parses(whole.lstrip()):
            lines[index] = statement
            return
        statement = ""
    _blank(lines, index, count, statement or indent + "pass")


def _statement(line: str, words: str) -> str:
    """The line of a magic that times a statement: the text before the statement becomes `0;` and spaces."""
    options = _OPTIONS.match(words)
    code = words[options.end() :] if options else ""
    indent = line[: len(line) - len(line.lstrip())]
    if not code.strip() or not (code.endswith("\\") or _parses("0;" + code)):
        return ""
    return (indent + "0;").ljust(len(line) - len(code)) + code


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _take_assigned(masked: MaskedCell, index: int, at: int) -> int:
    """`x = !command` and `x = %magic words`: the value is unknown."""
    line = masked.lines[index]
    right = line[at + 1 :].lstrip()
    count = _continued(masked.lines, index)
    call = "get_ipython().getoutput('')"
    magic = _LINE_MAGIC.match(right)
    if magic:
        call = f"get_ipython().run_line_magic({magic.group(2)!r}, '')"
        words = _joined(magic.group(3), masked.lines[index + 1 : index + count])
        masked.line_magics.append(LineMagic(index + 1, magic.group(2), words))
    _blank(masked.lines, index, count, f"{line[:at]}= {call}")
    return count


def _continued(lines: list[str], index: int) -> int:
    """The number of lines from here that end in a backslash, plus one."""
    end = index
    while end < len(lines) - 1 and lines[end].endswith("\\"):
        end += 1
    return end - index + 1


def _joined(words: str, more: list[str]) -> str:
    return " ".join(part.removesuffix("\\").strip() for part in (words, *more)).strip()


def _blank(lines: list[str], index: int, count: int, first: str) -> None:
    lines[index : index + count] = [first, *[""] * (count - 1)]


class _Lexer:
    """Whether the next line begins inside a string, a bracket or a continued line."""

    def __init__(self) -> None:
        self.mark = ""  # of the string that is open
        self.depth = 0
        self.continued = False

    @property
    def inside(self) -> bool:
        return bool(self.mark) or self.depth > 0 or self.continued

    def read(self, line: str) -> int:
        """Reads one line; returns the column of `= !` or `= %` outside brackets and strings, else 0."""
        self.continued = False
        at = 0
        if self.mark:
            at = self._close(line, 0)
            if at < 0:
                return 0
        while match := _TOKEN.search(line, at):
            if match.lastgroup == "assigned" and self.depth == 0:
                return match.start()
            at = match.end()
            if match.group("triple"):
                self.mark = match.group()
                at = self._close(line, at)
                if at < 0:
                    return 0
            else:
                self._take(match, line)
        return 0

    def _close(self, line: str, at: int) -> int:
        """Where the open string ends, -1 where it goes on. One of single quotes goes on only after a backslash."""
        match = _CLOSING[self.mark].match(line, at)
        if match or (len(self.mark) == 1 and not line.endswith("\\")):
            self.mark = ""
        return match.end() if match else -1

    def _take(self, result: re.Match[str], line: str) -> None:
        if result.group("string"):
            text = result.group()
            if not (result.group("end1") or result.group("end2")) and line.endswith("\\"):
                self.mark = text[0]
        elif result.group("open"):
            self.depth += 1
        elif result.group("close"):
            self.depth = max(0, self.depth - 1)
        elif result.group("continued"):
            self.continued = True
