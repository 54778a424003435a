"""Models and tensors converted to float16.

What it does
    Reports `.half()`, `.to(torch.float16)`, `.to(dtype=torch.half)`, `.type(torch.float16)` of models and tensors,
    tensors created with `dtype=torch.float16`, and `tf.cast(x, tf.float16)` in TensorFlow code for a TPU.
Why this is bad
    A TPU computes in bfloat16. It has no units for float16, whose range (up to 65504) also makes losses and gradients
    overflow without a scaler.
Example
    model = model.half().to(device)
    mask = torch.zeros(8, 128, dtype=torch.float16, device=device)
Use instead
    model = model.to(torch.bfloat16).to(device)
    mask = torch.zeros(8, 128, dtype=torch.bfloat16, device=device)
Limitations
    A dtype from a configuration is unknown. float16 NumPy arrays on the host, tensors that stay on the CPU, code under
    a condition for a GPU, and programs for a GPU only are fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _precision as precision
from tpu_magics.check.values import BATCH, MODEL, OUTPUT, TENSOR, UNKNOWN

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU503"
NAME = "half"
GROUP = "precision"
WHY = "A TPU computes in bfloat16 and has no units for float16, whose small range makes losses and gradients overflow."
NODES = (ast.Call,)

_KINDS = (TENSOR, OUTPUT, BATCH, MODEL)
_CASTS = ("to", "type")
_TF_CASTS = ("tensorflow.cast", "tensorflow.dtypes.cast")


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    found = _of_method(node, ctx) or _of_function(node, ctx)
    if found is not None and not precision.is_for_gpu(node, ctx) and not _keeps_dtype(node, ctx):
        message, fix = found
        yield ctx.finding(node, message, fix)


def _keeps_dtype(node: ast.Call, ctx: RuleContext) -> bool:
    """`if x.dtype == torch.float16: y = y.half()`: code that keeps the dtype of its input."""
    tests = [ast.unparse(one.test) for one in ctx.parents(node) if isinstance(one, (ast.If, ast.IfExp))]
    return any("dtype" in test and ("float16" in test or "half" in test) for test in tests)


def _of_method(node: ast.Call, ctx: RuleContext) -> tuple[str, str] | None:
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("half", *_CASTS):
        return None
    receiver, whose = ctx.value(func.value), ctx.source(func.value)
    if not _is_ours(func, node, ctx):
        return None
    whose = whose if len(whose) <= 60 and "\n" not in whose else "the result"
    if func.attr == "half":
        sure = receiver.kind in _KINDS or _is_torch(ctx)
        return (
            (f"{whose} is converted to float16.", f"Write `{whose}.to(torch.bfloat16)`.")
            if sure and not node.args
            else None
        )
    given = [*node.args, *(one.value for one in node.keywords if one.arg in ("dtype", "dst_type"))]
    if any(_is_float16(one, ctx) for one in given):
        return f"{whose} is converted to float16.", "Write `torch.bfloat16` instead of float16."
    return None


def _is_float16(node: ast.expr, ctx: RuleContext) -> bool:
    return (
        precision.is_float16(node, ctx)
        or ctx.name(node) in precision.FLOAT16_TENSORS
        or ctx.constant(node) in precision.FLOAT16_TENSORS
    )


def _is_ours(func: ast.Attribute, node: ast.Call, ctx: RuleContext) -> bool:
    """Whether it is or may be a tensor or model; on the host only if it is moved to a device here."""
    receiver = ctx.value(func.value)
    if receiver.lib == "tf" or (receiver.kind not in _KINDS and receiver.kind != UNKNOWN):
        return False
    on_host = receiver.where == "host" or (isinstance(func.value, ast.Call) and ctx.method(func.value)[1] == "cpu")
    return not on_host or _is_sent(node, ctx)


def _is_sent(node: ast.Call, ctx: RuleContext) -> bool:
    """`x.to(device, torch.float16)`, `x.half().to(device)`."""
    outer = ctx.parent(node)
    given = [*node.args, *(one.value for one in node.keywords if one.arg == "device")]
    return (isinstance(outer, ast.Attribute) and outer.attr == "to") or any(
        not _is_float16(one, ctx) and ctx.constant(one) not in ("cpu", True, False) for one in given
    )


def _is_torch(ctx: RuleContext) -> bool:
    return ctx.program.uses("torch") or ctx.program.xla


def _of_function(node: ast.Call, ctx: RuleContext) -> tuple[str, str] | None:
    """`torch.zeros(..., dtype=torch.float16)`, `tf.cast(x, tf.float16)`."""
    name = ctx.name(node)
    if name.startswith("torch.") and _is_made_half(node, name, ctx):
        return f"{ctx.source(node.func)} creates a float16 tensor.", "Create it with `dtype=torch.bfloat16`."
    if (
        name in _TF_CASTS
        and ctx.program.tpu_tf
        and precision.is_float16(ctx.argument(node, "dtype", 1), ctx, texts=True)
    ):
        whose = ctx.source(node.args[0]) if node.args else "A tensor"
        return f"{whose} is converted to float16.", "Write `tf.bfloat16` instead of float16."
    return None


def _is_made_half(node: ast.Call, name: str, ctx: RuleContext) -> bool:
    dtype = ctx.argument(node, "dtype")
    if name not in precision.FLOAT16_TENSORS and (dtype is None or not precision.is_float16(dtype, ctx)):
        return False
    value, device = ctx.value(node), ctx.constant(ctx.argument(node, "device"))
    on_host = value.where == "host" or (ctx.function is not None and not ctx.on_device and not _is_of_module(ctx))
    elsewhere = isinstance(device, str) and device.partition(":")[0] in ("cuda", "cpu")
    return (value.kind == TENSOR or name in precision.FLOAT16_TENSORS) and not on_host and not elsewhere


def _is_of_module(ctx: RuleContext) -> bool:
    """A module's `__init__` creates the tensors of its forward."""
    return ctx.function is not None and ctx.function.cls is not None and ctx.function.cls.is_module
