"""Python text as a tree; the function that a cell trains; TPU001 for text that is no Python, and TPU003 for a rule that
failed."""

from __future__ import annotations

import ast
import gc
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Finding
from tpu_magics.check.rule import Rule

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell


@contextmanager
def gc_paused() -> Iterator[None]:
    """Trees are many small objects that live until the end; collecting garbage among them takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def last_name(node: ast.AST) -> str:
    """`c` of `c`, of `a.b.c` and of a call of these; "" of anything else."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Calls that only a training makes.
_TRAINING = frozenset({"backward", "mark_step", "optimizer_step", "train_on_batch"})
_OF_FIT = frozenset({"epochs", "batch_size", "steps_per_epoch", "validation_data"})  # of Keras; others fit a scaler


def trained_definition(tree: ast.Module) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function that a `%%tpu_train` cell trains: its last statement, if the statements before train nothing
    themselves (in which case it is a helper below them)."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    return None if trains(tree) else last


def trains(tree: ast.Module) -> bool:
    """Whether the statements of a cell train, also by functions of the cell that they call."""
    functions = {one.name: one for one in tree.body if isinstance(one, _DEFINITIONS)}
    waiting = [one for one in tree.body if not isinstance(one, _DEFINITIONS)]
    seen: set[str] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            if not isinstance(node, ast.Call):
                continue
            name = last_name(node.func)
            if name in _TRAINING or (name == "fit" and any(one.arg in _OF_FIT for one in node.keywords)):
                return True
            if name in functions and name not in seen:
                seen.add(name)
                waiting.append(functions[name])
    return False


def root(node: ast.AST) -> ast.AST:
    """`a` of `a`, of `a.b.c` and of `a[0].b`; a call is its own."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def root_name(node: ast.AST) -> str:
    """The root's name; "" if it is none."""
    found = root(node)
    return found.id if isinstance(found, ast.Name) else ""


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, as `ast.walk` gives them in another order, in half the time."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                waiting.extend(one for one in value if isinstance(one, ast.AST))
            elif isinstance(value, ast.AST):
                waiting.append(value)


class UnparsedCode(Rule):
    """Code that Python cannot parse.

    What it does
        Reports a file, a notebook or a cell that Python cannot parse, at the line of the error: a syntax error, Python
        2 code, bytes that do not fit the file's encoding, JSON that is not a notebook, code that is nested too deeply.
        Everything else is still checked.
    Why this is bad
        Code that does not parse does not run, and no other rule can check it.
    Example
        print "loss", loss
    Use instead
        print("loss", loss)
    Limitations
        Whether code that parses is complete: an unfinished cell is fine as long as it is valid Python. IPython syntax
        (`%magic`, `!command`, `name?`) is understood in notebooks; in a `.py` file it is reported, and the rest of the
        file is checked.
    """

    code = "TPU001"
    name = "does-not-parse"
    group = "syntax"
    why = "Code that does not parse does not run, and no other rule can check it."


SYNTAX = UnparsedCode()


class FailedRule(Rule):
    """A rule of this checker that failed.

    What it does
        Reports that a rule raised an error while it checked this code. All other rules were checked.
    Why this is bad
        It is a bug in tpu_magics, not in the code: what this rule would have found here is missing.
    Example
        %tpu_check
    Use instead
        %tpu_check --ignore TPU407
    Limitations
        Where the code cannot be read at all, all rules fail together.
    """

    code = "TPU003"
    name = "rule-failed"
    group = "syntax"
    why = "This is a bug in tpu_magics, not in your code: what this rule would have found here is missing."


RULE_FAILED = FailedRule()


def failed_finding(cell: CodeCell, line: int, what: str, error: Exception) -> Finding:
    """TPU003. `what`: e.g. "The rule TPU407 (no-distributed-sampler)"."""
    lines = cell.text.split("\n")
    line = min(line, len(lines))
    message = f"{what} failed with {type(error).__name__}: {str(error)[:200]}."
    fix = "Please report it with the code. Everything else was checked."
    return _finding(cell.path, cell.number, (line, 1), lines[line - 1], message, fix, RULE_FAILED)


_FIX = "Fix the syntax here; the other rules check the code once it parses."
_IPYTHON_FIX = "Call `get_ipython()` or `subprocess` instead, or keep the line in a notebook."


class PythonParseError(Exception):
    """Text that Python cannot parse: the error message, and where (line from 1, column from 1)."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


def parse(text: str) -> ast.Module:
    """The tree of Python text; raises PythonParseError and nothing else. No warning is shown, and nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise _from_syntax_error(text, error) from None
    except (RecursionError, MemoryError):
        raise PythonParseError("the code is nested too deeply") from None
    except ValueError as error:
        raise _from_value_error(text, error) from None


_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def _from_syntax_error(text: str, error: SyntaxError) -> PythonParseError:
    if "null bytes" in error.msg:
        return _from_value_error(text, error)
    return PythonParseError(error.msg or "invalid syntax", max(error.lineno or 1, 1), max(error.offset or 1, 1))


def _from_value_error(text: str, error: Exception) -> PythonParseError:
    """Null bytes and lone surrogates (valid in JSON), for which Python reports no position."""
    match = _UNREADABLE.search(text)
    if match is None:
        return PythonParseError(str(error))
    message = (
        "it contains a null byte" if match.group() == "\0" else "it contains a surrogate, which is not a character"
    )
    before = text[: match.start()]
    return PythonParseError(message, before.count("\n") + 1, len(before) - before.rfind("\n"))


def syntax_finding(path: str, number: int | None, text: str, error: PythonParseError, what: str = "") -> Finding:
    """TPU001 at the error, clamped to the text. `what` names the source; by default the cell or the file."""
    lines = text.split("\n")
    line = min(error.line, len(lines))
    source = lines[line - 1]
    column = min(error.column, len(source) + 1) if error.line <= len(lines) else 1
    subject = what or ("This cell" if number is not None or path.startswith("In [") else "This file")
    message = error.message.rstrip(".")
    message = f"{subject} does not parse: {message}" + ("" if message.endswith("?") else ".")
    return _finding(path, number, (line, column), source, message, _FIX)


def ipython_finding(path: str, text: str, error: PythonParseError) -> Finding:
    """TPU001 for a line of IPython in a Python file, the rest of which parses."""
    lines = text.split("\n")
    line = min(error.line, len(lines))
    source = lines[line - 1]
    column = len(source) - len(source.lstrip()) + 1
    message = "This line is IPython syntax, not Python; a `.py` file with it does not run."
    return _finding(path, None, (line, column), source, message, _IPYTHON_FIX)


def _finding(
    path: str, number: int | None, at: tuple[int, int], source: str, message: str, fix: str, rule: Rule = SYNTAX
) -> Finding:
    return Finding(
        code=rule.code, group=rule.group, path=path, cell=number, line=at[0], column=at[1], end_line=at[0],
        end_column=max(len(source.rstrip()) + 1, at[1]), message=message, why=rule.why, fix=fix,
        source=source.rstrip(),
    )  # fmt: skip
