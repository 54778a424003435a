"""The values of calls.

What lives here: what a call gives, by its callee: a library's name, a value's method, a function or class of the
program. What does not: the tables (stubs.py), methods (methods.py), functions with a rule of their own (functions.py).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.check import stubs
from tpu_magics.check.call_binding import give, returned
from tpu_magics.check.call_effects import mark, mark_called
from tpu_magics.check.evaluate import (
    AN_ITEM,
    Evaluator,
    joined,
)
from tpu_magics.check.functions import SPECIAL
from tpu_magics.check.methods import CALLED, METHODS
from tpu_magics.check.program import Call, Class, Function
from tpu_magics.check.tensors import made_tensor, moved
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
    NO_IDEA,
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
    target = _called(callee)
    if target is not None:
        give(walk, target, call, arguments)
        mark_called(walk, target)
    mark(walk, call, arguments)


def _called(callee: Value) -> Function | None:
    """The function of this program that a call runs."""
    if callee.kind == FUNCTION:
        return callee.ref if isinstance(callee.ref, Function) and not callee.prepared else None
    owner: Class | None = callee.ref if callee.kind in (MODEL, INSTANCE, CLASS) else None
    if owner is None:
        return None
    if callee.kind == CLASS:
        return owner.method("__init__")
    return owner.method("forward") or owner.method("call") or owner.method("__call__")


def _result(
    walk: Evaluator, node: ast.Call, callee: Value, name: str, receiver: Value, method: str, arguments: Arguments
) -> Value:
    if name:
        return _by_name(walk, node, name, arguments)
    if callee.kind == FUNCTION:
        return returned(callee.ref, arguments)
    if callee.kind == CLASS:
        return _instance(walk, node, callee)
    if method:
        found = METHODS.get(receiver.kind)
        if found is not None:
            return found(walk, node, receiver, method, arguments)
    if method == "cpu" and receiver.kind == UNKNOWN and not node.args:
        return Value(TENSOR, lib="torch", where="host")
    if receiver is AN_ITEM:
        return _item_method(walk, node, method, arguments)
    handler = CALLED.get(callee.kind)
    return handler(walk, node, callee, arguments) if handler is not None else NO_IDEA


def _item_method(walk: Evaluator, node: ast.Call, method: str, arguments: Arguments) -> Value:
    """Of a part of something unknown that a loop goes over: a batch, where it is sent to a device."""
    if method == "items":
        return Value(LIST, item=Value(LIST, items=(A_NUMBER, AN_ITEM)))
    if method == "values":
        return Value(LIST, item=AN_ITEM)
    if method in ("to", "cuda"):
        sent = moved(walk, node, _SENT, method, arguments)
        return sent if sent.where == "device" else AN_ITEM
    return AN_ITEM if method in ("get", "pop", "copy") else NO_IDEA


_SENT = Value(BATCH, lib="torch")


def _instance(walk: Evaluator, node: ast.Call, callee: Value) -> Value:
    cls: Class = callee.ref
    if cls.is_module:
        return Value(MODEL, lib=cls.lib, ref=cls, made=node, made_at=walk.at, name=cls.name)
    for base in cls.all_bases():
        value = stubs.call(base)
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
    special = SPECIAL.get(name)
    if special is not None:
        return special(walk, node, name, arguments)
    value = stubs.call(name)
    if value is NO_IDEA:
        return NO_IDEA
    if value.kind in (TENSOR, OUTPUT):
        return made_tensor(walk, node, name, value, arguments)
    if value.kind == MODEL and value.lib == "torch" and name.startswith("torch.nn.") and arguments:
        return value.with_(made=node, made_at=walk.at, name=name, item=_modules_in(arguments))
    if value.kind in _DESCRIBED or name.startswith("torch.nn."):
        return value.with_(made=node, made_at=walk.at, name=name)
    return value


def _modules_in(arguments: Arguments) -> Value | None:
    models = [one for one in arguments if one.kind == MODEL]
    return joined(models) if models else None
