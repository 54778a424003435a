"""Global statements that put on a device, or bind to CPU parameters, what workers use (TPU402, TPU403)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _launches, _runtime, _workers
from tpu_magics.check.rules._launches import END
from tpu_magics.check.values import MODEL

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

NODES = (ast.Assign, ast.AnnAssign, ast.Expr)
Statement = ast.Assign | ast.AnnAssign | ast.Expr


def collect_statements(node: Statement, ctx: RuleContext) -> Iterator[None]:
    """Keep the statements of the top level for later."""
    if ctx.function is None and isinstance(node.value, (ast.Call, ast.Tuple, ast.BinOp, ast.Dict, ast.List)):
        ctx.program.memo.setdefault("top_statements", {})[id(node)] = (node, ctx)
    yield from ()


def top_level(program: CheckedProgram) -> Sequence[tuple[Statement, RuleContext]]:
    """The statements of the notebook itself, without those of a cell that workers run."""
    found = program.memo.get("top_statements", {}).values()
    return [(node, ctx) for node, ctx in found if not _workers.launches_of(ctx)]


def bound_names(node: Statement, ctx: RuleContext) -> list[str]:
    """The names that a statement binds; for `model.to(device)` that of the model."""
    if isinstance(node, ast.Expr):
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            if isinstance(owner, ast.Name) and call.func.attr == "to" and ctx.value(owner).kind == MODEL:
                return [owner.id]
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [one.id for target in targets for one in nodes_of(target) if isinstance(one, ast.Name)]


def users(name: str, position: _launches.Position, program: CheckedProgram) -> Iterator[_launches.LaunchSite]:
    """The launches after `position` whose workers read the notebook's `name`, or get it as an argument."""
    for launch in _launches.launches(program):
        if launch.position > position and (name in _given(launch) or _is_read(name, launch, program)):
            yield launch


def _is_read(name: str, launch: _launches.LaunchSite, program: CheckedProgram) -> bool:
    return any(name in function.reads for function in _workers.worker_functions(launch, program))


def _given(launch: _launches.LaunchSite) -> set[str]:
    """The names in a launch's arguments."""
    if launch.call is not None:
        skipped = 1 if launch.call.node.args else 0
        parts: list[ast.expr] = [*launch.call.node.args[skipped:], *(one.value for one in launch.call.node.keywords)]
        return {one.id for part in parts for one in nodes_of(part) if isinstance(one, ast.Name)}
    return {word.partition("=")[2] or word for word in launch.words.split()}


def parameters_for(name: str, launch: _launches.LaunchSite) -> Iterator[str]:
    """The parameters of the launched function that get the notebook's `name`."""
    if launch.function is None:
        return
    given = launch.argument("args", 1)
    if launch.call is None:
        words = launch.words.split()
        positional = [word for word in words if "=" not in word and not word.startswith("-")]
        yield from (word.partition("=")[0] for word in words if word.partition("=")[2] == name)
        if launch.position[1] != END:
            positional = positional[1:]  # `%tpu_train f model`
    else:
        elements = given.elts if isinstance(given, (ast.Tuple, ast.List)) else []
        positional = [one.id if isinstance(one, ast.Name) else "" for one in elements]
    index_first = launch.kind in (_launches.SPAWN, _launches.LAUNCH)
    parameters = launch.function.parameters[1 if index_first else 0 :]
    yield from (parameter.arg for parameter, word in zip(parameters, positional, strict=False) if word == name)


def statements(program: CheckedProgram) -> dict[int, tuple[Statement, RuleContext, str, _launches.LaunchSite]]:
    """The statements of the notebook that move objects to an XLA device that later workers use."""
    if "device_globals" not in program.memo:
        program.memo["device_globals"] = {id(found[0]): found for found in _device_statements(program)}
    known: dict[int, tuple[Statement, RuleContext, str, _launches.LaunchSite]] = program.memo["device_globals"]
    return known


def _device_statements(program: CheckedProgram) -> Iterator[tuple[Statement, RuleContext, str, _launches.LaunchSite]]:
    if not _launches.launches(program):
        return
    for node, ctx in top_level(program):
        assert node.value is not None
        if not _runtime.xla_devices_in(node.value, ctx):
            continue
        position = _launches.position_of(ctx, node)
        for name in bound_names(node, ctx):
            launch = next(users(name, position, program), None)
            if launch is not None:
                yield node, ctx, name, launch
                break


def is_reported(call: CallSite, reported: dict[int, tuple[Statement, RuleContext, str, _launches.LaunchSite]]) -> bool:
    """Whether the call stands in one of these statements."""
    return bool(reported) and any(id(parent) in reported for parent in call.ctx.parents(call.node))
