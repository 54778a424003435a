"""An argument that TrainingArguments no longer accepts.

What it does
    Reports arguments that older versions of transformers had and 5.23 does not have: `tpu_num_cores`,
    `tpu_metrics_debug`, `evaluation_strategy`, `no_cuda`, `per_gpu_train_batch_size`, `half_precision_backend` and
    others. Arguments that are unrelated to devices (`warmup_ratio`, `logging_dir`) are reported as advice.
Why this is bad
    TrainingArguments raises TypeError: got an unexpected keyword argument.
Example
    args = TrainingArguments(output_dir="out", tpu_num_cores=8, tpu_metrics_debug=True)
Use instead
    args = TrainingArguments(output_dir="out", debug="tpu_metrics_debug")
Limitations
    Which version of transformers is installed where the program will run: an old one may still accept the argument. A
    subclass in the program that declares the argument itself is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _trainer
from tpu_magics.check.rules._removed_arguments import ARGUMENTS, TAKEN_OUT, RemovedArgument

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU603"
NAME = "trainer-removed-argument"
GROUP = "trainer"
WHY = "transformers 5 raises TypeError for it, as for any unknown argument."


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for arguments in _trainer.all_of(program):
        if arguments.is_in_other_device_code:
            continue
        for name, removed in ARGUMENTS.items():
            given = arguments.argument(name)
            if given is not None and not arguments.declares(name):
                yield _found(arguments, given, name, removed)


def _found(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> Finding:
    return given.ctx.finding(
        given.node,
        f"{arguments.name} no longer has {name} (transformers {removed.last} was the last version with it).",
        _fix(given, removed),
        edits=_edits(arguments, given, name, removed),
        advice=removed.general,
    )


def _fix(given: _trainer.TrainerArgument, removed: RemovedArgument) -> str:
    if removed.new:
        return f"Write {removed.new}={given.ctx.source(given.value)}."
    if removed.instead:
        return "Remove it." if given.constant is False else f"Write {removed.instead}."
    return removed.fix


def _edits(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> tuple[Edit, ...]:
    ctx, keyword = arguments.ctx, given.keyword
    if keyword is None:
        return ()
    if removed.new and arguments.argument(removed.new) is None and _means_the_same(name, given):
        return (ctx.replace(keyword, f"{removed.new}={ctx.source(given.value)}"),)
    if not removed.instead or not isinstance(given.value, ast.Constant):
        return _argument_edits.remove_argument(arguments.node, keyword, ctx) if name in TAKEN_OUT else ()
    if given.constant is not True:
        return _argument_edits.remove_argument(arguments.node, keyword, ctx)
    other = removed.instead.partition("=")[0]
    return (ctx.replace(keyword, removed.instead),) if arguments.argument(other) is None else ()


def _means_the_same(name: str, given: _trainer.TrainerArgument) -> bool:
    """`warmup_steps` takes a number below 1 as a ratio, and 1.0 as one step."""
    return name != "warmup_ratio" or (isinstance(given.constant, (int, float)) and 0 <= given.constant < 1)
