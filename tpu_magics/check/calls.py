"""The value of a call: by the name of a library function, by a method, or by a function or class of the program."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.check import stubs
from tpu_magics.check.call_binding import bind_arguments, returned_value
from tpu_magics.check.call_effects import record_called_function, record_effects
from tpu_magics.check.evaluate import (
    UNKNOWN_ITEM,
    Evaluator,
    join_all,
)
from tpu_magics.check.functions import SPECIAL
from tpu_magics.check.methods import CALLED, METHODS
from tpu_magics.check.program import CallSite, Class, Function
from tpu_magics.check.tensors import create_tensor, move_tensor
from tpu_magics.check.values import (
    A_NUMBER,
    ACCELERATOR,
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
    UNKNOWN_VALUE,
    AbstractValue,
    join,
)

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]

_DESCRIBED = frozenset(
    (LOADER, MODEL, OPTIMIZER, SCHEDULER, DATASET, TFDATA, TOKENIZER, COLLATOR, ACCELERATOR, TRAINER, "arguments",
     DEVICE, STRATEGY, RESOLVER, TENSOR, OUTPUT, BATCH, INSTANCE)
)  # fmt: skip


def evaluate_call(walk: Evaluator, node: ast.Call) -> AbstractValue:
    """The value of the call, which is recorded in the program."""
    func = node.func
    receiver, method, name = UNKNOWN_VALUE, "", ""
    callee = walk.value(func)
    if isinstance(func, ast.Attribute):
        owner: AbstractValue = func.value._value  # type: ignore[attr-defined]
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
    call = CallSite(node, walk.ctx, name, method, receiver, value)
    _record(walk, call, callee, arguments)
    return value


def _record(walk: Evaluator, call: CallSite, callee: AbstractValue, arguments: Arguments) -> None:
    if walk.recording:
        walk.program.all_calls.append(call)
        if walk.ctx.function is not None:
            walk.ctx.function.calls.append(call)
    target = _called(callee)
    if target is not None:
        bind_arguments(walk, target, call, arguments)
        record_called_function(walk, target)
    record_effects(walk, call, arguments)


def _called(callee: AbstractValue) -> Function | None:
    """The function of this program that the call runs."""
    if callee.kind == FUNCTION:
        return callee.ref if isinstance(callee.ref, Function) and not callee.prepared else None
    owner: Class | None = callee.ref if callee.kind in (MODEL, INSTANCE, CLASS) else None
    if owner is None:
        return None
    if callee.kind == CLASS:
        return owner.method("__init__")
    return owner.method("forward") or owner.method("call") or owner.method("__call__")


def _result(
    walk: Evaluator,
    node: ast.Call,
    callee: AbstractValue,
    name: str,
    receiver: AbstractValue,
    method: str,
    arguments: Arguments,
) -> AbstractValue:
    if name:
        return _by_name(walk, node, name, arguments)
    if callee.kind == FUNCTION:
        return returned_value(callee.ref, arguments)
    if callee.kind == CLASS:
        return _instance(walk, node, callee)
    if method:
        found = METHODS.get(receiver.kind)
        if found is not None:
            return found(walk, node, receiver, method, arguments)
    if method == "cpu" and receiver.kind == UNKNOWN and not node.args:
        return AbstractValue(TENSOR, lib="torch", where="host")
    if receiver is UNKNOWN_ITEM:
        return _item_method(walk, node, method, arguments)
    handler = CALLED.get(callee.kind)
    return handler(walk, node, callee, arguments) if handler is not None else UNKNOWN_VALUE


def _item_method(walk: Evaluator, node: ast.Call, method: str, arguments: Arguments) -> AbstractValue:
    """A method of an item of an unknown iterable: a batch, if it is moved to a device."""
    if method == "items":
        return AbstractValue(LIST, item=AbstractValue(LIST, items=(A_NUMBER, UNKNOWN_ITEM)))
    if method == "values":
        return AbstractValue(LIST, item=UNKNOWN_ITEM)
    if method in ("to", "cuda"):
        sent = move_tensor(walk, node, _SENT, method, arguments)
        return sent if sent.where == "device" else UNKNOWN_ITEM
    return UNKNOWN_ITEM if method in ("get", "pop", "copy") else UNKNOWN_VALUE


_SENT = AbstractValue(BATCH, lib="torch")


def _instance(walk: Evaluator, node: ast.Call, callee: AbstractValue) -> AbstractValue:
    cls: Class = callee.ref
    if cls.is_module:
        return AbstractValue(MODEL, lib=cls.lib, ref=cls, made=node, made_ctx=walk.ctx, name=cls.name)
    for base in cls.all_bases():
        value = stubs.call(base)
        if value is not UNKNOWN_VALUE and value.kind not in (TENSOR, NUMBER, ARRAY):
            return value.with_(made=node, made_ctx=walk.ctx, name=base)
    if cls.method("__init__") is None:
        _bind_fields(walk, node, cls)
    if any(base.rpartition(".")[2].endswith("Dataset") for base in cls.all_bases()):
        return AbstractValue(DATASET, lib="torch", ref=cls, made=node, made_ctx=walk.ctx, name=cls.name)
    return AbstractValue(INSTANCE, ref=cls, made=node, made_ctx=walk.ctx, name=cls.name)


def _bind_fields(walk: Evaluator, node: ast.Call, cls: Class) -> None:
    """Sets the fields of a dataclass to the arguments of the call."""
    for keyword in node.keywords:
        before = cls.attribute(keyword.arg) if keyword.arg is not None else None
        if keyword.arg is not None and before is not None:
            cls.attributes[keyword.arg] = join(before, walk.ctx.value(keyword.value))


def _by_name(walk: Evaluator, node: ast.Call, name: str, arguments: Arguments) -> AbstractValue:
    special = SPECIAL.get(name)
    if special is not None:
        return special(walk, node, name, arguments)
    value = stubs.call(name)
    if value is UNKNOWN_VALUE:
        return UNKNOWN_VALUE
    if value.kind in (TENSOR, OUTPUT):
        return create_tensor(walk, node, name, value, arguments)
    if value.kind == MODEL and value.lib == "torch" and name.startswith("torch.nn.") and arguments:
        return value.with_(made=node, made_ctx=walk.ctx, name=name, item=_modules_in(arguments))
    if value.kind in _DESCRIBED or name.startswith("torch.nn."):
        return value.with_(made=node, made_ctx=walk.ctx, name=name)
    return value


def _modules_in(arguments: Arguments) -> AbstractValue | None:
    models = [one for one in arguments if one.kind == MODEL]
    return join_all(models) if models else None
