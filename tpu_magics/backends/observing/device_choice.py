"""The line of the user's code that selects the device, for training that stayed on the host."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from tpu_magics.backends.observing.branches import parsed

_ASKED = ("cuda.is_available", "mps.is_available", "accelerator.is_available")


def find(paths: Iterable[str]) -> tuple[str, int] | None:
    """The first line in these files, in order, that checks for a GPU or names the CPU: (path, line)."""
    for path in dict.fromkeys(paths):
        tree = parsed(path)
        lines = sorted(_lines(tree)) if tree is not None else []
        if lines:
            return path, lines[0]
    return None


def _lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if _asks(node) or _names_cpu(node):
            yield node.lineno


def _asks(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """`if torch.cuda.is_available():`, or the same in an expression."""
    return isinstance(node, (ast.If, ast.IfExp)) and any(asked in ast.unparse(node.test) for asked in _ASKED)


def _names_cpu(node: ast.AST) -> TypeGuard[ast.stmt]:
    """`device = "cpu"`."""
    return isinstance(node, ast.Assign) and _is_cpu(node.value) and "device" in ast.unparse(node.targets[0]).lower()


def _is_cpu(value: ast.expr) -> bool:
    """`"cpu"`, or `torch.device("cpu")`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "device" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("cpu")
