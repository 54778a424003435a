"""Shared by the rules of the group `recompiles`: code that runs for each batch, and code for training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.values import LIST, NUMBER, AbstractValue

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_TRAINING = frozenset(("train", "training", "trn", "trainset"))
_EVALUATION = frozenset(
    ("eval", "evaluation", "val", "valid", "validation", "test", "testing", "dev", "predict", "prediction", "inference",
     "infer", "testset", "valset", "holdout")
)  # fmt: skip
# A condition on a TPU (or XLA).
_ASKS_FOR_TPU = re.compile(r"tpu|xla", re.IGNORECASE)
_BATCH_FUNCTION = re.compile(r"tokeni[sz]e|collat|preprocess|(^|_)encode(_|$)|to_features", re.IGNORECASE)
_BATCH_PARAMETERS = frozenset(
    ("batch", "examples", "example", "features", "samples", "sample", "rows", "items", "instances")
)


def sides(name: str) -> tuple[bool, bool]:
    """Whether a name means training, and whether it means evaluation: `train_loader`, `valDataset`."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & _TRAINING), bool(words & _EVALUATION)


def side_of(names: Iterable[str]) -> str:
    """ "training", "evaluation" or "", by the first of these names that means one of them."""
    for name in names:
        training, evaluation = sides(name)
        if training != evaluation:
            return "training" if training else "evaluation"
    return ""


def target_names(ctx: RuleContext, node: ast.AST) -> list[str]:
    """The names for the value of an expression: its target, keyword, dict key, or returning function."""
    found: list[str] = []
    for outer in ctx.parents(node):
        if isinstance(outer, ast.keyword) and outer.arg:
            found.append(outer.arg)
        elif isinstance(outer, ast.Dict):
            pairs = zip(outer.keys, outer.values, strict=True)
            found += [str(key.value) for key, value in pairs if value is node and isinstance(key, ast.Constant)]
        elif isinstance(outer, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
            return [*found, *(name for target in targets for name in _target_names(target))]
        elif isinstance(outer, ast.Return):
            return [*found, ctx.function.name if ctx.function is not None else ""]
        elif isinstance(outer, ast.stmt):
            return found
        node = outer
    return found


def _target_names(target: ast.expr) -> Iterable[str]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (target.attr,)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return (str(target.slice.value),)
    return ()


def names_in_expression(node: ast.AST | None) -> list[str]:
    """The names and string keys in an expression: `raw_datasets["validation"]`."""
    if node is None:
        return []
    nodes = list(nodes_of(node))
    names = [one.id for one in nodes if isinstance(one, ast.Name)]
    names += [one.attr for one in nodes if isinstance(one, ast.Attribute)]
    return [*(one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)), *names]


# -- where code runs --------------------------------------------------------------------------------------------------


def runs_per_batch(ctx: RuleContext, seen: frozenset[int] = frozenset()) -> bool:
    """Whether this place runs for each batch of rows, not once over all of them."""
    function = ctx.function
    if ctx.in_step or _over_pieces(ctx):
        return True
    if function is None or id(function) in seen:
        return False
    if function.host or (function.cls is not None and function.name in ("__call__", "__getitem__")):
        return True
    if function.callers:
        return any(runs_per_batch(call.ctx, seen | {id(function)}) for call in function.callers)
    return _takes_a_batch(function)


def _takes_a_batch(function: Function) -> bool:
    """Whether a function without calls is for `map` or a loader, by its name and its parameter."""
    own = [one.arg for one in function.parameters if one.arg not in ("self", "cls")]
    return bool(own) and (own[0] in _BATCH_PARAMETERS or bool(_BATCH_FUNCTION.search(function.name)))


def _over_pieces(ctx: RuleContext) -> bool:
    """`for i in range(0, len(texts), 32)`: a loop over chunks."""
    return any(
        isinstance(loop.node, (ast.For, ast.AsyncFor))
        and isinstance(loop.node.iter, ast.Call)
        and ctx.name(loop.node.iter) in ("builtins.range", "tqdm.trange")
        and len(loop.node.iter.args) == 3
        for loop in ctx.loops
    )


def is_off_tpu(ctx: RuleContext, node: ast.AST) -> bool:
    """Whether a branch for TPUs comes before: `if accelerator.distributed_type == DistributedType.XLA: return ...`."""
    for outer in ctx.parents(node):
        if isinstance(outer, (ast.If, ast.IfExp)) and _ASKS_FOR_TPU.search(ctx.source(outer.test)):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            body = outer.body if isinstance(outer.body, list) else []
            return any(_returns_on_tpu(ctx, one) for one in body if one.lineno < getattr(node, "lineno", 0))
    return False


def _returns_on_tpu(ctx: RuleContext, node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not _ASKS_FOR_TPU.search(ctx.source(node.test)):
        return False
    return any(isinstance(one, ast.Return) for one in node.body)


def trains(program: CheckedProgram) -> bool:
    """Whether this program trains with torch; code that only prepares data is not checked."""
    return program.xla or any(one.has_step for one in program.functions)


def loader_of(value: AbstractValue) -> AbstractValue:
    """The DataLoader inside enumerate, tqdm, MpDeviceLoader and prepare."""
    for _ in range(8):
        if value.kind == LIST and isinstance(value.ref, AbstractValue):
            value = value.ref
        elif isinstance(value.made, ast.Call) and value.name.startswith("torch_xla.") and value.made.args:
            value = value.made_ctx.value(value.made.args[0])
        else:
            break
    return value


def is_nothing(value: AbstractValue) -> bool:
    """Whether an argument is certainly None."""
    return value.kind == NUMBER and value.const is None
