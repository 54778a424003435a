"""Which models the launcher can build once in the notebook, and why not: `launch/hoist` told from the code alone.

What lives here: the calls of training code that build models, and where each stands. What does not: their arguments and
helper functions (_hoist_arguments.py), and hoisting itself (launch/hoist/candidates.py, whose reasons these are).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _hoist_arguments, _ranks
from tpu_magics.check.values import LIST, MODEL, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.place import Place
    from tpu_magics.check.program import Call, Class, Function

WEIGHTLESS = frozenset(
    ("ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "LeakyReLU", "ELU", "Identity", "Flatten",
     "Unflatten", "Upsample", "PixelShuffle", "Softplus", "Hardtanh", "CosineSimilarity", "PairwiseDistance", "Fold",
     "Unfold", "ReLU6", "Mish", "GLU", "Hardswish")
)  # fmt: skip
_WEIGHTLESS_ENDS = ("Loss", "LossV2", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Pool1d", "Pool2d", "Pool3d",
    "Pad1d", "Pad2d", "Pad3d")  # fmt: skip
_WRAPPERS = ("torch.nn.parallel.", "torch.nn.DataParallel", "torch.distributed.", "torch_xla.distributed.")
# Libraries of which the engine knows nothing.
_OTHER_LIBRARIES = ("diffusers.", "sentence_transformers.", "segmentation_models_pytorch.", "monai.networks.")
_IS_MODEL = re.compile(
    r"\.(\w*(Model|Pipeline|Transformer|Unet)|U[Nn]et\w*|\w*(Model|Pipeline|AutoencoderKL)\.from_pretrained)$"
)
_HARMLESS = frozenset(
    ("contextlib.nullcontext", "contextlib.suppress", "contextlib.redirect_stdout", "contextlib.redirect_stderr",
     "warnings.catch_warnings", "builtins.open")
)  # fmt: skip
_HARMLESS_METHODS = frozenset(("main_process_first", "local_main_process_first"))
_BARE = ("torch.nn.Module", "torch.nn.modules.module.Module")
# Methods that give a model back.
_SAME = frozenset(
    ("to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_", "apply")
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def builds(call: Call) -> bool:
    """Whether a call builds a model with weights."""
    value, name = call.value, call.name
    if name.startswith(_OTHER_LIBRARIES) and _IS_MODEL.search(name):
        return True
    if value.kind != MODEL or value.lib == "tf" or value.made is not call.node:
        return False
    last = name.rpartition(".")[2] if name else value.name
    if name.startswith(_WRAPPERS) or last in WEIGHTLESS or last.endswith(_WEIGHTLESS_ENDS):
        return False
    return value.ref is None or _has_weights(value.ref)


def _has_weights(cls: Class) -> bool:
    """Whether a module class of the program holds layers or parameters, as far as its code tells."""
    known = cls.method("__init__")
    if known is None:
        return not cls.methods or any(base not in _BARE for base in cls.all_bases())
    return any(call.value.kind in (MODEL, TENSOR, LIST) for call in known.calls) or not _is_bare(cls)


def _is_bare(cls: Class) -> bool:
    return all(base in _BARE or base in {one.name for one in cls.line()} for base in cls.all_bases())


def top_builds(calls: list[Call]) -> Iterator[Call]:
    """The calls that build a model, but for those that are a part of another one."""
    found = [call for call in calls if builds(call)]
    nodes = {id(call.node) for call in found}
    yield from (call for call in found if not _is_part(call, nodes))


def _is_part(call: Call, nodes: set[int]) -> bool:
    for parent in call.at.parents(call.node):
        if isinstance(parent, ast.stmt):
            return False
        if id(parent) in nodes:
            return True
    return False


# -- why not ----------------------------------------------------------------------------------------------------------


def reason(call: Call, function: Function | None) -> str:
    """What speaks against building the model of this call, in `function` (None: a cell's statements), once in the
    notebook; "" where nothing does."""
    if call.at.function is not function:
        inner = call.at.function
        return f"it stands in `{inner.name}`, not in the launched function itself" if inner is not None else ""
    found = _context(call) or _part_problem(call, function)
    return found or (_hoist_arguments.problem(call, function) if function is not None else "")


def _part_problem(call: Call, function: Function | None) -> str:
    """What speaks against a part of the model: `nn.Sequential(*[nn.Linear(8, 8) for _ in range(n)])`."""
    for part in function.calls if function is not None else ():
        if part.node is call.node or not _spans(call.node, part.node) or not builds(part):
            continue
        found = _context(part, call.node)
        if found:
            return f"its part `{' '.join(call.at.source(part.node).split())[:50]}` cannot be hoisted: {found}"
    return ""


def _spans(outer: ast.Call, inner: ast.Call) -> bool:
    last, end = outer.end_lineno or outer.lineno, outer.end_col_offset or 0
    place = (inner.lineno, inner.col_offset)
    return (outer.lineno, outer.col_offset) <= place < (last, end)


def _context(call: Call, until: ast.AST | None = None) -> str:
    child: ast.AST = call.node
    for parent in call.at.parents(call.node):
        if isinstance(parent, _FUNCTIONS) or parent is until:
            return ""
        found = _around(parent, child, call.at)
        if found:
            return found
        child = parent
    return ""


def _around(parent: ast.AST, child: ast.AST, at: Place) -> str:
    line = getattr(parent, "lineno", 0)
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return f"it is built in a loop (line {line})" if child is not parent.iter else ""
    if isinstance(parent, ast.While):
        return f"it is built in a loop (line {line})"
    if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return "it is built in a comprehension"
    if isinstance(parent, (ast.If, ast.IfExp)):
        return "" if child is parent.test else f"it is built on a condition (line {line})"
    if isinstance(parent, ast.BoolOp):
        return "" if child is parent.values[0] else f"it is built on a condition (line {line})"
    if isinstance(parent, (ast.Try, ast.Match)):
        return f"it is built inside a `{type(parent).__name__.lower()}` (line {line})"
    if isinstance(parent, (ast.With, ast.AsyncWith)) and isinstance(child, ast.stmt):
        return next((_inside(item.context_expr, at) for item in parent.items if not _is_harmless(item, at)), "")
    return ""


def _inside(context: ast.expr, at: Place) -> str:
    return f"it stands inside `with {at.source(context)}`, which may change how it is built"


def _is_harmless(item: ast.withitem, at: Place) -> bool:
    node = item.context_expr
    if not isinstance(node, ast.Call):
        return False
    return at.name(node) in _HARMLESS or (isinstance(node.func, ast.Attribute) and node.func.attr in _HARMLESS_METHODS)


def helper_reason(call: Call, helper: Function, function: Function | None) -> str:
    """The same for the call of a function of the program that builds a model and returns it."""
    if helper.outer is not None:
        return f"it stands in the inner function `{helper.name}`, which may run any number of times"
    found = reason(call, function)
    return found or _returned(helper) or _hoist_arguments.effects(helper)


def _returned(helper: Function) -> str:
    """What a helper returns besides a model that it builds."""
    built = {id(one.node) for one in helper.calls if one.value.kind == MODEL and one.method not in _SAME}
    assigned = _ranks.definitions(helper)
    for node in nodes_of(helper.node):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        values = assigned.get(node.value.id, []) if isinstance(node.value, ast.Name) else [node.value]
        if not values or any(id(one) not in built for one in values):
            code = " ".join(helper.at.source(node.value).split())[:50]
            return f"`{helper.name}` returns `{code}` (line {node.lineno}), which is no call that builds a model"
    return ""
