"""A tf.data training set with a short last batch.

What it does
    Reports `.batch(n)`, `.padded_batch(n, ...)`, `.ragged_batch(n)`, `.bucket_by_sequence_length(...)` and a dataset's
    `to_tf_dataset(...)` without `drop_remainder=True`, for training (shuffled, passed to `fit` or to a loop of training
    steps, or named so), if the number of rows is unknown or not a multiple of `n`.
Why this is bad
    The last batch has fewer rows. That is another input shape, so XLA compiles the training step again. Without
    `drop_remainder=True` the batch dimension is also unknown when the graph is traced, which a TPU may not support.
Example
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
Use instead
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32, drop_remainder=True)
Limitations
    A dataset for training is not found if neither its name nor its use shows it. The length of data that is read from
    files is unknown and reported to be safe. There is no automatic fix, because dropping rows changes the training
    data.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _recompiles as recompiles
from tpu_magics.check.rules._dataset_lengths import rows, whole
from tpu_magics.check.rules._origins import origin, own_nodes
from tpu_magics.check.values import DATASET, MODEL, STRATEGY, TFDATA

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU306"
NAME = "tf-remainder"
GROUP = "recompiles"
WHY = "A last batch with fewer rows is another input shape, and XLA compiles the training step again."
# Methods, with the positions of their batch size and of drop_remainder.
_METHODS = {
    "batch": (0, 1),
    "padded_batch": (0, 3),
    "ragged_batch": (0, 1),
    "bucket_by_sequence_length": (None, None),
}
_TRAINS = ("fit", "fit_generator", "train_on_batch")
_FAR = 20


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not (program.uses("tensorflow") or program.uses("keras") or program.uses("datasets")):
        return
    for method in _METHODS:
        for call in program.methods(method, TFDATA):
            if (found := _short(call)) is not None:
                yield found
    for call in program.methods("to_tf_dataset", DATASET):
        if not _drops(call, None) and call.ctx.constant(call.ctx.argument(call.node, "shuffle")) is True:
            yield _finding(call, None, None)


def _short(call: CallSite) -> Finding | None:
    ctx, node = call.ctx, call.node
    size_at, drop_at = _METHODS[call.method]
    assert isinstance(node.func, ast.Attribute)
    if ctx.has_unknown_arguments(node) or _drops(call, drop_at) or _in_lambda(ctx) or _is_preview(call):
        return None
    number = whole(ctx, ctx.argument(node, "batch_size", size_at))
    length = rows(ctx, node.func.value)
    if number == 1 or length == float("inf") or (number and length is not None and length % number == 0):
        return None
    return _finding(call, number, length) if _for_training(call) else None


def _drops(call: CallSite, position: int | None) -> bool:
    given = call.ctx.argument(call.node, "drop_remainder", position)
    return given is not None and call.ctx.constant(given) is not False


def _in_lambda(ctx: RuleContext) -> bool:
    """`windows.flat_map(lambda window: window.batch(5))` makes rows, not batches of a training step."""
    return ctx.function is not None and isinstance(ctx.function.node, ast.Lambda)


def _is_preview(call: CallSite) -> bool:
    """`next(iter(data.batch(20)))`, `data.unbatch().batch(20)`: some rows to be shown, in batches of another size."""
    assert isinstance(call.node.func, ast.Attribute)
    data, outer = call.node.func.value, call.ctx.parent(call.node)
    again = isinstance(data, ast.Call) and _method(data) == "unbatch"
    return again or (isinstance(outer, ast.Call) and call.ctx.name(outer) in ("builtins.iter", "builtins.next"))


def _finding(call: CallSite, number: int | None, length: float | None) -> Finding:
    written = f".{call.method}({number})" if number and call.method == "batch" else f".{call.method}()"
    if number and length is not None:
        message = f"{written} gives this training set a last batch of {length % number:.0f} rows instead of {number}."
    else:
        message = f"{written} keeps the short last batch of this training set."
    return call.ctx.finding(call.node, message, f"Write `.{call.method}(..., drop_remainder=True)`.")


# -- training or evaluation -------------------------------------------------------------------------------------------


def _for_training(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if id(node) in _trained_on(ctx.program):
        return True
    names = [*recompiles.target_names(ctx, node), *_names_of_chain(node)]
    if side := recompiles.side_of(names):
        return side == "training"
    if ctx.function is not None and (side := recompiles.side_of([ctx.function.name])):
        return side == "training"
    return any(_method(one) == "shuffle" for one in _chain(ctx, node)) or _shuffled_later(ctx, node)


def _names_of_chain(node: ast.Call) -> list[str]:
    """Names of what the chain of methods begins with: `train_ds.map(...).batch(32)`, `splits["train"]`."""
    first: ast.AST = node
    while isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute):
        first = first.func.value
    return recompiles.names_in_expression(first) if isinstance(first, (ast.Name, ast.Attribute, ast.Subscript)) else []


def _chain(ctx: RuleContext, node: ast.expr) -> Iterator[ast.Call]:
    """The calls that create a dataset, the last first: `data.shuffle(n).batch(b)`, also through names."""
    for _ in range(_FAR):
        node, _path = origin(ctx, node)
        if not isinstance(node, ast.Call):
            return
        yield node
        yield from _returned(ctx, node)
        func = node.func
        if isinstance(func, ast.Attribute) and ctx.value(func.value).kind in (TFDATA, DATASET):
            node = func.value
        elif node.args:
            node = node.args[0]
        else:
            return


def _returned(ctx: RuleContext, node: ast.Call) -> Iterator[ast.Call]:
    """The chain that a function of the program returns."""
    function = ctx.value(node.func).ref
    calls = getattr(function, "calls", [])
    body = function.node.body if calls else []
    for one in own_nodes(body) if isinstance(body, list) else ():
        if isinstance(one, ast.Return) and one.value is not None and calls[0].ctx is not ctx:
            yield from _chain(calls[0].ctx, one.value)


def _method(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _shuffled_later(ctx: RuleContext, node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "shuffle" for one in ctx.parents(node))


def _trained_on(program: CheckedProgram) -> set[int]:
    """The ids of all calls in the chains of datasets that are trained on."""
    if "tf_trained_on" not in program.memo:
        program.memo["tf_trained_on"] = {
            id(link) for ctx, data in _training_data(program) for link in _chain(ctx, data)
        }
    found: set[int] = program.memo["tf_trained_on"]
    return found


def _training_data(program: CheckedProgram) -> Iterator[tuple[RuleContext, ast.expr]]:
    for method in _TRAINS:
        for call in program.methods(method, MODEL):
            given = call.ctx.argument(call.node, "x", 0)
            if given is not None:
                yield call.ctx, given
    for call in [*program.methods("apply_gradients"), *program.methods("run", STRATEGY)]:
        if _updates(call):
            yield from _given_to_steps(call)


def _updates(call: CallSite) -> bool:
    """`strategy.run(f)` updates weights unless its name says that it evaluates."""
    if call.method != "run" or not call.node.args:
        return True
    return recompiles.side_of(recompiles.names_in_expression(call.node.args[0])) != "evaluation"


def _given_to_steps(call: CallSite) -> Iterator[tuple[RuleContext, ast.expr]]:
    """The iterables of the loops around a step, or the arguments of `strategy.run`."""
    for ctx in _surroundings(call.ctx, 3):
        for loop in ctx.loops:
            if isinstance(loop.node, (ast.For, ast.AsyncFor)):
                yield ctx, loop.node.iter
    given = call.ctx.argument(call.node, "args", 1) if call.method == "run" else None
    for one in given.elts if isinstance(given, (ast.Tuple, ast.List)) else ():
        yield call.ctx, one


def _surroundings(ctx: RuleContext, far: int) -> Iterator[RuleContext]:
    """The context itself, and those of the calls of its function."""
    yield ctx
    if ctx.function is not None and not ctx.loops and far:
        for call in ctx.function.callers:
            yield from _surroundings(call.ctx, far - 1)
