"""float16, and code for a GPU only: shared by the rules of the group `precision`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _device_guards
from tpu_magics.check.values import NUMBER

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

_FLOAT16 = frozenset(("torch.float16", "torch.half", "tensorflow.float16", "tensorflow.half"))
FLOAT16_TENSORS = frozenset(("torch.HalfTensor", "torch.cuda.HalfTensor"))
_TEXTS = frozenset(("float16", "fp16", "half", "torch.float16", "torch.half"))
_TPU_ROOTS = ("torch_xla", "accelerate", "tpu_magics")
_GPU_STRATEGIES = ("tensorflow.distribute.MirroredStrategy", "tensorflow.distribute.MultiWorkerMirroredStrategy")
_LISTED = ("tensorflow.config.list_physical_devices", "tensorflow.config.experimental.list_physical_devices")


def is_float16(node: ast.expr | None, ctx: RuleContext, texts: bool = False) -> bool:
    """Whether an expression is the dtype float16; `texts`: also its names as strings."""
    if node is None:
        return False
    if ctx.name(node) in _FLOAT16 and not isinstance(node, ast.Call):
        return True
    return texts and ctx.constant(node) in _TEXTS


def is_for_gpu(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this runs on a GPU only: under a condition for a GPU, or in a program for a GPU."""
    return _is_under_gpu_test(node, ctx) or gpu_only(ctx.program)


def _is_under_gpu_test(node: ast.AST, ctx: RuleContext) -> bool:
    inner = node
    for outer in ctx.parents(node):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if _is_gpu_branch(outer.test, any(one is inner for one in body)):
                return True
        inner = outer
    return False


def _is_gpu_branch(test: ast.expr, when_true: bool) -> bool:
    text = ast.unparse(test).lower()
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    if "cuda" in text or "gpu" in text:
        return when_true != negated
    return ("xla" in text or "tpu" in text) and when_true == negated


def mentions_gpu(node: ast.expr | None, ctx: RuleContext) -> bool:
    """`enabled=torch.cuda.is_available()`, `enabled=device.type == "cuda"`, through a name as well."""
    return node is not None and ("cuda" in ast.unparse(node).lower() or ctx.value(node).name.startswith("torch.cuda"))


def gpu_only(program: CheckedProgram) -> bool:
    """Whether the program moves everything to "cuda" and does not use XLA: a script for a GPU."""
    if "gpu_only" not in program.memo:
        program.memo["gpu_only"] = _looks_gpu_only(program)
    return bool(program.memo["gpu_only"])


def _looks_gpu_only(program: CheckedProgram) -> bool:
    if program.xla or program.tpu_tf or any(program.uses(root) for root in _TPU_ROOTS):
        return False
    if program.calls(*_GPU_STRATEGIES):
        return True
    if any(
        call.ctx.constant(call.ctx.argument(call.node, "device_type", 0)) == "GPU" for call in program.calls(*_LISTED)
    ):
        return True
    if any(call.receiver.kind != NUMBER for call in program.methods("cuda")):
        return True
    devices = program.calls("torch.device") + program.methods("to")
    return any(
        _device_guards.is_cuda(call.ctx.constant(argument)) for call in devices for argument in call.node.args[:1]
    )
