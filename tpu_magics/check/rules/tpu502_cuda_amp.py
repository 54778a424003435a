"""Mixed precision as on a GPU.

What it does
    Reports `torch.cuda.amp.autocast` and `GradScaler` (also `torch.amp.GradScaler` and `torch_xla.amp.GradScaler`),
    `torch.autocast("cuda")`, autocast to float16, `mixed_precision="fp16"` of `Accelerator` and `notebook_launcher`,
    float16 as the default dtype, models that are loaded as float16, and Keras' `mixed_float16` policy.
Why this is bad
    A TPU computes in bfloat16, which has the range of float32, and not in float16. Autocast for "cuda" leaves XLA
    operations in float32. A gradient scaler is not needed there, and it reads on the host in each step whether a
    gradient overflowed. `Accelerator(mixed_precision="fp16")` raises an error on a TPU.
Example
    scaler = torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        loss = model(**batch).loss
Use instead
    with torch.autocast("xla", dtype=torch.bfloat16):
        loss = model(**batch).loss
Limitations
    A precision from a configuration file or the command line, or one that is passed through two functions, is unknown.
    Code under a condition for a GPU, and programs that move everything to "cuda" and do not use XLA, are not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _call_arguments as handed
from tpu_magics.check.rules import _precision as precision

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU502"
NAME = "cuda-amp"
GROUP = "precision"
WHY = "A TPU computes in bfloat16, which has the range of float32, and not in float16."
NODES = (ast.Call,)

_WHY_SCALER = (
    "bfloat16 has the range of float32, so a TPU needs no scaling, and the scaler reads on the host in each step "
    "whether a gradient overflowed."
)
_WHY_CUDA = 'Autocast for "cuda" does nothing on an XLA device: its operations stay in float32.'
_WHY_ACCELERATE = "accelerate raises an error for fp16 on a TPU, which computes in bfloat16."
_AUTOCAST = 'Write `torch.autocast("xla", dtype=torch.bfloat16)`.'
_SCALER = (
    "Remove the scaler, and call `loss.backward()` and `optimizer.step()` directly; for mixed precision write "
    '`torch.autocast("xla", dtype=torch.bfloat16)`.'
)

_CUDA_AUTOCASTS = ("torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast")
_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch_xla.amp.autocast")
_SCALERS = (
    "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler", "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler", "torch_xla.amp.GradScaler", "torch_xla.amp.grad_scaler.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
)  # fmt: skip
_ACCELERATE = ("accelerate.Accelerator", "accelerate.notebook_launcher", "accelerate.debug_launcher")
_POLICIES = (
    "keras.mixed_precision.set_global_policy", "keras.mixed_precision.set_dtype_policy", "keras.DTypePolicy",
    "keras.config.set_dtype_policy", "keras.mixed_precision.Policy", "keras.mixed_precision.DTypePolicy",
    "keras.dtype_policies.DTypePolicy", "keras.mixed_precision.experimental.set_policy",
    "keras.mixed_precision.experimental.Policy",
)  # fmt: skip
_FLOATX = ("keras.backend.set_floatx", "keras.config.set_floatx")
_CPU = "cpu"

MessageParts = tuple[str, str, str]  # message, fix, why


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    parts = _loading(node, ctx) if any(one.arg in _LOADING or one.arg is None for one in node.keywords) else None
    if parts is None and (handler := _HANDLERS.get(ctx.name(node))) is not None:
        parts = handler(node, ctx)
    if parts is not None and not precision.is_for_gpu(node, ctx):
        message, fix, why = parts
        yield ctx.finding(node, message, fix, why=why)


def _is_disabled(node: ast.Call, ctx: RuleContext) -> bool:
    """`enabled=False`, or enabled only with a GPU."""
    enabled = ctx.argument(node, "enabled")
    return enabled is not None and (ctx.constant(enabled) is False or precision.mentions_gpu(enabled, ctx))


def _cuda_autocast(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    if _is_disabled(node, ctx):
        return None
    return f"{ctx.source(node.func)} enables mixed precision for CUDA.", _AUTOCAST, _WHY_CUDA


def _autocast(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    device = ctx.constant(ctx.argument(node, "device_type", 0))
    if _is_disabled(node, ctx) or device == _CPU:
        return None
    if device == "cuda":
        return f"{ctx.source(node.func)} enables mixed precision for CUDA.", _AUTOCAST, _WHY_CUDA
    position = 2 if ctx.name(node) == "torch_xla.amp.autocast" else 1
    if precision.is_float16(ctx.argument(node, "dtype", position), ctx):
        return f"{ctx.source(node.func)} computes in float16.", _AUTOCAST, WHY
    return None


def _scaler(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    device = ctx.constant(ctx.argument(node, "device", 0))
    if _is_disabled(node, ctx) or (isinstance(device, str) and device.partition(":")[0] not in ("cuda", "xla")):
        return None
    return f"{ctx.source(node.func)} scales gradients for float16.", _SCALER, _WHY_SCALER


def _accelerate(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    precisions = handed.constants(ctx.argument(node, "mixed_precision"), ctx)
    if "fp16" not in precisions or ctx.constant(ctx.argument(node, "cpu")) is True:
        return None
    called, written = ctx.source(node.func), ctx.constant(ctx.argument(node, "mixed_precision")) == "fp16"
    fix = 'Write `mixed_precision="bf16"`.' if written else 'Pass "bf16" to the function, or make that its default.'
    return f'{called} uses mixed_precision="fp16".', fix, _WHY_ACCELERATE


def _default_dtype(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    given = node.args[0] if node.args else ctx.argument(node, "d") or ctx.argument(node, "t")
    named = ctx.name(given) in precision.FLOAT16_TENSORS or ctx.constant(given) in precision.FLOAT16_TENSORS
    if given is None or not (named or precision.is_float16(given, ctx)):
        return None
    fix = 'Leave the default float32 and use `torch.autocast("xla", dtype=torch.bfloat16)`.'
    return f"{ctx.source(node.func)} makes float16 the default dtype.", fix, WHY


def _policy(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    named = ctx.constant(
        ctx.argument(node, "name", 0) or ctx.argument(node, "policy") or ctx.argument(node, "dtype_policy")
    )
    if named not in ("mixed_float16", "float16"):
        return None
    instead = "mixed_bfloat16" if named == "mixed_float16" else "bfloat16"
    return f"The Keras policy is {named}.", f'Write `"{instead}"`.', WHY


def _floatx(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    if ctx.constant(ctx.argument(node, "value", 0) or ctx.argument(node, "floatx")) != "float16":
        return None
    return "Keras' default dtype is set to float16.", 'Leave "float32" and set the policy "mixed_bfloat16".', WHY


# Keywords for the dtype of a loaded or wrapped model, and the calls for which `dtype` is one of them.
_LOADING = ("torch_dtype", "dtype", "compute_dtype")
_LOADERS = ("from_pretrained", "from_config", "from_single_file")


def _loading(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    for name in _LOADING:
        given = ctx.argument(node, name)
        if given is not None and precision.is_float16(given, ctx, texts=True) and _is_loader(node, name, ctx):
            parts = f"{ctx.source(node.func)} uses {name}={ctx.source(given)}."
            return parts, f"Write `{name}=torch.bfloat16`.", WHY
    return None


def _is_loader(node: ast.Call, keyword: str, ctx: RuleContext) -> bool:
    if keyword == "torch_dtype":
        return True
    name = ctx.name(node)
    if keyword == "compute_dtype":
        return name.startswith("torch_xla.") or name.endswith("FullyShardedDataParallel")
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return called in _LOADERS or name in ("transformers.pipeline",)


_HANDLERS: dict[str, Callable[[ast.Call, RuleContext], MessageParts | None]] = {
    **dict.fromkeys(_CUDA_AUTOCASTS, _cuda_autocast),
    **dict.fromkeys(_AUTOCASTS, _autocast),
    **dict.fromkeys(_SCALERS, _scaler),
    **dict.fromkeys(_ACCELERATE, _accelerate),
    "torch.set_default_dtype": _default_dtype,
    "torch.set_default_tensor_type": _default_dtype,
    **dict.fromkeys(_POLICIES, _policy),
    **dict.fromkeys(_FLOATX, _floatx),
}
