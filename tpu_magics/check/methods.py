"""Methods of everything but tensors, and values that are called.

What lives here: by the kind of the receiver, what a method gives. What does not: tensors (tensors.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.call_binding import join_given, returned
from tpu_magics.check.evaluate import (
    Evaluator,
    attribute,
    element,
    subscript,
)
from tpu_magics.check.functions import SUPER_TRAINER
from tpu_magics.check.parameters import by_name
from tpu_magics.check.program import Class, Function
from tpu_magics.check.tensors import moved, tensor_method, where_of, where_of_device
from tpu_magics.check.values import (
    A_NUMBER,
    ACCELERATOR,
    AN_ARRAY,
    ARRAY,
    BATCH,
    COLLATOR,
    DATASET,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODEL,
    NO_IDEA,
    NONE,
    NOTHING,
    NUMBER,
    OUTPUT,
    SCHEDULER,
    STRATEGY,
    TENSOR,
    TFDATA,
    TOKENIZER,
    UNKNOWN,
    Value,
    join,
)

if TYPE_CHECKING:
    Arguments = Sequence[Value]

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
        return moved(walk, node, value, method, arguments)
    if method in ("get", "pop"):
        key = arguments[0].const if arguments else NOTHING
        return NO_IDEA if isinstance(key, str) and key.startswith(_OPTIONS) else tensor
    if method in ("copy", "clone"):
        return value
    return tensor_method(walk, node, tensor, method, arguments)


def _model_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    own = attribute(value, method) if value.ref is not None else NO_IDEA
    if own.kind == FUNCTION:
        return returned(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return called_model(walk, node, own, arguments)
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


def called_model(walk: Evaluator, node: ast.Call, callee: Value, arguments: Arguments) -> Value:
    method = None
    if callee.ref is not None:
        cls: Class = callee.ref
        method = cls.method("forward") or cls.method("call") or cls.method("__call__")
    if method is not None and method.returns is not None and method.returns is not NO_IDEA:
        return method.returns
    if callee.kind == INSTANCE and not (callee.ref is not None and callee.ref.is_module):
        return NO_IDEA
    where = callee.where if callee.where == "device" or not arguments else where_of(arguments)
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
            return returned(function.ref, ())
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
        join_given(function.ref, parameter.arg, _OF_REPLICA if item.kind == UNKNOWN else item)


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
    if value.name == SUPER_TRAINER:
        return _OF_TRAINER.get(method, NO_IDEA)
    own = attribute(value, method)
    if own.kind == FUNCTION:
        return returned(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return called_model(walk, node, own, arguments)
    return NO_IDEA


_OF_TRAINER = {
    "training_step": Value(TENSOR, lib="torch", where="device", dtype="float"),
    **dict.fromkeys(("compute_loss", "prediction_step"), Value(OUTPUT, lib="torch", where="device")),
}


def _tokenizer_method(walk: Evaluator, node: ast.Call, value: Value, method: str, arguments: Arguments) -> Value:
    return _encoded(walk, node, value, arguments) if method in ("pad", "batch_encode_plus", "encode_plus") else NO_IDEA


_Method = Callable[[Evaluator, ast.Call, Value, str, Sequence[Value]], Value]
METHODS: dict[str, _Method] = {
    TENSOR: tensor_method,
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
CALLED: dict[str, _Called] = {
    MODEL: called_model,
    INSTANCE: called_model,
    TOKENIZER: _encoded,
    COLLATOR: _collated,
}
