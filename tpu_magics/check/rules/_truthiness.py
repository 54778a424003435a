"""Python code that needs the value of a tensor to go on, and what it decides."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import INSTANCE, LIST, MODEL, OPTIMIZER, TENSOR
from tpu_magics.check.rules import _tensor_values
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext


# Calls of these libraries that compute nothing.
_NO_WORK = frozenset(
    ("torch.save", "torch.load", "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.is_tensor",
     "torch_xla.core.xla_model.save", "torch_xla.core.xla_model.master_print",
     "torch_xla.core.xla_model.is_master_ordinal", "torch_xla.core.xla_model.add_step_closure")
)  # fmt: skip
_LIBRARIES = ("torch.", "torch_xla.", "tensorflow.", "keras.ops.")
_WORK_METHODS = frozenset(("backward", "zero_grad", "optimizer_step", "mark_step"))
_READS = frozenset(("item", "tolist", "numpy", "cpu", "to"))


def decides_tensor_work(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a test changes XLA's graph, and not only what is saved or shown."""
    if isinstance(node, ast.IfExp):
        return any(_is_work(one, ctx) for side in (node.body, node.orelse) for one in nodes_of(side))
    if isinstance(node, (ast.If, ast.While)):
        return any(_is_work(one, ctx) for one in _walk((*node.body, *node.orelse)))
    return False


def _walk(block: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for statement in block:
        yield from nodes_of(statement)


def _is_work(node: ast.AST, ctx: RuleContext) -> bool:
    if isinstance(node, ast.Call):
        return _is_work_call(node, ctx)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return ctx.value(node).kind == TENSOR
    if isinstance(node, ast.AugAssign):
        return ctx.value(node.target).kind == TENSOR
    if isinstance(node, ast.Return):
        return not ctx.loops and node.value is not None and _tensor_values.holds_readable(ctx.value(node.value), ctx)
    return isinstance(node, ast.Continue)


def _is_work_call(node: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(node)
    if name:
        return name.startswith(_LIBRARIES) and name not in _NO_WORK
    if ctx.value(node.func).kind == MODEL:
        return True
    receiver, method = ctx.method(node)
    if method in _WORK_METHODS or (method == "step" and receiver.kind == OPTIMIZER):
        return True
    return receiver.kind == TENSOR and method not in _READS and ctx.value(node).kind == TENSOR


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_FLAG = re.compile(r"(use|output|return|is|has|do|should|with|apply|include)_")
_TRUTHS = frozenset(("bool", "any", "all"))
_ORDERS = frozenset(("max", "min", "sorted"))
_COMPARING = frozenset(("torch.equal", "torch.allclose", "torch.is_nonzero", "torch._assert"))
_COMPARING_METHODS = frozenset(("equal", "allclose", "is_nonzero"))
_CALLED = _TRUTHS | _ORDERS | _COMPARING_METHODS | {"_assert"}
_NAMES = _COMPARING | {"builtins." + one for one in _TRUTHS | _ORDERS}


def may_need_value(node: ast.AST, ctx: RuleContext) -> bool:
    """A cheap test: most nodes never need a value."""
    if isinstance(node, ast.Call):
        func = node.func
        return func.attr in _CALLED if isinstance(func, ast.Attribute) else ctx.name(func) in _NAMES
    if isinstance(node, ast.Compare):
        return len(node.ops) > 1 or isinstance(node.ops[0], (ast.In, ast.NotIn))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return not isinstance(node, COMPREHENSIONS) or any(generator.ifs for generator in node.generators)


def first_needed(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The first tensor expression whose value this needs; None if there is none."""
    result = next(_needed_values(node, ctx), None)
    tests = _tests(node) if result is None else []
    inside = (
        one
        for test in tests
        for part in nodes_of(test)
        if may_need_value(part, ctx)
        for one in _needed_values(part, ctx)
    )
    result = result or next((one for one in inside if not _tensor_values.guarded(one, ctx)), None)
    if result is None and tests:
        read = _read(tests[0], ctx)
        return read if read is not None and decides_tensor_work(node, ctx) else None
    return result


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, COMPREHENSIONS):
        return [test for generator in node.generators for test in generator.ifs]
    return [node.test] if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)) else []


def _read(test: ast.expr, ctx: RuleContext) -> ast.expr | None:
    """A number read from a tensor on which a test depends."""
    if _tensor_values.is_periodic(test, ctx):
        return None
    leaves = _leaves(test)
    sides = (one for leaf in leaves for one in (_sides(leaf) if isinstance(leaf, ast.Compare) else [leaf]))
    return next((result for side in sides for result in _tensor_values.reads_in(side, ctx)), None)


def _leaves(test: ast.expr) -> Iterator[ast.expr]:
    """What `and`, `or` and `not` combine."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value)
    elif isinstance(test, ast.UnaryOp):
        yield from _leaves(test.operand)
    else:
        yield test


def _sides(test: ast.Compare) -> list[ast.expr]:
    identity = all(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in test.ops)
    return [] if identity else [test.left, *test.comparators]


def _needed_values(node: ast.AST, ctx: RuleContext) -> Iterator[ast.expr]:
    handler = _HANDLERS.get(type(node))
    return handler(node, ctx) if handler is not None else iter(())


def _truth(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The tensors whose truth value this expression needs."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _truth(value, ctx)
            if isinstance(node.op, ast.And) and _tensor_values.is_periodic(value, ctx):
                return  # operands after `step % 100 == 0 and` run only every 100 steps
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _truth(node.operand, ctx)
    elif _tensor_values.is_computed(ctx.value(node), ctx) and not _tests_for_presence(node, ctx):
        yield node


def _tests_for_presence(node: ast.expr, ctx: RuleContext) -> bool:
    """Whether `if labels:` tests a flag, a list or None rather than a tensor's value.

    Most tensors have no truth value. So a plain name counts as a tensor only if it was computed here: not a parameter
    without an annotation, not a field of a model's output or of a batch.
    """
    if ctx.value(node).dtype == "bool":
        return False
    if isinstance(node, ast.Name):
        function = ctx.function
        given = next((one for one in function.parameters if one.arg == node.id), None) if function is not None else None
        return given is not None and (_FLAG.match(node.id) is not None or not _is_annotated(given))
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return ctx.value(node.value).kind not in (TENSOR, INSTANCE, MODEL)
    return False


def _is_annotated(given: ast.arg) -> bool:
    return given.annotation is not None and re.search(r"Tensor\b", ast.unparse(given.annotation)) is not None


def _of_test(node: ast.If | ast.While | ast.Assert | ast.IfExp, ctx: RuleContext) -> Iterator[ast.expr]:
    return _truth(node.test, ctx)


def _of_bool_op(node: ast.BoolOp, ctx: RuleContext) -> Iterator[ast.expr]:
    for value in node.values[:-1]:
        yield from _truth(value, ctx)
        if isinstance(node.op, ast.And) and _tensor_values.is_periodic(value, ctx):
            return


def _of_not(node: ast.UnaryOp, ctx: RuleContext) -> Iterator[ast.expr]:
    return _truth(node.operand, ctx) if isinstance(node.op, ast.Not) else iter(())


def _of_compare(node: ast.Compare, ctx: RuleContext) -> Iterator[ast.expr]:
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        yield from _of_in(node, ctx)
    elif len(node.ops) > 1:
        # `0 < t < 1` is `0 < t and t < 1`.
        yield from (one for one in (node.left, *node.comparators) if _tensor_values.is_computed(ctx.value(one), ctx))


def _of_in(node: ast.Compare, ctx: RuleContext) -> Iterator[ast.expr]:
    """`3 in t` and `t in [1, 2]` compare one by one. Sets and dicts go by the tensor's identity and read nothing."""
    inside = node.comparators[0]
    if isinstance(ctx.constant(node.left), str):
        return  # a key
    if _tensor_values.is_computed(ctx.value(inside), ctx):
        yield inside
    elif (
        isinstance(inside, (ast.List, ast.Tuple))
        and inside.elts
        and _tensor_values.is_computed(ctx.value(node.left), ctx)
    ):
        yield node.left


def _of_call(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    name = ctx.name(node)
    builtin = name.removeprefix("builtins.")
    if builtin in _TRUTHS and node.args:
        yield from _of_truth_call(builtin, node.args[0], ctx)
    elif builtin in _ORDERS and not any(one.arg == "key" for one in node.keywords):
        yield from _of_order(node, ctx)
    elif name in _COMPARING:
        yield from (one for one in node.args if _tensor_values.is_readable(ctx.value(one), ctx))
    elif (
        not name and _tensor_values.is_readable(ctx.method(node)[0], ctx) and ctx.method(node)[1] in _COMPARING_METHODS
    ):
        yield node.func.value if isinstance(node.func, ast.Attribute) else node


def _of_truth_call(name: str, given: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    if isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        yield from _truth(given.elt, ctx)
    elif name == "bool" or ctx.value(given).kind != LIST:
        yield from _truth(given, ctx)
    elif _holds_computed(given, ctx):
        yield given


def _of_order(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    """`max(a, b)` with a tensor, `max(losses)` over tensors, `sorted(t)`."""
    if len(node.args) > 1:
        yield from (one for one in node.args if _tensor_values.is_computed(ctx.value(one), ctx))
    elif node.args and (_tensor_values.is_computed(ctx.value(node.args[0]), ctx) or _holds_computed(node.args[0], ctx)):
        yield node.args[0]


def _holds_computed(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    items = value.items if value.items is not None else (value.item,)
    return value.kind == LIST and any(one is not None and _tensor_values.is_computed(one, ctx) for one in items)


def _of_comprehension(
    node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, ctx: RuleContext
) -> Iterator[ast.expr]:
    for generator in node.generators:
        for test in generator.ifs:
            yield from _truth(test, ctx)


def _of_match(node: ast.Match, ctx: RuleContext) -> Iterator[ast.expr]:
    """Value patterns compare; class patterns, names and `_` do not."""
    compares = any(isinstance(one, ast.MatchValue) for case in node.cases for one in nodes_of(case.pattern))
    if compares and _tensor_values.is_computed(ctx.value(node.subject), ctx):
        yield node.subject
    for case in node.cases:
        if case.guard is not None:
            yield from _truth(case.guard, ctx)


_HANDLERS: dict[type, Callable[..., Iterator[ast.expr]]] = {
    ast.If: _of_test,
    ast.While: _of_test,
    ast.Assert: _of_test,
    ast.IfExp: _of_test,
    ast.BoolOp: _of_bool_op,
    ast.UnaryOp: _of_not,
    ast.Compare: _of_compare,
    ast.Call: _of_call,
    **dict.fromkeys(COMPREHENSIONS, _of_comprehension),
    ast.Match: _of_match,
}
