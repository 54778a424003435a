"""The constants that a parameter can have: from launches, from calls in this program, else its default."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules._launches import END, NOTEBOOK, OURS, LaunchSite, launches
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, Function
    from tpu_magics.check.rule_context import RuleContext


def constants(node: ast.expr | None, ctx: RuleContext) -> tuple[Any, ...]:
    """The possible constants of an expression: one, or for a parameter one for each launch or call of its function;
    NOTHING for an unknown one."""
    found = ctx.constant(node)
    if found is not NOTHING or not isinstance(node, ast.Name) or ctx.function is None:
        return (found,)
    names = [one.arg for one in ctx.function.parameters]
    if node.id not in names or ctx.function.cls is not None or _is_set(node.id, ctx.function):
        return (found,)
    return tuple(_passed_constants(ctx.function, node.id, names.index(node.id))) or (_default(ctx.function, node.id),)


def _is_set(name: str, function: Function) -> bool:
    """Whether the function assigns the parameter."""
    stores = (one for one in nodes_of(function.node) if isinstance(one, ast.Name) and one.id == name)
    return any(not isinstance(one.ctx, ast.Load) for one in stores)


def _passed_constants(function: Function, name: str, position: int) -> Iterator[Any]:
    default = _default(function, name)
    for launch in launches(function.ctx.program):
        if launch.function is function:
            yield _launched(launch, position, default)
    for call in function.callers:
        given = call.ctx.argument(call.node, name, position)
        yield (
            call.ctx.constant(given)
            if given is not None
            else NOTHING
            if call.ctx.has_unknown_arguments(call.node)
            else default
        )


def _launched(launch: LaunchSite, position: int, default: Any) -> Any:
    """The argument of a launch; the launchers of torch_xla pass the index before the other arguments."""
    if launch.kind == OURS and launch.call is None:
        return NOTHING if _has_arguments(launch) else default
    if launch.kind == OURS and launch.call is not None:
        return _positional(launch.call, position + 1, default)
    place = position - (0 if launch.kind == NOTEBOOK else 1)
    given = launch.argument("args", 1)
    if given is None or launch.call is None:
        return default
    items = launch.call.ctx.value(given).items
    if items is None or place < 0:
        return NOTHING
    return items[place].const if place < len(items) else default


def _positional(call: CallSite, position: int, default: Any) -> Any:
    """Of `tpu_magics.train(function, *args)`."""
    given = call.node.args[: position + 1]
    if any(isinstance(one, ast.Starred) for one in given):
        return NOTHING
    return call.ctx.constant(given[position]) if len(given) > position else default


def _has_arguments(launch: LaunchSite) -> bool:
    """Whether `%%tpu_train` or `%tpu_train NAME` has words that are not options. The value of an option may count as
    one: then nothing is reported."""
    words = launch.words.split()[0 if launch.position[1] == END else 1 :]
    return any(not word.startswith("-") for word in words)


def _default(function: Function, name: str) -> Any:
    spec = function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    pairs = [*zip(reversed(positional), reversed(spec.defaults), strict=False)]
    pairs += [
        (one, default) for one, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is not None
    ]
    return next((function.ctx.constant(default) for one, default in pairs if one.arg == name), NOTHING)
