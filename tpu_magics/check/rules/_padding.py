"""How texts are padded: by tokenizers, collators and hand-written collate functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.inference.values import MODULE, NOTHING, TOKENIZER, UNKNOWN, UNKNOWN_VALUE, AbstractValue
from tpu_magics.check.program import Class, Function, remembered
from tpu_magics.check.rules import _recompiles
from tpu_magics.check.rules._source import origin
from tpu_magics.check.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


LONGEST, FIXED, NO, MAYBE = "longest", "fixed", "no", "maybe"
_ENCODES = frozenset(
    ("__call__", "batch_encode_plus", "encode_plus", "encode", "apply_chat_template", "prepare_for_model")
)
_TOKENIZER_NAME = re.compile(r"(^|_)(tokenizer|tokeniser|tok|processor|feature_extractor)$")
_PARTIAL = "functools.partial"
# Collators that pad, with the positions of padding, max_length and pad_to_multiple_of in transformers 5.
COLLATORS: dict[str, tuple[int | None, int | None, int | None]] = {
    "transformers.DataCollatorWithPadding": (1, 2, 3),
    "transformers.DataCollatorForTokenClassification": (1, 2, 3),
    "transformers.DataCollatorForMultipleChoice": (1, 2, 3),
    "transformers.DataCollatorForSeq2Seq": (2, 3, 4),
    "transformers.DataCollatorForLanguageModeling": (None, None, None),
    "transformers.DataCollatorForWholeWordMask": (None, None, None),
}
LANGUAGE_MODELING = ("transformers.DataCollatorForLanguageModeling", "transformers.DataCollatorForWholeWordMask")


class PaddingSetting(NamedTuple):
    """The padding of a call, and the arguments that set it."""

    to: str
    argument: ast.expr | None = None
    multiple: ast.expr | None = None


def of_tokenizer(node: ast.Call, ctx: RuleContext) -> PaddingSetting | None:
    """The padding of a tokenizer's call; None if the call is none."""
    what = _tokenizer_call_kind(node, ctx)
    if what is None:
        return None
    given = ctx.argument(node, "padding", 1 if what == "pad" else None)
    if given is None and what == "pad" and _is_of_features(node):
        return None  # features that an extractor may have padded already
    return _read(node, ctx, given, LONGEST if what == "pad" else NO, ctx.argument(node, "pad_to_multiple_of"))


def of_collator(node: ast.Call, ctx: RuleContext, name: str) -> PaddingSetting:
    position, _, multiple = COLLATORS[name]
    given = ctx.argument(node, "padding", position) if position is not None else None
    return _read(node, ctx, given, LONGEST, ctx.argument(node, "pad_to_multiple_of", multiple))


def _tokenizer_call_kind(node: ast.Call, ctx: RuleContext) -> str | None:
    """ "pad" for `tokenizer.pad(...)`, "encode" for the tokenizer's calls, None for all else."""
    if ctx.name(node) == _PARTIAL:
        return "encode" if node.args and ctx.value(node.args[0]).kind == TOKENIZER else None
    func = node.func
    if is_tokenizer(func, ctx):
        return "encode" if ctx.value(func).kind == TOKENIZER or _says_padding(node) else None
    pads_or_encodes = isinstance(func, ast.Attribute) and (func.attr == "pad" or func.attr in _ENCODES)
    if isinstance(func, ast.Attribute) and pads_or_encodes and is_tokenizer(func.value, ctx):
        return "pad" if func.attr == "pad" else "encode"
    return None


def _is_of_features(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value).endswith("feature_extractor")


def _says_padding(node: ast.Call) -> bool:
    return any(one.arg == "padding" for one in node.keywords)


def is_tokenizer(node: ast.AST, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    if value.kind == TOKENIZER:
        return True
    last = last_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return value.kind == UNKNOWN and bool(_TOKENIZER_NAME.search(last))


def _read(
    node: ast.Call, ctx: RuleContext, given: ast.expr | None, default: str, multiple: ast.expr | None
) -> PaddingSetting:
    if multiple is not None and not _recompiles.is_nothing(setting(multiple, ctx)):
        return PaddingSetting(FIXED, given, multiple)
    if given is None:
        return PaddingSetting(MAYBE if ctx.has_unknown_arguments(node) else default, None, multiple)
    to = _meaning(given, ctx)
    return PaddingSetting(MAYBE if to == LONGEST and ctx.has_unknown_arguments(node) else to, given, multiple)


def is_longest(given: ast.expr | None, ctx: RuleContext) -> bool:
    return given is not None and _meaning(given, ctx) == LONGEST


def _meaning(given: ast.expr, ctx: RuleContext) -> str:
    value = setting(given, ctx)
    if value.kind == MODULE:
        return _STRATEGIES.get(value.name.rpartition(".")[2], MAYBE)
    const = value.const
    if const is NOTHING or not isinstance(const, (bool, str)):
        return MAYBE
    return _STRATEGIES.get(str(const).upper(), MAYBE)


def setting(node: ast.expr, ctx: RuleContext) -> AbstractValue:
    """The value of an argument; `self.padding` has the class's value only if no instance here changes it."""
    value, function = ctx.value(node), ctx.function
    if not isinstance(node, ast.Attribute) or value.kind == MODULE or function is None or function.cls is None:
        return value
    creator = [call for call in ctx.program.all_calls if call.value.ref is function.cls and call.name == ""]
    given = [call.ctx.value(one) for call in creator if (one := call.ctx.argument(call.node, node.attr)) is not None]
    if not creator or any(call.ctx.has_unknown_arguments(call.node) for call in creator):
        return UNKNOWN_VALUE
    return next((one for one in given if one.const is NOTHING or one.const != value.const), value)


_STRATEGIES = {
    "TRUE": LONGEST,
    "LONGEST": LONGEST,
    "MAX_LENGTH": FIXED,
    "FALSE": NO,
    "DO_NOT_PAD": NO,
}


def is_only_looked_at(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the tokenizer's result stays on the host: its shape is read, it is compared, or decoded to text again."""
    for outer in ctx.parents(node):
        if isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Name) and ctx.function is not None:
            name = outer.targets[0].id
            names = [one for one in nodes_of(ctx.function.node) if isinstance(one, ast.Name) and one.id == name]
            used = [one for one in names if isinstance(one.ctx, ast.Load)]
            return bool(used) and all(_looks(one, ctx) for one in used)
        if not isinstance(outer, (ast.Attribute, ast.Subscript)):
            return False
    return False


_LOOKS = frozenset(("equal", "len", "decode", "batch_decode", "print"))


def _looks(use: ast.Name, ctx: RuleContext) -> bool:
    for outer in ctx.parents(use):
        if isinstance(outer, ast.Attribute) and outer.attr in ("shape", "input_ids", "size"):
            if outer.attr != "input_ids":
                return True
        elif isinstance(outer, ast.Call):
            return last_name(outer) in _LOOKS
        elif not isinstance(outer, ast.Subscript):
            return False
    return False


# -- padding before the collator --------------------------------------------------------------------------------------


@remembered
def _encodings(program: CheckedProgram) -> list[tuple[CallSite, PaddingSetting]]:
    """The tokenizer's calls in functions that run for each batch of rows."""
    result = [(call, of_tokenizer(call.node, call.ctx)) for call in program.all_calls if _may_encode(call)]
    return [(call, padding) for call, padding in result if padding is not None]


def _may_encode(call: CallSite) -> bool:
    return not call.name or call.name == _PARTIAL


def _over_data(program: CheckedProgram) -> list[PaddingSetting]:
    """The paddings of the tokenizer's calls that run for each batch of rows."""
    return [one for call, one in _encodings(program) if _recompiles.runs_per_batch(call.ctx)]


def _collators(program: CheckedProgram) -> list[PaddingSetting]:
    return [of_collator(call.node, call.ctx, call.name) for call in program.calls(*COLLATORS)]


def is_padded_before(program: CheckedProgram) -> bool:
    """Whether the only tokenizer call over data pads the rows of the only collator to few lengths.

    With several of either it is unknown which belong together.
    """
    return [one.to for one in _over_data(program)] == [FIXED] and len(_collators(program)) == 1


def is_padded_after(program: CheckedProgram) -> bool:
    """Whether the only collator rounds up the lengths of the only tokenizer call over data."""
    return [one.to for one in _collators(program)] == [FIXED] and len(_over_data(program)) == 1


def is_unpadded_before(program: CheckedProgram) -> bool:
    """Whether rows certainly differ in length: a tokenizer call over data pads to the longest, or not at all."""
    return any(one.to in (NO, LONGEST) for one in _over_data(program))


def pads_somewhere(program: CheckedProgram) -> bool:
    """Whether this program pads texts at all."""
    if any(one.to in (LONGEST, FIXED) for _, one in _encodings(program)):
        return True
    return any(one.to != NO for one in _collators(program))


@remembered
def splits_into_blocks(program: CheckedProgram) -> bool:
    """Whether texts are joined and cut into blocks of one length: `t[i : i + block_size]`, as for language models."""
    return any(_keeps_whole_chunks(call) for call in program.all_calls) or any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and _is_block(node.slice)
        for function in program.functions
        for node in nodes_of(function.node)
    )


def _keeps_whole_chunks(call: CallSite) -> bool:
    """`return_overflowing_tokens` with `return_length`: chunks that are shorter than the context are left out."""
    given = {one.arg for one in call.node.keywords}
    return {"return_overflowing_tokens", "return_length"} <= given


def _is_block(node: ast.Slice) -> bool:
    first, last = node.lower, node.upper
    if first is None or not isinstance(last, ast.BinOp) or not isinstance(last.op, ast.Add):
        return False
    return any(ast.dump(first) == ast.dump(one) for one in (last.left, last.right))


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
        if id(function) in _given_as_collate(ctx.program):
            return True
        function = function.outer
    return False


@remembered
def _given_as_collate(program: CheckedProgram) -> set[int]:
    """The ids of functions that are given as `collate_fn=` or `data_collator=`."""
    return {
        id(function)
        for call in program.all_calls
        for keyword in call.node.keywords
        if keyword.arg in ("collate_fn", "data_collator")
        for function in _functions(call.ctx, keyword.value)
    }


def _functions(ctx: RuleContext, node: ast.expr) -> Iterator[Function]:
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
    return not any(last_name(one) in _FIXES_LENGTH for one in _calls_of(ctx) if one is not node)


def _has_full_length_row(rows: ast.expr) -> bool:
    """`pad_sequence([torch.zeros(LENGTH), *rows])`: one row of the target length."""
    return any(isinstance(one, ast.Call) and last_name(one) in _CREATES for one in nodes_of(rows))


def _calls_of(ctx: RuleContext) -> Iterator[ast.Call]:
    if ctx.function is not None:
        for call in ctx.function.calls:
            yield call.node


# -- max(len(row) for row in batch) -----------------------------------------------------------------------------------


def is_longest_row(node: ast.Call, ctx: RuleContext) -> bool:
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
        return last_name(node) == "len" or last_name(node) in _LENGTHS
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
            return last_name(outer) in _TAKES_LENGTHS
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
            return node is not outer.func and last_name(outer) not in _TAKES_LENGTHS
        elif not isinstance(outer, (ast.Tuple, ast.UnaryOp, ast.keyword)):
            return isinstance(outer, ast.Compare)
        node = outer
    return False
