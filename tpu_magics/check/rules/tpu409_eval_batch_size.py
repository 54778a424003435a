"""Evaluation with another batch size than training.

What it does
    Reports an evaluation batch size that differs from the training batch size, if both are known: of DataLoaders, of
    `TrainingArguments`, of Keras' `fit`, `evaluate` and `predict`, and of tf.data pipelines for a TPU.
Why this is bad
    Another shape is another compile, of a graph with its own memory: the first evaluation is slow, and a larger batch
    may not fit next to the training's.
Example
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    eval_loader = DataLoader(eval_set, batch_size=64)
Use instead
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    eval_loader = DataLoader(eval_set, batch_size=32)
Limitations
    Batch sizes that are known only at run time, and the purpose of a loader whose name does not show it, are unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _loaders
from tpu_magics.check.rules._constants import constant
from tpu_magics.check.values import MODEL

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram

CODE = "TPU409"
NAME = "eval-batch-size"
GROUP = "launch"
WHY = (
    "Another batch size is another compile and needs its own memory: the first evaluation is as slow as the first step."
)
ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
TRAIN, EVALUATION = "per_device_train_batch_size", "per_device_eval_batch_size"
Size = tuple["CallSite", ast.expr, int]


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if program.xla:
        yield from _unequal(list(_sizes(program)))
        yield from _arguments(program)
    if program.tpu_tf or _compiles(program):
        yield from _keras(program)
        yield from _pipelines(program)


def _finding(size: Size, training: int) -> Finding:
    call, node, found = size
    what = f"Evaluation has a batch size of {found}, training has {training}."
    return call.ctx.finding(node, what, f"Use the training batch size for evaluation ({training}).")


def _constant(call: CallSite, name: str, position: int | None = None) -> tuple[ast.expr, int] | None:
    node = call.ctx.argument(call.node, name, position)
    found = constant(node, call.ctx)
    return (node, found) if node is not None and isinstance(found, int) and not isinstance(found, bool) else None


# -- torch ------------------------------------------------------------------------------------------------------------


def _sizes(program: CheckedProgram) -> Iterator[tuple[str, Size]]:
    for call in program.calls(_loaders.LOADER):
        found = _constant(call, "batch_size", 1)
        purpose = _loaders.purpose(call)
        if found is not None and purpose:
            yield purpose, (call, *found)


def _unequal(sizes: list[tuple[str, Size]]) -> Iterator[Finding]:
    """Evaluation sizes that no training uses: in the same function, or if it has none, in the program."""
    training = [size for purpose, size in sizes if purpose == "train"]
    for purpose, size in sizes:
        if purpose != "evaluation":
            continue
        near = [one for one in training if one[0].ctx.function is size[0].ctx.function] or training
        if near and size[2] not in {found for _, _, found in near}:
            yield _finding(size, near[-1][2])


def _arguments(program: CheckedProgram) -> Iterator[Finding]:
    for call in program.calls(*ARGUMENTS):
        training, evaluation = _constant(call, TRAIN), _constant(call, EVALUATION)
        if training is not None and evaluation is not None and training[1] != evaluation[1]:
            yield _finding((call, *evaluation), training[1])


# -- TensorFlow -------------------------------------------------------------------------------------------------------


def _compiles(program: CheckedProgram) -> bool:
    settings = (
        call.ctx.constant(call.ctx.argument(call.node, "jit_compile")) for call in program.methods("compile", MODEL)
    )
    return any(one is True for one in settings)


def _keras(program: CheckedProgram) -> Iterator[Finding]:
    fits = [call for call in program.methods("fit") if call.receiver.kind == MODEL]
    sizes = [(call, found) for call in fits if (found := _constant(call, "batch_size", 2)) is not None]
    for call, (_, training) in sizes:
        other = _constant(call, "validation_batch_size")
        if other is not None and other[1] != training:
            yield _finding((call, *other), training)
    known = {training for _, (_, training) in sizes}
    for method, position in (("evaluate", 2), ("predict", 1)):
        for call in program.methods(method):
            found = _constant(call, "batch_size", position) if call.receiver.kind == MODEL else None
            if found is not None and known and found[1] not in known:
                yield _finding((call, *found), max(known))


_EVALUATION_NAME = re.compile(r"(^|_)(eval|val|valid|validation|test|dev)(_|$|ds|data|set)")
_TRAINING_NAME = re.compile(r"(^|_)train(ing)?(_|$|ds|data|set)")


def _pipelines(program: CheckedProgram) -> Iterator[Finding]:
    """`train_ds.batch(32)` and `val_ds.batch(64)`."""
    sizes: dict[str, list[Size]] = {"train": [], "evaluation": []}
    for call in program.methods("batch", "tf.data"):
        found = _constant(call, "batch_size", 0)
        name = _loaders.target(call)
        purpose = "train" if _TRAINING_NAME.search(name) else "evaluation" if _EVALUATION_NAME.search(name) else ""
        if found is not None and purpose:
            sizes[purpose].append((call, *found))
    known = {found for _, _, found in sizes["train"]}
    for size in sizes["evaluation"]:
        if known and size[2] not in known:
            yield _finding(size, max(known))
