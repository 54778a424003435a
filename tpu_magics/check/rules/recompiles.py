"""Rules about recompiles (TPU3xx): few different shapes, and no numbers that change in the graph."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import (
    ACCELERATOR,
    ARRAY,
    BATCH,
    DATASET,
    FUNCTION,
    LIST,
    MODEL,
    NOTHING,
    NUMBER,
    OPTIMIZER,
    OUTPUT,
    STRATEGY,
    TENSOR,
    TFDATA,
    UNKNOWN,
)
from tpu_magics.check.program import remembered
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _padding, _recompiles, _source
from tpu_magics.check.rules._changing_numbers import (
    FIX_INDEX,
    FIX_SLICE,
    FIX_TENSOR,
    FIXED_OPERATORS,
    acts_on_device,
    changes,
    chunk_fix,
    indices,
    is_moved,
    is_tensor,
    is_tensor_on_device,
    random_draw,
    use_of,
)
from tpu_magics.check.rules._growing_lists import (
    growing_container,
    grown_tensor,
    is_only_read,
    outlives_step,
    undetached_loss,
    use_in_step,
)
from tpu_magics.check.rules._padding import PADS, is_collate, is_longest_row, pads_to_longest
from tpu_magics.check.rules._recompiles import rows, whole
from tpu_magics.check.rules._source import origin, own_nodes
from tpu_magics.check.rules._truthiness import decides_tensor_work
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.inference.values import AbstractValue
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


MULTIPLE = 64
_MULTIPLE_FIX = 'Write `pad_to_multiple_of=64`, or `padding="max_length"` with a `max_length`.'
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_TF_METHODS = frozenset(("padded_batch", "ragged_batch", "bucket_by_sequence_length"))


class PadToLongest(Rule):
    """Texts padded to the longest row of their batch.

    What it does
        Reports code that pads each batch to its own longest row: a tokenizer called with `padding=True` or `"longest"`,
        and `tokenizer.pad`, in a function for `map`, a collate function or the step loop; transformers' padding
        collators without `pad_to_multiple_of`, and the collator that `Trainer` creates itself; `pad_sequence` and
        `max(len(row) for row in batch)` in a collate function; `padded_batch`, `ragged_batch` and bucketing of tf.data
        that leave a dimension open.
    Why this is bad
        Each new length is a new input shape, and XLA compiles the training step again for it: up to 512 times for
        lengths between 1 and 512.
    Example
        def tokenize(batch):
            return tokenizer(batch["text"], padding=True, truncation=True)
    Use instead
        def tokenize(batch):
            return tokenizer(batch["text"], padding=True, truncation=True, pad_to_multiple_of=64)
    Limitations
        Datasets that were padded in another program, and arguments from the command line, are unknown. One call for all
        texts at once gives one shape and is fine; so is a collator after a tokenizer that pads to max_length. TorchTPU
        code with `mark_dynamic` is left out: torch.compile knows there which dimensions change.
    """

    code = "TPU301"
    name = "pad-to-longest"
    group = "recompiles"
    why = "Each new length is a new input shape, and XLA compiles the training step again for it."
    unsafe_fix = True  # code that does not mask the padding computes with more of it
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        name = ctx.name(node)
        if _recompiles.is_dynamic(ctx.program):
            return
        if name in _padding.COLLATORS:
            yield from _collator_padding(node, ctx, name)
        elif name in _TRAINERS:
            yield from _trainer_padding(node, ctx)
        elif name in PADS:
            yield from _pad_sequence(node, ctx)
        elif name == "builtins.max":
            yield from _longest_row_padding(node, ctx)
        elif not name or name == "functools.partial":
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if method in _TF_METHODS:
                yield from _tf_padding(node, ctx, method)
            elif method == "map":
                yield from _map_padding(node, ctx)
            elif (result := _padding.of_tokenizer(node, ctx)) is not None and result.to == _padding.LONGEST:
                yield from _tokenizer_padding(node, ctx, result, name != "")


def _tokenizer_padding(
    node: ast.Call, ctx: RuleContext, result: _padding.PaddingSetting, partial: bool
) -> Iterator[Finding]:
    if not partial and (not _recompiles.runs_per_batch(ctx) or _padding.is_only_looked_at(node, ctx)):
        return
    if _recompiles.is_off_tpu(ctx, node) or _is_padded_by_collator(ctx):
        return
    callee = ctx.source(node.args[0] if partial else node.func)
    argument = f" with padding={ctx.source(result.argument)}" if result.argument is not None else ""
    yield ctx.finding(
        node,
        f"{callee}{argument} pads each batch to its longest row.",
        _MULTIPLE_FIX,
        edits=_multiple_edits(node, ctx, result),
    )


def _map_padding(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    """`data.map(tokenizer, batched=True, fn_kwargs={"padding": True})`."""
    options = ctx.argument(node, "fn_kwargs")
    if not isinstance(options, ast.Dict) or not node.args or not _padding.is_tokenizer(node.args[0], ctx):
        return
    pairs = zip(options.keys, options.values, strict=True)
    given = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    if _padding.is_longest(given.get("padding"), ctx) and "pad_to_multiple_of" not in given:
        yield ctx.finding(node, f"{ctx.source(node.args[0])} pads each batch of map to its longest row.", _MULTIPLE_FIX)


def _is_padded_by_collator(ctx: RuleContext) -> bool:
    """A collator with pad_to_multiple_of rounds up what a function for `map` has padded."""
    function = ctx.function
    maps = function is not None and (function.host or not function.callers) and not is_collate(ctx)
    return maps and _padding.is_padded_after(ctx.program)


def _collator_padding(node: ast.Call, ctx: RuleContext, name: str) -> Iterator[Finding]:
    result = _padding.of_collator(node, ctx, name)
    if result.to != _padding.LONGEST or _recompiles.is_off_tpu(ctx, node) or _padding.is_padded_before(ctx.program):
        return
    if name in _padding.LANGUAGE_MODELING and _padding.splits_into_blocks(ctx.program):
        return
    short = name.rpartition(".")[2]
    yield ctx.finding(
        node, f"{short} pads each batch to its longest row.", _MULTIPLE_FIX, edits=_multiple_edits(node, ctx, result)
    )


def _trainer_padding(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    collator = ctx.argument(node, "data_collator", 2)
    given = ctx.argument(node, "processing_class") or ctx.argument(node, "tokenizer")
    if ctx.has_unknown_arguments(node) or given is None or _recompiles.is_nothing(ctx.value(given)):
        return
    if collator is not None and not _recompiles.is_nothing(ctx.value(collator)):
        return
    if _padding.is_tokenizer(given, ctx) and not _is_of_images(given, ctx) and _padding.is_unpadded_before(ctx.program):
        yield ctx.finding(
            node,
            f"Trainer has no data_collator and pads each batch to its longest row with {ctx.source(given)}.",
            f"Write `data_collator=DataCollatorWithPadding({ctx.source(given)}, pad_to_multiple_of=64)`.",
        )


def _is_of_images(given: ast.expr, ctx: RuleContext) -> bool:
    """A feature extractor of images: with it Trainer pads nothing."""
    vision = ("Image", "Vision", "Video", "Segment", "ObjectDetection", "ViT")
    if "eature" not in f"{ctx.value(given).name}{ctx.source(given)}":
        return False
    return any(word in name.rpartition(".")[2] for name in ctx.program.imported for word in vision)


def _pad_sequence(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if not pads_to_longest(node, ctx) or _recompiles.is_off_tpu(ctx, node) or _is_of_processor(ctx):
        return
    if _recompiles.runs_per_batch(ctx):
        yield ctx.finding(
            node,
            f"{ctx.source(node.func)} pads each batch to its longest row.",
            "Pad to a fixed length, or round the length up to a multiple of 64.",
        )


def _is_of_processor(ctx: RuleContext) -> bool:
    """Whether this is a method of a processor of transformers beside the one that makes batches."""
    function = ctx.function
    if function is None or function.cls is None or function.name == "__call__":
        return False
    return any(base.endswith("ProcessorMixin") for base in function.cls.all_bases())


def _longest_row_padding(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if is_longest_row(node, ctx) and not _recompiles.is_off_tpu(ctx, node):
        yield ctx.finding(
            node,
            f"Each batch is padded to its longest row: {ctx.source(node)}.",
            f"Round it up: `-(-{ctx.source(node)} // 64) * 64`.",
        )


# -- tf.data ----------------------------------------------------------------------------------------------------------


def _tf_padding(node: ast.Call, ctx: RuleContext, method: str) -> Iterator[Finding]:
    assert isinstance(node.func, ast.Attribute)
    if (
        ctx.value(node.func.value).kind != TFDATA
        or ctx.has_unknown_arguments(node)
        or _recompiles.is_off_tpu(ctx, node)
    ):
        return
    if method == "padded_batch" and not _is_open(ctx, ctx.argument(node, "padded_shapes", 1)):
        return
    if method == "bucket_by_sequence_length":
        if ctx.constant(ctx.argument(node, "pad_to_bucket_boundary", 6)) is True:
            return
        fix = "Write `pad_to_bucket_boundary=True`."
    else:
        fix = "Write `.padded_batch()` with `padded_shapes` that give every length."
    yield ctx.finding(node, f".{method}() pads each batch to its longest row.", fix)


def _is_open(ctx: RuleContext, shapes: ast.expr | None) -> bool:
    """Whether padded_shapes is not given, or has a None or -1 in it."""
    if shapes is None or _recompiles.is_nothing(ctx.value(shapes)):
        return True
    return any(
        (isinstance(one, ast.Constant) and one.value is None) or ctx.constant(one) == -1
        for one in nodes_of(shapes)
        if isinstance(one, (ast.Constant, ast.UnaryOp))
    )


# -- the rewrite ------------------------------------------------------------------------------------------------------


def _multiple_edits(node: ast.Call, ctx: RuleContext, result: _padding.PaddingSetting) -> tuple[Edit, ...]:
    """Adds `pad_to_multiple_of`, if a max_length is a multiple of it."""
    multiple = _fitting_multiple(node, ctx)
    if multiple is None:
        return ()
    if result.multiple is not None:
        return (ctx.replace(result.multiple, str(multiple)),) if isinstance(result.multiple, ast.Constant) else ()
    last = _last_argument(node)
    if last is None or not _ends_plainly(node, ctx, last):
        return ()
    return (ctx.insert_after(last, f", pad_to_multiple_of={multiple}"),)


def _fitting_multiple(node: ast.Call, ctx: RuleContext) -> int | None:
    """transformers raises an error if the truncation length is not a multiple: use a multiple that divides it."""
    given = ctx.argument(node, "max_length")
    if given is None or _recompiles.is_nothing(ctx.value(given)):
        return MULTIPLE
    length = ctx.constant(given)
    if length is NOTHING or not isinstance(length, int):
        return None
    return next((one for one in (MULTIPLE, 32, 16, 8) if length % one == 0), None)


def _last_argument(node: ast.Call) -> ast.expr | None:
    given = [*node.args, *(one.value for one in node.keywords)]
    return max(given, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0), default=None)


def _ends_plainly(node: ast.Call, ctx: RuleContext, last: ast.expr) -> bool:
    """Whether only a comma and space stand between the last argument and the closing bracket."""
    if any(one.arg is None for one in node.keywords):
        return False
    after = ctx.source(node)[-1:] == ")" and _text_between(ctx, last, node)
    return after in (")", ",)")


def _text_between(ctx: RuleContext, last: ast.expr, node: ast.Call) -> str:
    lines = ctx.cell.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first_line, first = last.end_lineno or 1, last.end_col_offset or 0
    last_line, end = node.end_lineno or 1, node.end_col_offset or 0
    chosen = [line.encode() for line in lines[first_line - 1 : last_line]]
    if not chosen:
        return ""
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][first:]
    return b"".join(one.strip() for one in chosen).decode(errors="replace").replace(" ", "")


LOADER = "torch.utils.data.DataLoader"
LOADERS = (LOADER, "torchdata.stateful_dataloader.StatefulDataLoader")
BATCH_SAMPLER = "torch.utils.data.BatchSampler"
_DROP_LAST = 8  # its position among a DataLoader's arguments
_SHUFFLING = ("RandomSampler", "DistributedSampler", "LengthGroupedSampler")
_XM_STEP = "torch_xla.core.xla_model.optimizer_step"


class ShortLastBatch(Rule):
    """A training DataLoader with a short last batch.

    What it does
        Reports a torch `DataLoader` for training (shuffled, iterated by a loop with a backward pass, or named so)
        without `drop_last=True`, and a `BatchSampler(..., drop_last=False)` that shuffles, if the number of rows is
        unknown or not a multiple of the batch size.
    Why this is bad
        The last batch of each epoch has fewer rows. That is another input shape, and XLA compiles the whole training
        step a second time. Measured with torch_xla 2.9: 84 rows in batches of 32 compile twice.
    Example
        loader = DataLoader(dataset, batch_size=32, shuffle=True)
    Use instead
        loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    Limitations
        A DataLoader for training is not found if neither its name, its arguments nor a loop with a backward pass shows
        it. The length of a dataset that is read from files is unknown and reported to be safe. There is no automatic
        fix, because dropping rows changes the training data. TorchTPU code with `mark_dynamic` is left out.
    """

    code = "TPU302"
    name = "short-last-batch"
    group = "recompiles"
    in_tests = False
    why = "A last batch with fewer rows is another input shape, and XLA compiles the whole training step again."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not (program.uses("torch") or program.xla) or _recompiles.is_dynamic(program):
            return
        for call in program.calls(*LOADERS, BATCH_SAMPLER):
            if (result := _short_loader_batch(call)) is not None:
                yield result


def _short_loader_batch(call: CallSite) -> Finding | None:
    node, ctx = call.node, call.ctx
    sampler = call.name == BATCH_SAMPLER
    if ctx.has_unknown_arguments(node) or not _recompiles.trains(ctx.program):
        return None
    if _drops(call, "drop_last", 2 if sampler else _DROP_LAST):
        return None
    if ctx.argument(node, "batch_sampler", 4) is not None and not sampler:
        return None
    size = ctx.argument(node, "batch_size", 1)
    number = whole(ctx, size)
    if number == 1 or (size is None) or _recompiles.is_nothing(ctx.value(size)):
        return None
    dataset = ctx.argument(node, "sampler" if sampler else "dataset", 0)
    length = None if sampler else rows(ctx, dataset)
    if number and length is not None and length % number == 0:
        return None
    return _last_batch_finding(call, dataset, number, length) if _is_training_loader(call, dataset) else None


def _drops(call: CallSite, name: str, position: int | None) -> bool:
    """Whether the last batch is or may be dropped: the argument is given and not False."""
    given = call.ctx.argument(call.node, name, position)
    return given is not None and call.ctx.constant(given) is not False


def _last_batch_finding(call: CallSite, dataset: ast.expr | None, number: int | None, length: float | None) -> Finding:
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


def _is_training_loader(call: CallSite, dataset: ast.expr | None) -> bool:
    ctx, node = call.ctx, call.node
    if call.name == BATCH_SAMPLER:
        return ctx.name(dataset).endswith(_SHUFFLING) or ctx.value(dataset).name.endswith(_SHUFFLING)
    if id(node) in _trained_on(ctx.program):
        return True
    side = _source.purpose_of(_source.target_names(ctx, node)) or _source.purpose_of(
        _source.names_in_expression(dataset)
    )
    side = side or _split_of(ctx, dataset)
    if side:
        return side == _source.TRAINING
    if _source.purpose_of([ctx.function.name if ctx.function is not None else ""]) == _source.EVALUATION:
        return False
    return _shuffles(call)


def _split_of(ctx: RuleContext, dataset: ast.expr | None) -> str:
    """What `train=False` or `split="validation"` of the dataset's own call says."""
    creator, _ = origin(ctx, dataset) if dataset is not None else (None, ())
    if not isinstance(creator, ast.Call):
        return ""
    train = ctx.constant(ctx.argument(creator, "train"))
    if isinstance(train, bool):
        return _source.TRAINING if train else _source.EVALUATION
    return _source.purpose_of(_source.names_in_expression(ctx.argument(creator, "split")))


def _shuffles(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if ctx.constant(ctx.argument(node, "shuffle", 2)) is True:
        return True
    sampler = ctx.argument(node, "sampler", 3)
    value = ctx.value(sampler)
    if not value.name.endswith(_SHUFFLING):
        return False
    shuffle = value.creator_ctx.argument(value.creator, "shuffle", 3) if isinstance(value.creator, ast.Call) else None
    return shuffle is None or value.creator_ctx.constant(shuffle) is not False


@remembered
def _trained_on(program: CheckedProgram) -> set[int]:
    """The ids of the DataLoader calls of loops with a backward pass or an optimizer step."""
    return {
        id(creator)
        for call in program.all_calls
        if _is_update(call)
        for ctx in _surroundings(call.ctx, 1)
        for loop in ctx.loops
        if (creator := _recompiles.loader_of(loop.loader).creator) is not None
    }


def _is_update(call: CallSite) -> bool:
    if call.method == "backward":
        return call.receiver.kind == ACCELERATOR or not call.node.args
    return (call.method == "step" and call.receiver.kind == OPTIMIZER) or call.name == _XM_STEP


def _surroundings(ctx: RuleContext, far: int) -> Iterator[RuleContext]:
    """The context itself, and those of the calls of its function, `far` calls up."""
    yield ctx
    if ctx.function is not None and not ctx.loops and far:
        for call in ctx.function.callers:
            yield from _surroundings(call.ctx, far - 1)


_WHY_BRANCH = "Each outcome is another graph that XLA compiles, and several of them in a step multiply."
_FIX_BRANCH = "Draw it on the device and compute both sides: `torch.where(torch.rand((), device=device) < p, a, b)`."
_FIX_ITERATIONS = "Run a fixed number of iterations, and keep the rows that are done with `torch.where`."
_WHY_TRACED = "A tf.function is traced and compiled again for each new Python number."


class ChangingNumber(Rule):
    """A Python number that changes every step and is part of the graph.

    What it does
        Reports a Python number that changes from step to step (the counter of the step loop, a number that is counted
        up in the loop or drawn at random) where it is used as a shape, an index or a slice bound, or as a fixed
        argument of an operation: the `k` of topk, the exponent of a power, the shift of roll, the diagonal of tril;
        where it is passed to a compiled `tf.function`; and where one drawn at random decides what is computed (a layer
        that is dropped, teacher forcing, the iterations of a loop).
    Why this is bad
        Such a number is written into the graph, so each new number is another graph and another compile. Measured with
        torch_xla 2.9: one compile for each number in shapes, in indices and slices of a tensor, and in topk, kthvalue,
        pow, roll, tril and triu, diagonal, split, repeat, interpolate, pooling, padding and norm. Numbers that are
        added to, multiplied with or compared to tensors are sent as data and compile nothing new (except 0 and 1, which
        are separate graphs), and so are those in full, clamp, dropout, lerp, masked_fill, alpha= and the lr of
        optimizers.
    Example
        for step, x in enumerate(loader):
            best = torch.topk(model(x), 1 + step % 4).values
    Use instead
        for step, x in enumerate(loader):
            rank = torch.arange(4, device=device)
            best = torch.topk(model(x), 4).values * (rank < torch.tensor([1 + step % 4], device=device))
    Limitations
        Numbers that change once per epoch (one compile per epoch), numbers that functions of other files return, and
        lists with a different length in each step are not found.
    """

    code = "TPU303"
    name = "changing-number"
    group = "recompiles"
    why = "The number is written into the graph, so each new number is another graph that XLA compiles."
    nodes = (ast.Call, ast.Subscript, ast.BinOp, ast.AugAssign, ast.If, ast.IfExp, ast.For)

    def check(self, node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            yield from _number_in_call(node, ctx)
        elif isinstance(node, (ast.If, ast.IfExp, ast.For)):
            yield from _random_branch(node, ctx)
        elif isinstance(node, ast.Subscript):
            yield from _number_in_index(node, ctx)
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, FIXED_OPERATORS):
            yield from _number_in_power(node, ctx)


def _random_branch(node: ast.If | ast.IfExp | ast.For, ctx: RuleContext) -> Iterator[Finding]:
    if not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    if isinstance(node, ast.For) and not isinstance(node.iter, (ast.Call, ast.Subscript)):
        return  # a list of random numbers has the same number of them
    drawn = random_draw(node.iter if isinstance(node, ast.For) else node.test, ctx)
    if drawn is None or not _decides(node, ctx):
        return
    number = _source.shortened(ctx.source(drawn))
    if isinstance(node, ast.For):
        message, fix = f"The number of iterations is drawn at random: {number}.", _FIX_ITERATIONS
    else:
        message, fix = f"What is computed here depends on {number}, a random number of Python's.", _FIX_BRANCH
    yield ctx.finding(node.iter if isinstance(node, ast.For) else node.test, message, fix, why=_WHY_BRANCH)


def _decides(node: ast.If | ast.IfExp | ast.For, ctx: RuleContext) -> bool:
    """Whether the graph is another one by it."""
    if isinstance(node, ast.For):
        return any(ctx.value(one).kind in (TENSOR, OUTPUT) for line in node.body for one in nodes_of(line))
    if isinstance(node, ast.IfExp) and any(ctx.value(one).kind in (TENSOR, OUTPUT) for one in (node.body, node.orelse)):
        return True
    return decides_tensor_work(node, ctx)


def _number_in_call(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.value(node.func).kind == FUNCTION:
        yield from _number_in_traced_call(node, ctx)
        return
    use = use_of(node, ctx)
    if use is None or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    for argument in use.arguments:
        if changes(ctx, argument) and acts_on_device(node, ctx, use):
            what, number = _source.shortened(ctx.source(node)), ctx.source(argument)
            message = f"{use.subject.format(what=what)} {number}, a Python number that changes every step."
            yield ctx.finding(node, message, use.fix.format(number=number))
            return


def _number_in_traced_call(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    """A Python number given to a `tf.function`, which is traced again for each new one."""
    function = ctx.value(node.func).ref
    traced = "tensorflow.function" in getattr(function, "decorators", ())
    if not getattr(function, "compiled", False) and not (traced and ctx.program.tpu_tf):
        return
    for argument in (*node.args, *(one.value for one in node.keywords)):
        if ctx.value(argument).kind == NUMBER and changes(ctx, argument):
            number = ctx.source(argument)
            message = f"{ctx.source(node.func)} gets {number}, a Python number that changes every step."
            yield ctx.finding(node, message, f"Pass a tensor: `tf.constant({number})`.", why=_WHY_TRACED)
            return


def _number_in_index(node: ast.Subscript, ctx: RuleContext) -> Iterator[Finding]:
    base = ctx.value(node.value)
    if (grown := _growing_bound(node, base, ctx)) is not None:
        number, what = ctx.source(grown), _source.shortened(ctx.source(node))
        message = f"The size of {what}, which is moved to the device, depends on {number}, which changes every step."
        yield ctx.finding(node, message, _FIX_MOVED)
        return
    if not is_tensor(base, node.slice) or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return
    if not is_tensor_on_device(base, ctx):
        return
    for bound, sliced in indices(node.slice):
        if changes(ctx, bound):
            number = ctx.source(bound)
            message = (
                f"{_source.shortened(ctx.source(node))} depends on {number}, a Python number that changes every step."
            )
            fix = (FIX_SLICE if sliced else FIX_INDEX).format(number=number)
            yield ctx.finding(node, message, chunk_fix(node.slice, bound, ctx) or fix)
            return


def _growing_bound(node: ast.Subscript, base: AbstractValue, ctx: RuleContext) -> ast.expr | None:
    """`n` of `data[: n].to(device)`, in each step: another size of what the device gets."""
    columns = isinstance(node.slice, ast.Tuple) and base.kind == UNKNOWN  # only tensors and arrays have them
    if not (base.kind == TENSOR or columns) or base.where == "device":
        return None
    if not ctx.in_step or ctx.every_n or not is_moved(node, ctx):
        return None
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [one for one in items if isinstance(one, ast.Slice)]
    open_ones = [one for one in slices if one.step is None and (one.lower is None) != (one.upper is None)]
    bounds = [one.lower or one.upper for one in open_ones]
    return next((one for one in bounds if one is not None and changes(ctx, one)), None)


def _number_in_power(node: ast.BinOp | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
    left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    for tensor, number in ((left, right), (right, left)):
        base = ctx.value(tensor)
        if base.kind == TENSOR and is_tensor_on_device(base, ctx) and ctx.in_step and ctx.on_device and not ctx.every_n:
            if changes(ctx, number):
                subject = ctx.source(number)
                message = (
                    f"{_source.shortened(ctx.source(node))} uses {subject}, a Python number that changes every step."
                )
                yield ctx.finding(node, message, FIX_TENSOR.format(number=subject))
            return


_FIX_MOVED = "Move all of it before the loop and mask the other elements, or pad to one of a few sizes."
_WHY_GRAPH = (
    "Each entry stays on the device together with its autograd graph, and anything that is computed from the growing "
    "list is a new graph to compile."
)
_WHY_CAT = "The tensor has another shape in each step, and XLA compiles again for each."


class GrowingList(Rule):
    """A list of tensors that grows with every step.

    What it does
        Reports tensors that are kept step after step: a list or dict of an outer scope to which the step loop adds a
        tensor, and which the loop also computes with (`torch.stack(losses)`, `sum(losses)`); one that keeps the loss or
        the output with its autograd graph; and a tensor that grows by `x = torch.cat([x, new])`.
    Why this is bad
        Operations on the list have one more input in each step: another graph, another compile. Measured with torch_xla
        2.9: 8 steps that stack or sum a growing list, or grow a tensor by cat, compile 8 times. A list that is only
        read after the loop compiles nothing new, but each entry stays on the device, and an entry that is not detached
        keeps its autograd graph.
    Example
        losses.append(loss)
        mean = torch.stack(losses).mean()
    Use instead
        total += loss.detach()
        mean = total / (step + 1)
    Limitations
        Lists inside objects from other files are not found, nor are dicts that get one more key in each step because a
        loop inside the step has one more iteration.
    """

    code = "TPU304"
    name = "growing-list"
    group = "recompiles"
    why = "Operations on it have one more input in each step: another graph, which XLA compiles again."
    nodes = (ast.Call, ast.Assign, ast.AugAssign)

    def check(self, node: ast.Call | ast.Assign | ast.AugAssign, ctx: RuleContext) -> Iterator[Finding]:
        if isinstance(node, ast.Assign) and (name := grown_tensor(node, ctx)):
            yield ctx.finding(
                node,
                f"{name} grows by {ctx.source(node.value.func)} at every step.",  # type: ignore[attr-defined]
                "Write into a tensor of the final size, or keep detached pieces and concatenate them after the loop.",
                why=_WHY_CAT,
            )
            return
        container = growing_container(node, ctx)
        if container is None or not outlives_step(container, ctx):
            return
        if (use := use_in_step(container, ctx)) is not None:
            yield ctx.finding(
                node,
                f"{container.name} grows by a tensor at every step, and {ctx.source(use)} computes with all of it.",
                "Keep a running sum (`total += loss.detach()`), or compute after the loop.",
            )
        elif (graph := undetached_loss(container, ctx)) is not None:
            yield ctx.finding(
                node,
                f"{container.name} keeps {ctx.source(graph)} of every step with its autograd graph.",
                f"Keep `{ctx.source(graph)}.detach()`.",
                why=_WHY_GRAPH,
                edits=(ctx.insert_after(graph, ".detach()"),) if is_only_read(container, ctx) else (),
            )


_IDS = "input_ids"
_MASKS = ("attention_mask", "inputs_embeds", "encoder_outputs", "decoder_attention_mask", "mask", "input_mask")
_MASK_NAMES = ("attention_mask", "attn_mask", "input_mask", "mask", "masks", "attention_masks")
_OTHER_MODELS = ("torch.nn.", "keras.", "torchvision.", "timm.", "tensorflow.")


class NoAttentionMask(Rule):
    """A padded batch is passed to a model without its attention_mask.

    What it does
        Reports calls of transformers' models, and of `generate`, with the `input_ids` of a tokenizer that pads, or of a
        batch in a program that pads, and without `attention_mask`.
    Why this is bad
        For XLA texts are padded, to have few shapes. Without the mask a model attends to the padding, and its result
        depends on the amount of padding.
    Example
        outputs = model(batch["input_ids"], labels=batch["labels"])
    Use instead
        outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])
    Limitations
        Padding in another program is unknown, and so are models that need no mask. A model that is called with
        `**batch` gets the mask from the batch.
    """

    code = "TPU305"
    name = "no-attention-mask"
    group = "recompiles"
    why = (
        "Padding keeps the number of shapes small, but without the mask the model attends to the padding, and its "
        "result depends on the amount of padding."
    )
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        model = _called_model(node, ctx)
        if model is None or ctx.has_unknown_arguments(node) or len(node.args) > 1:
            return
        if any(one.arg in _MASKS for one in node.keywords) or _is_text_encoder(node, model):
            return
        ids = ctx.argument(node, _IDS, 0) or ctx.argument(node, "inputs")
        source = _padded_source(ids, ctx) if ids is not None else None
        if source is None or not _is_transformer(model, node, ids, ctx):
            return
        callee, given = ctx.source(node.func), ctx.source(ids) if ids is not None else ""
        yield ctx.finding(
            node,
            f"{callee} gets the padded {given} without the attention_mask.",
            f"Add `attention_mask={source}` to the call.",
        )


def _called_model(node: ast.Call, ctx: RuleContext) -> AbstractValue | None:
    value = ctx.value(node.func)
    if value.kind == MODEL:
        return value
    receiver, method = ctx.method(node)
    return receiver if method in ("generate", "forward") and receiver.kind == MODEL else None


def _is_text_encoder(node: ast.Call, model: AbstractValue) -> bool:
    """The text encoder of a diffusion model or of CLIP: it was trained on padded texts without a mask."""
    return "CLIPText" in model.name or ast.unparse(node.func).endswith("text_encoder")


def _is_transformer(model: AbstractValue, node: ast.Call, ids: ast.expr | None, ctx: RuleContext) -> bool:
    """Whether it is a model of transformers; an unknown one by its arguments."""
    if model.name.startswith("transformers."):
        return True
    if model.ref is not None or model.name.startswith(_OTHER_MODELS):
        return False
    keywords = {one.arg for one in node.keywords}
    return bool(keywords & {_IDS, "labels"}) or ctx.method(node)[1] == "generate" or _named_ids(ids)


def _named_ids(ids: ast.expr | None) -> bool:
    if isinstance(ids, ast.Subscript):
        return isinstance(ids.slice, ast.Constant) and ids.slice.value == _IDS
    return isinstance(ids, ast.Attribute) and ids.attr == _IDS


# -- origin of the ids ------------------------------------------------------------------------------------------------


def _padded_source(ids: ast.expr, ctx: RuleContext) -> str | None:
    """The code of the mask for these ids; None if they are not known to be padded."""
    written = _item_of_batch(ids, ctx)
    if written is None:
        return _named_mask(ids, ctx)
    batch, mask = written
    encoding = _encoding(batch, ctx)
    if encoding is not None:
        result = _padding.of_tokenizer(*encoding)
        return mask if result is not None and result.to in (_padding.LONGEST, _padding.FIXED) else None
    if ctx.value(batch).kind not in (BATCH, OUTPUT, LIST, UNKNOWN, TENSOR):
        return None
    return mask if _pads_texts(ctx) else None


def _pads_texts(ctx: RuleContext) -> bool:
    """Whether this program pads texts, and does not cut them into full blocks."""
    return _padding.pads_somewhere(ctx.program) and not _padding.splits_into_blocks(ctx.program)


def _named_mask(ids: ast.expr, ctx: RuleContext) -> str | None:
    """`input_ids` that a function is given or that were unpacked: padded if a mask comes along or the program pads."""
    if not isinstance(ids, ast.Name) or not ids.id.endswith(_IDS) or ctx.value(ids).creator is not None:
        return None
    given = [one.arg for one in ctx.function.parameters] if ctx.function is not None else []
    mask = next((one for one in given if one in _MASK_NAMES), None)
    if mask is not None or (ids.id in given and _pads_texts(ctx)):
        return mask or _MASKS[0]
    node, path = origin(ctx, ids)
    return _MASKS[0] if (path or node is ids) and _pads_texts(ctx) else None


def _item_of_batch(ids: ast.expr, ctx: RuleContext) -> tuple[ast.expr, str] | None:
    """The batch behind `batch["input_ids"]`, `batch.input_ids`, `ids.to(device)`, and its mask as written."""
    for _ in range(6):
        node, path = origin(ctx, ids)
        if path:
            return None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == _IDS:
            return node.value, f'{ctx.source(node.value)}["attention_mask"]'
        if isinstance(node, ast.Attribute) and node.attr == _IDS:
            return node.value, f"{ctx.source(node.value)}.attention_mask"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        ids = node.func.value
    return None


def _encoding(batch: ast.expr, ctx: RuleContext) -> tuple[ast.Call, RuleContext] | None:
    """The tokenizer's call that made the batch, where it is one."""
    value = ctx.value(batch)
    if isinstance(value.creator, ast.Call) and value.creator_ctx is not None and value.name == "tokenizer":
        return value.creator, value.creator_ctx
    node, _ = origin(ctx, batch)
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to", "convert_to_tensors")
    ):
        node, _ = origin(ctx, node.func.value)
    if isinstance(node, ast.Call) and _padding.of_tokenizer(node, ctx) is not None:
        return node, ctx
    return None


# Methods, with the positions of their batch size and of drop_remainder.
_BATCH_METHODS = {
    "batch": (0, 1),
    "padded_batch": (0, 3),
    "ragged_batch": (0, 1),
    "bucket_by_sequence_length": (None, None),
}
_FIT_METHODS = ("fit", "fit_generator", "train_on_batch")
_LINKS = 20


class TfRemainder(Rule):
    """A training set of TensorFlow with a short last batch.

    What it does
        Reports, for a TPU and as advice, `fit(x, y, batch_size=n)` with arrays whose length is no multiple of `n` (32
        without `batch_size`), and `.batch(n)`, `.padded_batch(n, ...)`, `.ragged_batch(n)`,
        `.bucket_by_sequence_length(...)` and a dataset's `to_tf_dataset(...)` without `drop_remainder=True`, for
        training (shuffled, passed to `fit` or to a loop of training steps, or named so), if the number of rows is
        unknown or not a multiple of `n`.
    Why this is bad
        The last batch has fewer rows. That is another input shape, so XLA compiles the training step again. Without
        `drop_remainder=True` the batch dimension is also unknown when the graph is traced, which a TPU may not support.
    Example
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
    Use instead
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32, drop_remainder=True)
    Limitations
        A dataset for training is not found if neither its name nor its use shows it. The length of data that is read
        from files is unknown and reported to be safe. There is no automatic fix, because dropping rows changes the
        training data.
    """

    code = "TPU306"
    name = "tf-remainder"
    group = "recompiles"
    in_tests = False
    why = "A last batch with fewer rows is another input shape, and XLA compiles the training step again."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not (program.uses("tensorflow") or program.uses("keras") or program.uses("datasets")):
            return
        for method in _BATCH_METHODS:
            for call in program.methods(method, TFDATA):
                if (result := _short_dataset_batch(call)) is not None:
                    yield result
        for call in program.methods("to_tf_dataset", DATASET):
            if (
                not _drops(call, "drop_remainder", None)
                and call.ctx.constant(call.ctx.argument(call.node, "shuffle")) is True
            ):
                yield _remainder_finding(call, None, None)
        for call in program.methods("fit", MODEL) if program.tpu_tf else ():
            yield from _short_array_batch(call)


_KERAS_BATCH = 32  # rows; what `fit` takes for arrays without batch_size


def _short_array_batch(call: CallSite) -> Iterator[Finding]:
    ctx, node = call.ctx, call.node
    x, given = ctx.argument(node, "x", 0), ctx.argument(node, "batch_size", 2)
    if x is None or call.receiver.lib != "tf" or ctx.value(x).kind not in (ARRAY, TENSOR, UNKNOWN):
        return
    size = str(_KERAS_BATCH) if given is None else ctx.source(given)
    number, length = _KERAS_BATCH if given is None else whole(ctx, given), rows(ctx, x)
    if length == math.inf:
        return
    if (split := ctx.argument(node, "validation_split")) is not None:
        part = ctx.constant(split)
        length = math.floor(length * (1 - part)) if length is not None and isinstance(part, (int, float)) else None
    if (number and length is not None and length % number == 0) or (given is None and not _is_known(call, length)):
        return
    many = f"of {length % number:.0f} rows " if number and length is not None else ""
    default = ", Keras' default" if given is None else ""
    message = f"{ctx.source(node.func)} trains on a short last batch {many}with batch_size={size}{default}."
    if split is not None:
        fix = "Split the data before, and pass the first part as a dataset with `.batch(..., drop_remainder=True)`."
    else:
        places = (("x", 0), ("y", 1), ("sample_weight", None))
        parts = (ctx.argument(node, *place) for place in places)
        names = ", ".join(ctx.source(one) for one in parts if one is not None)
        fix = f"Pass `tf.data.Dataset.from_tensor_slices(({names})).shuffle(1000).batch({size}, drop_remainder=True)`."
    yield ctx.finding(node, message, fix, advice=True)


def _is_known(call: CallSite, length: float | None) -> bool:
    """Whether `fit(x, y)` without batch_size certainly gets arrays, and of how many rows."""
    ctx, y = call.ctx, call.ctx.argument(call.node, "y", 1)
    if y is None or length is None or ctx.has_unknown_arguments(call.node):  # a dataset has no y
        return False
    return ctx.argument(call.node, "steps_per_epoch") is None


def _short_dataset_batch(call: CallSite) -> Finding | None:
    ctx, node = call.ctx, call.node
    size_at, drop_at = _BATCH_METHODS[call.method]
    assert isinstance(node.func, ast.Attribute)
    if (
        ctx.has_unknown_arguments(node)
        or _drops(call, "drop_remainder", drop_at)
        or _in_lambda(ctx)
        or _is_preview(call)
    ):
        return None
    number = whole(ctx, ctx.argument(node, "batch_size", size_at))
    length = rows(ctx, node.func.value)
    if number == 1 or length == math.inf or (number and length is not None and length % number == 0):
        return None
    return _remainder_finding(call, number, length) if _is_training_set(call) else None


def _in_lambda(ctx: RuleContext) -> bool:
    """`windows.flat_map(lambda window: window.batch(5))` makes rows, not batches of a training step."""
    return ctx.function is not None and isinstance(ctx.function.node, ast.Lambda)


def _is_preview(call: CallSite) -> bool:
    """`next(iter(data.batch(20)))`, `data.unbatch().batch(20)`: some rows to be shown, in batches of another size."""
    assert isinstance(call.node.func, ast.Attribute)
    data, outer = call.node.func.value, call.ctx.parent(call.node)
    again = isinstance(data, ast.Call) and _method_name(data) == "unbatch"
    return again or (isinstance(outer, ast.Call) and call.ctx.name(outer) in ("builtins.iter", "builtins.next"))


def _remainder_finding(call: CallSite, number: int | None, length: float | None) -> Finding:
    written = f".{call.method}({number})" if number and call.method == "batch" else f".{call.method}()"
    if number and length is not None:
        message = f"{written} gives this training set a last batch of {length % number:.0f} rows instead of {number}."
    else:
        message = f"{written} keeps the short last batch of this training set."
    return call.ctx.finding(call.node, message, f"Write `.{call.method}(..., drop_remainder=True)`.")


# -- training or evaluation -------------------------------------------------------------------------------------------


def _is_training_set(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if id(node) in _datasets_trained_on(ctx.program):
        return True
    names = [*_source.target_names(ctx, node), *_names_of_chain(node)]
    if side := _source.purpose_of(names):
        return side == _source.TRAINING
    if ctx.function is not None and (side := _source.purpose_of([ctx.function.name])):
        return side == _source.TRAINING
    return any(_method_name(one) == "shuffle" for one in _dataset_chain(ctx, node)) or _shuffled_later(ctx, node)


def _names_of_chain(node: ast.Call) -> list[str]:
    """Names of what the chain of methods begins with: `train_ds.map(...).batch(32)`, `splits["train"]`."""
    first: ast.AST = node
    while isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute):
        first = first.func.value
    return _source.names_in_expression(first) if isinstance(first, (ast.Name, ast.Attribute, ast.Subscript)) else []


def _dataset_chain(ctx: RuleContext, node: ast.expr) -> Iterator[ast.Call]:
    """The calls that create a dataset, the last first: `data.shuffle(n).batch(b)`, also through names."""
    for _ in range(_LINKS):
        node, _path = origin(ctx, node)
        if not isinstance(node, ast.Call):
            return
        yield node
        yield from _returned_chain(ctx, node)
        func = node.func
        if isinstance(func, ast.Attribute) and ctx.value(func.value).kind in (TFDATA, DATASET):
            node = func.value
        elif node.args:
            node = node.args[0]
        else:
            return


def _returned_chain(ctx: RuleContext, node: ast.Call) -> Iterator[ast.Call]:
    """The chain that a function of the program returns."""
    function = ctx.value(node.func).ref
    calls = getattr(function, "calls", [])
    body = function.node.body if calls else []
    for one in own_nodes(body) if isinstance(body, list) else ():
        if isinstance(one, ast.Return) and one.value is not None and calls[0].ctx is not ctx:
            yield from _dataset_chain(calls[0].ctx, one.value)


def _method_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _shuffled_later(ctx: RuleContext, node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "shuffle" for one in ctx.parents(node))


@remembered
def _datasets_trained_on(program: CheckedProgram) -> set[int]:
    """The ids of all calls in the chains of datasets that are trained on."""
    return {id(link) for ctx, data in _training_data(program) for link in _dataset_chain(ctx, data)}


def _training_data(program: CheckedProgram) -> Iterator[tuple[RuleContext, ast.expr]]:
    for method in _FIT_METHODS:
        for call in program.methods(method, MODEL):
            given = call.ctx.argument(call.node, "x", 0)
            if given is not None:
                yield call.ctx, given
    for call in [*program.methods("apply_gradients"), *program.methods("run", STRATEGY)]:
        if _updates_weights(call):
            yield from _given_to_steps(call)


def _updates_weights(call: CallSite) -> bool:
    """`strategy.run(f)` updates weights unless its name says that it evaluates."""
    if call.method != "run" or not call.node.args:
        return True
    return _source.purpose_of(_source.names_in_expression(call.node.args[0])) != _source.EVALUATION


def _given_to_steps(call: CallSite) -> Iterator[tuple[RuleContext, ast.expr]]:
    """The iterables of the loops around a step, or the arguments of `strategy.run`."""
    for ctx in _surroundings(call.ctx, 3):
        for loop in ctx.loops:
            if isinstance(loop.node, (ast.For, ast.AsyncFor)):
                yield ctx, loop.node.iter
    given = call.ctx.argument(call.node, "args", 1) if call.method == "run" else None
    for one in given.elts if isinstance(given, (ast.Tuple, ast.List)) else ():
        yield call.ctx, one


class GraphBreak(Rule):
    """A call that `torch.compile` cannot trace.

    What it does
        In code for TorchTPU, reports calls inside of a function that `torch.compile` compiles, as a decorator or by
        name, that it cannot trace: `print`, loggers, warnings, clocks, `tpu_magics.log`, `breakpoint`; and `item()` and
        `tolist()` outside of a step's loop (in one it is TPU102's).
    Why this is bad
        `torch.compile` splits the function there: what is before and what is behind become programs of their own, each
        with a compile, and the host runs the call between them in each step. Seen with torch_tpu 0.2 and torch 2.15.
    Example
        @torch.compile
        def step(x, y):
            loss = criterion(model(x), y)
            print("loss", loss)
            return loss
    Use instead
        @torch.compile
        def step(x, y):
            return criterion(model(x), y)

        loss = step(x, y)
        tpu_magics.log(loss=loss)
    Limitations
        Calls in functions that the compiled one calls, and methods of a module that is compiled, are not found here.
        The panel of a run lists every graph break with its line and reason.
    """

    code = "TPU307"
    name = "graph-break"
    group = "recompiles"
    why = "torch.compile splits the function here, into programs that are compiled and run apart."
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        if not ctx.program.torch_tpu:
            return
        name, method = ctx.name(node.func), node.func.attr if isinstance(node.func, ast.Attribute) else ""
        cannot = name in _NOT_TRACED or name.startswith("logging.") or _is_logger(node)
        reads = method in _VALUE_READS and not node.args and not ctx.in_step
        if (cannot or reads) and _inside_compiled(node, ctx):
            what = _source.shortened(ctx.source(node.func))
            yield ctx.finding(node, f"`{what}` inside of a function that torch.compile compiles.", _GRAPH_BREAK_FIX)


_NOT_TRACED = frozenset(
    {
        *("builtins.print", "builtins.input", "builtins.breakpoint", "warnings.warn", "tpu_magics.log"),
        *("time.time", "time.perf_counter", "time.monotonic", "time.sleep"),
    }
)
_VALUE_READS = frozenset({"item", "tolist"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_GRAPH_BREAK_FIX = "Do it outside: return what it needs, and call it where the compiled function is called."


def _is_logger(node: ast.Call) -> bool:
    """`logger.info(...)` of a logger that has a name like one."""
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _LOG_METHODS or not isinstance(func.value, ast.Name):
        return False
    return func.value.id.lower() in ("log", "logger", "_log", "_logger", "logging")


def _inside_compiled(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether the innermost function around a node is one that torch.compile compiles."""
    around = next(
        (one for one in ctx.parents(node) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))), None
    )
    if around is None:
        return False
    given = [call.node.args[0] for call in ctx.program.calls("torch.compile") if call.node.args]
    if isinstance(around, ast.Lambda):
        return any(one is around for one in given)
    decorators = (one.func if isinstance(one, ast.Call) else one for one in around.decorator_list)
    if any(ctx.name(one) == "torch.compile" for one in decorators):
        return True
    return any(isinstance(one, ast.Name) and one.id == around.name for one in given)


RULES = (
    *(PadToLongest(), ShortLastBatch(), ChangingNumber(), GrowingList(), NoAttentionMask(), TfRemainder()),
    GraphBreak(),
)
