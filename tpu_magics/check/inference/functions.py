"""What functions give: those of the program, by their arguments, and those of libraries, by a table."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.expressions import (
    FLAGS,
    MOST_ITEMS,
    TENSORS,
    UNKNOWN_ITEM,
    Evaluator,
    element,
    iterated_value,
    join_all,
)
from tpu_magics.check.inference.tensors import create_tensor
from tpu_magics.check.inference.values import (
    A_NUMBER,
    A_SHAPE,
    ARRAY,
    BATCH,
    DATASET,
    DEVICE,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    NONE,
    NOTHING,
    NUMBER,
    OUTPUT,
    TENSOR,
    TFDATA,
    UNKNOWN_VALUE,
    AbstractValue,
    join,
)
from tpu_magics.check.program import CallSite, Function

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]


def bind_arguments(walk: Evaluator, target: Function, call: CallSite, arguments: Arguments) -> None:
    if walk.recording:
        target.callers.append(call)
    parameters = target.parameters
    bound = target.cls is not None and "staticmethod" not in target.decorators and bool(parameters)
    positional = len(parameters) - len(target.node.args.kwonlyargs)
    own = parameters[1:positional] if bound else parameters[:positional]
    for parameter, node, value in zip(own, call.node.args, arguments, strict=False):
        if isinstance(node, ast.Starred):
            break  # from here on it is unknown which parameter gets which value
        join_parameter(target, parameter.arg, value)
    for keyword in call.node.keywords:
        if keyword.arg is not None:
            join_parameter(target, keyword.arg, walk.ctx.value(keyword.value))


def join_parameter(target: Function, name: str, value: AbstractValue) -> None:
    before = target.argument_values.get(name)
    target.argument_values[name] = value if before is None else join(before, value)


def returned_value(function: Any, arguments: Arguments) -> AbstractValue:
    if isinstance(function, Function) and function.yields is not None:
        return function.yields
    if not isinstance(function, Function) or function.returns is None:
        return UNKNOWN_VALUE
    return _passed_through(function, arguments) or function.returns


def _passed_through(function: Function, arguments: Arguments) -> AbstractValue | None:
    """The arguments that the function returns unchanged: the value of `default(mask, ones)` for this call only."""
    if not arguments or not function.returned_parameters or "" in function.returned_parameters:
        return None
    names = [one.arg for one in function.parameters][1 if function.cls is not None else 0 :]
    given = [value for name, value in zip(names, arguments, strict=False) if name in function.returned_parameters]
    return join_all(given) if len(given) == len(function.returned_parameters) else None


def _len(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    result = arguments[0].items if arguments and arguments[0].items is not None else None
    return A_SHAPE.with_(const=len(result)) if result is not None else A_SHAPE


def _python_number(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    if not arguments:
        return A_NUMBER
    first = arguments[0]
    if first.kind in TENSORS or first.kind == ARRAY:
        return AbstractValue(NUMBER, read=first.kind != ARRAY and first.where != "host")
    if first.kind == NUMBER:
        return first.with_(const=_converted(name, first.const))
    return A_NUMBER


def _converted(name: str, const: Any) -> Any:
    kinds: dict[str, Callable[[Any], Any]] = {"builtins.int": int, "builtins.float": float, "builtins.bool": bool}
    if const is NOTHING or not isinstance(const, (int, float, bool)):
        return NOTHING
    try:
        return kinds[name](const) if name in kinds else NOTHING
    except (ValueError, OverflowError):
        return NOTHING


def _same_number(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    """abs, round, pow, max, min, sum of the arguments."""
    if len(arguments) == 1 and arguments[0].kind in (LIST, BATCH, OUTPUT):
        result = element(arguments[0])
    else:
        result = join_all(arguments) if arguments else UNKNOWN_VALUE
    if result.kind in TENSORS:
        return AbstractValue(TENSOR, lib=result.lib, where=result.where)
    if result.kind == NUMBER:
        flags: dict[str, Any] = {flag: any(getattr(one, flag) for one in arguments) for flag in FLAGS}
        return AbstractValue(NUMBER, **flags)
    return result if result.kind == ARRAY else A_NUMBER


def _range(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    return AbstractValue(
        LIST, item=AbstractValue(NUMBER, varies=True), name="builtins.range", creator=node, creator_ctx=walk.ctx
    )


def _enumerate(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    inner = iterated_value(arguments[0], node.args[0]) if arguments else UNKNOWN_VALUE
    return AbstractValue(
        LIST, item=AbstractValue(LIST, items=(AbstractValue(NUMBER, varies=True), element(inner))), ref=_source(inner)
    )


def _source(value: AbstractValue) -> Any:
    """The loader in a wrapped iterable, for the loop that uses it."""
    if value.kind in (LOADER, TFDATA, DATASET):
        return value
    return value.ref if value.kind == LIST and isinstance(value.ref, AbstractValue) else None


def _zip(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    items = tuple(element(one) for one in arguments[:MOST_ITEMS])
    source = next((result for one in arguments if (result := _source(one)) is not None), None)
    return AbstractValue(LIST, item=AbstractValue(LIST, items=items), ref=source)


def _passed_on(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    """Wrappers that return or iterate over their first argument."""
    if arguments:
        return arguments[0]
    given = next((one.value for one in node.keywords if one.arg in ("iterable", "model", "module")), None)
    return walk.ctx.value(given)


def _listed(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    if not arguments:
        return AbstractValue(LIST, items=(), creator=node, creator_ctx=walk.ctx)
    first = arguments[0]
    if first.kind == LIST:
        return first
    result = element(first)
    return AbstractValue(LIST, item=None if result is UNKNOWN_VALUE else result)


def _next(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    result = element(arguments[0]) if arguments else UNKNOWN_VALUE
    return UNKNOWN_ITEM if result is UNKNOWN_VALUE else result


def _mapped(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    function = arguments[0] if arguments else UNKNOWN_VALUE
    if function.kind == FUNCTION and isinstance(function.ref, Function) and len(arguments) > 1:
        for parameter in function.ref.parameters[:1]:
            join_parameter(function.ref, parameter.arg, element(arguments[1]))
        return AbstractValue(LIST, item=returned_value(function.ref, ()))
    return AbstractValue(LIST)


SUPER_TRAINER = "%super-trainer"


def _super(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    function = walk.ctx.function
    while function is not None and function.cls is None:
        function = function.outer
    if function is None or function.cls is None:
        return UNKNOWN_VALUE
    if function.cls.parents:
        return AbstractValue(INSTANCE, ref=function.cls.parents[0])
    trainer = any(base.endswith("Trainer") for base in function.cls.bases)
    return AbstractValue(INSTANCE, lib="torch", name=SUPER_TRAINER) if trainer else UNKNOWN_VALUE


def _device(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    const = arguments[0].const if arguments else NOTHING
    where = "" if not isinstance(const, str) else "host" if const.startswith("cpu") else "device"
    return AbstractValue(
        DEVICE,
        where=where,
        name=name,
        const=const if isinstance(const, str) else NOTHING,
        creator=node,
        creator_ctx=walk.ctx,
    )


def _tf_function(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    return arguments[0] if arguments else UNKNOWN_VALUE


def _dictionary(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    values = [walk.ctx.value(one.value) for one in node.keywords]
    if arguments and not values:
        return arguments[0] if arguments[0].kind in (BATCH, LIST) else AbstractValue(LIST, name="builtins.dict")
    item = join_all(values) if values else None
    return AbstractValue(LIST, item=item, creator=node, creator_ctx=walk.ctx, name="builtins.dict")


def _print(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    return NONE


def _partial(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    if not arguments:
        return UNKNOWN_VALUE
    bound = len(arguments) > 1 and arguments[0].kind == FUNCTION
    return arguments[0].with_(prepared=True) if bound else arguments[0]  # its parameters have changed


def _torch_max(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    return create_tensor(walk, node, name, library_results.call(name), arguments)


def _path_join(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    first = arguments[0].const if arguments else NOTHING
    return AbstractValue(NUMBER, const=f"{first}/..." if isinstance(first, str) else NOTHING)


_UNPACKED = AbstractValue(LIST, items=(AbstractValue(BATCH, lib="tf"), AbstractValue(BATCH, lib="tf"), UNKNOWN_VALUE))

_Special = Callable[[Evaluator, ast.Call, str, Sequence[AbstractValue]], AbstractValue]
SPECIAL: dict[str, _Special] = {
    "keras.utils.unpack_x_y_sample_weight": lambda walk, node, name, arguments: _UNPACKED,
    "builtins.len": _len,
    **dict.fromkeys(("builtins.int", "builtins.float", "builtins.bool", "builtins.complex"), _python_number),
    **dict.fromkeys(
        ("builtins.abs", "builtins.round", "builtins.pow", "builtins.max", "builtins.min", "builtins.sum"), _same_number
    ),
    "builtins.range": _range,
    "tqdm.trange": _range,
    "builtins.enumerate": _enumerate,
    "builtins.zip": _zip,
    **dict.fromkeys(
        ("builtins.iter", "builtins.reversed", "tqdm.tqdm", "itertools.islice", "itertools.cycle", "itertools.chain",
         "torch.compile", "torch.jit.script", "copy.deepcopy", "copy.copy", "accelerate.skip_first_batches",
         "torch_xla.compile", "fastprogress.progress_bar"),
        _passed_on,
    ),
    "functools.partial": _partial,
    **dict.fromkeys(
        ("builtins.list", "builtins.tuple", "builtins.sorted", "builtins.set", "builtins.frozenset"), _listed
    ),
    "builtins.next": _next,
    "builtins.map": _mapped,
    **dict.fromkeys(("builtins.dict", "collections.OrderedDict"), _dictionary),
    **dict.fromkeys(
        ("collections.defaultdict", "collections.Counter"),
        lambda walk, node, name, arguments: AbstractValue(LIST, name="builtins.dict"),
    ),
    "builtins.super": _super,
    "builtins.print": _print,
    **dict.fromkeys(
        ("builtins.isinstance", "builtins.hasattr", "builtins.callable", "builtins.str", "builtins.repr", "builtins.id",
         "builtins.format", "builtins.type", "builtins.hash", "builtins.any", "builtins.all", "builtins.issubclass",
         "builtins.ord", "builtins.input", "builtins.divmod"),
        lambda walk, node, name, arguments: A_NUMBER,
    ),
    "torch.device": _device,
    "torch.max": _torch_max,
    "torch.min": _torch_max,
    "tensorflow.function": _tf_function,
    "os.path.join": _path_join,
}  # fmt: skip
