"""A training DataLoader with a short last batch.

What it does
    Reports a torch `DataLoader` for training (shuffled, iterated by a loop with a backward pass, or named so) without
    `drop_last=True`, and a `BatchSampler(..., drop_last=False)` that shuffles, if the number of rows is unknown or not
    a multiple of the batch size.
Why this is bad
    The last batch of each epoch has fewer rows. That is another input shape, and XLA compiles the whole training step a
    second time. Measured with torch_xla 2.9: 84 rows in batches of 32 compile twice.
Example
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
Use instead
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
Limitations
    A DataLoader for training is not found if neither its name, its arguments nor a loop with a backward pass shows it.
    The length of a dataset that is read from files is unknown and reported to be safe. There is no automatic fix,
    because dropping rows changes the training data.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _recompiles as recompiles
from tpu_magics.check.rules._dataset_lengths import rows, whole
from tpu_magics.check.rules._origins import origin
from tpu_magics.check.values import ACCELERATOR, OPTIMIZER

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU302"
NAME = "short-last-batch"
GROUP = "recompiles"
WHY = "A last batch with fewer rows is another input shape, and XLA compiles the whole training step again."
LOADER = "torch.utils.data.DataLoader"
LOADERS = (LOADER, "torchdata.stateful_dataloader.StatefulDataLoader")
BATCH_SAMPLER = "torch.utils.data.BatchSampler"
_DROP_LAST = 8  # its position among a DataLoader's arguments
_SHUFFLING = ("RandomSampler", "DistributedSampler", "LengthGroupedSampler")
_XM_STEP = "torch_xla.core.xla_model.optimizer_step"


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not (program.uses("torch") or program.xla):
        return
    for call in program.calls(*LOADERS, BATCH_SAMPLER):
        if (found := _short(call)) is not None:
            yield found


def _short(call: CallSite) -> Finding | None:
    node, ctx = call.node, call.ctx
    sampler = call.name == BATCH_SAMPLER
    if ctx.has_unknown_arguments(node) or _drops(call) or not recompiles.trains(ctx.program):
        return None
    if ctx.argument(node, "batch_sampler", 4) is not None and not sampler:
        return None
    size = ctx.argument(node, "batch_size", 1)
    number = whole(ctx, size)
    if number == 1 or (size is None) or recompiles.is_nothing(ctx.value(size)):
        return None
    dataset = ctx.argument(node, "sampler" if sampler else "dataset", 0)
    length = None if sampler else rows(ctx, dataset)
    if number and length is not None and length % number == 0:
        return None
    return _finding(call, dataset, number, length) if _for_training(call, dataset) else None


def _drops(call: CallSite) -> bool:
    """Whether the last batch is or may be dropped: `drop_last` is given and not False."""
    given = call.ctx.argument(call.node, "drop_last", 2 if call.name == BATCH_SAMPLER else _DROP_LAST)
    return given is not None and call.ctx.constant(given) is not False


def _finding(call: CallSite, dataset: ast.expr | None, number: int | None, length: float | None) -> Finding:
    name = "BatchSampler" if call.name == BATCH_SAMPLER else "DataLoader"
    if number and length is not None:
        message = f"The last batch of this training {name} has {length % number:.0f} rows instead of {number}."
        if length < number:
            message = f"The only batch of this training {name} has {length:.0f} rows instead of {number}."
    else:
        rest = f" of {call.ctx.source(dataset)}" if isinstance(dataset, (ast.Name, ast.Attribute)) else ""
        message = f"This training {name} keeps the short last batch{rest}."
    fix = "Write `drop_last=True`, or pad the last batch to the batch size."
    return call.ctx.finding(call.node, message, fix)


# -- training or evaluation -------------------------------------------------------------------------------------------


def _for_training(call: CallSite, dataset: ast.expr | None) -> bool:
    ctx, node = call.ctx, call.node
    if call.name == BATCH_SAMPLER:
        return ctx.name(dataset).endswith(_SHUFFLING) or ctx.value(dataset).name.endswith(_SHUFFLING)
    if id(node) in _trained_on(ctx.program):
        return True
    side = recompiles.side_of(recompiles.target_names(ctx, node)) or recompiles.side_of(
        recompiles.names_in_expression(dataset)
    )
    side = side or _split_of(ctx, dataset)
    if side:
        return side == "training"
    if recompiles.side_of([ctx.function.name if ctx.function is not None else ""]) == "evaluation":
        return False
    return _shuffles(call)


def _split_of(ctx: RuleContext, dataset: ast.expr | None) -> str:
    """What `train=False` or `split="validation"` of the dataset's own call says."""
    made, _ = origin(ctx, dataset) if dataset is not None else (None, ())
    if not isinstance(made, ast.Call):
        return ""
    train = ctx.constant(ctx.argument(made, "train"))
    if isinstance(train, bool):
        return "training" if train else "evaluation"
    return recompiles.side_of(recompiles.names_in_expression(ctx.argument(made, "split")))


def _shuffles(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if ctx.constant(ctx.argument(node, "shuffle", 2)) is True:
        return True
    sampler = ctx.argument(node, "sampler", 3)
    made = ctx.value(sampler)
    if not made.name.endswith(_SHUFFLING):
        return False
    shuffle = made.made_ctx.argument(made.made, "shuffle", 3) if isinstance(made.made, ast.Call) else None
    return shuffle is None or made.made_ctx.constant(shuffle) is not False


def _trained_on(program: CheckedProgram) -> set[int]:
    """The ids of the DataLoader calls of loops with a backward pass or an optimizer step."""
    if "trained_on" not in program.memo:
        program.memo["trained_on"] = {
            id(made)
            for call in program.all_calls
            if _is_step(call)
            for ctx in _surroundings(call.ctx)
            for loop in ctx.loops
            if (made := recompiles.loader_of(loop.loader).made) is not None
        }
    found: set[int] = program.memo["trained_on"]
    return found


def _is_step(call: CallSite) -> bool:
    if call.method == "backward":
        return call.receiver.kind == ACCELERATOR or not call.node.args
    return (call.method == "step" and call.receiver.kind == OPTIMIZER) or call.name == _XM_STEP


def _surroundings(ctx: RuleContext) -> Iterator[RuleContext]:
    """The context itself, and those of the calls of its function."""
    yield ctx
    if ctx.function is not None and not ctx.loops:
        for call in ctx.function.callers:
            yield call.ctx
