"""Where code runs (per batch, in training), and how many rows a dataset has."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import FUNCTION, LIST, NUMBER, AbstractValue
from tpu_magics.check.rules._source import origin, own_statements

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


# A condition on a TPU (or XLA).
_ASKS_FOR_TPU = re.compile(r"tpu|xla", re.IGNORECASE)
_BATCH_FUNCTION = re.compile(r"tokeni[sz]e|collat|preprocess|(^|_)encode(_|$)|to_features", re.IGNORECASE)
_BATCH_PARAMETERS = frozenset(
    ("batch", "examples", "example", "features", "samples", "sample", "rows", "items", "instances")
)


# -- where code runs --------------------------------------------------------------------------------------------------


def runs_per_batch(ctx: RuleContext, seen: frozenset[int] = frozenset()) -> bool:
    """Whether this place runs for each batch of rows, not once over all of them."""
    function = ctx.function
    if ctx.in_step or _over_pieces(ctx):
        return True
    if function is None or id(function) in seen:
        return False
    if function.host or (function.cls is not None and function.name in ("__call__", "__getitem__")):
        return True
    if function.callers:
        return any(runs_per_batch(call.ctx, seen | {id(function)}) for call in function.callers)
    return _takes_a_batch(function)


def _takes_a_batch(function: Function) -> bool:
    """Whether a function without calls is for `map` or a loader, by its name and its parameter."""
    own = [one.arg for one in function.parameters if one.arg not in ("self", "cls")]
    return bool(own) and (own[0] in _BATCH_PARAMETERS or bool(_BATCH_FUNCTION.search(function.name)))


def _over_pieces(ctx: RuleContext) -> bool:
    """`for i in range(0, len(texts), 32)`: a loop over chunks."""
    return any(
        isinstance(loop.node, (ast.For, ast.AsyncFor))
        and isinstance(loop.node.iter, ast.Call)
        and ctx.name(loop.node.iter) in ("builtins.range", "tqdm.trange")
        and len(loop.node.iter.args) == 3
        for loop in ctx.loops
    )


def is_off_tpu(ctx: RuleContext, node: ast.AST) -> bool:
    """Whether a branch for TPUs comes before: `if accelerator.distributed_type == DistributedType.XLA: return ...`."""
    for outer in ctx.parents(node):
        if isinstance(outer, (ast.If, ast.IfExp)) and _ASKS_FOR_TPU.search(ctx.source(outer.test)):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            body = outer.body if isinstance(outer.body, list) else []
            return any(_returns_on_tpu(ctx, one) for one in body if one.lineno < getattr(node, "lineno", 0))
    return False


def _returns_on_tpu(ctx: RuleContext, node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not _ASKS_FOR_TPU.search(ctx.source(node.test)):
        return False
    return any(isinstance(one, ast.Return) for one in node.body)


def trains(program: CheckedProgram) -> bool:
    """Whether this program trains with torch; code that only prepares data is not checked."""
    return program.xla or program.torch_tpu or any(one.has_step for one in program.functions)


def is_dynamic(program: CheckedProgram) -> bool:
    """Whether it tells torch.compile which dimensions change (TorchTPU): then their sizes are no new shapes."""
    return program.torch_tpu and bool(program.calls("torch._dynamo.mark_dynamic", "torch._dynamo.maybe_mark_dynamic"))


def loader_of(value: AbstractValue) -> AbstractValue:
    """The DataLoader inside enumerate, tqdm, MpDeviceLoader and prepare."""
    for _ in range(8):
        if value.kind == LIST and isinstance(value.ref, AbstractValue):
            value = value.ref
        elif isinstance(value.creator, ast.Call) and value.name.startswith("torch_xla.") and value.creator.args:
            value = value.creator_ctx.value(value.creator.args[0])
        else:
            break
    return value


def is_nothing(value: AbstractValue) -> bool:
    """Whether an argument is certainly None."""
    return value.kind == NUMBER and value.const is None


_Path = tuple[int, ...]
_FAR = 20

# Methods that keep the number of rows.
_KEEPS = frozenset(
    ("shuffle", "map", "cache", "prefetch", "with_options", "with_format", "set_format", "with_transform",
     "rename_column", "remove_columns", "rename_columns", "cast", "cast_column", "add_column", "class_encode_column",
     "flatten", "sort", "select_columns", "float", "double", "half", "bfloat16", "long", "int", "bool", "to", "cpu",
     "clone", "contiguous", "detach", "astype", "copy", "requires_grad_", "normal_", "uniform_", "abs", "exp", "log",
     "sqrt", "pow", "sigmoid", "tanh", "relu", "clamp", "pin_memory", "numpy")
)  # fmt: skip
_SIZES_FIRST = frozenset(("randn", "rand", "zeros", "ones", "empty", "random_sample", "random", "standard_normal"))
_SIZES_LAST = ("randint", "normal", "uniform")
_RANGES = frozenset(
    ("builtins.range", "torch.arange", "numpy.arange", "tensorflow.range", "tensorflow.data.Dataset.range")
)
_FIRST_ARGUMENT = frozenset(
    ("torch.utils.data.TensorDataset", "torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.FloatTensor",
     "torch.LongTensor", "torch.Tensor", "numpy.array", "numpy.asarray", "builtins.list", "builtins.tuple",
     "builtins.sorted", "builtins.enumerate", "tensorflow.constant", "tensorflow.convert_to_tensor", "tensorflow.cast",
     "datasets.Dataset.from_list", "datasets.Dataset.from_dict")
)  # fmt: skip
_COLUMNS = ("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.Dataset.zip", "builtins.zip")
# Data sets of known size: (training rows, test rows).
_SPLITS = {
    "torchvision.datasets.MNIST": (60_000, 10_000),
    "torchvision.datasets.FashionMNIST": (60_000, 10_000),
    "torchvision.datasets.CIFAR10": (50_000, 10_000),
    "torchvision.datasets.CIFAR100": (50_000, 10_000),
    "keras.datasets.mnist.load_data": (60_000, 10_000),
    "keras.datasets.fashion_mnist.load_data": (60_000, 10_000),
    "keras.datasets.cifar10.load_data": (50_000, 10_000),
    "keras.datasets.cifar100.load_data": (50_000, 10_000),
    "keras.datasets.imdb.load_data": (25_000, 25_000),
}
_SLICED = re.compile(r"^\w+\[(\d*):(\d+)\]$")


def rows(ctx: RuleContext, node: ast.expr | None, path: _Path = (), far: int = 0) -> float | None:
    """The length of an expression (or of its item at `path`); `inf` for a tf.data dataset that repeats."""
    if node is None or far > _FAR:
        return None
    node, more = origin(ctx, node)
    path = (*more, *path)
    handler = _FORMS.get(node.__class__)
    return handler(ctx, node, path, far + 1) if handler is not None else None


def whole(ctx: RuleContext, node: ast.expr | None) -> int | None:
    """The integer value of an expression, if it is one."""
    result = ctx.constant(node)
    return result if isinstance(result, int) and not isinstance(result, bool) else None


def _of_list(ctx: RuleContext, node: ast.List | ast.Tuple, path: _Path, far: int) -> float | None:
    if any(isinstance(one, ast.Starred) for one in node.elts):
        return None
    return rows(ctx, node.elts[path[0]], path[1:], far) if path and path[0] < len(node.elts) else len(node.elts)


def _of_columns(ctx: RuleContext, node: ast.Dict, _path: _Path, far: int) -> float | None:
    return rows(ctx, node.values[0], (), far) if node.values else None


def _of_comprehension(ctx: RuleContext, node: ast.ListComp | ast.GeneratorExp, path: _Path, far: int) -> float | None:
    first = node.generators[0]
    return rows(ctx, first.iter, (), far) if len(node.generators) == 1 and not first.ifs and not path else None


def _of_operation(ctx: RuleContext, node: ast.BinOp, path: _Path, far: int) -> float | None:
    if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List):
        times, length = whole(ctx, node.right), rows(ctx, node.left, (), far)
        return None if times is None or length is None else times * length
    left, right = rows(ctx, node.left, path, far), rows(ctx, node.right, path, far)
    return left if right is None else right if left is None else max(left, right)


def _of_slice(ctx: RuleContext, node: ast.Subscript, path: _Path, far: int) -> float | None:
    if not isinstance(node.slice, ast.Slice) or path or node.slice.step is not None:
        return None
    length = rows(ctx, node.value, (), far)
    start, stop = node.slice.lower, node.slice.upper
    first = 0 if start is None else whole(ctx, start)
    last = length if stop is None else whole(ctx, stop)
    if first is None or last is None or min(first, last) < 0:
        return None
    return max((min(last, length) if length is not None else last) - first, 0)


def _of_call(ctx: RuleContext, node: ast.Call, path: _Path, far: int) -> float | None:
    name = ctx.name(node)
    if name in _SPLITS:
        return _of_split(ctx, node, name, path)
    if name == "torch.utils.data.random_split":
        return _of_random_split(ctx, node, path)
    if name in _FIRST_ARGUMENT:
        return rows(ctx, node.args[0], path, far) if node.args else None
    if name in _COLUMNS:
        return _of_slices(ctx, node, far)
    if path:
        return None
    if name in _RANGES:
        return _of_range(ctx, node)
    if name in _NAMED:
        return _NAMED[name](ctx, node, far)
    if name.startswith(("torch.", "numpy.", "tensorflow.")):
        return _of_creation(ctx, node, name.rpartition(".")[2])
    if isinstance(node.func, ast.Attribute) and not name and ctx.value(node.func).kind != FUNCTION:
        return _of_method(ctx, node, node.func, far)
    return _of_own(ctx, node, far)


def _of_slices(ctx: RuleContext, node: ast.Call, far: int) -> float | None:
    """For a tuple of columns the length of the first; a list is one tensor."""
    if not node.args:
        return None
    first, path = origin(ctx, node.args[0])
    if isinstance(first, ast.Tuple) and not path:
        return rows(ctx, first.elts[0], (), far) if first.elts else None
    return rows(ctx, first, path, far)


def _of_split(ctx: RuleContext, node: ast.Call, name: str, path: _Path) -> float | None:
    if name.startswith("keras."):
        return _SPLITS[name][path[0]] if path and path[0] < 2 else None
    train = ctx.argument(node, "train", 1)
    is_train = True if train is None else ctx.constant(train)
    return _SPLITS[name][0 if is_train else 1] if isinstance(is_train, bool) else None


def _of_random_split(ctx: RuleContext, node: ast.Call, path: _Path) -> float | None:
    parts = ctx.constant(ctx.argument(node, "lengths", 1))
    part = parts[path[0]] if isinstance(parts, tuple) and path and path[0] < len(parts) else None
    return part if isinstance(part, int) else None


def _of_range(ctx: RuleContext, node: ast.Call) -> float | None:
    given = [whole(ctx, one) for one in node.args]
    if not given or None in given or len(given) > 3 or (len(given) == 3 and not given[2]):
        return None
    return len(range(*(one for one in given if one is not None)))


def _of_subset(ctx: RuleContext, node: ast.Call, far: int) -> float | None:
    return rows(ctx, ctx.argument(node, "indices", 1), (), far)


def _of_load_dataset(ctx: RuleContext, node: ast.Call, _far: int) -> float | None:
    split = ctx.constant(ctx.argument(node, "split"))
    result = _SLICED.match(split) if isinstance(split, str) else None
    return int(result[2]) - int(result[1] or 0) if result else None


_NAMED: dict[str, Callable[[RuleContext, ast.Call, int], float | None]] = {
    "torch.utils.data.Subset": _of_subset,
    "datasets.load_dataset": _of_load_dataset,
}


def _of_creation(ctx: RuleContext, node: ast.Call, last: str) -> float | None:
    """The first dimension of `torch.randn(84, 16)`, `np.zeros((84, 16))`, `torch.randint(0, 4, (84,))`."""
    size = ctx.argument(node, "size") or ctx.argument(node, "shape")
    if size is None and node.args:
        size = node.args[0] if last in (*_SIZES_FIRST, "full") else node.args[-1] if last in _SIZES_LAST else None
    first = ctx.constant(size)
    if isinstance(first, tuple):
        first = first[0] if first else None
    if isinstance(size, (ast.Tuple, ast.List)) and size.elts:
        return whole(ctx, size.elts[0])
    return first if isinstance(first, int) and not isinstance(first, bool) else None


def _of_method(ctx: RuleContext, node: ast.Call, func: ast.Attribute, far: int) -> float | None:
    method = func.attr
    if method in _KEEPS:
        return rows(ctx, func.value, (), far)
    if method in ("shard", "filter"):
        return inf if rows(ctx, func.value, (), far) == inf else None
    if method == "select":
        return rows(ctx, ctx.argument(node, "indices", 0), (), far)
    if method in _COUNTED:
        number = whole(ctx, node.args[0]) if node.args else None
        return _COUNTED[method](rows(ctx, func.value, (), far), number, bool(node.args))
    if method in _SIZES_FIRST or method in _SIZES_LAST or method == "integers":  # of a numpy Generator
        return _of_creation(ctx, node, "randint" if method == "integers" else method)
    return None


def _taken(length: float | None, number: int | None, _given: bool) -> float | None:
    return number if length is None else None if number is None or number < 0 else min(length, number)


def _skipped(length: float | None, number: int | None, _given: bool) -> float | None:
    return None if length is None or number is None else max(length - number, 0)


def _repeated(length: float | None, number: int | None, given: bool) -> float | None:
    if not given or (number is not None and number < 0):
        return inf
    return None if length is None or number is None else length * number


_COUNTED: dict[str, Callable[[float | None, int | None, bool], float | None]] = {
    "take": _taken,
    "skip": _skipped,
    "repeat": _repeated,
}


def _of_own(ctx: RuleContext, node: ast.Call, far: int) -> float | None:
    """The result of `__len__` of a class of the program, or the length of the result of a function."""
    ref = ctx.value(node.func).ref
    if ctx.value(node.func).kind == FUNCTION and ref is not None and ref.calls:
        body = ref.node.body if isinstance(ref.node.body, list) else []
        given = [one.value for one in own_statements(body) if isinstance(one, ast.Return)]
        return rows(ref.calls[0].ctx, given[0], (), far) if len(given) == 1 else None
    method = ref.method("__len__") if hasattr(ref, "method") else None
    const = method.returns.const if method is not None and method.returns is not None else None
    return const if isinstance(const, int) and not isinstance(const, bool) else None


_FORMS: dict[type, Callable[..., float | None]] = {
    ast.List: _of_list,
    ast.Tuple: _of_list,
    ast.Dict: _of_columns,
    ast.ListComp: _of_comprehension,
    ast.GeneratorExp: _of_comprehension,
    ast.BinOp: _of_operation,
    ast.Subscript: _of_slice,
    ast.Call: _of_call,
}
