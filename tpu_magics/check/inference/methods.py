"""Methods of all values but tensors, and calls of values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference.expressions import Evaluator, attribute, element, subscript
from tpu_magics.check.inference.functions import SUPER_TRAINER, join_parameter, returned_value
from tpu_magics.check.inference.parameters import value_of_name
from tpu_magics.check.inference.tensors import move_tensor, tensor_method, where_of, where_of_device
from tpu_magics.check.inference.values import (
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
    UNKNOWN_VALUE,
    AbstractValue,
    join,
)
from tpu_magics.check.program import Class, Function

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]


_OPTIONS = ("return_", "output_", "use_", "is_", "has_")  # keys of a batch that are not tensors


def _batch_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    tensor = AbstractValue(TENSOR, lib=value.lib, where=value.where)
    if method == "items":
        return AbstractValue(LIST, item=AbstractValue(LIST, items=(A_NUMBER, tensor)))
    if method == "keys":
        return AbstractValue(LIST, item=A_NUMBER)
    if method == "values":
        return AbstractValue(LIST, item=tensor)
    if method in ("to", "cuda"):
        return move_tensor(walk, node, value, method, arguments)
    if method in ("get", "pop"):
        key = arguments[0].const if arguments else NOTHING
        return UNKNOWN_VALUE if isinstance(key, str) and key.startswith(_OPTIONS) else tensor
    if method in ("copy", "clone"):
        return value
    return tensor_method(walk, node, tensor, method, arguments)


def _model_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    own = attribute(value, method) if value.ref is not None else UNKNOWN_VALUE
    if own.kind == FUNCTION:
        return returned_value(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return model_result(walk, node, own, arguments)
    if method in ("parameters", "buffers"):
        return AbstractValue(LIST, item=AbstractValue(TENSOR, lib=value.lib))
    if method in ("named_parameters", "named_buffers"):
        return AbstractValue(LIST, item=AbstractValue(LIST, items=(A_NUMBER, AbstractValue(TENSOR, lib=value.lib))))
    if method in ("modules", "children"):
        return AbstractValue(LIST, item=AbstractValue(MODEL, lib=value.lib))
    if method in SAME_MODEL:
        where = where_of_device(arguments[0]) if method == "to" and arguments else value.where
        return value.with_(where=where or value.where)
    if method in ("generate", "forward", "call", "get_input_embeddings"):
        return AbstractValue(OUTPUT, lib=value.lib)
    if method in ("predict",):
        return AN_ARRAY
    if method == "clip_grad_norm_":
        return AbstractValue(TENSOR, lib="torch", where="device")
    return UNKNOWN_VALUE


# Methods that return the model.
SAME_MODEL = frozenset(
    ("to", "cuda", "cpu", "train", "eval", "half", "float", "bfloat16", "double", "requires_grad_", "apply", "module",
     "share_memory", "to_empty")
)  # fmt: skip


def model_result(walk: Evaluator, node: ast.Call, callee: AbstractValue, arguments: Arguments) -> AbstractValue:
    method = None
    if callee.ref is not None:
        cls: Class = callee.ref
        method = cls.method("forward") or cls.method("call") or cls.method("__call__")
    if method is not None and method.returns is not None and method.returns is not UNKNOWN_VALUE:
        return method.returns
    if callee.kind == INSTANCE and not (callee.ref is not None and callee.ref.is_module):
        return UNKNOWN_VALUE
    where = callee.where if callee.where == "device" or not arguments else where_of(arguments)
    name = callee.name
    tensor = name.startswith(("torch.nn.", "keras.layers.", "keras.losses.")) and not name.endswith(
        ("LSTM", "GRU", "RNN", "MultiheadAttention")
    )
    dtype = "float" if tensor and callee.lib == "torch" else ""
    where = "" if where == "host" else where
    return AbstractValue(TENSOR if tensor else OUTPUT, lib=callee.lib, where=where, dtype=dtype)


def _accelerator_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    if method in ("prepare", "prepare_model", "prepare_data_loader"):
        prepared = tuple(
            one.with_(prepared=True, where="device" if one.kind == MODEL else one.where)
            for one in map(_by_its_name, node.args, arguments)
        )
        return prepared[0] if len(prepared) == 1 else AbstractValue(LIST, items=prepared)
    if method in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
        return (
            arguments[0]
            if arguments and arguments[0].kind == LIST
            else AbstractValue(OUTPUT, lib="torch", where="device")
        )
    if method in ("unwrap_model", "skip_first_batches"):
        return arguments[0] if arguments else UNKNOWN_VALUE
    return UNKNOWN_VALUE


def _by_its_name(node: ast.expr, value: AbstractValue) -> AbstractValue:
    """For an unknown value the kind that its name implies: `train_dl` from another file."""
    return value_of_name(node.id) if value.kind == UNKNOWN and isinstance(node, ast.Name) else value


def _dataset_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return value if method not in ("__len__", "__getitem__") else UNKNOWN_VALUE


_TFDATA_SAME = frozenset(
    ("map", "batch", "shuffle", "repeat", "take", "skip", "cache", "prefetch", "filter", "padded_batch", "unbatch",
     "interleave", "with_options", "enumerate", "ragged_batch", "shard", "concatenate", "window", "flat_map", "apply",
     "rebatch", "zip", "as_numpy_iterator")
)  # fmt: skip


def _tfdata_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return value if method in _TFDATA_SAME else UNKNOWN_VALUE


def _list_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    func = node.func
    if method in ("append", "add", "insert", "extend", "appendleft") and arguments and isinstance(func, ast.Attribute):
        given = element(arguments[-1]) if method == "extend" else arguments[-1]
        item = given if value.item is None else join(value.item, given)
        walk.assign_again(func.value, value.with_(item=item, items=None, const=NOTHING))
        return NONE
    if method == "items":
        return AbstractValue(LIST, item=AbstractValue(LIST, items=(A_NUMBER, value.item or UNKNOWN_VALUE)))
    if method == "values":
        return AbstractValue(LIST, item=value.item)
    if method == "keys":
        return AbstractValue(LIST, item=A_NUMBER)
    if method in ("get", "pop", "popleft", "setdefault"):
        return subscript(value, arguments[0], node.args[0]) if arguments else element(value)
    if method in ("update", "clear") and isinstance(func, ast.Attribute):
        walk.assign_again(func.value, value.with_(creator=None, items=None, const=NOTHING, item=None))
        return NONE
    if method in ("copy",):
        return value
    if method in ("index", "count"):
        return A_NUMBER
    return UNKNOWN_VALUE


def _strategy_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    if method == "scope":
        return value
    if method in ("run", "reduce", "experimental_run_v2"):
        function = arguments[0] if arguments else UNKNOWN_VALUE
        if method != "reduce":
            _bind_replica_arguments(walk, node, function)
        if method == "run" and function.kind == FUNCTION:
            return returned_value(function.ref, ())
        return AbstractValue(TENSOR, lib="tf") if method == "reduce" else UNKNOWN_VALUE
    if method in ("experimental_distribute_dataset", "distribute_datasets_from_function"):
        return arguments[0] if arguments and arguments[0].kind == TFDATA else AbstractValue(TFDATA)
    return UNKNOWN_VALUE


_OF_REPLICA = AbstractValue(BATCH, lib="tf")


def _bind_replica_arguments(walk: Evaluator, node: ast.Call, function: AbstractValue) -> None:
    """`strategy.run(step, args=(next(iterator),))`: an unknown argument is part of a batch."""
    if function.kind != FUNCTION or not isinstance(function.ref, Function):
        return
    given = (
        node.args[1] if len(node.args) > 1 else next((one.value for one in node.keywords if one.arg == "args"), None)
    )
    items = walk.ctx.value(given).items or ()
    parameters = function.ref.parameters[1 if function.ref.cls is not None else 0 :]
    for parameter, item in zip(parameters, items, strict=False):
        join_parameter(function.ref, parameter.arg, _OF_REPLICA if item.kind == UNKNOWN else item)


def _loader_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return value.with_(prepared=True) if method == "per_device_loader" else UNKNOWN_VALUE


def _array_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return A_NUMBER if method in ("item", "any", "all") else AN_ARRAY


def _number_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    if method == "join" and arguments:
        return A_NUMBER
    return A_NUMBER if method in ("format", "strip", "lower", "upper", "replace", "encode") else UNKNOWN_VALUE


def _scheduler_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return AbstractValue(LIST, item=AbstractValue(NUMBER, varies=True)) if method == "get_last_lr" else UNKNOWN_VALUE


_REGISTER = frozenset(("register_buffer", "register_parameter"))


def _registered(value: AbstractValue, node: ast.Call, arguments: Arguments) -> AbstractValue:
    """`self.register_buffer("mask", tensor)` makes an attribute."""
    name = arguments[0].const if arguments else NOTHING
    cls = value.ref
    if isinstance(cls, Class) and isinstance(name, str) and len(arguments) > 1 and arguments[1].kind == TENSOR:
        cls.attributes[name] = arguments[1].with_(where="")
    return NONE


def _instance_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    if method in _REGISTER:
        return _registered(value, node, arguments)
    if method == "add_weight" and value.ref is not None and value.ref.lib == "tf":
        return AbstractValue(TENSOR, lib="tf")
    if value.name == SUPER_TRAINER:
        return _OF_TRAINER.get(method, UNKNOWN_VALUE)
    own = attribute(value, method)
    if own.kind == FUNCTION:
        return returned_value(own.ref, arguments)
    if own.kind in (MODEL, INSTANCE):
        return model_result(walk, node, own, arguments)
    return UNKNOWN_VALUE


_OF_TRAINER = {
    "training_step": AbstractValue(TENSOR, lib="torch", where="device", dtype="float"),
    **dict.fromkeys(("compute_loss", "prediction_step"), AbstractValue(OUTPUT, lib="torch", where="device")),
}


def _tokenizer_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    return (
        _encoded(walk, node, value, arguments)
        if method in ("pad", "batch_encode_plus", "encode_plus")
        else UNKNOWN_VALUE
    )


_Method = Callable[[Evaluator, ast.Call, AbstractValue, str, Sequence[AbstractValue]], AbstractValue]
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


# -- calls of values --------------------------------------------------------------------------------------------------


def _encoded(walk: Evaluator, node: ast.Call, callee: AbstractValue, arguments: Arguments) -> AbstractValue:
    tensors = any(one.arg == "return_tensors" for one in node.keywords)
    made = AbstractValue(BATCH, lib="torch", where="host") if tensors else AbstractValue(LIST)
    return made.with_(creator=node, creator_ctx=walk.ctx, name="tokenizer")


def _collated(walk: Evaluator, node: ast.Call, callee: AbstractValue, arguments: Arguments) -> AbstractValue:
    return AbstractValue(BATCH, lib="torch", where="host", creator=node, creator_ctx=walk.ctx, name="collator")


_Called = Callable[[Evaluator, ast.Call, AbstractValue, Sequence[AbstractValue]], AbstractValue]
CALLED: dict[str, _Called] = {
    MODEL: model_result,
    INSTANCE: model_result,
    TOKENIZER: _encoded,
    COLLATOR: _collated,
}
