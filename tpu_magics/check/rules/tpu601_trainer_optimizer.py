"""A Trainer optimizer that does not run on XLA.

What it does
    Reports TrainingArguments (also Seq2SeqTrainingArguments, subclasses, and the configurations of trl and
    sentence-transformers) whose `optim` is the default, a fused one, or one of bitsandbytes.
Why this is bad
    With torch 2.8 or newer the default is `adamw_torch_fused`. torch's fused AdamW has no kernel for XLA: training
    stops before its first step with "`fused=True` requires all the params to be floating point Tensors of supported
    devices". (If tpu_magics launches the training, it uses the plain optimizer instead, and nothing is reported.) The
    optimizers of bitsandbytes (8-bit, paged, lion) have kernels for GPUs and CPUs, not for XLA.
Example
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=8)
Use instead
    args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8)
Limitations
    Arguments from HfArgumentParser or a configuration file, and an `optim` that is computed at run time, are unknown.
    Arguments for a Trainer that gets `optimizers=(optimizer, scheduler)` or creates its own are fine, and so are
    programs that only evaluate.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _device_guards, _launches, _trainer
from tpu_magics.check.values import ARGUMENTS

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU601"
NAME = "trainer-optimizer"
GROUP = "trainer"
WHY = (
    "torch's fused AdamW has no kernel for XLA: training stops before its first step with an error that `fused=True` "
    "is not supported on this device."
)
NODES = (ast.Assign,)

_WHY_BITSANDBYTES = (
    "bitsandbytes has kernels for GPUs and CPUs only: its optimizers raise an error for parameters on an XLA device."
)
_WHY_GONE = "transformers 5 no longer has an optimizer with this name: TrainingArguments raises ValueError."
_XLA = 'optim="adamw_torch_xla"'
_FIX = f"Write {_XLA}."
_DEFAULT = "adamw_torch_fused"  # read in transformers 5.23.0, with torch 2.8 or newer
# Read in transformers 5.23.0 (training_args.py OptimizerNames, trainer_optimizer.py) and, for those gone, in 4.46.
_FUSED = ("adamw_torch_fused", "adamw_torch_npu_fused")
_BITSANDBYTES = frozenset(
    ("adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit",
     "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit",
     "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "galore_adamw_8bit", "galore_adamw_8bit_layerwise")
)  # fmt: skip
_GONE = ("adamw_hf", "adamw_apex_fused")
_ENUM = "transformers.OptimizerNames."
_ENUM_NAMES = {"ADAMW_BNB": "adamw_bnb_8bit", "LION": "lion_32bit", "PAGED_ADAMW": "paged_adamw_32bit",
    "PAGED_LION": "paged_lion_32bit", "PAGED_ADEMAMIX": "paged_ademamix_32bit", "RMSPROP_8BIT": "rmsprop_bnb_8bit",
    "RMSPROP_32BIT": "rmsprop_bnb_32bit"}  # fmt: skip


def check(node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
    target = node.targets[0]
    if isinstance(target, ast.Attribute) and target.attr == "optim" and ctx.value(target.value).kind == ARGUMENTS:
        yield from _of_value(node, node.value, ctx, f"{ctx.source(target)} is set to")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if _trainer.only_evaluates(program):
        return
    ours = _launches.is_ours(program)
    for arguments in _trainer.on_tpu(program):
        if _trainer.has_own_optimizer(arguments):
            continue
        given = arguments.argument("optim")
        if given is not None:
            yield from _of_value(given.node, given.value, given.ctx, "The Trainer's optimizer is")
        elif arguments.is_default("optim") and not ours:
            yield arguments.ctx.finding(
                arguments.node,
                f"{arguments.name} leaves optim at its default, {_DEFAULT}.",
                _FIX,
                edits=_argument_edits.add_argument(arguments.node, _XLA, arguments.ctx),
            )

    for trainer in _trainer.without_arguments(program) if not ours else ():
        if not (_trainer.has_optimizer(trainer) or _device_guards.is_for_other_device(trainer.node, trainer.ctx)):
            subject = trainer.ctx.source(trainer.node.func)
            message = f"{subject} gets no TrainingArguments: its optimizer is the default, {_DEFAULT}."
            yield trainer.ctx.finding(trainer.node, message, f"Write args=TrainingArguments({_XLA}).")


def _of_value(node: ast.AST, value: ast.expr, ctx: RuleContext, subject: str) -> Iterator[Finding]:
    name = _optimizer(value, ctx)
    if name in _FUSED and not _launches.is_ours(ctx.program):
        yield ctx.finding(node, f"{subject} {name}.", _FIX, edits=_replaced(value, ctx))
    elif name in _BITSANDBYTES:
        fix = f'{_FIX[:-1]}, or optim="adafactor" if memory is short.'
        yield ctx.finding(node, f"{subject} {name}, an optimizer of bitsandbytes.", fix, why=_WHY_BITSANDBYTES)
    elif name in _GONE:
        yield ctx.finding(node, f"{subject} {name}.", _FIX, why=_WHY_GONE)


def _optimizer(value: ast.expr, ctx: RuleContext) -> str:
    constant = ctx.constant(value)
    if isinstance(constant, str):
        return constant
    name = ctx.name(value)
    if not name.startswith(_ENUM):
        return ""
    last = name[len(_ENUM) :]
    return _ENUM_NAMES.get(last, last.lower())


def _replaced(value: ast.expr, ctx: RuleContext) -> tuple[Edit, ...]:
    return (ctx.replace(value, '"adamw_torch_xla"'),) if isinstance(value, ast.Constant) else ()
