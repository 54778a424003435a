"""Python numbers that change in each step, and operations that write them into the graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.inference.values import (
    ARRAY,
    BATCH,
    FUNCTION,
    LIST,
    LOADER,
    NUMBER,
    OUTPUT,
    TENSOR,
    TFDATA,
    UNKNOWN,
    AbstractValue,
)
from tpu_magics.check.rules._shapes import definitions
from tpu_magics.check.rules._source import SCOPES, own_statements
from tpu_magics.check.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.program import Class, Function
    from tpu_magics.check.rule_context import Loop, RuleContext


# Calls that run the graph: the code after them is another graph.
_CUTS = frozenset(
    ("backward", "step", "optimizer_step", "mark_step", "sync", "item", "tolist", "train_on_batch", "apply_gradients")
)


def step_loop(ctx: RuleContext) -> Loop | None:
    """The innermost loop around this code whose iterations are separate graphs."""
    return next((one for one in reversed(ctx.loops) if one.is_step and _is_cut(ctx, one)), None)


def _is_cut(ctx: RuleContext, loop: Loop) -> bool:
    """A loop over a range that only calls a model is unrolled into one graph."""
    if loop.loader.kind in (LOADER, TFDATA) or loop.loader.ref is not None:
        return True
    key = ("cut", id(loop.node))
    if key not in ctx.program.memo:
        ctx.program.memo[key] = any(_cuts(ctx, node) for node in _outside_of_loops(loop.node.body))
    return bool(ctx.program.memo[key])


def _cuts(ctx: RuleContext, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return last_name(node) in _CUTS or bool(getattr(ctx.value(node.func).ref, "steps", False))


def _outside_of_loops(body: list[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*SCOPES, ast.For, ast.AsyncFor, ast.While)):
            waiting.extend(ast.iter_child_nodes(node))


_FAR = 8
_COUNTS = ("builtins.range", "builtins.enumerate", "tqdm.trange", "itertools.count")
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic")
_DRAWS = frozenset(
    ("randint", "random", "uniform", "choice", "randrange", "gauss", "triangular", "betavariate", "normalvariate",
     "rand", "randn", "beta", "normal")
)  # fmt: skip
_KINDS = (NUMBER, UNKNOWN)
# Functions whose result depends only on their arguments.
_NUMERIC = frozenset(
    ("int", "float", "round", "min", "max", "abs", "sum", "pow", "math.ceil", "math.floor", "math.sqrt", "math.exp",
     "math.cos", "math.sin", "math.log", "math.pow", "divmod", "numpy.clip", "numpy.sqrt", "numpy.ceil", "numpy.floor",
     "numpy.round", "numpy.minimum", "numpy.maximum", "numpy.int64", "numpy.int32", "numpy.int_")
)  # fmt: skip


class Unpacked(NamedTuple):
    """What a name gets from `a, b = value`."""

    value: ast.expr
    position: int


class StepScope:
    """The code that runs in each step around a node: the body of the step loop, or a function called in each step."""

    def __init__(self, ctx: RuleContext, loop: Loop | None) -> None:
        self.ctx = ctx
        self.loop = loop
        self.given = dict(_assignments(loop.node.body if loop is not None else _body(ctx.function)))
        self.inner = {name: one for one in _inner_loops(ctx, loop) for name in _targets(one)}


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
    result: StepScope = memo[key]
    return result


def _inner_loops(ctx: RuleContext, loop: Loop | None) -> Iterator[ast.AST]:
    """Loops around the place that are inside the step: unrolled."""
    start = ctx.loops.index(loop) + 1 if loop is not None else 0
    for one in ctx.loops[start:]:
        yield one.node


def _targets(node: ast.AST) -> set[str]:
    target = getattr(node, "target", None)
    return {one.id for one in nodes_of(target) if isinstance(one, ast.Name)} if target is not None else set()


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.AST | Unpacked]]]:
    result: dict[str, list[ast.AST | Unpacked]] = {}
    for node in own_statements(body):
        if isinstance(node, ast.AugAssign):
            result.setdefault(_dotted(node.target), []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                result.setdefault(_dotted(target), []).append(node.value)
                for position, one in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
                    result.setdefault(_dotted(one), []).append(Unpacked(node.value, position))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            result.setdefault(_dotted(node.target), []).append(node.value)
    return iter(result.items())


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
        if scope.ctx.value(node.value).kind not in (LIST, NUMBER, UNKNOWN):
            return False
        return _changes(scope, node.slice, far - 1) or _items_change(scope, node.value, far - 1)
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare)):
        return any(_changes(scope, one, far - 1) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
    return False


def _name_changes(scope: StepScope, node: ast.Name, far: int) -> bool:
    name = node.id
    if (one := _comprehension(scope, node)) is not None:
        return _items_change(scope, one.iter, far)
    if name in scope.inner:
        loop = scope.inner[name]
        return isinstance(loop, ast.For) and _items_change(scope, loop.iter, far)
    given = scope.given.get(name)
    if given is not None:
        return any(_given_changes(scope, name, one, far) for one in given)
    if scope.loop is not None:
        return name in _targets(scope.loop.node) and _goes_over_numbers(scope, name)
    return _parameter_changes(scope, name, far)


def _comprehension(scope: StepScope, node: ast.Name) -> ast.comprehension | None:
    """The part of a comprehension around the name that binds it."""
    for outer in scope.ctx.parents(node):
        for one in getattr(outer, "generators", ()):
            if node.id in _targets(one):
                return one  # type: ignore[no-any-return]
        if isinstance(outer, ast.stmt):
            return None
    return None


def _items_change(scope: StepScope, node: ast.expr, far: int) -> bool:
    """Whether it is a list, or a name for one, whose items are drawn anew in each step."""
    if isinstance(node, ast.Name) and far:
        return any(isinstance(one, ast.expr) and _items_change(scope, one, far - 1) for one in _given(scope, node.id))
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return _changes(scope, node.elt, far)
    if isinstance(node, (ast.List, ast.Tuple)):
        return any(_changes(scope, one, far) for one in node.elts)
    return isinstance(node, ast.Call) and _call_changes(scope, node, far)


def _given(scope: StepScope, name: str) -> list[ast.AST | Unpacked]:
    return scope.given.get(name, [])


def _given_changes(scope: StepScope, name: str, given: ast.AST | Unpacked, far: int) -> bool:
    if isinstance(given, Unpacked):
        return _item_changes(scope, given, far)
    if isinstance(given, ast.AugAssign):
        # Counted up but never reset in the step, so it changes from step to step.
        return len(scope.given[name]) == 1 and scope.loop is not None and scope.ctx.value(given.target).kind in _KINDS
    if any(_dotted(one) == name for one in nodes_of(given)):
        return False
    return _changes(scope, given, far)


def _item_changes(scope: StepScope, given: Unpacked, far: int) -> bool:
    value = given.value
    if isinstance(value, (ast.Tuple, ast.List)):
        return given.position < len(value.elts) and _changes(scope, value.elts[given.position], far)
    return isinstance(value, ast.Call) and _call_changes(scope, value, far, given.position)


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


def _call_changes(scope: StepScope, node: ast.Call, far: int, position: int | None = None) -> bool:
    """`position`: of the item of its result."""
    ctx = scope.ctx
    name = ctx.name(node)
    if name in _CLOCKS or _draws(node, ctx):
        return True
    if name.removeprefix("builtins.") in _NUMERIC:
        return any(_changes(scope, one, far) for one in node.args)
    if (function := _own_function(node, ctx)) is not None:
        return far > 0 and _returns_change(function, far, position)
    receiver, method = ctx.method(node)
    return method == "get_last_lr" and receiver.kind == "scheduler"


def _own_function(node: ast.Call, ctx: RuleContext) -> Function | None:
    """The function of this program that is called."""
    value = ctx.value(node.func)
    return value.ref if value.kind == FUNCTION and hasattr(value.ref, "calls") else None


def _returns_change(function: Function, far: int, position: int | None) -> bool:
    """Whether a function of this program returns a number that it draws at random."""
    if not function.calls:
        return False
    inside = StepScope(function.calls[0].ctx, None)
    for value in _returned(function):
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if position is not None and isinstance(value, ast.Tuple):
            parts = parts[position : position + 1]
        if any(_changes(inside, one, far - 1) or _items_change(inside, one, far - 1) for one in parts):
            return True
    return False


def _returned(function: Function) -> list[ast.expr]:
    if isinstance(function.node, ast.Lambda):
        return [function.node.body]
    returns = (one for one in own_statements(function.node.body) if isinstance(one, ast.Return))
    return [one.value for one in returns if one.value is not None]


def random_draw(node: ast.expr, ctx: RuleContext) -> ast.expr | None:
    """The part of a condition that Python or NumPy draws at random, also by a name of the same function or in a
    function of this program."""
    for one in nodes_of(node):
        if isinstance(one, ast.Call) and _is_drawn(one, ctx):
            return one
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            given = definitions(ctx).get(one.id, [])
            if given and all(
                not item and any(isinstance(part, ast.Call) and _is_drawn(part, ctx) for part in nodes_of(value))
                for value, item in given
            ):
                return one
    return None


def _is_drawn(node: ast.Call, ctx: RuleContext) -> bool:
    if _draws(node, ctx):
        return True
    function = _own_function(node, ctx)
    if function is None or not function.calls:
        return False
    inside = function.calls[0].ctx
    parts = (part for value in _returned(function) for part in nodes_of(value))
    return any(isinstance(part, ast.Call) and _draws(part, inside) for part in parts)


def _draws(node: ast.Call, ctx: RuleContext) -> bool:
    """One random number; `size=` makes an array of them."""
    owner, _, last = ctx.name(node).rpartition(".")
    return (
        owner in ("random", "numpy.random") and last in _DRAWS and not any(one.arg == "size" for one in node.keywords)
    )


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


#
# Measured with torch_xla 2.9 on XLA:CPU: each new number compiled again. Operations that are not listed take their
# numbers as data, or were not measured.


FIXED_OPERATORS = (ast.Pow, ast.LShift, ast.RShift)
FIX_INDEX = "Index with a tensor, `torch.tensor([{number}], device=device)`, and `squeeze` the dimension of one."
_FIX_CHUNK = (
    "Make all chunks of one size (pad the last one), and index with positions that are data: "
    "`torch.arange({size}, device=device) + torch.tensor([{start}], device=device)`."
)
FIX_SLICE = "Keep all elements and mask: `torch.arange(size, device=device) < torch.tensor([{number}], device=device)`."
FIX_TENSOR = "Pass the number as data: `torch.tensor(float({number}), device=device)`."
_FIX_SHAPE = "Pad to one fixed length, or to one of a few."
_FIX_ARGUMENT = "Keep {number} fixed, or use a mask with the number as data: `torch.tensor([{number}], device=device)`."
_SAID_SHAPE = "The shape of {what} uses"
_SAID_ARGUMENT = "{what} uses"

_ALL = -1
# Operation: the positions of its numbers as a method (as a function, the tensor comes before), and their keywords.
_ARGUMENTS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "topk": ((0,), ("k",)),
    "kthvalue": ((0,), ("k",)),
    "pow": ((0,), ("exponent",)),
    "pow_": ((0,), ("exponent",)),
    "roll": ((0,), ("shifts",)),
    "tril": ((0,), ("diagonal",)),
    "triu": ((0,), ("diagonal",)),
    "diag": ((0,), ("diagonal",)),
    "diagonal": ((0,), ("offset",)),
    "select": ((1,), ("index",)),
    "norm": ((0,), ("p",)),
    "normalize": ((0,), ("p",)),
    "threshold": ((0, 1), ("threshold", "value")),
    "std": ((), ("correction",)),
    "var": ((), ("correction",)),
    "logit": ((0,), ("eps",)),
    "layer_norm": ((), ("eps",)),
    "batch_norm": ((), ("eps",)),
}
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "narrow": ((1, 2), ("start", "length")),
    "repeat": ((_ALL,), ("repeats",)),
    "tile": ((_ALL,), ("dims",)),
    "expand": ((_ALL,), ("size",)),
    "broadcast_to": ((0,), ("size", "shape")),
    "view": ((_ALL,), ("size",)),
    "reshape": ((_ALL,), ("shape",)),
    "split": ((0,), ("split_size_or_sections", "split_size")),
    "tensor_split": ((0,), ("indices_or_sections",)),
    "chunk": ((0,), ("chunks",)),
    "repeat_interleave": ((0,), ("repeats",)),
    "one_hot": ((0,), ("num_classes",)),
    "pad": ((0,), ("pad", "value")),
    "interpolate": ((0, 1), ("size", "scale_factor")),
    "avg_pool1d": ((0, 1), ("kernel_size", "stride")),
    "avg_pool2d": ((0, 1), ("kernel_size", "stride")),
    "max_pool1d": ((0, 1), ("kernel_size", "stride")),
    "max_pool2d": ((0, 1), ("kernel_size", "stride")),
    "adaptive_avg_pool1d": ((0,), ("output_size",)),
    "adaptive_avg_pool2d": ((0,), ("output_size",)),
    "new_zeros": ((_ALL,), ("size",)),
    "new_ones": ((_ALL,), ("size",)),
    "new_empty": ((_ALL,), ("size",)),
    "new_full": ((0,), ("size",)),
}
# Functions that make a tensor of a shape: the positions that are the shape.
_MAKERS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "zeros": ((_ALL,), ("size",)),
    "ones": ((_ALL,), ("size",)),
    "empty": ((_ALL,), ("size",)),
    "rand": ((_ALL,), ("size",)),
    "randn": ((_ALL,), ("size",)),
    "full": ((0,), ("size",)),
    "arange": ((_ALL,), ("start", "end", "step")),
    "eye": ((_ALL,), ("n", "m")),
    "randperm": ((0,), ("n",)),
    "linspace": ((2,), ("steps",)),
    "logspace": ((2,), ("steps",)),
}
_TORCH = ("torch.", "torch.nn.functional.", "torch.linalg.")
_MOVES = frozenset(("to", "cuda"))


class FixedArguments(NamedTuple):
    """The arguments of a call that are written into the graph; `new_tensor`: the call makes a tensor of that shape."""

    arguments: tuple[ast.expr, ...]
    subject: str
    fix: str
    new_tensor: bool = False


def use_of(node: ast.Call, ctx: RuleContext) -> FixedArguments | None:
    last, name = last_name(node), ctx.name(node)
    if name:
        last = name.rpartition(".")[2]
        if name.rpartition(".")[0] + "." not in _TORCH:
            return None
        if last == "randint":
            return _use(_randint(node), (_SAID_SHAPE, _FIX_SHAPE), new_tensor=True)
        if last in _MAKERS:
            return _use(_chosen(node, _MAKERS[last], 0), (_SAID_SHAPE, _FIX_SHAPE), new_tensor=True)
    shift = 1 if name else 0
    if last in _ARGUMENTS:
        fix = FIX_TENSOR if last in ("pow", "pow_") else _FIX_ARGUMENT
        return _use(_chosen(node, _ARGUMENTS[last], shift), (_SAID_ARGUMENT, fix))
    if last in _SHAPES:
        return _use(_chosen(node, _SHAPES[last], shift), (_SAID_SHAPE, _FIX_SHAPE))
    return None


def _use(chosen: list[ast.expr], words: tuple[str, str], new_tensor: bool = False) -> FixedArguments | None:
    result = tuple(leaf for one in chosen for leaf in _leaves(one) if not isinstance(leaf, ast.Constant))
    return FixedArguments(result, *words, new_tensor) if result else None


def _chosen(node: ast.Call, spec: tuple[tuple[int, ...], tuple[str, ...]], shift: int) -> list[ast.expr]:
    positions, keywords = spec
    result = [one.value for one in node.keywords if one.arg in keywords]
    if positions == (_ALL,):
        return [*result, *node.args[shift:]]
    return [*result, *(node.args[one + shift] for one in positions if one + shift < len(node.args))]


def _randint(node: ast.Call) -> list[ast.expr]:
    """The size of `torch.randint(low, high, size)`; its bounds are data."""
    result = [one.value for one in node.keywords if one.arg == "size"]
    return result or node.args[-1:]


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _leaves(one)
    else:
        yield node


def indices(node: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """The positions and bounds in the brackets; True for bounds of slices. A list of positions is data."""
    for one in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(one, ast.Slice):
            yield from ((bound, True) for bound in (one.lower, one.upper, one.step) if bound is not None)
        elif not isinstance(one, (ast.List, ast.Constant)):
            yield one, False


def chunk_fix(index: ast.expr, bound: ast.expr, ctx: RuleContext) -> str:
    """The fix for a bound of `x[start : start + n]`, of which a mask would keep too much; "" for a slice with one
    bound."""
    slices = [one for one in (index.elts if isinstance(index, ast.Tuple) else [index]) if isinstance(one, ast.Slice)]
    found = next((one for one in slices if bound in (one.lower, one.upper) and one.lower and one.upper), None)
    if found is None or found.lower is None:
        return ""
    return _FIX_CHUNK.format(size=_size_of(found, ctx), start=ctx.source(found.lower))


def _size_of(chunk: ast.Slice, ctx: RuleContext) -> str:
    """`n` of `x[start : start + n]` and of `x[i * n : (i + 1) * n]`; "size" where it is not seen."""
    start, end = chunk.lower, chunk.upper
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add) and start is not None:
        parts = [one for one in (end.left, end.right) if ast.dump(one) != ast.dump(start)]
        return ctx.source(parts[0]) if len(parts) == 1 else "size"
    if isinstance(start, ast.BinOp) and isinstance(end, ast.BinOp) and isinstance(end.op, ast.Mult):
        same = {ast.dump(one): one for one in (start.left, start.right)}
        return next((ctx.source(one) for one in (end.left, end.right) if ast.dump(one) in same), "size")
    return "size"


def is_tensor(base: AbstractValue, index: ast.expr) -> bool:
    """Whether `base` is a tensor: an output or a batch may be a tuple, which has no column slices."""
    if base.kind in (OUTPUT, BATCH):
        return isinstance(index, ast.Tuple) and any(isinstance(one, ast.Slice) for one in index.elts)
    return base.kind == TENSOR


# -- tensors on the device --------------------------------------------------------------------------------------------


def acts_on_device(node: ast.Call, ctx: RuleContext, use: FixedArguments) -> bool:
    if use.new_tensor:
        return ctx.value(node).where == "device" or is_moved(node, ctx)
    if ctx.name(node):
        return bool(node.args) and is_tensor_on_device(ctx.value(node.args[0]), ctx)
    return isinstance(node.func, ast.Attribute) and is_tensor_on_device(ctx.value(node.func.value), ctx)


def is_tensor_on_device(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether a tensor is certainly on the device: moved there, or in a module's forward."""
    if value.kind not in (TENSOR, OUTPUT, BATCH):
        return False
    function = ctx.function
    in_module = function is not None and function.cls is not None and function.cls.is_module
    return value.where == "device" or (not value.where and in_module)


def is_moved(node: ast.expr, ctx: RuleContext) -> bool:
    """`torch.randn(4, n).to(device)`, also later in its chain: `torch.randn(4, n).abs().to(device)`."""
    inner: ast.AST = node
    for outer in ctx.parents(node):
        if isinstance(outer, ast.Call) and outer.func is inner:
            if isinstance(inner, ast.Attribute) and inner.attr in _MOVES:
                return ctx.value(outer).where != "host"
        elif not isinstance(outer, ast.Attribute):
            return False
        inner = outer
    return False
