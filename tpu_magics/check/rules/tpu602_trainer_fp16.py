"""fp16 in TrainingArguments.

What it does
    Reports `fp16=True` and `fp16_full_eval=True` in TrainingArguments, also if they are set later.
Why this is bad
    A TPU multiplies in bf16 and has no fp16: accelerate raises ValueError for fp16 mixed precision on a TPU before
    training starts. bf16 has the exponent of fp32 and needs no loss scaling.
Example
    args = TrainingArguments(output_dir="out", fp16=True, optim="adamw_torch_xla")
Use instead
    args = TrainingArguments(output_dir="out", bf16=True, optim="adamw_torch_xla")
Limitations
    A value that is computed is not reported (`fp16=torch.cuda.is_available()` is false on a TPU, and fine).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _device_guards, _trainer
from tpu_magics.check.values import ARGUMENTS

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU602"
NAME = "trainer-fp16"
GROUP = "trainer"
WHY = "A TPU multiplies in bf16 and has no fp16: accelerate raises ValueError for fp16 mixed precision there."
NODES = (ast.Assign,)

_WHY_EVALUATION = "A TPU has no fp16 units: the evaluation gets no faster, and loses the range that bf16 has."
_FP16 = {"fp16": ("bf16", WHY), "fp16_full_eval": ("bf16_full_eval", _WHY_EVALUATION)}


def check(node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
    target = node.targets[0]
    if not isinstance(target, ast.Attribute) or target.attr not in _FP16 or ctx.constant(node.value) is not True:
        return
    if ctx.value(target.value).kind == ARGUMENTS and not _device_guards.is_in_other_device_branch(node, ctx):
        new, why = _FP16[target.attr]
        yield ctx.finding(node, f"{ctx.source(target)} is enabled.", f"Set {new} = True instead.", why)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for arguments in _trainer.on_tpu(program):
        for old, (new, why) in _FP16.items():
            given = arguments.argument(old)
            if given is None or given.constant is not True:
                continue
            yield given.ctx.finding(
                given.node,
                f"{arguments.name} enables fp16 ({old}=True).",
                f"Write {new}=True.",
                why,
                _renamed(arguments, given, new),
            )


def _renamed(arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, new: str) -> tuple[Edit, ...]:
    """The keyword with its new name; none if the new one is given as well."""
    literal = isinstance(given.value, ast.Constant)
    if given.keyword is None or not literal or not arguments.is_default(new):
        return ()
    return (arguments.ctx.replace(given.keyword, f"{new}=True"),)
