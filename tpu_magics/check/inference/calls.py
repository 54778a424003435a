"""What a call gives, and what it says about the code around it: a step, a launch, code of the host."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.expressions import UNKNOWN_ITEM, Evaluator, join_all
from tpu_magics.check.inference.functions import SPECIAL, bind_arguments, returned_value
from tpu_magics.check.inference.methods import CALLED, METHODS
from tpu_magics.check.inference.tensors import create_tensor, move_tensor
from tpu_magics.check.inference.values import (
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
from tpu_magics.check.program import CallSite, Class, Function

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]
    from tpu_magics.check.inference.expressions import Evaluator


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
        result = METHODS.get(receiver.kind)
        if result is not None:
            return result(walk, node, receiver, method, arguments)
    if method == "cpu" and receiver.kind == UNKNOWN and not node.args:
        return AbstractValue(TENSOR, lib="torch", where="host")
    if receiver is UNKNOWN_ITEM:
        return _item_method(walk, node, method, arguments)
    if callee.kind == UNKNOWN and any(one.arg == "return_tensors" for one in node.keywords):
        return CALLED[TOKENIZER](walk, node, callee, arguments)  # only processors of transformers have it
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
        return AbstractValue(MODEL, lib=cls.lib, ref=cls, creator=node, creator_ctx=walk.ctx, name=cls.name)
    for base in cls.all_bases():
        value = library_results.call(base)
        if value is not UNKNOWN_VALUE and value.kind not in (TENSOR, NUMBER, ARRAY):
            return value.with_(creator=node, creator_ctx=walk.ctx, name=base)
    if cls.method("__init__") is None:
        _bind_fields(walk, node, cls)
    if any(base.rpartition(".")[2].endswith("Dataset") for base in cls.all_bases()):
        return AbstractValue(DATASET, lib="torch", ref=cls, creator=node, creator_ctx=walk.ctx, name=cls.name)
    return AbstractValue(INSTANCE, ref=cls, creator=node, creator_ctx=walk.ctx, name=cls.name)


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
    value = library_results.call(name)
    if value is UNKNOWN_VALUE:
        return UNKNOWN_VALUE
    if value.kind in (TENSOR, OUTPUT):
        return create_tensor(walk, node, name, value, arguments)
    if value.kind == MODEL and value.lib == "torch" and name.startswith("torch.nn.") and arguments:
        return value.with_(creator=node, creator_ctx=walk.ctx, name=name, item=_modules_in(arguments))
    if value.kind in _DESCRIBED or name.startswith("torch.nn."):
        return value.with_(creator=node, creator_ctx=walk.ctx, name=name)
    return value


def _modules_in(arguments: Arguments) -> AbstractValue | None:
    models = [one for one in arguments if one.kind == MODEL]
    return join_all(models) if models else None


LAUNCHERS = frozenset(
    ("accelerate.notebook_launcher", "accelerate.debug_launcher", "torch_xla.distributed.xla_multiprocessing.spawn",
     "torch_xla.distributed.xla_multiprocessing.MpModelWrapper.run", "torch_xla.launch", "tpu_magics.train",
     "torch_xla.distributed.xla_multiprocessing.spawn_executor", "torch.multiprocessing.spawn")
)  # fmt: skip
_STEPS = frozenset(
    (
        "torch_xla.core.xla_model.optimizer_step",
        "torch_xla.core.xla_model.mark_step",
        "torch_xla.sync",
        "torch_xla.step",
    )
)
# Keywords and positions whose functions run on the host, one sample or batch at a time.
_HOST_KEYWORDS = frozenset(("collate_fn", "compute_metrics", "worker_init_fn", "transform", "target_transform",
    "preprocess_logits_for_metrics", "transforms"))  # fmt: skip
_HOST_METHODS = frozenset(("map", "filter", "with_transform", "set_transform"))
JIT = ("jit_compile", "experimental_compile")  # the second name is the older one
_STEP_CLOSURES = frozenset(("torch_xla.core.xla_model.add_step_closure",))


def record_effects(walk: Evaluator, call: CallSite, arguments: Sequence[AbstractValue]) -> None:
    """Records the effects of this call on loops and functions."""
    node = call.node
    if call.method:
        _record_method(walk, call, arguments)
    elif call.name in _STEPS:
        _step(walk)
    elif call.name in LAUNCHERS:
        _launch(walk, node, arguments)
    elif call.name in _STEP_CLOSURES and arguments:
        _host(arguments[0])
    elif call.name == "tensorflow.function" and arguments and _jit(walk, node):
        _compiled(arguments[0])
    if _is_model_call(walk, node):
        _model_call(walk, any(one.where == "device" and one.kind in (TENSOR, BATCH) for one in arguments))
    for keyword in node.keywords:
        if keyword.arg in _HOST_KEYWORDS:
            _host(walk.ctx.value(keyword.value))


def _record_method(walk: Evaluator, call: CallSite, arguments: Sequence[AbstractValue]) -> None:
    kind, method = call.receiver.kind, call.method
    if (
        (method == "backward" and kind not in (ARRAY, NUMBER, LIST))
        or (method == "step" and kind == OPTIMIZER)
        or (method in ("apply_gradients", "minimize") and kind == OPTIMIZER)
        or (method in ("train_on_batch", "test_on_batch") and kind == MODEL)
    ):
        _step(walk)
    elif kind == STRATEGY and method == "run" and arguments:
        if "Mirrored" not in call.receiver.name:  # for GPUs: XLA only with jit_compile
            _compiled(arguments[0])
        _step(walk)
    elif method in _HOST_METHODS and kind in (DATASET, UNKNOWN, TFDATA) and arguments:
        _host(arguments[0])
    elif kind == ACCELERATOR and method == "backward":
        _step(walk)
    elif method == "compile" and call.node.keywords:
        _keras_functions(walk, call.node)


def _keras_functions(walk: Evaluator, node: ast.Call) -> None:
    """`model.compile(loss=masked_loss, metrics=[accuracy])`: Keras calls them in its step, with two tensors."""
    for keyword in node.keywords:
        value = walk.ctx.value(keyword.value)
        for one in (value, *(value.items or ())):
            if keyword.arg in ("loss", "metrics", "weighted_metrics") and one.kind == FUNCTION and one.ref is not None:
                one.ref.of_keras = True
                for parameter in one.ref.parameters[:2]:
                    one.ref.argument_values.setdefault(parameter.arg, AbstractValue(TENSOR, lib="tf"))


def _is_model_call(walk: Evaluator, node: ast.Call) -> bool:
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in ("generate", "forward"):
        return walk.ctx.value(func.value).kind == MODEL
    return walk.ctx.value(func).kind == MODEL


def _model_call(walk: Evaluator, of_sent: bool = False) -> None:
    """A model call on a loader's batch makes the loop an evaluation loop; repeated calls outside a module (a module
    loops over its layers) make it a generation loop. `of_sent`: the model is called on a tensor that was moved to the
    device."""
    loops, function = walk.ctx.loops, walk.ctx.function
    if not loops:
        if function is not None:
            function.runs_model = True
        return
    over = loops[-1].loader
    unknown = over.kind == UNKNOWN and (over.prepared or of_sent)
    if over.kind in (LOADER, TFDATA) or _over_loader(over) or unknown:
        loops[-1].is_step = True
    elif isinstance(loops[-1].node, ast.While) or over.name == "builtins.range":
        module = function is not None and function.cls is not None and function.cls.is_module
        loops[-1].is_step = loops[-1].is_step or not module


def record_called_function(walk: Evaluator, target: Function) -> None:
    """Records the call of a function of this program: the caller does what the function does in each call."""
    if target.steps:
        _step(walk)
    elif target.runs_model and (target.cls is None or not target.cls.is_module):
        _model_call(walk)


def _over_loader(value: AbstractValue) -> bool:
    return value.kind == LIST and isinstance(value.ref, AbstractValue) and value.ref.kind in (LOADER, TFDATA)


def _step(walk: Evaluator) -> None:
    if walk.ctx.loops:
        walk.ctx.loops[-1].is_step = True
    function = walk.ctx.function
    if function is not None:
        function.has_step = True
        if not walk.ctx.loops:
            function.steps = True


def _launch(walk: Evaluator, node: ast.Call, arguments: Sequence[AbstractValue]) -> None:
    given = arguments[0] if arguments else None
    for keyword in node.keywords:
        if keyword.arg in ("function", "fn"):
            given = walk.ctx.value(keyword.value)
    if given is not None and given.kind == FUNCTION and isinstance(given.ref, Function):
        given.ref.launched = True


def _host(value: AbstractValue) -> None:
    if value.kind == FUNCTION and isinstance(value.ref, Function):
        value.ref.host = True
    elif value.kind == LIST:
        for one in value.items or ():
            _host(one)


def _compiled(value: AbstractValue) -> None:
    if value.kind == FUNCTION and isinstance(value.ref, Function):
        value.ref.compiled = True


def _jit(walk: Evaluator, node: ast.Call) -> bool:
    return any(one.arg in JIT and walk.ctx.constant(one.value) is True for one in node.keywords)
