"""Parsing a `%%tpu_train` cell, and the ARGs of a magic line: words that are Python expressions, e.g.
`m1 16 "cfg.lr * 2" key=expr [1, 2]`. Nothing of a cell is run here.

A cell has form 2 if it calls notebook_launcher, xmp.spawn or torch_xla.launch at the top level; form 1 if its last
top-level statement is a `def` and no statement before it trains; else form 3. Spaces separate words, except inside
quotes and brackets; quotes around a whole word are removed.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import shlex
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.check.syntax import trained_definition
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session

LAUNCHERS: Mapping[str, str] = {
    "accelerate.notebook_launcher": "notebook_launcher",
    "accelerate.launchers.notebook_launcher": "notebook_launcher",
    "torch_xla.distributed.xla_multiprocessing.spawn": "xmp.spawn",
    "torch_xla.launch": "torch_xla.launch",
    "torch_xla.torch_xla.launch": "torch_xla.launch",
}
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Cell:
    """A parsed cell. `form`: 1, 2 or 3; `tree`: its statements, with the line numbers shown in the notebook.

    `function`: name of the training function (form 1); `calls`: the launcher calls with their kind (form 2).
    """

    form: int
    tree: ast.Module
    filename: str
    function: str = ""
    calls: tuple[tuple[ast.Call, str], ...] = field(default_factory=tuple)


def read_cell(source: str, filename: str, namespace: Mapping[str, Any]) -> Cell:
    """Parse a cell's Python source (magics translated, the first line in place of `%%tpu_train`).

    Raises:
        SyntaxError: as Python would.
        TpuMagicsError: the cell is empty.
    """
    tree = ast.parse(source, filename)
    tree.body.sort(key=lambda node: not _is_of_future(node))  # IPython takes them anywhere, Python at the top only
    if not tree.body:
        raise TpuMagicsError(
            "The cell under %%tpu_train is empty.",
            "%%tpu_train trains the function or the statements of its cell.",
            "Write the training function below %%tpu_train, or use %tpu_train FUNCTION for an existing function.",
        )
    calls = tuple(launching_calls(tree, namespace))
    if calls:
        return Cell(2, tree, filename, calls=calls)
    trained = trained_definition(tree)
    return Cell(3, tree, filename) if trained is None else Cell(1, tree, filename, function=trained.name)


def _is_of_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


# -- form 2 -----------------------------------------------------------------------------------------------------------


def launching_calls(tree: ast.Module, namespace: Mapping[str, Any]) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a launcher at the top level, also below `if __name__ == "__main__":`."""
    names = _imports(tree)
    for statement in _top_level(tree.body):
        call = _call_of(statement)
        if call is not None:
            kind = LAUNCHERS.get(canonical(call.func, names, namespace))
            if kind is not None:
                yield call, kind


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.If, ast.With, ast.Try)):
            yield from _top_level(statement.body)
        else:
            yield statement


def _call_of(statement: ast.stmt) -> ast.Call | None:
    value = getattr(statement, "value", None)
    return value if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(value, ast.Call) else None


def _imports(tree: ast.Module) -> dict[str, str]:
    """The names that the cell imports: local name -> canonical name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def canonical(node: ast.expr, imports: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """The dotted name that an expression refers to, by the cell's imports and the notebook's names; "" if none."""
    if isinstance(node, ast.Attribute):
        left = canonical(node.value, imports, namespace)
        return f"{left}.{node.attr}" if left else ""
    if not isinstance(node, ast.Name):
        return ""
    if node.id in imports:
        return imports[node.id]
    value: Any = namespace.get(node.id)
    if issubclass(type(value), types.ModuleType):
        return str(value.__name__)
    if issubclass(type(value), (types.FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    return ""


def replace_calls(cell: Cell, name: str) -> ast.Module:
    """The cell's statements with each launching call's callee replaced: `f(...)` -> `name(number, f, ...)`."""
    for number, (call, _kind) in enumerate(cell.calls):
        original = call.func
        call.args = [ast.copy_location(ast.Constant(number), original), original, *call.args]
        call.func = ast.copy_location(ast.Name(name, ast.Load()), original)
    return cell.tree


def split_final(tree: ast.Module) -> tuple[ast.Module, ast.Interactive]:
    """The statements without a final expression, and that expression as a shell runs it: its value is shown."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        return _module(tree.body[:-1]), ast.Interactive(body=tree.body[-1:])
    return tree, ast.Interactive(body=[])


# -- forms 1 and 3 ----------------------------------------------------------------------------------------------------


def split_definitions(tree: ast.Module) -> tuple[ast.Module, ast.Module]:
    """The leading imports, functions and classes of a form 3 cell, and the rest.

    The first part runs in the notebook: later cells need it, and so does unpickling of results from the workers.
    """
    count = 0
    for statement in tree.body:
        if not (isinstance(statement, DEFINITIONS) or _is_text(statement)):
            break
        count += 1
    return _module(tree.body[:count]), _module(tree.body[count:])


def split_last(tree: ast.Module) -> tuple[ast.Module, ast.Expression | None]:
    """The statements without a final expression, and that expression, whose value a cell shows."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        return _module(tree.body[:-1]), ast.Expression(tree.body[-1].value)
    return tree, None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _module(body: list[ast.stmt]) -> ast.Module:
    return ast.Module(body=body, type_ignores=[])


# -- compiling ---------------------------------------------------------------------------------------------------------


def compile_tree(tree: ast.Module | ast.Expression | ast.Interactive, filename: str, mode: str) -> Any:
    try:
        return compile(ast.fix_missing_locations(tree), filename, mode, dont_inherit=True)
    except SyntaxError as error:  # e.g. `return` outside a function
        raise _await_error(error) if _awaits(tree, filename, mode) else syntax_error(error) from None


def _awaits(tree: ast.Module | ast.Expression | ast.Interactive, filename: str, mode: str) -> bool:
    """Whether the code is valid in a cell without a magic, where IPython allows `await` outside of a function."""
    try:
        compile(tree, filename, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _await_error(error: SyntaxError) -> TpuMagicsError:
    cells = session.current.notebook.cell_names()
    return TpuMagicsError(
        "A training cell cannot use `await` outside of a function.",
        f"It is in {cells.get(error.filename or '', 'the cell')}, line {error.lineno}. The kernel's event loop, which "
        "runs it in other cells, is not in the workers.",
        "Put it into a function, async def main(): ..., and call asyncio.run(main()) in its place; or use `await` in a "
        "cell before the run.",
    )


def syntax_error(error: SyntaxError) -> TpuMagicsError:
    cells = session.current.notebook.cell_names()
    _file, *shown, _last = traceback.format_exception_only(error)
    if not shown and error.filename and error.lineno:
        shown = [f"    {linecache.getline(error.filename, error.lineno).strip()}"]
    return TpuMagicsError(
        f"The cell is not valid Python: {error.msg}.",
        f"The error is in {cells.get(error.filename or '', 'the cell')}, line {error.lineno}.",
        "Fix that line or the line before it, and run the cell again.",
        "".join(shown).splitlines(),
    )


# -- ARGs -------------------------------------------------------------------------------------------------------------


_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "\"'"


def split_words(line: str) -> list[str]:
    """The words of a line. Raises TpuMagicsError for an unclosed quote or bracket."""
    words, _, missing = scan(f"{line.strip()} ")
    if missing:
        raise TpuMagicsError(
            f"The line has an unclosed {missing}.", f"The line is: {line.strip()}", f"Close the {missing}."
        )
    return words


def scan(line: str) -> tuple[list[str], str, str]:
    """The words of a line that end in it, the word at its end ("" after a space), and what is open there: a "bracket",
    a "quote '", or "" for nothing."""
    words: list[str] = []
    word, quote, depth = "", "", 0
    for char in line:
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif char.isspace() and not depth:
            if word:
                words.append(_unquoted(word))
            word = ""
            continue
        word += char
    return words, word, f"quote {quote}" if quote else "bracket" if depth else ""


def _unquoted(word: str) -> str:
    """`"a b"` -> `a b`, and `key="a b"` -> `key=a b`; all other quotes belong to the expression."""
    name, equals, value = word.partition("=")
    if equals and name.isidentifier() and _is_quoted(value):
        return f"{name}={value[1:-1]}"
    return word[1:-1] if _is_quoted(word) else word


def _is_quoted(word: str) -> bool:
    return len(word) >= 2 and word[0] in _QUOTES and word[-1] == word[0] and word[0] not in word[1:-1]


def parse_arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Positional and keyword expressions; only their syntax is checked."""
    positional: list[str] = []
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier() and not value.startswith("="):
            named[name] = _checked(value, word)
        elif named:
            raise TpuMagicsError(
                f"The positional ARG {word!r} follows a keyword ARG.",
                "As in a Python call, positional arguments come first.",
                "Move it before the first key=value.",
            )
        else:
            positional.append(_checked(word, word))
    return positional, named


def _checked(expression: str, word: str) -> str:
    try:
        ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise TpuMagicsError(
            f"The ARG {word!r} is not a Python expression: {error.msg}.",
            "ARGs are evaluated in the notebook, like the arguments of a call.",
            'Put quotes around an expression with spaces: "cfg.lr * 2"; write a string as "\'text\'".',
        ) from None
    return expression


def evaluate(expression: str, namespace: dict[str, Any]) -> Any:
    """The value of an ARG in the notebook. Raises TpuMagicsError if the evaluation fails."""
    try:
        return eval(compile(expression, "<ARG>", "eval"), namespace)
    except Exception as error:
        raise TpuMagicsError(
            f"The ARG {expression!r} cannot be evaluated: {type(error).__name__}: {error}.",
            "ARGs are Python expressions, evaluated in the notebook when the cell runs.",
            _advice(expression, error),
        ) from error


def refuse_call(expression: str, namespace: dict[str, Any]) -> None:
    """Raise TpuMagicsError for `train()` in place of `train`, where the call would train in the notebook and give no
    function."""
    call = ast.parse(expression, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return
    function = namespace.get(call.func.id)
    if not isinstance(function, types.FunctionType) or _gives_a_value(function.__code__):
        return
    given = " ".join(shlex.quote(ast.unparse(one)) for one in (*call.args, *call.keywords))
    raise TpuMagicsError(
        f"`{expression}` is a call, which gives no function.",
        f"It would run `{call.func.id}` in the notebook's process, before the workers start.",
        f"Leave out the parentheses: {f'%tpu_train {call.func.id} {given}'.rstrip()}",
    )


def _gives_a_value(code: types.CodeType) -> bool:
    """Whether it may return anything but None. (Generators and coroutines give an object.)"""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return True
    before = None
    for one in dis.get_instructions(code):
        if one.opname == "RETURN_VALUE" and (
            before is None or before.argval is not None or before.opname != "LOAD_CONST"
        ):
            return True
        if one.opname == "RETURN_CONST" and one.argval is not None:
            return True
        before = one
    return False


def _advice(expression: str, error: Exception) -> str:
    if isinstance(error, NameError) and expression.isidentifier():
        return f"Define `{expression}` in an earlier cell; for a string, write \"'{expression}'\"."
    return "Fix the expression, or compute the value in an earlier cell and use its name here."


def evaluate_all(
    positional: Sequence[str], named: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The values of all ARGs."""
    return [evaluate(e, namespace) for e in positional], {k: evaluate(e, namespace) for k, e in named.items()}
