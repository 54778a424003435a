"""Texts padded to the longest of their batch.

What it does
    Finds what pads each batch to its own longest row: a tokenizer called with `padding=True` or `"longest"`, and
    `tokenizer.pad`, in a function for `map`, a collate function or the step loop; transformers' padding collators
    without `pad_to_multiple_of`, and the one that `Trainer` makes for itself; `pad_sequence` and
    `max(len(row) for row in batch)` in a collate function; `padded_batch`, `ragged_batch` and bucketing of tf.data
    that leave a dimension open.
Why it is bad
    Each length that was not met before is a new input shape, and XLA compiles the training step again for it: with
    lengths between 1 and 512 up to 512 times.
Example
    def tokenize(batch):
        return tokenizer(batch["text"], padding=True, truncation=True)
Use instead
    def tokenize(batch):
        return tokenizer(batch["text"], padding=True, truncation=True, pad_to_multiple_of=64)
What it cannot see
    Data sets that were padded in another program; arguments that come from the command line. A call over all texts
    at once gives one shape and is no fault, nor is a collator behind a tokenizer that pads to max_length.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _collate as collate
from tpu_magics.check.rules import _padding as padding
from tpu_magics.check.rules import _recompiles as recompiles
from tpu_magics.check.values import NOTHING, TFDATA

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.rule_context import Place

CODE = "TPU301"
NAME = "pad-to-longest"
GROUP = "recompiles"
WHY = "Each new longest row is a new input shape, and XLA compiles the training step again for every one."
NODES = (ast.Call,)
MULTIPLE = 64
_FIX = 'Write `pad_to_multiple_of=64`, or `padding="max_length"` with a `max_length`.'
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_TF_METHODS = frozenset(("padded_batch", "ragged_batch", "bucket_by_sequence_length"))


def check(node: ast.Call, at: Place) -> Iterator[Finding]:
    name = at.name(node)
    if name in padding.COLLATORS:
        yield from _collator(node, at, name)
    elif name in _TRAINERS:
        yield from _trainer(node, at)
    elif name in collate.PADS:
        yield from _pad_sequence(node, at)
    elif name == "builtins.max":
        yield from _longest(node, at)
    elif not name or name == "functools.partial":
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in _TF_METHODS:
            yield from _tf(node, at, method)
        elif method == "map":
            yield from _mapped(node, at)
        elif (found := padding.of_tokenizer(node, at)) is not None and found.to == padding.LONGEST:
            yield from _tokenizer(node, at, found, name != "")


def _tokenizer(node: ast.Call, at: Place, found: padding.Padding, partial: bool) -> Iterator[Finding]:
    if not partial and not recompiles.runs_per_batch(at):
        return
    if recompiles.off_tpu(at, node) or _evened_by_collator(at):
        return
    callee = at.source(node.args[0] if partial else node.func)
    said = f" with padding={at.source(found.said)}" if found.said is not None else ""
    yield at.finding(
        node, f"{callee}{said} pads each batch to its longest row.", _FIX, edits=_multiple_edits(node, at, found)
    )


def _mapped(node: ast.Call, at: Place) -> Iterator[Finding]:
    """`data.map(tokenizer, batched=True, fn_kwargs={"padding": True})`."""
    options = at.keyword(node, "fn_kwargs")
    if not isinstance(options, ast.Dict) or not node.args or not padding.is_tokenizer(node.args[0], at):
        return
    pairs = zip(options.keys, options.values, strict=True)
    given = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    if padding.is_longest(given.get("padding"), at) and "pad_to_multiple_of" not in given:
        yield at.finding(node, f"{at.source(node.args[0])} pads each batch of map to its longest row.", _FIX)


def _evened_by_collator(at: Place) -> bool:
    """A collator with pad_to_multiple_of rounds up what a function for `map` has padded."""
    function = at.function
    maps = function is not None and (function.host or not function.callers) and not collate.is_collate(at)
    return maps and padding.evened_after(at.program)


def _collator(node: ast.Call, at: Place, name: str) -> Iterator[Finding]:
    found = padding.of_collator(node, at, name)
    if found.to != padding.LONGEST or recompiles.off_tpu(at, node) or padding.evened_before(at.program):
        return
    if name in padding.LANGUAGE_MODELING and padding.cut_into_blocks(at.program):
        return
    short = name.rpartition(".")[2]
    yield at.finding(node, f"{short} pads each batch to its longest row.", _FIX, edits=_multiple_edits(node, at, found))


def _trainer(node: ast.Call, at: Place) -> Iterator[Finding]:
    collator = at.keyword(node, "data_collator", 2)
    given = at.keyword(node, "processing_class") or at.keyword(node, "tokenizer")
    if at.open_keywords(node) or given is None or recompiles.is_nothing(at.value(given)):
        return
    if collator is not None and not recompiles.is_nothing(at.value(collator)):
        return
    if padding.is_tokenizer(given, at) and not _is_of_images(given, at) and padding.uneven_before(at.program):
        yield at.finding(
            node,
            f"Trainer is given no data_collator and pads each batch to its longest row with {at.source(given)}.",
            f"Write `data_collator=DataCollatorWithPadding({at.source(given)}, pad_to_multiple_of=64)`.",
        )


def _is_of_images(given: ast.expr, at: Place) -> bool:
    """A feature extractor of images: with it Trainer pads nothing."""
    vision = ("Image", "Vision", "Video", "Segment", "ObjectDetection", "ViT")
    if "eature" not in f"{at.value(given).name}{at.source(given)}":
        return False
    return any(word in name.rpartition(".")[2] for name in at.program.imported for word in vision)


def _pad_sequence(node: ast.Call, at: Place) -> Iterator[Finding]:
    if collate.pads_to_longest(node, at) and recompiles.runs_per_batch(at) and not recompiles.off_tpu(at, node):
        yield at.finding(
            node,
            f"{at.source(node.func)} pads each batch to its longest row.",
            "Pad to a fixed length, or round the length up to a multiple of 64.",
        )


def _longest(node: ast.Call, at: Place) -> Iterator[Finding]:
    if collate.is_longest(node, at) and not recompiles.off_tpu(at, node):
        yield at.finding(
            node,
            f"Each batch is padded to its longest row: {at.source(node)}.",
            f"Round it up: `-(-{at.source(node)} // 64) * 64`.",
        )


# -- tf.data ----------------------------------------------------------------------------------------------------------


def _tf(node: ast.Call, at: Place, method: str) -> Iterator[Finding]:
    assert isinstance(node.func, ast.Attribute)
    if at.value(node.func.value).kind != TFDATA or at.open_keywords(node) or recompiles.off_tpu(at, node):
        return
    if method == "padded_batch" and not _is_open(at, at.keyword(node, "padded_shapes", 1)):
        return
    if method == "bucket_by_sequence_length":
        if at.constant(at.keyword(node, "pad_to_bucket_boundary", 6)) is True:
            return
        fix = "Write `pad_to_bucket_boundary=True`."
    else:
        fix = "Write `.padded_batch()` with `padded_shapes` that name every length."
    yield at.finding(node, f".{method}() pads each batch to its longest row.", fix)


def _is_open(at: Place, shapes: ast.expr | None) -> bool:
    """Whether padded_shapes is not given, or has a None or -1 in it."""
    if shapes is None or recompiles.is_nothing(at.value(shapes)):
        return True
    return any(
        (isinstance(one, ast.Constant) and one.value is None) or at.constant(one) == -1
        for one in nodes_of(shapes)
        if isinstance(one, (ast.Constant, ast.UnaryOp))
    )


# -- the rewrite ------------------------------------------------------------------------------------------------------


def _multiple_edits(node: ast.Call, at: Place, found: padding.Padding) -> tuple[Edit, ...]:
    """Add `pad_to_multiple_of`, where it cannot meet a max_length that is none of its multiples."""
    multiple = _fitting(node, at)
    if multiple is None:
        return ()
    if found.multiple is not None:
        return (at.replace(found.multiple, str(multiple)),) if isinstance(found.multiple, ast.Constant) else ()
    last = _last_argument(node)
    if last is None or not _ends_plainly(node, at, last):
        return ()
    return (at.insert_after(last, f", pad_to_multiple_of={multiple}"),)


def _fitting(node: ast.Call, at: Place) -> int | None:
    """transformers refuses a truncation length that is no multiple: take a multiple that divides it."""
    given = at.keyword(node, "max_length")
    if given is None or recompiles.is_nothing(at.value(given)):
        return MULTIPLE
    length = at.constant(given)
    if length is NOTHING or not isinstance(length, int):
        return None
    return next((one for one in (MULTIPLE, 32, 16, 8) if length % one == 0), None)


def _last_argument(node: ast.Call) -> ast.expr | None:
    given = [*node.args, *(one.value for one in node.keywords)]
    return max(given, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0), default=None)


def _ends_plainly(node: ast.Call, at: Place, last: ast.expr) -> bool:
    """Whether only a comma and space stand between the last argument and the closing bracket."""
    if any(one.arg is None for one in node.keywords):
        return False
    after = at.source(node)[-1:] == ")" and _between(at, last, node)
    return after in (")", ",)")


def _between(at: Place, last: ast.expr, node: ast.Call) -> str:
    lines = at.cell.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first_line, first = last.end_lineno or 1, last.end_col_offset or 0
    last_line, end = node.end_lineno or 1, node.end_col_offset or 0
    chosen = [line.encode() for line in lines[first_line - 1 : last_line]]
    if not chosen:
        return ""
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][first:]
    return b"".join(one.strip() for one in chosen).decode(errors="replace").replace(" ", "")
