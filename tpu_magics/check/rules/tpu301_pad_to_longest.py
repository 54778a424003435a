"""Texts padded to the longest row of their batch.

What it does
    Reports code that pads each batch to its own longest row: a tokenizer called with `padding=True` or `"longest"`, and
    `tokenizer.pad`, in a function for `map`, a collate function or the step loop; transformers' padding collators
    without `pad_to_multiple_of`, and the collator that `Trainer` creates itself; `pad_sequence` and `max(len(row) for
    row in batch)` in a collate function; `padded_batch`, `ragged_batch` and bucketing of tf.data that leave a dimension
    open.
Why this is bad
    Each new length is a new input shape, and XLA compiles the training step again for it: up to 512 times for lengths
    between 1 and 512.
Example
    def tokenize(batch):
        return tokenizer(batch["text"], padding=True, truncation=True)
Use instead
    def tokenize(batch):
        return tokenizer(batch["text"], padding=True, truncation=True, pad_to_multiple_of=64)
Limitations
    Datasets that were padded in another program, and arguments from the command line, are unknown. One call for all
    texts at once gives one shape and is fine; so is a collator after a tokenizer that pads to max_length.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _padding as padding
from tpu_magics.check.rules import _recompiles as recompiles
from tpu_magics.check.rules._origins import origin
from tpu_magics.check.values import NOTHING, TFDATA

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import Function
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU301"
NAME = "pad-to-longest"
GROUP = "recompiles"
WHY = "Each new length is a new input shape, and XLA compiles the training step again for it."
NODES = (ast.Call,)
MULTIPLE = 64
_FIX = 'Write `pad_to_multiple_of=64`, or `padding="max_length"` with a `max_length`.'
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_TF_METHODS = frozenset(("padded_batch", "ragged_batch", "bucket_by_sequence_length"))


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    name = ctx.name(node)
    if name in padding.COLLATORS:
        yield from _collator(node, ctx, name)
    elif name in _TRAINERS:
        yield from _trainer(node, ctx)
    elif name in PADS:
        yield from _pad_sequence(node, ctx)
    elif name == "builtins.max":
        yield from _longest(node, ctx)
    elif not name or name == "functools.partial":
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in _TF_METHODS:
            yield from _tf(node, ctx, method)
        elif method == "map":
            yield from _mapped(node, ctx)
        elif (found := padding.of_tokenizer(node, ctx)) is not None and found.to == padding.LONGEST:
            yield from _tokenizer(node, ctx, found, name != "")


def _tokenizer(node: ast.Call, ctx: RuleContext, found: padding.PaddingSetting, partial: bool) -> Iterator[Finding]:
    if not partial and not recompiles.runs_per_batch(ctx):
        return
    if recompiles.is_off_tpu(ctx, node) or _is_padded_by_collator(ctx):
        return
    callee = ctx.source(node.args[0] if partial else node.func)
    argument = f" with padding={ctx.source(found.argument)}" if found.argument is not None else ""
    yield ctx.finding(
        node, f"{callee}{argument} pads each batch to its longest row.", _FIX, edits=_multiple_edits(node, ctx, found)
    )


def _mapped(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    """`data.map(tokenizer, batched=True, fn_kwargs={"padding": True})`."""
    options = ctx.argument(node, "fn_kwargs")
    if not isinstance(options, ast.Dict) or not node.args or not padding.is_tokenizer(node.args[0], ctx):
        return
    pairs = zip(options.keys, options.values, strict=True)
    given = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    if padding.is_longest(given.get("padding"), ctx) and "pad_to_multiple_of" not in given:
        yield ctx.finding(node, f"{ctx.source(node.args[0])} pads each batch of map to its longest row.", _FIX)


def _is_padded_by_collator(ctx: RuleContext) -> bool:
    """A collator with pad_to_multiple_of rounds up what a function for `map` has padded."""
    function = ctx.function
    maps = function is not None and (function.host or not function.callers) and not is_collate(ctx)
    return maps and padding.is_padded_after(ctx.program)


def _collator(node: ast.Call, ctx: RuleContext, name: str) -> Iterator[Finding]:
    found = padding.of_collator(node, ctx, name)
    if found.to != padding.LONGEST or recompiles.is_off_tpu(ctx, node) or padding.is_padded_before(ctx.program):
        return
    if name in padding.LANGUAGE_MODELING and padding.splits_into_blocks(ctx.program):
        return
    short = name.rpartition(".")[2]
    yield ctx.finding(
        node, f"{short} pads each batch to its longest row.", _FIX, edits=_multiple_edits(node, ctx, found)
    )


def _trainer(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    collator = ctx.argument(node, "data_collator", 2)
    given = ctx.argument(node, "processing_class") or ctx.argument(node, "tokenizer")
    if ctx.has_unknown_arguments(node) or given is None or recompiles.is_nothing(ctx.value(given)):
        return
    if collator is not None and not recompiles.is_nothing(ctx.value(collator)):
        return
    if padding.is_tokenizer(given, ctx) and not _is_of_images(given, ctx) and padding.is_unpadded_before(ctx.program):
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
    if pads_to_longest(node, ctx) and recompiles.runs_per_batch(ctx) and not recompiles.is_off_tpu(ctx, node):
        yield ctx.finding(
            node,
            f"{ctx.source(node.func)} pads each batch to its longest row.",
            "Pad to a fixed length, or round the length up to a multiple of 64.",
        )


def _longest(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if is_longest(node, ctx) and not recompiles.is_off_tpu(ctx, node):
        yield ctx.finding(
            node,
            f"Each batch is padded to its longest row: {ctx.source(node)}.",
            f"Round it up: `-(-{ctx.source(node)} // 64) * 64`.",
        )


# -- tf.data ----------------------------------------------------------------------------------------------------------


def _tf(node: ast.Call, ctx: RuleContext, method: str) -> Iterator[Finding]:
    assert isinstance(node.func, ast.Attribute)
    if ctx.value(node.func.value).kind != TFDATA or ctx.has_unknown_arguments(node) or recompiles.is_off_tpu(ctx, node):
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
    if shapes is None or recompiles.is_nothing(ctx.value(shapes)):
        return True
    return any(
        (isinstance(one, ast.Constant) and one.value is None) or ctx.constant(one) == -1
        for one in nodes_of(shapes)
        if isinstance(one, (ast.Constant, ast.UnaryOp))
    )


# -- the rewrite ------------------------------------------------------------------------------------------------------


def _multiple_edits(node: ast.Call, ctx: RuleContext, found: padding.PaddingSetting) -> tuple[Edit, ...]:
    """Adds `pad_to_multiple_of`, if a max_length is a multiple of it."""
    multiple = _fitting(node, ctx)
    if multiple is None:
        return ()
    if found.multiple is not None:
        return (ctx.replace(found.multiple, str(multiple)),) if isinstance(found.multiple, ast.Constant) else ()
    last = _last_argument(node)
    if last is None or not _ends_plainly(node, ctx, last):
        return ()
    return (ctx.insert_after(last, f", pad_to_multiple_of={multiple}"),)


def _fitting(node: ast.Call, ctx: RuleContext) -> int | None:
    """transformers raises an error if the truncation length is not a multiple: use a multiple that divides it."""
    given = ctx.argument(node, "max_length")
    if given is None or recompiles.is_nothing(ctx.value(given)):
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
    after = ctx.source(node)[-1:] == ")" and _between(ctx, last, node)
    return after in (")", ",)")


def _between(ctx: RuleContext, last: ast.expr, node: ast.Call) -> str:
    lines = ctx.cell.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first_line, first = last.end_lineno or 1, last.end_col_offset or 0
    last_line, end = node.end_lineno or 1, node.end_col_offset or 0
    chosen = [line.encode() for line in lines[first_line - 1 : last_line]]
    if not chosen:
        return ""
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][first:]
    return b"".join(one.strip() for one in chosen).decode(errors="replace").replace(" ", "")


# -- hand-written collate functions -----------------------------------------------------------------------------------


PADS = frozenset(
    ("torch.nn.utils.rnn.pad_sequence", "keras.preprocessing.sequence.pad_sequences", "keras.utils.pad_sequences")
)
_COLLATES = re.compile(r"collat", re.IGNORECASE)
_FIXES_LENGTH = frozenset(("pad", "ConstantPad1d", "ceil", "bisect", "bisect_left", "bisect_right", "next"))
_CREATES = frozenset(("zeros", "ones", "full", "empty"))
_TAKES_LENGTHS = _CREATES | {"new_full", "new_zeros", "new_ones", "pad", "range", "ljust"}
_LENGTHS = frozenset(("size", "numel", "__len__"))


def is_collate(ctx: RuleContext) -> bool:
    """Whether this code is in a collate function: by its name, or by the name of its class."""
    function = ctx.function
    while function is not None:
        if _COLLATES.search(function.name) or (function.cls is not None and _COLLATES.search(function.cls.name)):
            return True
        if id(function) in _given_as_collate(ctx):
            return True
        function = function.outer
    return False


def _given_as_collate(ctx: RuleContext) -> set[int]:
    """The ids of functions that are given as `collate_fn=` or `data_collator=`."""
    memo = ctx.program.memo
    if "collates" not in memo:
        memo["collates"] = {
            id(function)
            for call in ctx.program.all_calls
            for keyword in call.node.keywords
            if keyword.arg in ("collate_fn", "data_collator")
            for function in _functions(call.ctx, keyword.value)
        }
    found: set[int] = memo["collates"]
    return found


def _functions(ctx: RuleContext, node: ast.expr) -> Iterator[Function]:
    from tpu_magics.check.program import Class, Function

    ref = ctx.value(node).ref
    if isinstance(ref, Function):
        yield ref
    elif isinstance(ref, Class) and (method := ref.method("__call__")) is not None:
        yield method


def pads_to_longest(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a call of `pad_sequence` leaves the length open, and nothing in the function fixes the length."""
    if ctx.name(node).startswith("keras"):
        given = ctx.argument(node, "maxlen", 1)
        return not ctx.has_unknown_arguments(node) and (given is None or ctx.constant(given) is None)
    if node.args and _has_full_length_row(node.args[0]):
        return False
    return not any(_last(one) in _FIXES_LENGTH for one in _calls_of(ctx) if one is not node)


def _has_full_length_row(rows: ast.expr) -> bool:
    """`pad_sequence([torch.zeros(LENGTH), *rows])`: one row of the target length."""
    return any(isinstance(one, ast.Call) and _last(one) in _CREATES for one in nodes_of(rows))


def _calls_of(ctx: RuleContext) -> Iterator[ast.Call]:
    if ctx.function is not None:
        for call in ctx.function.calls:
            yield call.node


def _last(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


# -- max(len(row) for row in batch) -----------------------------------------------------------------------------------


def is_longest(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether `max(...)` is the length of the longest row of a batch, and rows are padded to just that."""
    if len(node.args) != 1 or not is_collate(ctx) or not _is_of_lengths(node.args[0], ctx):
        return False
    outer = ctx.parent(node)
    if isinstance(outer, ast.Call) and ctx.name(outer) == "builtins.min":
        outer = ctx.parent(outer)
    if isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Name):
        return _pads_plainly(ctx, outer.targets[0].id)
    return isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Sub)


def _is_of_lengths(node: ast.expr, ctx: RuleContext) -> bool:
    node, _ = origin(ctx, node)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return _is_length(node.elt)
    if isinstance(node, ast.Call) and ctx.name(node) == "builtins.map":
        return bool(node.args) and ctx.name(node.args[0]) == "builtins.len"
    return False


def _is_length(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _last(node) == "len" or _last(node) in _LENGTHS
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _pads_plainly(ctx: RuleContext, name: str) -> bool:
    """Whether rows are padded to the exact length: no use of the name rounds it or looks it up in buckets."""
    assert ctx.function is not None
    uses = [one for one in nodes_of(ctx.function.node) if isinstance(one, ast.Name) and one.id == name]
    if sum(isinstance(one.ctx, ast.Store) for one in uses) != 1:
        return False
    loads = [one for one in uses if isinstance(one.ctx, ast.Load)]
    return any(_is_padding(ctx, one) for one in loads) and not any(_is_rounded(ctx, one) for one in loads)


def _is_padding(ctx: RuleContext, use: ast.Name) -> bool:
    """`[0] * (longest - len(row))`, `torch.zeros(n, longest)`, `F.pad(row, (0, longest - len(row)))`."""
    for outer in ctx.parents(use):
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Sub):
            return True
        if isinstance(outer, ast.Call):
            return _last(outer) in _TAKES_LENGTHS
        if isinstance(outer, ast.stmt):
            return False
    return False


def _is_rounded(ctx: RuleContext, use: ast.Name) -> bool:
    """`longest // 64`, `longest <= bucket`, `round_up(longest)`."""
    node: ast.AST = use
    for outer in ctx.parents(use):
        if isinstance(outer, ast.BinOp):
            if isinstance(outer.op, (ast.FloorDiv, ast.Mod, ast.Div)):
                return True
            if isinstance(outer.left, ast.List) or isinstance(outer.right, ast.List):
                return False  # `[0] * (longest - len(row))`
        elif isinstance(outer, ast.Call):
            return node is not outer.func and _last(outer) not in _TAKES_LENGTHS
        elif not isinstance(outer, (ast.Tuple, ast.UnaryOp, ast.keyword)):
            return isinstance(outer, ast.Compare)
        node = outer
    return False
