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
    Padding in another program is unknown, and so are models that need no mask. A model that is called with `**batch`
    gets the mask from the batch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _padding as padding
from tpu_magics.check.rules._origins import origin
from tpu_magics.check.values import BATCH, LIST, MODEL, OUTPUT, TENSOR, UNKNOWN

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext
    from tpu_magics.check.values import AbstractValue

CODE = "TPU305"
NAME = "no-attention-mask"
GROUP = "recompiles"
WHY = (
    "Padding keeps the number of shapes small, but without the mask the model attends to the padding, and its result "
    "depends on the amount of padding."
)
NODES = (ast.Call,)
_IDS = "input_ids"
_MASKS = ("attention_mask", "inputs_embeds", "encoder_outputs", "decoder_attention_mask", "mask", "input_mask")
_MASK_NAMES = ("attention_mask", "attn_mask", "input_mask", "mask", "masks", "attention_masks")
_OTHER_MODELS = ("torch.nn.", "keras.", "torchvision.", "timm.", "tensorflow.")


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    model = _model(node, ctx)
    if model is None or ctx.has_unknown_arguments(node) or len(node.args) > 1:
        return
    if any(one.arg in _MASKS for one in node.keywords) or _is_of_images(node, model):
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


def _model(node: ast.Call, ctx: RuleContext) -> AbstractValue | None:
    value = ctx.value(node.func)
    if value.kind == MODEL:
        return value
    receiver, method = ctx.method(node)
    return receiver if method in ("generate", "forward") and receiver.kind == MODEL else None


def _is_of_images(node: ast.Call, model: AbstractValue) -> bool:
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
    made = _encoding(batch, ctx)
    if made is not None:
        found = padding.of_tokenizer(*made)
        return mask if found is not None and found.to in (padding.LONGEST, padding.FIXED) else None
    if ctx.value(batch).kind not in (BATCH, OUTPUT, LIST, UNKNOWN, TENSOR):
        return None
    return mask if _pads(ctx) else None


def _pads(ctx: RuleContext) -> bool:
    """Whether this program pads texts, and does not cut them into full blocks."""
    return padding.pads_somewhere(ctx.program) and not padding.splits_into_blocks(ctx.program)


def _named_mask(ids: ast.expr, ctx: RuleContext) -> str | None:
    """`input_ids` that a function is given or that were unpacked: padded if a mask comes along or the program pads."""
    if not isinstance(ids, ast.Name) or not ids.id.endswith(_IDS) or ctx.value(ids).made is not None:
        return None
    given = [one.arg for one in ctx.function.parameters] if ctx.function is not None else []
    mask = next((one for one in given if one in _MASK_NAMES), None)
    if mask is not None or (ids.id in given and _pads(ctx)):
        return mask or _MASKS[0]
    node, path = origin(ctx, ids)
    return _MASKS[0] if (path or node is ids) and _pads(ctx) else None


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
    if isinstance(value.made, ast.Call) and value.made_ctx is not None and value.name == "tokenizer":
        return value.made, value.made_ctx
    node, _ = origin(ctx, batch)
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to", "convert_to_tensors")
    ):
        node, _ = origin(ctx, node.func.value)
    if isinstance(node, ast.Call) and padding.of_tokenizer(node, ctx) is not None:
        return node, ctx
    return None
