"""Calls that show values: print, logging, progress bars and experiment trackers."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tpu_magics.check.values import ACCELERATOR

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_LEVELS = frozenset(("debug", "info", "warning", "warn", "error", "critical", "exception", "log"))
_NAMES = frozenset(
    ("builtins.print", "builtins.str", "builtins.repr", "builtins.format", "torch_xla.core.xla_model.master_print",
     "tqdm.tqdm.write", "tqdm.write", "pprint.pprint", "rich.print", "IPython.display.display", "sys.stdout.write",
     "sys.stderr.write", "warnings.warn", "click.echo", "wandb.log", "wandb.run.log", "mlflow.log_metric",
     "mlflow.log_metrics", "trackio.log", "swanlab.log", *(f"logging.{level}" for level in _LEVELS))
)  # fmt: skip
_BARS = frozenset(("set_postfix", "set_postfix_str", "set_description", "set_description_str"))
_WRITERS = frozenset(("add_scalar", "add_scalars", "add_text", "add_histogram", "log_metric", "log_metrics"))
_LOGGER = re.compile(r"(^|_)log(ger|ging)?$", re.I)
_ATTRIBUTES = _BARS | _WRITERS | _LEVELS | {"print", "write", "format"}


def is_sink(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a call shows the values that it is given."""
    if not isinstance(node, ast.Call):
        return False
    name = ctx.name(node)
    if name:
        owner, _, last = name.rpartition(".")
        return name in _NAMES or (last in _LEVELS and owner in ("absl.logging", "loguru.logger"))
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _ATTRIBUTES:
        return False
    # `run = wandb.init()`, then `run.log({...})`.
    tracked = func.attr == "log" and node.args and isinstance(node.args[0], ast.Dict) and ctx.program.uses("wandb")
    return bool(tracked) or _shows(func, ctx)


def _shows(func: ast.Attribute, ctx: RuleContext) -> bool:
    method, owner = func.attr, func.value
    if method in _BARS or method in _WRITERS:
        return True
    if method == "print":
        return True
    if method == "format":
        return isinstance(ctx.constant(owner), str)
    receiver = ctx.value(owner)
    if method == "log" and receiver.kind == ACCELERATOR:
        return True
    return (
        _last_name(owner, ctx).startswith("tqdm") if method == "write" else bool(_LOGGER.search(_last_name(owner, ctx)))
    )


def _last_name(node: ast.expr, ctx: RuleContext) -> str:
    if isinstance(node, ast.Call):  # logging.getLogger("train").info(...)
        return "logger" if ctx.name(node).rpartition(".")[2] in ("getLogger", "get_logger") else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def fix_message(name: str, ctx: RuleContext) -> str:
    """The fix for a value that is shown in each step."""
    if ctx.program.uses("torch_xla") or not ctx.program.uses("tensorflow"):
        return f"Show {name} every N steps (`if step % 100 == 0:`), or after the step with `xm.add_step_closure`."
    return f"Show {name} every N steps (`if step % 100 == 0:`), or after the loop."
