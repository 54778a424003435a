"""Code for other devices than a TPU: conditions such as `if torch.cuda.is_available():`, and programs for a GPU."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

_TPU = re.compile(r"(?<![a-z])(tpus?|xla)(?![a-z])|(?<![a-z_])(strategy|resolver)(?![a-z_])", re.IGNORECASE)
_OTHER = re.compile(r"(?<![a-z])(cuda|gpus?|cpus?|mps|rocm)(?![a-z])", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_EQUAL = (ast.Eq, ast.Is, ast.In, ast.Gt, ast.GtE)
_UNEQUAL = (ast.NotEq, ast.IsNot, ast.NotIn, ast.Lt, ast.LtE)


def is_in_other_device_branch(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a condition around this node selects another device than a TPU."""
    inner = node
    for outer in ctx.parents(node):
        if isinstance(outer, _FUNCTIONS):
            return False
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test and _is_other_branch(outer, inner):
            return True
        if isinstance(outer, ast.Try) and inner in outer.handlers and _looks_for_tpu(outer):
            return True
        inner = outer
    return False


def _is_other_branch(node: ast.If | ast.IfExp, inner: ast.AST) -> bool:
    body = node.body if isinstance(node.body, list) else [node.body]
    when_true, when_false = _sides(node.test)
    return (when_true if any(one is inner for one in body) else when_false) < 0


def _looks_for_tpu(node: ast.Try) -> bool:
    """`try: TPUClusterResolver(...)`: its handlers run where there is no TPU."""
    names = (
        one for statement in node.body for one in ast.walk(statement) if isinstance(one, (ast.Name, ast.Attribute))
    )
    return any((one.id if isinstance(one, ast.Name) else one.attr) in _RESOLVING for one in names)


_RESOLVING = ("TPUClusterResolver", "TPUStrategy", "xla_device", "torch_xla")


def _sides(test: ast.expr) -> tuple[int, int]:
    """For a condition, the device of its true and of its false side: 1 a TPU, -1 another device, 0 unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        one, other = _sides(test.operand)
        return other, one
    if isinstance(test, ast.BoolOp):
        return _of_several(test)
    if isinstance(test, ast.Compare):
        return _of_comparison(test)
    return _of_words(ast.unparse(test))


def _of_several(test: ast.BoolOp) -> tuple[int, int]:
    sides = [_sides(one) for one in test.values]
    if isinstance(test.op, ast.And):
        return next((one for one, _ in sides if one), 0), 0
    return 0, next((other for _, other in sides if other), 0)


def _of_comparison(test: ast.Compare) -> tuple[int, int]:
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    nothing = isinstance(right, ast.Constant) and right.value in (None, 0, False, "")
    what = left if nothing or not _of_words(ast.unparse(right))[0] else right
    one, other = _of_words(ast.unparse(what))
    if nothing and isinstance(operator, (ast.Eq, ast.Is, ast.LtE)):  # `strategy is None`, `len(tpus) == 0`
        return other, one
    if nothing:
        return one, other
    return (one, other) if isinstance(operator, _EQUAL) else (other, one) if isinstance(operator, _UNEQUAL) else (0, 0)


def _of_words(text: str) -> tuple[int, int]:
    if _OTHER.search(text):
        return -1, 0  # "not on a GPU" may be on a TPU
    return (1, -1) if _TPU.search(text) else (0, 0)


def is_for_other_device(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this code, or the whole program, is for another device than a TPU."""
    return is_gpu_program(ctx.program) or is_in_other_device_branch(node, ctx)


def is_gpu_program(program: CheckedProgram) -> bool:
    """Whether the program moves things to "cuda" and does not use XLA."""
    if "sends_to_cuda" not in program.memo:
        program.memo["sends_to_cuda"] = _sends_to_cuda(program)
    return bool(program.memo["sends_to_cuda"])


def _sends_to_cuda(program: CheckedProgram) -> bool:
    magic = any(one.name.startswith("tpu_") for cell in program.cells for one in cell.line_magics)
    if program.uses("torch_xla") or program.uses("tpu_magics") or magic or _has_tpu_cell(program):
        return False
    if program.calls("torch.cuda.set_device") or any(not call.node.args for call in program.methods("cuda")):
        return True
    devices = [call for call in (*program.calls("torch.device"), *program.methods("to")) if call.node.args]
    return any(is_cuda(call.ctx.constant(call.node.args[0])) for call in devices)


def _has_tpu_cell(program: CheckedProgram) -> bool:
    return any(cell.magic.startswith("tpu_") for cell in program.cells)


def is_cuda(constant: object) -> bool:
    return isinstance(constant, str) and constant.partition(":")[0] == "cuda"
