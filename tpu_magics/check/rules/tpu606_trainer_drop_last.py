"""A smaller last batch in the Trainer's epochs.

What it does
    Reports TrainingArguments for training that do not set `dataloader_drop_last` or set it to False.
Why this is bad
    A batch of another size has other shapes, and XLA compiles the training step again for it. In one process (one chip,
    SPMD) the last batch of an epoch is smaller unless the dataset's length is a multiple of the batch size; with
    several processes accelerate fills it up with samples from the start of the epoch, which are then used twice.
Example
    args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8)
Use instead
    args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8,
                             dataloader_drop_last=True)
Limitations
    The length of a dataset is known only for `.select(range(N))` and `split="train[:N]"`; whether an IterableDataset
    gives whole batches is unknown. Programs that only evaluate or predict, and Trainers that create their own loader,
    are not reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _trainer

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU606"
NAME = "trainer-drop-last"
GROUP = "trainer"
WHY = (
    "A smaller last batch has other shapes, and XLA compiles the training step again for them (with several processes "
    "it is filled up with samples from the start of the epoch)."
)

_NAME = "dataloader_drop_last"
_TRAIN_DATASET = 3  # where Trainer(...) takes it
_SLICE = re.compile(r"\w+\[(?::|0:)(\d+)\]")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for arguments in _trainer.on_tpu(program):
        given = arguments.argument(_NAME)
        if given is not None and given.constant is not False:
            continue
        if given is None and not arguments.is_default(_NAME):
            continue
        if not (_trainer.only_evaluates(program) or _makes_own_loader(arguments) or _divides(arguments)):
            setting = f"does not set {_NAME}" if given is None else f"sets {_NAME}=False"
            message = f"{arguments.name} {setting}: the last batch of an epoch may be smaller."
            ctx, node = (arguments.ctx, arguments.node) if given is None else (given.ctx, given.node)
            yield ctx.finding(node, message, f"Write {_NAME}=True.")


def _makes_own_loader(arguments: _trainer.TrainingArgumentsCall) -> bool:
    return _trainer.overrides(arguments, "get_train_dataloader")


def _divides(arguments: _trainer.TrainingArgumentsCall) -> bool:
    """Whether the training data certainly consists of whole batches."""
    batch = _trainer.constant_of(arguments, "per_device_train_batch_size", 8)
    trainers = _trainer.trainers_of(arguments)
    if not isinstance(batch, int) or batch < 1 or not trainers:
        return False
    if _trainer.constant_of(arguments, "auto_find_batch_size", False) is not False:
        return False
    lengths = [_length(one.ctx, one.ctx.argument(one.node, "train_dataset", _TRAIN_DATASET)) for one in trainers]
    return all(length is not None and length % batch == 0 for length in lengths)


def _length(ctx: RuleContext, node: ast.expr | None) -> int | None:
    """The number of samples of a dataset, if the call that creates it shows it."""
    call = node if isinstance(node, ast.Call) else ctx.value(node).made
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "select" and call.args:
        chosen = call.args[0]
        if isinstance(chosen, ast.Call) and ctx.name(chosen) == "builtins.range" and len(chosen.args) == 1:
            number = ctx.constant(chosen.args[0])
            return number if isinstance(number, int) else None
        return None
    split = ctx.constant(ctx.argument(call, "split", 1))
    found = _SLICE.fullmatch(split) if isinstance(split, str) else None
    return int(found[1]) if found else None
