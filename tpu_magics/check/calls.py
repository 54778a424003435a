"""The values of calls.

What lives here: what a call gives, by its callee: a library's name, a value's method, a function or class of the
program, a builtin. What does not: the tables (known.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.check import known
from tpu_magics.check.evaluate import (
    AN_ITEM,
    FLAGS,
    MOST_ITEMS,
    TENSORS,
    Evaluator,
    attribute,
    element,
    gone_over,
    joined,
    subscript,
    where_together,
)
from tpu_magics.check.marks import mark, mark_called
from tpu_magics.check.parameters import by_name
from tpu_magics.check.program import Call, Class, Function
from tpu_magics.check.values import (
    A_NUMBER,
    A_SHAPE,
    ACCELERATOR,
    AN_ARRAY,
    ARRAY,
    BATCH,
    CLASS,
    COLLATOR,
    DATASET,
    DEVICE,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODEL,
    MODULE,
    NO_IDEA,
    NONE,
    NOTHING,
    NUMBER,
    OPTIMIZER,
    OUTPUT,
    RESOLVER,
    SCHEDULER,
    STRATEGY,
    TENSOR,
    TFDATA,
    TOKENIZER,
    TRAINER,
    UNKNOWN,
    Value,
    join,
)

if TYPE_CHECKING:
    Arguments = Sequence[Value]

_DESCRIBED = frozenset(
    (LOADER, MODEL, OPTIMIZER, SCHEDULER, DATASET, TFDATA, TOKENIZER, COLLATOR, ACCELERATOR, TRAINER, "arguments",
     DEVICE, STRATEGY, RESOLVER, TENSOR, OUTPUT, BATCH, INSTANCE)
)  # fmt: skip


def evaluate_call(walk: Evaluator, node: ast.Call) -> Value:
    """What the call gives; the call is recorded in the program."""
    func = node.func
    receiver, method, name = NO_IDEA, "", ""
    callee = walk.value(func)
    if isinstance(func, ast.Attribute):
        owner: Value = func.value._value  # type: ignore[attr-defined]
        if callee.kind == MODULE:
            name = callee.name
        elif owner.kind != MODULE:
            receiver, method = owner, func.attr
    elif callee.kind == MODULE:
        name = callee.name
    arguments = walk.values(node.args)
    for keyword in node.keywords:
        walk.value(keyword.value)
    value = _result(walk, node, callee, name, receiver, method, arguments)
    call = Call(node, walk.at, name, method, receiver, value)
    _note(walk, call, callee, arguments)
    return value


def _note(walk: Evaluator, call: Call, callee: Value, arguments: Arguments) -> None:
    if walk.recording:
        walk.program.all_calls.append(call)
        if walk.at.function is not None:
            walk.at.function.calls.append(call)
    target = _called(callee, call)
    if target is not None:
        _give(walk, target, call, arguments)
        mark_called(walk, target)
    mark(walk, call, arguments)


def _called(callee: Value, call: Call) -> Function | None:
    """The function of this program that a call runs."""
    if callee.kind == FUNCTION:
        return callee.ref if isinstance(callee.ref, Function) and not callee.prepared else None
    owner: Class | None = callee.ref if callee.kind in (MODEL, INSTANCE, CLASS) else None
    if owner is None:
        return None
    if callee.kind == CLASS:
        return owner.method("__init__")
    return owner.method("forward") or owner.method("call") or owner.method("__call__")


def _give(walk: Evaluator, target: Function, call: Call, arguments: Arguments) -> None:
    if walk.recording:
        target.callers.append(call)
    parameters = target.parameters
    bound = target.cls is not None and "staticmethod" not in target.decorators and bool(parameters)
    positional = len(parameters) - len(target.node.args.kwonlyargs)
    own = parameters[1:positional] if bound else parameters[:positional]
    for parameter, node, value in zip(own, call.node.args, arguments, strict=False):
        if isinstance(node, ast.Starred):
            break  # who gets what is not known from here on
        _join_given(target, parameter.arg, value)
    for keyword in call.node.keywords:
        if keyword.arg is not None:
            _join_given(target, keyword.arg, walk.at.value(keyword.value))


def _join_given(target: Function, name: str, value: Value) -> None:
    before = target.given.get(name)
    target.given[name] = value if before is None else join(before, value)


# -- what a call gives ---------------------------------------------------------------------------------------------


def _result(
    walk: Evaluator, node: ast.Call, callee: Value, name: str, receiver: Value, method: str, arguments: Arguments
) -> Value:
    if name:
        return _by_name(walk, node, name, arguments)
    if callee.kind == FUNCTION:
        return _returned(callee.ref, arguments)
    if callee.kind == CLASS:
        return _instance(walk, node, callee)
    if method:
        found = _METHODS.get(receiver.kind)
        if found is not None:
            return found(walk, node, receiver, method, arguments)
    if method == "cpu" and receiver.kind == UNKNOWN and not node.args:
        return Value(TENSOR, lib="torch", where="host")
    if receiver is AN_ITEM:
        return _item_method(walk, node, method, arguments)
    handler = _CALLED.get(callee.kind)
    return handler(walk, node, callee, arguments) if handler is not None else NO_IDEA


def _item_method(walk: Evaluator, node: ast.Call, method: str, arguments: Arguments) -> Value:
    """Of a part of something unknown that a loop goes over: a batch, where it is sent to a device."""
    if method == "items":
        return Value(LIST, item=Value(LIST, items=(A_NUMBER, AN_ITEM)))
    if method == "values":
        return Value(LIST, item=AN_ITEM)
    if method in ("to", "cuda"):
        moved = _moved(walk, node, _SENT, method, arguments)
        return moved if moved.where == "device" else AN_ITEM
    return AN_ITEM if method in ("get", "pop", "copy") else NO_IDEA


_SENT = Value(BATCH, lib="torch")


def _returned(function: Any, arguments: Arguments) -> Value:
    if isinstance(function, Function) and function.yields is not None:
        return function.yields
    if not isinstance(function, Function) or function.returns is None:
        return NO_IDEA
    return _passed_through(function, arguments) or function.returns


def _passed_through(function: Function, arguments: Arguments) -> Value | None:
    """Of `default(mask, ones)` what this call gives, and not what other calls have given it."""
    if not arguments or not function.passes or "" in function.passes:
        return None
    names = [one.arg for one in function.parameters][1 if function.cls is not None else 0 :]
    given = [value for name, value in zip(names, arguments, strict=False) if name in function.passes]
    return joined(given) if len(given) == len(function.passes) else None


def _instance(walk: Evaluator, node: ast.Call, callee: Value) -> Value:
    cls: Class = callee.ref
    if cls.is_module:
        return Value(MODEL, lib=cls.lib, ref=cls, made=node, made_at=walk.at, name=cls.name)
    for base in cls.all_bases():
        value = known.call(base)
        if value is not NO_IDEA and value.kind not in (TENSOR, NUMBER, ARRAY):
            return value.with_(made=node, made_at=walk.at, name=base)
    if cls.method("__init__") is None:
        _fill(walk, node, cls)
    if any(base.rpartition(".")[2].endswith("Dataset") for base in cls.all_bases()):
        return Value(DATASET, lib="torch", ref=cls, made=node, made_at=walk.at, name=cls.name)
    return Value(INSTANCE, ref=cls, made=node, made_at=walk.at, name=cls.name)


def _fill(walk: Evaluator, node: ast.Call, cls: Class) -> None:
    """The fields of a data class hold what it is made with."""
    for keyword in node.keywords:
        before = cls.attribute(keyword.arg) if keyword.arg is not None else None
        if keyword.arg is not None and before is not None:
            cls.attributes[keyword.arg] = join(before, walk.at.value(keyword.value))


def _by_name(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    special = _SPECIAL.get(name)
    if special is not None:
        return special(walk, node, name, arguments)
    value = known.call(name)
    if value is NO_IDEA:
        return NO_IDEA
    if value.kind in (TENSOR, OUTPUT):
        return _made_tensor(walk, node, name, value, arguments)
    if value.kind == MODEL and value.lib == "torch" and name.startswith("torch.nn.") and arguments:
        return value.with_(made=node, made_at=walk.at, name=name, item=_modules_in(arguments))
    if value.kind in _DESCRIBED or name.startswith("torch.nn."):
        return value.with_(made=node, made_at=walk.at, name=name)
    return value


def _modules_in(arguments: Arguments) -> Value | None:
    models = [one for one in arguments if one.kind == MODEL]
    return joined(models) if models else None


def _made_tensor(walk: Evaluator, node: ast.Call, name: str, value: Value, arguments: Arguments) -> Value:
    where = value.where or _where_given(walk, node) or _where_of_parts(name, arguments)
    dtype = _dtype_given(walk, node) or value.dtype
    if not dtype and name in _CASTS:
        dtype = dtype_of(arguments[1]) if len(arguments) > 1 else "float" if _is_float(arguments) else ""
    if name in ("torch.max", "torch.min") and (
        (len(arguments) > 1 and arguments[1].kind == NUMBER) or _given(node, "dim")
    ):
        return Value(OUTPUT, lib="torch", where=where)
    if name in ("torch.where", "tensorflow.where") and len(node.args) == 1 and not node.keywords:
        kind = OUTPUT if value.lib == "torch" else TENSOR  # torch gives a tuple
        return Value(kind, lib=value.lib, where=where, dtype="int", name=name)
    if name == "torch.nonzero":
        kind = OUTPUT if _given(node, "as_tuple") else TENSOR
        return Value(kind, lib="torch", where=where, dtype="int", name=name)
    if name == "torch.unique":
        kind = OUTPUT if any(_given(node, one) for one in ("return_inverse", "return_counts")) else TENSOR
        return Value(kind, lib="torch", where=where, name=name)
    if not dtype and name in ("torch.tensor", "torch.as_tensor") and arguments:
        const = arguments[0].const
        first = const[0] if isinstance(const, tuple) and const else const
        dtype = "bool" if isinstance(first, bool) else "int" if isinstance(first, int) else ""
    return value.with_(where=where, dtype=dtype, made=node, made_at=walk.at, name=name)


def _is_float(arguments: Arguments) -> bool:
    return bool(arguments) and isinstance(arguments[0].const, float)


def _given(node: ast.Call, name: str) -> bool:
    return any(one.arg == name for one in node.keywords)


def _where_given(walk: Evaluator, node: ast.Call) -> str:
    for keyword in node.keywords:
        if keyword.arg == "device":
            return where_of_device(walk.at.value(keyword.value))
    return ""


def _where_of_parts(name: str, arguments: Arguments) -> str:
    # A parameter moves with its module, wherever its first value was.
    return "" if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter") else _where_of(arguments)


def where_of_device(value: Value) -> str:
    """Where a tensor is that was put on this device: "cpu" and the like is the host."""
    if isinstance(value.const, str):
        return "host" if value.const.startswith("cpu") else "device"
    if value.kind == DEVICE:
        return value.where or "device"
    return ""


def _where_of(arguments: Arguments) -> str:
    tensors = [one for one in arguments if one.kind in TENSORS]
    tensors += [one.item for one in arguments if one.kind == LIST and one.item is not None and one.item.kind in TENSORS]
    return where_together(one.where for one in tensors)


_CASTS = frozenset(("tensorflow.cast", "tensorflow.convert_to_tensor", "tensorflow.constant"))


def _dtype_given(walk: Evaluator, node: ast.Call) -> str:
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            return dtype_of(walk.at.value(keyword.value))
    return ""


def dtype_of(value: Value) -> str:
    """ "bool", "int", "float" or "" of a dtype given as `torch.bool`, `tf.int32`, `bool` or a string."""
    last = value.const if isinstance(value.const, str) else value.name.rpartition(".")[2]
    if last in ("bool", "bool_"):
        return "bool"
    if last.startswith(("int", "uint", "long", "short")):
        return "int"
    return "float" if last.startswith(("float", "bfloat", "half", "double")) else ""


# -- names with a rule of their own --------------------------------------------------------------------------------


def _len(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    found = arguments[0].items if arguments and arguments[0].items is not None else None
    return A_SHAPE.with_(const=len(found)) if found is not None else A_SHAPE


def _python_number(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    if not arguments:
        return A_NUMBER
    first = arguments[0]
    if first.kind in TENSORS or first.kind == ARRAY:
        return Value(NUMBER, read=first.kind != ARRAY and first.where != "host")
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


def _same_number(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    """abs, round, pow, max, min, sum of what is given."""
    if len(arguments) == 1 and arguments[0].kind in (LIST, BATCH, OUTPUT):
        found = element(arguments[0])
    else:
        found = joined(arguments) if arguments else NO_IDEA
    if found.kind in TENSORS:
        return Value(TENSOR, lib=found.lib, where=found.where)
    if found.kind == NUMBER:
        flags: dict[str, Any] = {flag: any(getattr(one, flag) for one in arguments) for flag in FLAGS}
        return Value(NUMBER, **flags)
    return found if found.kind == ARRAY else A_NUMBER


def _range(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    return Value(LIST, item=Value(NUMBER, varies=True), name="builtins.range", made=node, made_at=walk.at)


def _enumerate(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    inner = gone_over(arguments[0], node.args[0]) if arguments else NO_IDEA
    return Value(LIST, item=Value(LIST, items=(Value(NUMBER, varies=True), element(inner))), ref=_source(inner))


def _source(value: Value) -> Any:
    """The loader that a wrapped iterable goes over: kept so that a loop knows it."""
    if value.kind in (LOADER, TFDATA, DATASET):
        return value
    return value.ref if value.kind == LIST and isinstance(value.ref, Value) else None


def _zip(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    items = tuple(element(one) for one in arguments[:MOST_ITEMS])
    source = next((found for one in arguments if (found := _source(one)) is not None), None)
    return Value(LIST, item=Value(LIST, items=items), ref=source)


def _passed_on(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    """Wrappers that go over what they are given, or give it back."""
    if arguments:
        return arguments[0]
    given = next((one.value for one in node.keywords if one.arg in ("iterable", "model", "module")), None)
    return walk.at.value(given)


def _listed(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    if not arguments:
        return Value(LIST, items=(), made=node)
    first = arguments[0]
    if first.kind == LIST:
        return first
    found = element(first)
    return Value(LIST, item=None if found is NO_IDEA else found)


def _next(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    found = element(arguments[0]) if arguments else NO_IDEA
    return AN_ITEM if found is NO_IDEA else found


def _mapped(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    function = arguments[0] if arguments else NO_IDEA
    if function.kind == FUNCTION and isinstance(function.ref, Function) and len(arguments) > 1:
        for parameter in function.ref.parameters[:1]:
            _join_given(function.ref, parameter.arg, element(arguments[1]))
        return Value(LIST, item=_returned(function.ref, ()))
    return Value(LIST)


_SUPER_TRAINER = "%super-trainer"


def _super(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    function = walk.at.function
    while function is not None and function.cls is None:
        function = function.outer
    if function is None or function.cls is None:
        return NO_IDEA
    if function.cls.parents:
        return Value(INSTANCE, ref=function.cls.parents[0])
    trainer = any(base.endswith("Trainer") for base in function.cls.bases)
    return Value(INSTANCE, lib="torch", name=_SUPER_TRAINER) if trainer else NO_IDEA


def _device(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    const = arguments[0].const if arguments else NOTHING
    where = "" if not isinstance(const, str) else "host" if const.startswith("cpu") else "device"
    return Value(
        DEVICE, where=where, name=name, const=const if isinstance(const, str) else NOTHING, made=node, made_at=walk.at
    )


def _tf_function(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    return arguments[0] if arguments else NO_IDEA


def _dictionary(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    values = [walk.at.value(one.value) for one in node.keywords]
    if arguments and not values:
        return arguments[0] if arguments[0].kind in (BATCH, LIST) else Value(LIST, name="builtins.dict")
    item = joined(values) if values else None
    return Value(LIST, item=item, made=node, made_at=walk.at, name="builtins.dict")


def _print(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    return NONE


def _partial(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    if not arguments:
        return NO_IDEA
    bound = len(arguments) > 1 and arguments[0].kind == FUNCTION
    return arguments[0].with_(prepared=True) if bound else arguments[0]  # its parameters are other ones now


def _torch_max(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    return _made_tensor(walk, node, name, known.call(name), arguments)


def _path_join(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    first = arguments[0].const if arguments else NOTHING
    return Value(NUMBER, const=f"{first}/..." if isinstance(first, str) else NOTHING)


def _trange(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> Value:
    return Value(LIST, item=Value(NUMBER, varies=True), name="builtins.range", made=node, made_at=walk.at)


_UNPACKED = Value(LIST, items=(Value(BATCH, lib="tf"), Value(BATCH, lib="tf"), NO_IDEA))

_Special = Callable[[Evaluator, ast.Call, str, Sequence[Value]], Value]
_SPECIAL: dict[str, _Special] = {
    "keras.utils.unpack_x_y_sample_weight": lambda walk, node, name, arguments: _UNPACKED,
    "builtins.len": _len,
    **dict.fromkeys(("builtins.int", "builtins.float", "builtins.bool", "builtins.complex"), _python_number),
    **dict.fromkeys(
        ("builtins.abs", "builtins.round", "builtins.pow", "builtins.max", "builtins.min", "builtins.sum"), _same_number
    ),
    "builtins.range": _range,
    "tqdm.trange": _trange,
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
        lambda walk, node, name, arguments: Value(LIST, name="builtins.dict"),
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


# -- methods -----------------------------------------------------------------------------------------------------------


def _tensor_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    lib, where = value.lib, value.where
    if method in known.TENSOR_NUMBERS or (method.startswith(("is_", "_is_")) and method not in known.TENSOR_READS):
        return A_SHAPE
    if method.startswith("get_"):
        return NO_IDEA  # `cache.get_seq_length()`: it is no tensor
    if method in known.TENSOR_READS:
        return Value(
            NUMBER,
            read=where != "host",
            name="Tensor." + method if method in ("equal", "allclose", "is_nonzero") else "",
        )
    if method == "tolist":
        return Value(LIST, item=Value(NUMBER, read=where != "host"), read=where != "host")
    if method == "numpy":
        return AN_ARRAY
    if method == "cpu":
        return Value(TENSOR, lib=lib, where="host", dtype=value.dtype)
    if method in ("to", "cuda", "type_as"):
        return _moved(walk, node, value, method, arguments)
    if method in ("type",):
        return Value(TENSOR, lib=lib, where=where) if arguments else A_NUMBER
    if method in ("backward", "register_hook", "retain_grad"):
        return NONE
    if method in ("max", "min") and (arguments or _given(node, "dim")):
        tensor = bool(arguments) and arguments[0].kind in TENSORS
        return Value(TENSOR if tensor else OUTPUT, lib=lib, where=where)
    if method == "nonzero":
        return Value(
            OUTPUT if _given(node, "as_tuple") else TENSOR, lib=lib, where=where, dtype="int", name="torch.nonzero"
        )
    if method == "unique":
        return Value(OUTPUT if node.keywords else TENSOR, lib=lib, where=where, name="torch.unique")
    if method in known.TENSOR_MANY:
        return Value(OUTPUT, lib=lib, where=where)
    return Value(TENSOR, lib=lib, where=where, dtype=_method_dtype(walk, node, value, method))


_KEEPS = frozenset([
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "transpose", "permute", "contiguous", "detach", "clone",
    "expand", "expand_as", "repeat", "view_as", "masked_fill", "roll", "flip", "t", "index_select", "gather"
])  # fmt: skip


def _method_dtype(walk: Evaluator, node: ast.Call, value: Value, method: str) -> str:
    given = _dtype_given(walk, node)
    if given:
        return given
    if method in known.TENSOR_BOOLS:
        return "bool"
    if method in known.TENSOR_INTS:
        return "int"
    if method in known.TENSOR_FLOATS:
        return "float"
    return value.dtype if method in _KEEPS else ""


def _moved(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    where, dtype = value.where, value.dtype
    if method == "cuda":
        where = "device"
    for one in [*arguments, *(walk.at.value(keyword.value) for keyword in node.keywords)]:
        if one.kind == DEVICE or (isinstance(one.const, str) and dtype_of(one) == ""):
            where = where_of_device(one)
        elif one.kind in TENSORS:
            where, dtype = one.where, one.dtype
        elif one.kind == UNKNOWN:
            where = "" if _may_be_device(node) else where
        else:
            dtype = dtype_of(one) or dtype
    return Value(value.kind, lib=value.lib, where=where, dtype=dtype)


def _may_be_device(node: ast.Call) -> bool:
    """Whether what `.to()` is given may be a device: `self.device`, but not `self.dtype`."""
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
    return any("type" not in str(getattr(one, "attr", getattr(one, "id", ""))) for one in given)


_OPTIONS = ("return_", "output_", "use_", "is_", "has_")  # of what a batch may hold, no tensors


def _batch_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    tensor = Value(TENSOR, lib=value.lib, where=value.where)
    if method == "items":
        return Value(LIST, item=Value(LIST, items=(A_NUMBER, tensor)))
    if method == "keys":
        return Value(LIST, item=A_NUMBER)
    if method == "values":
        return Value(LIST, item=tensor)
    if method in ("to", "cuda"):
        return _moved(walk, node, value, method, arguments)
    if method in ("get", "pop"):
        key = arguments[0].const if arguments else NOTHING
        return NO_IDEA if isinstance(key, str) and key.startswith(_OPTIONS) else tensor
    if method in ("copy", "clone"):
        return value
    return _tensor_method(walk, node, tensor, method, arguments)


def _model_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    own = attribute(value, method) if value.ref is not None else NO_IDEA
    if own.kind == FUNCTION:
        return _returned(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return _called_model(walk, node, own, arguments)
    if method in ("parameters", "buffers"):
        return Value(LIST, item=Value(TENSOR, lib=value.lib))
    if method in ("named_parameters", "named_buffers"):
        return Value(LIST, item=Value(LIST, items=(A_NUMBER, Value(TENSOR, lib=value.lib))))
    if method in ("modules", "children"):
        return Value(LIST, item=Value(MODEL, lib=value.lib))
    if method in _SAME_MODEL:
        where = where_of_device(arguments[0]) if method == "to" and arguments else value.where
        return value.with_(where=where or value.where)
    if method in ("generate", "forward", "call", "get_input_embeddings"):
        return Value(OUTPUT, lib=value.lib)
    if method in ("predict",):
        return AN_ARRAY
    if method == "clip_grad_norm_":
        return Value(TENSOR, lib="torch", where="device")
    if method in ("state_dict", "fit", "evaluate", "compile", "summary", "save", "save_pretrained"):
        return NO_IDEA
    return NO_IDEA


_SAME_MODEL = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "half",
        "float",
        "bfloat16",
        "double",
        "requires_grad_",
        "apply",
        "module",
        "share_memory",
        "to_empty",
    ]
)


def _called_model(walk: Evaluator, node: ast.Call, callee: Value, arguments: Arguments) -> Value:
    method = None
    if callee.ref is not None:
        cls: Class = callee.ref
        method = cls.method("forward") or cls.method("call") or cls.method("__call__")
    if method is not None and method.returns is not None and method.returns is not NO_IDEA:
        return method.returns
    if callee.kind == INSTANCE and not (callee.ref is not None and callee.ref.is_module):
        return NO_IDEA
    where = callee.where if callee.where == "device" or not arguments else _where_of(arguments)
    name = callee.name
    tensor = name.startswith(("torch.nn.", "keras.layers.", "keras.losses.")) and not name.endswith(
        ("LSTM", "GRU", "RNN", "MultiheadAttention")
    )
    dtype = "float" if tensor and callee.lib == "torch" else ""
    where = "" if where == "host" else where
    return Value(TENSOR if tensor else OUTPUT, lib=callee.lib, where=where, dtype=dtype)


def _accelerator_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    if method in ("prepare", "prepare_model", "prepare_data_loader"):
        prepared = tuple(
            one.with_(prepared=True, where="device" if one.kind == MODEL else one.where)
            for one in map(_by_its_name, node.args, arguments)
        )
        return prepared[0] if len(prepared) == 1 else Value(LIST, items=prepared)
    if method in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
        return arguments[0] if arguments and arguments[0].kind == LIST else Value(OUTPUT, lib="torch", where="device")
    if method in ("unwrap_model", "skip_first_batches"):
        return arguments[0] if arguments else NO_IDEA
    if method in ("accumulate", "autocast", "no_sync", "main_process_first", "local_main_process_first", "profile"):
        return NO_IDEA
    return NO_IDEA


def _by_its_name(node: ast.expr, value: Value) -> Value:
    """Of what is not known the kind that its name says: `train_dl` out of another file."""
    return by_name(node.id) if value.kind == UNKNOWN and isinstance(node, ast.Name) else value


def _dataset_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return value if method not in ("__len__", "__getitem__") else NO_IDEA


_TFDATA_SAME = frozenset(
    [
        "map",
        "batch",
        "shuffle",
        "repeat",
        "take",
        "skip",
        "cache",
        "prefetch",
        "filter",
        "padded_batch",
        "unbatch",
        "interleave",
        "with_options",
        "enumerate",
        "ragged_batch",
        "shard",
        "concatenate",
        "window",
        "flat_map",
        "apply",
        "rebatch",
        "zip",
        "as_numpy_iterator",
    ]
)


def _tfdata_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return value if method in _TFDATA_SAME else NO_IDEA


def _list_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    func = node.func
    if method in ("append", "add", "insert", "extend", "appendleft") and arguments and isinstance(func, ast.Attribute):
        given = element(arguments[-1]) if method == "extend" else arguments[-1]
        item = given if value.item is None else join(value.item, given)
        walk.assign_again(func.value, value.with_(item=item, items=None, const=NOTHING))
        return NONE
    if method == "items":
        return Value(LIST, item=Value(LIST, items=(A_NUMBER, value.item or NO_IDEA)))
    if method == "values":
        return Value(LIST, item=value.item)
    if method == "keys":
        return Value(LIST, item=A_NUMBER)
    if method in ("get", "pop", "popleft", "setdefault"):
        return subscript(value, arguments[0], node.args[0]) if arguments else element(value)
    if method in ("update", "clear") and isinstance(func, ast.Attribute):
        walk.assign_again(func.value, value.with_(made=None, items=None, const=NOTHING, item=None))
        return NONE
    if method in ("copy",):
        return value
    if method in ("index", "count"):
        return A_NUMBER
    return NO_IDEA


def _strategy_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    if method == "scope":
        return value
    if method in ("run", "reduce", "experimental_run_v2"):
        function = arguments[0] if arguments else NO_IDEA
        if method != "reduce":
            _give_replicas(walk, node, function)
        if method == "run" and function.kind == FUNCTION:
            return _returned(function.ref, ())
        return Value(TENSOR, lib="tf") if method == "reduce" else NO_IDEA
    if method in ("experimental_distribute_dataset", "distribute_datasets_from_function"):
        return arguments[0] if arguments and arguments[0].kind == TFDATA else Value(TFDATA)
    return NO_IDEA


_OF_REPLICA = Value(BATCH, lib="tf")


def _give_replicas(walk: Evaluator, node: ast.Call, function: Value) -> None:
    """`strategy.run(step, args=(next(iterator),))`: what nothing is known of is a part of a batch."""
    if function.kind != FUNCTION or not isinstance(function.ref, Function):
        return
    given = (
        node.args[1] if len(node.args) > 1 else next((one.value for one in node.keywords if one.arg == "args"), None)
    )
    items = walk.at.value(given).items or ()
    parameters = function.ref.parameters[1 if function.ref.cls is not None else 0 :]
    for parameter, item in zip(parameters, items, strict=False):
        _join_given(function.ref, parameter.arg, _OF_REPLICA if item.kind == UNKNOWN else item)


def _loader_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return value.with_(prepared=True) if method == "per_device_loader" else NO_IDEA


def _array_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return A_NUMBER if method in ("item", "any", "all") else AN_ARRAY


def _number_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    if method == "join" and arguments:
        return A_NUMBER
    return A_NUMBER if method in ("format", "strip", "lower", "upper", "replace", "encode") else NO_IDEA


def _scheduler_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return Value(LIST, item=Value(NUMBER, varies=True)) if method == "get_last_lr" else NO_IDEA


_REGISTER = frozenset(("register_buffer", "register_parameter"))


def _registered(value: Value, node: ast.Call, arguments: Arguments) -> Value:
    """`self.register_buffer("mask", tensor)` makes an attribute."""
    name = arguments[0].const if arguments else NOTHING
    cls = value.ref
    if isinstance(cls, Class) and isinstance(name, str) and len(arguments) > 1 and arguments[1].kind == TENSOR:
        cls.attributes[name] = arguments[1].with_(where="")
    return NONE


def _instance_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    if method in _REGISTER:
        return _registered(value, node, arguments)
    if method == "add_weight" and value.ref is not None and value.ref.lib == "tf":
        return Value(TENSOR, lib="tf")
    if value.name == _SUPER_TRAINER:
        return _OF_TRAINER.get(method, NO_IDEA)
    own = attribute(value, method)
    if own.kind == FUNCTION:
        return _returned(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return _called_model(walk, node, own, arguments)
    return NO_IDEA


_OF_TRAINER = {
    "training_step": Value(TENSOR, lib="torch", where="device", dtype="float"),
    **dict.fromkeys(("compute_loss", "prediction_step"), Value(OUTPUT, lib="torch", where="device")),
}


def _tokenizer_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return _encoded(walk, node, value, arguments) if method in ("pad", "batch_encode_plus", "encode_plus") else NO_IDEA


_Method = Callable[[Evaluator, ast.Call, Value, str, Sequence[Value]], Value]
_METHODS: dict[str, _Method] = {
    TENSOR: _tensor_method,
    OUTPUT: _batch_method,
    BATCH: _batch_method,
    MODEL: _model_method,
    ACCELERATOR: _accelerator_method,
    DATASET: _dataset_method,
    TFDATA: _tfdata_method,
    LIST: _list_method,
    STRATEGY: _strategy_method,
    LOADER: _loader_method,
    ARRAY: _array_method,
    NUMBER: _number_method,
    SCHEDULER: _scheduler_method,
    INSTANCE: _instance_method,
    TOKENIZER: _tokenizer_method,
}


# -- calling a value -----------------------------------------------------------------------------------------------


def _encoded(walk: Evaluator, node: ast.Call, callee: Value, arguments: Arguments) -> Value:
    tensors = any(one.arg == "return_tensors" for one in node.keywords)
    kind = BATCH if tensors else LIST
    return Value(kind, lib="torch" if tensors else "", made=node, made_at=walk.at, name="tokenizer")


def _collated(walk: Evaluator, node: ast.Call, callee: Value, arguments: Arguments) -> Value:
    return Value(BATCH, lib="torch", where="host", made=node, made_at=walk.at, name="collator")


_Called = Callable[[Evaluator, ast.Call, Value, Sequence[Value]], Value]
_CALLED: dict[str, _Called] = {
    MODEL: _called_model,
    INSTANCE: _called_model,
    TOKENIZER: _encoded,
    COLLATOR: _collated,
}
