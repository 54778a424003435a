"""What in a cell started the accelerator's runtime in the notebook, as far as its code and its objects show."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.launch import object_graph

_LONGEST = 60  # characters of a line that are shown


@dataclass(frozen=True)
class RuntimeStart:
    """`cell`: as text; `line`: where the cell's own code uses the device, with `code`, that line; `value`: otherwise,
    an object on the device that the cell uses, as Python code."""

    cell: str
    line: int = 0
    code: str = ""
    value: str = ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.cell}, line {self.line}: `{self.code}`"
        return f"{self.cell}, through `{self.value}`, which is on the device" if self.value else self.cell

    def advice(self, examples: str) -> str:
        """What to do besides a restart, as the end of a sentence. `examples`: of uses of the device."""
        if self.line:
            return "and move that line into the training function."
        if self.value:
            return f"and keep `{self.value}` on the CPU in cells that run in the notebook."
        return f"and move the use of the device ({examples}) from what that cell runs into the training function."


def find_start(cell: str, source: str, names: Mapping[str, Any], backend: Backend) -> RuntimeStart:
    """What started it. `source`: the cell's Python code; `names`: the notebook's, after the cell."""
    try:
        tree = ast.parse(source)
        line = next(_uses_of_device(tree, names, backend), 0)
        if line:
            code = source.splitlines()[line - 1].strip()
            return RuntimeStart(cell, line, code if len(code) <= _LONGEST else f"{code[:_LONGEST]}...")
        objects = object_graph.objects_of_code(compile(tree, "<cell>", "exec"), names)
        return RuntimeStart(cell, value=next((name for one in objects for name in _on_device(*one, backend)), ""))
    except Exception:  # magics, or an object's own code
        return RuntimeStart(cell)


def _uses_of_device(node: ast.AST, names: Mapping[str, Any], backend: Backend) -> Iterator[int]:
    """Lines with a call that uses the device, in what the cell itself runs."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    if isinstance(node, ast.Call):
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        callee = _resolved(node.func, names)
        if (callee is not None and backend.models.touches_device(callee)) or any(
            isinstance(one, ast.Constant) and _names_device(one.value, backend) for one in given
        ):
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _uses_of_device(child, names, backend)


def _resolved(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A function that is named through modules only, else None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, names)
        return vars(owner).get(node.attr) if isinstance(owner, type(sys)) else None
    return None


def _names_device(value: object, backend: Backend) -> bool:
    """Whether it is text such as "xla:0"."""
    return (
        isinstance(value, str)
        and re.fullmatch(r"[a-z]+(:\d+)?", value) is not None
        and value not in sys.modules
        and backend.models.touches_device(value)
    )


def _on_device(name: str, value: Any, backend: Backend) -> Iterator[str]:
    """The name of `value` if it is a device, or a tensor or model on one; those of its parts that are text."""
    device = getattr(value, "device", None) if hasattr(type(value), "dtype") else value
    if type(device).__name__ == "device" and backend.models.touches_device(device):
        yield name
    if backend.models.is_model(value) and backend.models.model_device(value) not in ("cpu", "meta"):
        yield name
    if isinstance(value, dict):
        parts = {f"{name}[{key!r}]": item for key, item in value.items()}
    else:
        parts = {f"{name}.{key}": item for key, item in getattr(value, "__dict__", {}).items()}
    yield from (path for path, item in parts.items() if _names_device(item, backend))
