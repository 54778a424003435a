"""The name of a module at one place of a program, and code in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_XM = "torch_xla.core.xla_model"


def module_name(module: str, ctx: RuleContext, candidates: tuple[str, ...]) -> str:
    """The name of a module in this code; "" if none of the candidates is bound to it."""
    scopes = [ctx.program.globals]
    function = ctx.function
    while function is not None:
        scopes.append(function.env)
        function = function.outer
    values = ((name, scope[name]) for name in candidates for scope in reversed(scopes) if name in scope)
    return next((name for name, value in values if value.kind == "module" and value.name == module), "")


def xm(ctx: RuleContext) -> str:
    """The name of torch_xla.core.xla_model in this code; "" if it has none."""
    return module_name(_XM, ctx, ("xm", "xla_model", "xla"))


def quoted(text: str, most: int = 60) -> str:
    """Code for a message: on one line, shortened."""
    return f"`{shortened(text, most)}`"


def shortened(text: str, most: int = 60) -> str:
    """Code on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
