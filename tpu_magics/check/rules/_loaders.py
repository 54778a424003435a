"""Whether a DataLoader is for training or for evaluation."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _steps

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram

LOADER = "torch.utils.data.DataLoader"
_ENDS = r"(_|\b|$|\d|(?=[A-Z]|data|loader|set|dl|ds))"
_EVALUATION = re.compile(
    r"(^|_|\b)(eval(uation)?|val(id(ation)?)?|test|dev|predict(ion)?|infer(ence)?)" + _ENDS, re.IGNORECASE
)
_TRAINING = re.compile(r"(^|_|\b)(train(ing)?|fit)" + _ENDS, re.IGNORECASE)


def target(call: CallSite) -> str:
    """The name that the result of a call is assigned to, also in `x = wrapper(DataLoader(...))`."""
    for parent in call.ctx.parents(call.node):
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return ast.unparse(parent.targets[0])
        if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
            return ast.unparse(parent.target)
        if isinstance(parent, (ast.stmt, ast.Lambda)):
            return ""
    return ""


def purpose(call: CallSite) -> str:
    """ "train", "evaluation", or "" if neither the names nor `shuffle` show it."""
    ctx = call.ctx
    data = ctx.argument(call.node, "dataset", 0)
    function = ctx.function.name if ctx.function is not None else ""
    texts = (target(call), ctx.source(data) if data is not None else "", function if "loader" in function else "")
    for text in texts:
        train, evaluation = bool(_TRAINING.search(text)), bool(_EVALUATION.search(text))
        if train != evaluation:
            return "train" if train else "evaluation"
    return "train" if ctx.constant(ctx.argument(call.node, "shuffle", 2)) is True else ""


def is_for_evaluation(call: CallSite, program: CheckedProgram) -> bool:
    """Whether a loader is for evaluation only."""
    known = purpose(call)
    return known == "evaluation" or (not known and _has_no_step(call, program))


def _has_no_step(call: CallSite, program: CheckedProgram) -> bool:
    """Whether loops use the loader, but never with a backward pass."""
    loops = [(loop, one) for one in program.all_calls for loop in one.ctx.loops]
    mine = [
        (loop, one) for loop, one in loops if (value := _steps.loader_of(loop)) is not None and value.made is call.node
    ]
    return bool(mine) and not any(
        one.method in ("backward", "step") or one.name == _steps.OPTIMIZER_STEP for _, one in mine
    )
