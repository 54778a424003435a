"""bfloat16 enabled through environment variables.

What it does
    Reports `XLA_USE_BF16`, `XLA_DOWNCAST_BF16`, `XLA_USE_FP16` and `XLA_DOWNCAST_FP16` set in `os.environ` (by item,
    `update`, `setdefault`, `os.putenv`, or in a dict that becomes an environment), with `%env`, and with `export` or
    before a command on a `!` line.
Why this is bad
    The variables are deprecated: torch_xla 2.9 warns about them, and a later version ignores them. They turn every
    float32 tensor into bfloat16 while `tensor.dtype` still says float32, and they have no effect after the process has
    created an XLA tensor.
Example
    os.environ["XLA_USE_BF16"] = "1"
Use instead
    %tpu_init --precision bf16
    # or, in code:
    accelerator = Accelerator(mixed_precision="bf16")
    with torch.autocast("xla", dtype=torch.bfloat16): ...
Limitations
    A variable that is set outside the program (a shell, a Dockerfile, the environment of a service), and a name that is
    composed at run time, are not found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rule_context import RuleContext
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU501"
NAME = "bf16-environment"
GROUP = "precision"
WHY = (
    "The variable is deprecated in torch_xla; it makes float32 tensors 16-bit while tensor.dtype still says float32, "
    "and it has no effect after the process has created an XLA tensor."
)
NODES = (ast.Assign, ast.Call, ast.Dict)

VARIABLES = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_FP16", "XLA_DOWNCAST_FP16")
_OFF = frozenset(("", "0", "false", "no", "off", "none"))
_SETTERS = frozenset(("os.putenv", "os.environ.setdefault", "os.environ.__setitem__"))
_MAPPINGS = frozenset(("os.environ.update", "builtins.dict", "dict"))
_WORDS = re.compile(rf"\b({'|'.join(VARIABLES)})(?:\s*=\s*|\s+)[\"']?([\w$]*)")
_INSTEAD = (
    "Write `%tpu_init --precision {level}` in a notebook, "
    '`Accelerator(mixed_precision="bf16")` or `torch.autocast("xla", dtype=torch.bfloat16)` in code.'
)
_SHELL = re.compile(rf"^\s*!.*?\b({'|'.join(VARIABLES)})=[\"']?([\w$]*)")


def check(node: ast.Assign | ast.Call | ast.Dict, ctx: RuleContext) -> Iterator[Finding]:
    for variable, value, place in _settings(node, ctx):
        if not _is_off(value, ctx):
            yield _found(place, variable, ctx)


def _settings(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    """The variables that a node sets: name, value, and where it is written."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and (name := _variable(target.slice, ctx)):
                yield name, node.value, node
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and isinstance(ctx.constant(value), (str, int)) and (name := _variable(key, ctx)):
                yield name, value, key
    else:
        yield from _settings_of_call(node, ctx)


def _settings_of_call(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    assert isinstance(node, ast.Call)
    for keyword in node.keywords:
        if keyword.arg in VARIABLES and ctx.name(node) in _MAPPINGS:
            yield keyword.arg, keyword.value, keyword.value
    if len(node.args) == 2 and ctx.name(node) in _SETTERS and (name := _variable(node.args[0], ctx)):
        yield name, node.args[1], node


def _variable(node: ast.expr, ctx: RuleContext) -> str:
    name = ctx.constant(node)
    return name if isinstance(name, str) and name in VARIABLES else ""


def _is_off(value: ast.expr, ctx: RuleContext) -> bool:
    """Whether it is disabled, or restored to its previous value."""
    if isinstance(value, ast.Call) and ctx.name(value) == "builtins.str" and value.args:
        value = value.args[0]
    constant = ctx.constant(value)
    if constant is not NOTHING:
        return str(constant).strip().lower() in _OFF
    return _puts_back(value, ctx)


def _puts_back(value: ast.expr, ctx: RuleContext) -> bool:
    """`os.environ["XLA_USE_BF16"] = saved`, where `saved` comes from the environment."""
    made = ctx.value(value).made
    return any(isinstance(one, ast.Call) and ctx.name(one).startswith("os.") for one in (value, made)) or (
        isinstance(value, ast.Name) and re.search(r"old|saved|previous|before|orig", value.id) is not None
    )


def _fix(variable: str) -> str:
    if "FP16" in variable:
        return f"Remove it: a TPU computes in bfloat16. {_INSTEAD.format(level='bf16')}"
    return f"Remove it. {_INSTEAD.format(level='bf16-downcast' if 'DOWNCAST' in variable else 'bf16')}"


def _found(node: ast.AST, variable: str, ctx: RuleContext) -> Finding:
    return ctx.finding(node, f"{variable} is set in the environment.", _fix(variable))


# -- lines that are not Python ----------------------------------------------------------------------------------------


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for index, cell in enumerate(program.cells):
        if any(one in cell.text for one in VARIABLES):
            yield from _check_lines(cell, RuleContext(program, cell, index, None, (), False))


def _check_lines(cell: CodeCell, ctx: RuleContext) -> Iterator[Finding]:
    magics = {one.line: one.words for one in cell.line_magics if one.name in ("env", "set_env")}
    shell = cell.magic in ("bash", "sh", "script") or bool(cell.line_magics) or ctx.notebook
    for number, line in enumerate(cell.lines, start=1):
        found = _WORDS.search(magics[number]) if number in magics else _of_shell(line, cell) if shell else None
        if found is not None and found[2].lower() not in _OFF:
            yield ctx.finding_at(number, line.find(found[1]), f"{found[1]} is set in the environment.", _fix(found[1]))


def _of_shell(line: str, cell: CodeCell) -> re.Match[str] | None:
    if cell.magic in ("bash", "sh", "script"):
        return None if line.lstrip().startswith("#") else _WORDS.search(line)
    return _SHELL.search(line)
