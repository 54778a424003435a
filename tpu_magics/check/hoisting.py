"""What may be built once in the notebook, and what stands against it: read by rule TPU401 and by the launcher
(launch/hoist)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

# Builtins and methods without side effects whose result depends on their arguments only.
PURE_BUILTINS = frozenset(
    ("len", "int", "float", "complex", "str", "bytes", "bool", "abs", "round", "divmod", "pow", "min", "max", "sum",
     "any", "all", "sorted", "list", "tuple", "dict", "set", "frozenset", "range", "zip", "enumerate", "reversed",
     "slice", "repr", "getattr", "hasattr", "isinstance")
)  # fmt: skip
PURE_METHODS = frozenset(
    ("get", "items", "keys", "values", "copy", "count", "index", "lower", "upper", "strip", "lstrip", "rstrip", "split",
     "join", "format", "startswith", "endswith", "replace", "title", "removeprefix", "removesuffix")
)  # fmt: skip
# Methods that change their object.
MUTATORS = frozenset(
    ("update", "append", "extend", "insert", "add", "pop", "clear", "remove", "discard", "setdefault", "sort",
     "reverse", "popitem", "__setattr__")
)  # fmt: skip
# Contexts that do not change how a model is built.
HARMLESS_CONTEXTS = frozenset(
    ("contextlib.nullcontext", "contextlib.suppress", "contextlib.redirect_stdout", "contextlib.redirect_stderr",
     "warnings.catch_warnings", "builtins.open")
)  # fmt: skip
HARMLESS_METHODS = frozenset(("main_process_first", "local_main_process_first"))

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))

# Why an expression has no value yet.
ON_DEVICE = "depends on the device"
UNKNOWN_RESULT = "calls `{code}`, whose result is known only when the function runs"
# Why a model that is built there cannot be hoisted.
IN_WITH = "it is inside `with {code}` (line {line}), which may change how it is built"
IN_FUNCTION = "it is in the inner function `{name}` (line {line}), which may run any number of times"
_PLACES: tuple[tuple[tuple[type[ast.AST], ...], str], ...] = (
    (LOOPS, "it is built in a loop (line {line}): each pass makes a different model"),
    (COMPREHENSIONS, "it is built in a comprehension (line {line}): each pass makes a different model"),
    (FUNCTIONS, IN_FUNCTION),
    ((ast.Lambda,), "it is in a lambda (line {line}), which may run any number of times"),
    (TRIES, "it is built inside a `try` (line {line})"),
    ((ast.If,), "it is built inside an `if` (line {line})"),
    ((ast.Match,), "it is built inside a `match` (line {line})"),
    ((ast.AST,), "it is built only on a condition (line {line})"),
)
# For nodes with conditional fields: the fields that are always evaluated once.
_ALWAYS: dict[type[ast.AST], tuple[str, ...]] = {
    **dict.fromkeys((ast.If, ast.IfExp), ("test",)),
    **dict.fromkeys((ast.For, ast.AsyncFor), ("iter",)),
    **dict.fromkeys((ast.While, ast.Lambda, *COMPREHENSIONS, *FUNCTIONS, *TRIES), ()),
    ast.Match: ("subject",),
}


def place_problem(node: ast.AST, line: int) -> str:
    """Why a model that is built in a conditional field of `node` cannot be hoisted."""
    text = next(text for kinds, text in _PLACES if isinstance(node, kinds))
    return text.format(line=getattr(node, "lineno", line), name=getattr(node, "name", ""))


def children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The children of `node` in evaluation order, and whether they may be evaluated other than exactly once."""
    always = _ALWAYS.get(type(node), ())
    everything = type(node) not in _ALWAYS
    if isinstance(node, ast.BoolOp):
        yield node.values[0], False
        yield from ((value, True) for value in node.values[1:])
        return
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        yield node.value, False
        return
    everything = everything or is_main_guard(node)
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield child, not (everything or name in always)


def is_main_guard(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether it is `if __name__ == "__main__":` without an `else`, whose body a notebook always runs."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"
