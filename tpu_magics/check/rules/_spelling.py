"""Code as it is spelled: in messages, and at one place of a program.

What lives here: the short form of code for a message, and the name that a module has here. What does not: the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Place

_XM = "torch_xla.core.xla_model"


def spelled(module: str, at: Place, candidates: tuple[str, ...]) -> str:
    """The name under which code at this place has a module; "" where none of the usual ones is bound to it."""
    scopes = [at.program.globals]
    function = at.function
    while function is not None:
        scopes.append(function.env)
        function = function.outer
    values = ((name, scope[name]) for name in candidates for scope in reversed(scopes) if name in scope)
    return next((name for name, value in values if value.kind == "module" and value.name == module), "")


def xm(at: Place) -> str:
    """How code here spells torch_xla.core.xla_model; "" where it has no name for it."""
    return spelled(_XM, at, ("xm", "xla_model", "xla"))


def shown(text: str, most: int = 60) -> str:
    """Code for a message: on one line, cut where it is long."""
    line = " ".join(text.split())
    return f"`{line}`" if len(line) <= most else f"`{line[: most - 3]}...`"
