"""What a call says about the code around it: a training step, a launch, a function that runs on the host."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.program import CallSite, Function
from tpu_magics.check.values import (
    ACCELERATOR,
    ARRAY,
    BATCH,
    DATASET,
    FUNCTION,
    LIST,
    LOADER,
    MODEL,
    NUMBER,
    OPTIMIZER,
    STRATEGY,
    TENSOR,
    TFDATA,
    UNKNOWN,
    AbstractValue,
)

if TYPE_CHECKING:
    from tpu_magics.check.evaluate import Evaluator

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
