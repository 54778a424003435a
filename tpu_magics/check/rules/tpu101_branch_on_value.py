"""A branch on a tensor's value.

What it does
    Reports Python code in the step that needs a tensor's value to go on: `if`, `elif`, `while`, `assert`, the
    conditional expression, `and`, `or`, `not`, `bool()`, the condition of a comprehension, `match`, `in`, chained
    comparisons, `any()`, `all()`, `max()`, `min()`, `sorted()`, `torch.equal()`, `torch.allclose()`. Also an `if` on a
    number that was read out of a tensor, where it decides what is computed. TensorFlow code counts where XLA compiles
    it: in `tf.function(jit_compile=True)`, in a Keras model that is compiled so, and under a TPUStrategy.
Why it is bad
    XLA compiles a graph before any value exists. PyTorch/XLA has to stop there, run what it has, and hand the value to
    Python; what follows is another graph for each side of the branch. TensorFlow fails to trace the code, or turns it
    into control flow that a TPU may refuse.
Example
    def training_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        if loss > 10:
            loss = loss / 2.0
        return loss
Use instead
    def training_step(model, x, y):
        loss = F.cross_entropy(model(x), y)
        return torch.where(loss > 10, loss / 2.0, loss)
What it cannot see
    Tensors that come from functions of other files, and tests inside libraries. A branch on a shape, on `None`, on a
    flag or on a tensor that is on the CPU is fine and is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _reads, _values, _where
from tpu_magics.check.values import LIST

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.place import Place

CODE = "TPU101"
NAME = "branch-on-value"
GROUP = "values"
WHY = "XLA has to stop, run what it has and hand the value to Python, and each side of the branch is another graph to compile."
WHY_TF = (
    "XLA compiles the graph before any value exists: tracing fails here, or makes control flow that a TPU may refuse."
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_STATEMENTS = (ast.If, ast.While, ast.Assert)
NODES = (*_STATEMENTS, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Call, *_COMPREHENSIONS, ast.Match)

_TRUTHS = frozenset(("bool", "any", "all"))
_ORDERS = frozenset(("max", "min", "sorted"))
_COMPARING = frozenset(("torch.equal", "torch.allclose", "torch.is_nonzero", "torch._assert"))
_COMPARING_METHODS = frozenset(("equal", "allclose", "is_nonzero"))
_NAMED = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_CALLED = _TRUTHS | _ORDERS | _COMPARING_METHODS | {"_assert"}


def check(node: ast.AST, at: Place) -> Iterator[Finding]:
    if not _may_ask(node) or not (_values.each_time(at) or _values.is_compiled_tf(at)):
        return
    asked = first_asked(node, at)
    if asked is not None and (isinstance(node, (*_STATEMENTS, ast.IfExp)) or not _in_a_test(node, at)):
        yield _finding(node, asked, at)


def _may_ask(node: ast.AST) -> bool:
    """The cheap look: most nodes ask for no value whatever stands in them."""
    if isinstance(node, ast.Call):
        func = node.func
        return (func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")) in _CALLED
    if isinstance(node, ast.Compare):
        return len(node.ops) > 1 or isinstance(node.ops[0], (ast.In, ast.NotIn))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return not isinstance(node, _COMPREHENSIONS) or any(generator.ifs for generator in node.generators)


def first_asked(node: ast.AST, at: Place) -> ast.expr | None:
    """The first expression whose value this needs; None where it needs none of a tensor."""
    found = next(_asked(node, at), None)
    test = getattr(node, "test", None)
    if found is None and isinstance(test, ast.expr):
        found = next((one for part in ast.walk(test) if _may_ask(part) for one in _asked(part, at)), None)
        if found is None and not isinstance(node, ast.Assert):
            found = _read(test, at)
            found = found if found is not None and _values.decides_tensor_work(node, at) else None
    return found


def _read(test: ast.expr, at: Place) -> ast.expr | None:
    """A number read out of a tensor on which a test depends."""
    if _values.now_and_then(test, at):
        return None
    found = [one for one in ast.walk(test) if isinstance(one, _NAMED) and _reads.is_read(one, at)]
    return found[0] if found else None


def _asked(node: ast.AST, at: Place) -> Iterator[ast.expr]:
    asks = _ASKS.get(type(node))
    return asks(node, at) if asks is not None else iter(())


def _truth(node: ast.expr, at: Place) -> Iterator[ast.expr]:
    """The tensors whose truth is asked when that of this expression is."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _truth(value, at)
            if isinstance(node.op, ast.And) and _values.now_and_then(value, at):
                return  # what stands behind `step % 100 == 0 and` is looked at every 100 steps
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _truth(node.operand, at)
    elif _values.computed(at.value(node), at):
        yield node


def _of_test(node: ast.If | ast.While | ast.Assert | ast.IfExp, at: Place) -> Iterator[ast.expr]:
    return _truth(node.test, at)


def _of_bool_op(node: ast.BoolOp, at: Place) -> Iterator[ast.expr]:
    for value in node.values[:-1]:
        yield from _truth(value, at)
        if isinstance(node.op, ast.And) and _values.now_and_then(value, at):
            return


def _of_not(node: ast.UnaryOp, at: Place) -> Iterator[ast.expr]:
    return _truth(node.operand, at) if isinstance(node.op, ast.Not) else iter(())


def _of_compare(node: ast.Compare, at: Place) -> Iterator[ast.expr]:
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        yield from _of_in(node, at)
    elif len(node.ops) > 1:
        # `0 < t < 1` is `0 < t and t < 1`.
        yield from (one for one in (node.left, *node.comparators) if _values.computed(at.value(one), at))


def _of_in(node: ast.Compare, at: Place) -> Iterator[ast.expr]:
    """`3 in t` and `t in [1, 2]` compare one by one. Sets and dicts go by the tensor's identity and read nothing."""
    inside = node.comparators[0]
    if _values.computed(at.value(inside), at):
        yield inside
    elif isinstance(inside, (ast.List, ast.Tuple)) and inside.elts and _values.computed(at.value(node.left), at):
        yield node.left


def _of_call(node: ast.Call, at: Place) -> Iterator[ast.expr]:
    name = at.name(node)
    builtin = name.removeprefix("builtins.")
    if builtin in _TRUTHS and node.args:
        yield from _of_truth_call(builtin, node.args[0], at)
    elif builtin in _ORDERS and not any(one.arg == "key" for one in node.keywords):
        yield from _of_order(node, at)
    elif name in _COMPARING:
        yield from (one for one in node.args if _values.readable(at.value(one), at))
    elif not name and _values.readable(at.method(node)[0], at) and at.method(node)[1] in _COMPARING_METHODS:
        yield node.func.value if isinstance(node.func, ast.Attribute) else node


def _of_truth_call(name: str, given: ast.expr, at: Place) -> Iterator[ast.expr]:
    if isinstance(given, (ast.GeneratorExp, ast.ListComp)):
        yield from _truth(given.elt, at)
    elif name == "bool" or at.value(given).kind != LIST:
        yield from _truth(given, at)
    elif _holds_computed(given, at):
        yield given


def _of_order(node: ast.Call, at: Place) -> Iterator[ast.expr]:
    """`max(a, b)` with a tensor, `max(losses)` over tensors, `sorted(t)`."""
    if len(node.args) > 1:
        yield from (one for one in node.args if _values.computed(at.value(one), at))
    elif node.args and (_values.computed(at.value(node.args[0]), at) or _holds_computed(node.args[0], at)):
        yield node.args[0]


def _holds_computed(node: ast.expr, at: Place) -> bool:
    value = at.value(node)
    items = value.items if value.items is not None else (value.item,)
    return value.kind == LIST and any(one is not None and _values.computed(one, at) for one in items)


def _of_comprehension(
    node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, at: Place
) -> Iterator[ast.expr]:
    for generator in node.generators:
        for test in generator.ifs:
            yield from _truth(test, at)


def _of_match(node: ast.Match, at: Place) -> Iterator[ast.expr]:
    """Value patterns compare; class patterns, names and `_` do not."""
    compares = any(isinstance(one, ast.MatchValue) for case in node.cases for one in ast.walk(case.pattern))
    if compares and _values.computed(at.value(node.subject), at):
        yield node.subject
    for case in node.cases:
        if case.guard is not None:
            yield from _truth(case.guard, at)


_ASKS: dict[type, Callable[..., Iterator[ast.expr]]] = {
    ast.If: _of_test,
    ast.While: _of_test,
    ast.Assert: _of_test,
    ast.IfExp: _of_test,
    ast.BoolOp: _of_bool_op,
    ast.UnaryOp: _of_not,
    ast.Compare: _of_compare,
    ast.Call: _of_call,
    **dict.fromkeys(_COMPREHENSIONS, _of_comprehension),
    ast.Match: _of_match,
}


def _in_a_test(node: ast.AST, at: Place) -> bool:
    """Whether a larger test holds this one: the larger one is reported."""
    for parent, child in _values.expression_parents(node, at):
        if getattr(parent, "test", None) is child or isinstance(parent, ast.BoolOp):
            return True
        if isinstance(parent, (ast.Call, ast.Compare, ast.UnaryOp)) and _may_ask(parent) and first_asked(parent, at):
            return True
        if isinstance(parent, ast.comprehension) and child in parent.ifs:
            return True
    return False


# -- what is said of it ----------------------------------------------------------------------------------------------


def _finding(node: ast.AST, asked: ast.expr, at: Place) -> Finding:
    tf = at.value(asked).lib == "tf"
    place = getattr(node, "test", None) or (node.subject if isinstance(node, ast.Match) else node)
    return at.finding(
        place,
        f"{_subject(node)} the value of {_values.shown(_operand(asked, at), at)}.",
        _where.cure(node, asked, at, tf),
        why=WHY_TF if tf else None,
        edits=_where.edits(node, at),
    )


_SUBJECTS: dict[type, str] = {
    ast.If: "The branch depends on",
    ast.While: "The loop's condition depends on",
    ast.Assert: "The assertion depends on",
    ast.IfExp: "The conditional expression depends on",
    ast.Match: "The match depends on",
    **dict.fromkeys(_COMPREHENSIONS, "The comprehension's condition depends on"),
}


def _subject(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return f"`{'and' if isinstance(node.op, ast.And) else 'or'}` asks Python for"
    if isinstance(node, ast.UnaryOp):
        return "`not` asks Python for"
    if isinstance(node, ast.Compare):
        return "`in` asks Python for" if len(node.ops) == 1 else "The chained comparison asks Python for"
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func).rpartition('.')[2]}() asks Python for"
    return _SUBJECTS[type(node)]


def _operand(asked: ast.expr, at: Place) -> ast.expr:
    """Of `loss > best` the loss."""
    if isinstance(asked, ast.Compare):
        sides = (asked.left, *asked.comparators)
        return next((one for one in sides if _values.readable(at.value(one), at)), asked)
    return asked
