"""Python numbers that change from step to step: loop counters, values computed from them, and random numbers.

A loop inside the step is unrolled in the same way in each step, so its own counter does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules._origins import own_statements
from tpu_magics.check.rules._step_loops import step_loop
from tpu_magics.check.values import ARRAY, LIST, NUMBER, UNKNOWN

if TYPE_CHECKING:
    from tpu_magics.check.program import Class, Function
    from tpu_magics.check.rule_context import Loop, RuleContext

_FAR = 8
_COUNTS = ("builtins.range", "builtins.enumerate", "tqdm.trange", "itertools.count")
_RANDOM = ("random.", "numpy.random.", "time.")
_DRAWS = frozenset(
    ("randint", "random", "uniform", "choice", "randrange", "gauss", "triangular", "betavariate", "normalvariate",
     "rand", "randn", "beta", "normal", "time", "perf_counter", "monotonic")
)  # fmt: skip
_KINDS = (NUMBER, UNKNOWN)
# Functions whose result depends only on their arguments.
_NUMERIC = frozenset(
    ("int", "float", "round", "min", "max", "abs", "sum", "pow", "math.ceil", "math.floor", "math.sqrt", "math.exp",
     "math.cos", "math.sin", "math.log", "math.pow", "divmod")
)  # fmt: skip


class StepScope:
    """The code that runs in each step around a node: the body of the step loop, or a function called in each step."""

    def __init__(self, ctx: RuleContext, loop: Loop | None) -> None:
        self.ctx = ctx
        self.loop = loop
        self.given = dict(_assignments(loop.node.body if loop is not None else _body(ctx.function)))
        self.inner = {name for one in _inner_loops(ctx, loop) for name in _targets(one)}


def _body(function: Function | None) -> list[ast.stmt]:
    body = function.node.body if function is not None else []
    return body if isinstance(body, list) else []


def changes(ctx: RuleContext, node: ast.AST) -> bool:
    """Whether an expression is a Python number that changes from step to step."""
    if isinstance(node, ast.Constant) or not ctx.in_step:
        return False
    return _changes(_scope(ctx), node, _FAR)


def _scope(ctx: RuleContext) -> StepScope:
    loop = step_loop(ctx)
    key = ("step-scope", id(ctx.function), id(loop), tuple(id(one) for one in ctx.loops))
    memo = ctx.program.memo
    if key not in memo:
        memo[key] = StepScope(ctx, loop)
    found: StepScope = memo[key]
    return found


def _inner_loops(ctx: RuleContext, loop: Loop | None) -> Iterator[ast.AST]:
    """Loops around the place that are inside the step: unrolled."""
    start = ctx.loops.index(loop) + 1 if loop is not None else 0
    for one in ctx.loops[start:]:
        yield one.node


def _targets(node: ast.AST) -> set[str]:
    target = getattr(node, "target", None)
    return {one.id for one in nodes_of(target) if isinstance(one, ast.Name)} if target is not None else set()


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.AST]]]:
    found: dict[str, list[ast.AST]] = {}
    for node in own_statements(body):
        if isinstance(node, ast.AugAssign):
            found.setdefault(_dotted(node.target), []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                found.setdefault(_dotted(target), []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found.setdefault(_dotted(node.target), []).append(node.value)
    return iter(found.items())


def _dotted(node: ast.AST) -> str:
    """`step`, `self.step`; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def _changes(scope: StepScope, node: ast.AST, far: int) -> bool:
    if not far or isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Name):
        return _name_changes(scope, node, far - 1)
    if isinstance(node, ast.Call):
        return _call_changes(scope, node, far - 1)
    if scope.ctx.value(node).kind not in (*_KINDS, ARRAY) or scope.ctx.value(node).shape:
        return False
    if isinstance(node, ast.Attribute):
        return _attribute_changes(scope, node)
    if isinstance(node, ast.Subscript):
        return _changes(scope, node.slice, far - 1) and scope.ctx.value(node.value).kind in (LIST, NUMBER, UNKNOWN)
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare)):
        return any(_changes(scope, one, far - 1) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
    return False


def _name_changes(scope: StepScope, node: ast.Name, far: int) -> bool:
    name = node.id
    if name in scope.inner:
        return False
    given = scope.given.get(name)
    if given is not None:
        return any(_given_changes(scope, name, one, far) for one in given)
    if scope.loop is not None:
        return name in _targets(scope.loop.node) and _goes_over_numbers(scope, name)
    return _parameter_changes(scope, name, far)


def _given_changes(scope: StepScope, name: str, given: ast.AST, far: int) -> bool:
    if isinstance(given, ast.AugAssign):
        # Counted up but never reset in the step, so it changes from step to step.
        return len(scope.given[name]) == 1 and scope.loop is not None and scope.ctx.value(given.target).kind in _KINDS
    if any(_dotted(one) == name for one in nodes_of(given)):
        return False
    return _changes(scope, given, far)


def _goes_over_numbers(scope: StepScope, name: str) -> bool:
    """Whether the loop's target counts: `range`, `enumerate`'s first, or a literal of different numbers."""
    assert scope.loop is not None
    node = scope.loop.node
    if not isinstance(node, (ast.For, ast.AsyncFor)):
        return False
    iterated = node.iter
    if isinstance(iterated, (ast.Tuple, ast.List)):
        return isinstance(node.target, ast.Name) and _differ(scope.ctx, iterated)
    called = _counting_call(scope.ctx, iterated)
    if called is None:
        return scope.ctx.value(iterated).kind == LIST and _literal_differs(scope, iterated)
    if scope.ctx.name(called) == "builtins.enumerate":
        return isinstance(node.target, ast.Tuple) and _dotted(node.target.elts[0]) == name
    return isinstance(node.target, ast.Name)


def _counting_call(ctx: RuleContext, node: ast.expr) -> ast.Call | None:
    """The `range` or `enumerate` behind `tqdm(...)`."""
    for _ in range(4):
        if not isinstance(node, ast.Call):
            return None
        if ctx.name(node) in _COUNTS:
            return node
        if not ctx.name(node).startswith("tqdm") or not node.args:
            return None
        node = node.args[0]
    return None


def _differ(ctx: RuleContext, node: ast.Tuple | ast.List) -> bool:
    numbers = [ctx.constant(one) for one in node.elts]
    return all(isinstance(one, (int, float)) for one in numbers) and len(set(numbers)) > 1


def _literal_differs(scope: StepScope, node: ast.expr) -> bool:
    const = scope.ctx.value(node).const
    return isinstance(const, tuple) and len(set(const)) > 1 and all(isinstance(one, (int, float)) for one in const)


def _attribute_changes(scope: StepScope, node: ast.Attribute) -> bool:
    """`self.step`, counted up by a method that runs in each step."""
    name = _dotted(node)
    function = scope.ctx.function
    if function is None or function.cls is None or not name.startswith("self."):
        return False
    key = ("counted", id(function.cls))
    if key not in scope.ctx.program.memo:
        scope.ctx.program.memo[key] = _counted(function.cls)
    counting: dict[str, Function] = scope.ctx.program.memo[key]
    return name in counting and (counting[name] is function or _runs_in_step(counting[name]))


def _counted(cls: Class) -> dict[str, Function]:
    """The attributes that the methods of a class count up."""
    return {
        _dotted(one.target): method
        for method in cls.methods.values()
        for one in own_statements(_body(method))
        if isinstance(one, ast.AugAssign)
    }


def _runs_in_step(method: Function) -> bool:
    return method.steps or any(call.ctx.in_step and not call.ctx.every_n for call in method.callers)


def _call_changes(scope: StepScope, node: ast.Call, far: int) -> bool:
    ctx = scope.ctx
    name = ctx.name(node)
    if name.startswith(_RANDOM):
        return name.rpartition(".")[2] in _DRAWS and not any(one.arg == "size" for one in node.keywords)
    if name.removeprefix("builtins.") in _NUMERIC:
        return any(_changes(scope, one, far) for one in node.args)
    receiver, method = ctx.method(node)
    return method == "get_last_lr" and receiver.kind == "scheduler"


def _parameter_changes(scope: StepScope, name: str, far: int) -> bool:
    """A parameter for which some call gives a number that changes."""
    function = scope.ctx.function
    if function is None or scope.loop is not None:
        return False
    names = [one.arg for one in function.parameters]
    if name not in names:
        return False
    position = names.index(name) - (1 if function.cls is not None and "staticmethod" not in function.decorators else 0)
    for call in function.callers:
        given = call.ctx.argument(call.node, name, position if position >= 0 else None)
        if given is not None and call.ctx.in_step and _changes(_scope(call.ctx), given, far - 1):
            return True
    return False
