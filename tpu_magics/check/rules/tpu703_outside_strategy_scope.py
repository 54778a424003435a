"""A model or an optimizer is created outside the strategy's scope.

What it does
    Reports, in a program that creates a TPUStrategy and trains, a Keras model, an optimizer object, or a metric object
    passed to `compile`, that is created outside `with strategy.scope():`. Objects that are created by a function called
    in the scope are inside. Loss functions, learning-rate schedules and datasets may be outside.
Why this is bad
    Variables are placed on the TPU's cores when they are created in the scope. Outside it they belong to no core: Keras
    raises "Mixing different tf.distribute.Strategy objects" or "Variable was not created in the distribution strategy
    scope", or trains on the host and leaves the TPU idle. `compile("adam")` outside the scope creates the optimizer
    there in Keras 3, but not in Keras 2: this is reported as advice.
Example
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with strategy.scope():
        model.compile(optimizer="adam", loss="mse")
Use instead
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
Limitations
    Functions that nothing in the program calls, and scopes that are entered without `with`, are not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _device_guards, _tensorflow
from tpu_magics.check.rules._tensorflow import IN, OUT
from tpu_magics.check.values import CLASS, STRATEGY

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU703"
NAME = "outside-strategy-scope"
GROUP = "tensorflow"
WHY = (
    'Variables created outside the scope belong to no core of the TPU: Keras raises ("Mixing different '
    'tf.distribute.Strategy objects"), or trains on the host and leaves the TPU idle.'
)

_WHY_NAME = (
    'Keras 3 creates the optimizer where compile is called, and training then raises "Mixing different '
    "tf.distribute.Strategy objects\" (Keras 2 enters the model's scope by itself)."
)

_MODELS = re.compile(
    r"keras\.(models\.)?(Sequential|Model)|keras\.(models|saving)\.(load_model|clone_model|model_from_json|model_from_config)"
    r"|keras\.applications\.(\w+\.)?[A-Z]\w*|transformers\.TF\w+(\.from_pretrained|\.from_config)?"
    r"|keras_(nlp|hub)\.models\.(?!\w*(Tokenizer|Preprocessor|Converter))\w+(\.from_preset)?"
)
_OPTIMIZERS = re.compile(
    r"(keras|tensorflow)\.optimizers\.(legacy\.|experimental\.)?[A-Z]\w*|tensorflow_addons\.optimizers\.[A-Z]\w*"
    r"|transformers\.(AdamWeightDecay|create_optimizer)|keras\.mixed_precision\.LossScaleOptimizer"
)
_METRICS = re.compile(r"(keras|tensorflow)\.metrics\.[A-Z]\w*")
_KERAS_MODELS = ("keras.Model", "keras.models.Model", "keras.Sequential", "keras.models.Sequential")
_TRAINS = ("fit", "compile", "train_on_batch", "fit_generator")
_RUNS = ("run", "experimental_run_v2")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not _tensorflow.strategies(program) or _tensorflow.is_entered(program):
        return
    made = [call for call in program.all_calls if not _is_part_of_module(call)]
    places: dict[int, tuple[CallSite, CallSite]] = {}
    for call in (*_models(program, made), *_optimizers(made), *_metrics(program, made)):
        shown = _outermost_call(call)
        places.setdefault(id(_group(shown)), (call, shown))
    scope = f"with {_tensorflow.strategy_name(program)}.scope():"
    for call, shown in places.values():
        if not _device_guards.is_in_other_device_branch(shown.node, shown.ctx):
            yield shown.ctx.finding(shown.node, _message(call, shown), f"Move it into `{scope}`.")
    for call in program.methods("compile"):
        if _names_optimizer(call) and not _device_guards.is_in_other_device_branch(call.node, call.ctx):
            message = f"{_short(call.node.func, call.ctx)} creates the optimizer outside the strategy's scope."
            yield call.ctx.finding(call.node, message, f"Move it into `{scope}`.", _WHY_NAME, advice=True)


def _trains(program: CheckedProgram) -> bool:
    runs = any(call.receiver.kind == STRATEGY for method in _RUNS for call in program.methods(method))
    return runs or any(program.methods(method) for method in _TRAINS)


def _is_part_of_module(call: CallSite) -> bool:
    """Objects that a module's own methods create belong to the module."""
    function = call.ctx.function
    return function is not None and function.cls is not None and function.cls.is_module


# -- created objects --------------------------------------------------------------------------------------------------


def _models(program: CheckedProgram, made: list[CallSite]) -> list[CallSite]:
    """The models outside that are trained; if unknown, all of them, unless one is created inside."""
    states = [(call, _tensorflow.state(call)) for call in made if _is_model(call)]
    outside = [call for call, state in states if state == OUT]
    if not outside:
        return []
    own = [call for call in outside if not call.name.startswith("keras.applications.")]
    if not _trains(program):  # the training is in another file
        return own or outside[-1:]
    inside = [call for call, state in states if state == IN]
    trained = [call for call in outside if _trained(program, call)]
    if any(_trained(program, call) for call in inside):  # those outside are other models, unless the scope uses them
        return [call for call in trained if any(map(_tensorflow.is_in_scope, _trained(program, call)))]
    if trained or inside:
        return trained
    return own or outside[-1:]


def _is_model(call: CallSite) -> bool:
    if call.name:
        return _MODELS.fullmatch(call.name) is not None
    value = call.ctx.value(call.node.func)
    return (
        value.kind == CLASS and value.ref.lib == "tf" and any(base in _KERAS_MODELS for base in value.ref.all_bases())
    )


def _trained(program: CheckedProgram, model: CallSite) -> list[CallSite]:
    """The calls that compile or train this model."""
    found = (call for method in _TRAINS for call in program.methods(method))
    return [call for call in found if call.receiver.made is model.node]


def _optimizers(made: list[CallSite]) -> Iterator[CallSite]:
    for call in made:
        if call.name and _OPTIMIZERS.fullmatch(call.name) and _tensorflow.state(call) == OUT:
            yield call


def _metrics(program: CheckedProgram, made: list[CallSite]) -> Iterator[CallSite]:
    """Metric objects in the arguments of a `compile` outside the scope, and those that a compiled step updates."""
    metrics = [call for call in made if call.name and _METRICS.fullmatch(call.name)]
    updated = {id(node) for node in _updated(program)} if metrics else set()
    for call in metrics:
        if (_compile_of(call) is not None or id(call.node) in updated) and _tensorflow.state(call) == OUT:
            yield call


def _updated(program: CheckedProgram) -> Iterator[ast.AST]:
    """The calls that created the values that compiled code calls, or whose `update_state` it calls."""
    for call in program.all_calls:
        if call.method == "update_state" or isinstance(call.node.func, ast.Name):
            value = call.receiver if call.method else call.ctx.value(call.node.func)
            if value.made is not None and call.ctx.compiled_tf:
                yield value.made


def _compile_of(call: CallSite) -> ast.Call | None:
    """The `model.compile(...)` in whose arguments a call stands."""
    for outer in call.ctx.parents(call.node):
        if isinstance(outer, ast.stmt):
            return None
        if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Attribute) and outer.func.attr == "compile":
            return outer
    return None


def _names_optimizer(call: CallSite) -> bool:
    """`compile("adam")` outside the scope, of a model that was made inside."""
    given = call.ctx.argument(call.node, "optimizer", 0)
    value_of_name = isinstance(call.ctx.constant(given), str)
    return value_of_name and _tensorflow.state(call) == OUT and _tensorflow.is_receiver_in_scope(call)


# -- the message ------------------------------------------------------------------------------------------------------


def _group(call: CallSite) -> ast.AST:
    """All objects of one `compile` are reported once."""
    return _compile_of(call) or call.node


def _outermost_call(call: CallSite) -> CallSite:
    """If a function creates and returns it, the call of that function belongs in the scope."""
    for _ in range(5):
        function = call.ctx.function
        if function is None or not function.callers or _tensorflow.knows_strategy(function):
            return call
        if function.returns is None or isinstance(function.node, ast.Lambda):
            return call
        call = function.callers[0]
    return call


def _message(call: CallSite, shown: CallSite) -> str:
    target = _tensorflow.assignment_target(shown.node, shown.ctx)
    if target is not None:
        return f"{_short(target, shown.ctx)} is created outside the strategy's scope."
    return f"{_short(call.node.func, call.ctx)}(...) is created outside the strategy's scope."


def _short(node: ast.AST, ctx: RuleContext) -> str:
    return " ".join(ctx.source(node).split())
