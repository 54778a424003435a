"""Rules about TensorFlow on a TPU (TPU7xx)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import CLASS, INSTANCE, MODEL, STRATEGY, UNKNOWN
from tpu_magics.check.program import Function, remembered
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _device, _source, _tensorflow
from tpu_magics.check.rules._tensorflow import IN, OUT

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


_KEYWORDS = ("jit_compile", "experimental_compile")
_FUNCTION = "tensorflow.function"


class JitCompileOnTpu(Rule):
    """jit_compile=True in a program that runs on a TPU.

    What it does
        Reports `jit_compile=True` passed to a Keras model's `compile` or to `tf.function`, in a program that creates a
        TPUStrategy, and `model.jit_compile = True`.
    Why this is bad
        `jit_compile=True` makes TensorFlow compile a function with XLA on a CPU or GPU. Under a TPUStrategy the whole
        step is already compiled for the TPU; inside it the option has no use and can fail. Use it for the rehearsal on
        a CPU or GPU, and remove it for the TPU.
    Example
        with strategy.scope():
            model = make_model()
            model.compile(optimizer="adam", loss="mse", jit_compile=True)
    Use instead
        with strategy.scope():
            model = make_model()
            model.compile(optimizer="adam", loss="mse")
    Limitations
        A value that is decided at run time is not reported (`jit_compile=not on_tpu` is right).
    """

    code = "TPU701"
    name = "jit-compile-on-tpu"
    group = "tensorflow"
    why = (
        "Under a TPUStrategy the whole step is already compiled for the TPU: jit_compile=True is for the rehearsal on"
        " a CPU or GPU; on the TPU it has no use and can fail."
    )
    nodes = (ast.Assign,)

    def check(self, node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
        target = node.targets[0]
        if (
            not isinstance(target, ast.Attribute)
            or target.attr != "jit_compile"
            or ctx.constant(node.value) is not True
        ):
            return
        if _tensorflow.strategies(ctx.program) and not _device.is_in_other_device_branch(node, ctx):
            yield ctx.finding(node, f"{ctx.source(target)} is True in a program for a TPU.", "Remove it.")

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not _tensorflow.strategies(program):
            return
        compiles = [call for call in program.methods("compile") if _is_compiled_model(call)]
        in_scope = any(_tensorflow.is_in_scope(call) for call in compiles)
        for call in compiles:
            if not in_scope or not _is_apart(call):
                yield from _jit_findings(call)
        for call in program.calls(_FUNCTION, "functools.partial"):
            if call.name == _FUNCTION or (call.node.args and call.ctx.name(call.node.args[0]) == _FUNCTION):
                yield from _jit_findings(call)


def _is_compiled_model(call: CallSite) -> bool:
    return call.receiver.kind in (MODEL, INSTANCE, UNKNOWN)


def _is_apart(call: CallSite) -> bool:
    """Whether a model is compiled outside the scope, in a program that compiles one for the TPU inside it."""
    return _tensorflow.state(call) == _tensorflow.OUT and not _tensorflow.is_receiver_in_scope(call)


def _jit_findings(call: CallSite) -> Iterator[Finding]:
    ctx = call.ctx
    for name in _KEYWORDS:
        value = ctx.argument(call.node, name)
        if value is None or ctx.constant(value) is not True or _device.is_in_other_device_branch(call.node, ctx):
            continue
        keyword = next((one for one in call.node.keywords if one.arg == name), None)
        callee = ctx.source(call.node.func)
        yield ctx.finding(
            keyword or value,
            f"{callee} is called with {name}=True in a program for a TPU.",
            f"Remove {name}=True, or write {name}=not on_tpu if the program also runs on a CPU or GPU.",
            edits=_source.remove_argument(call.node, keyword, ctx) if keyword is not None else (),
        )


_TPU = re.compile(r"(?<![a-z])(tpus?)(?![a-z0-9])", re.IGNORECASE)
# Also of TensorFlow 1, and of a strategy that other files make.
_BY_NAME = re.compile(r"TPU(ClusterResolver|Strategy|DistributionStrategy|Estimator)|strategy_scope|get_\w*strategy\b")
_FITS = ("fit", "train_on_batch", "fit_generator")


class JitCompileMissing(Rule):
    """A rehearsal of a Keras model without XLA.

    What it does
        Recommends `jit_compile=True` for Keras models that are compiled and trained without it, in a program that
        creates no distribution strategy but mentions TPUs. `%%tpu_train` sets it automatically, and nothing is reported
        there. Advice is shown but does not make a check fail.
    Why this is bad
        The rehearsal on a CPU or GPU should show how XLA compiles the model: operations that it cannot compile, and a
        new compile for each new shape. Without `jit_compile=True` Keras runs the model on a CPU without XLA.
    Example
        model.compile(optimizer="adam", loss="mse")  # without a TPU
    Use instead
        model.compile(optimizer="adam", loss="mse", jit_compile=True)
    Limitations
        The purpose of a program that never mentions a TPU is unknown, and so is a model that Keras itself compiles on a
        GPU (`jit_compile="auto"`).
    """

    code = "TPU702"
    name = "jit-compile-missing"
    group = "tensorflow"
    in_tests = False
    why = "Without jit_compile=True a CPU runs the model without XLA: the rehearsal does not show what fails on a TPU."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        compiles = [call for call in program.methods("compile", MODEL) if call.receiver.lib == "tf"]
        if not compiles or program.looks_for_tpu or _is_distributed(program) or not _mentions_tpus(program):
            return
        if any(cell.magic == "tpu_train" for cell in program.cells):  # sets it, and removes it on a TPU
            return
        if any(_says_jit(call) for call in compiles) or not any(program.methods(method) for method in _FITS):
            return
        for call in compiles:
            yield call.ctx.finding(
                call.node,
                f"{call.ctx.source(call.node.func)} is called without jit_compile in a program for a TPU.",
                "Add jit_compile=True for the rehearsal, and remove it on the TPU.",
                advice=True,
            )


def _is_distributed(program: CheckedProgram) -> bool:
    if program.calls("tensorflow.distribute.") or program.methods("scope"):
        return True
    return any(_BY_NAME.search(cell.text) for cell in program.cells)


def _says_jit(call: CallSite) -> bool:
    eager = call.ctx.constant(call.ctx.argument(call.node, "run_eagerly")) is True
    return eager or call.ctx.argument(call.node, "jit_compile") is not None or call.ctx.has_unknown_arguments(call.node)


def _mentions_tpus(program: CheckedProgram) -> bool:
    return any(_TPU.search(cell.text) for cell in program.cells)


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


class OutsideStrategyScope(Rule):
    """A model or an optimizer is created outside the strategy's scope.

    What it does
        Reports, in a program that creates a TPUStrategy and trains, a Keras model, an optimizer object, or a metric
        object passed to `compile`, that is created outside `with strategy.scope():`. Objects that are created by a
        function called in the scope are inside. Loss functions, learning-rate schedules and datasets may be outside.
    Why this is bad
        Variables are placed on the TPU's cores when they are created in the scope. Outside it they belong to no core:
        Keras raises "Mixing different tf.distribute.Strategy objects" or "Variable was not created in the distribution
        strategy scope", or trains on the host and leaves the TPU idle. `compile("adam")` outside the scope creates the
        optimizer there in Keras 3, but not in Keras 2: this is reported as advice.
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

    code = "TPU703"
    name = "outside-strategy-scope"
    group = "tensorflow"
    why = (
        'Variables created outside the scope belong to no core of the TPU: Keras raises ("Mixing different '
        'tf.distribute.Strategy objects"), or trains on the host and leaves the TPU idle.'
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not _tensorflow.strategies(program) or _tensorflow.is_entered(program):
            return
        candidates = [call for call in program.all_calls if not _is_part_of_module(call)]
        places: dict[int, tuple[CallSite, CallSite]] = {}
        for call in (*_models(program, candidates), *_optimizers(candidates), *_metrics(program, candidates)):
            shown = _outermost_call(call)
            places.setdefault(id(_finding_group(shown)), (call, shown))
        scope = f"with {_tensorflow.strategy_name(program)}.scope():"
        for call, shown in places.values():
            if not _device.is_in_other_device_branch(shown.node, shown.ctx):
                yield shown.ctx.finding(shown.node, _scope_message(call, shown), f"Move it into `{scope}`.")
        for call in program.methods("compile"):
            if _names_optimizer(call) and not _device.is_in_other_device_branch(call.node, call.ctx):
                message = (
                    f"{_short_source(call.node.func, call.ctx)} creates the optimizer outside the strategy's scope."
                )
                yield call.ctx.finding(call.node, message, f"Move it into `{scope}`.", _WHY_NAME, advice=True)


def _trains(program: CheckedProgram) -> bool:
    runs = any(call.receiver.kind == STRATEGY for method in _RUNS for call in program.methods(method))
    return runs or any(program.methods(method) for method in _TRAINS)


def _is_part_of_module(call: CallSite) -> bool:
    """Objects that a module's own methods create belong to the module."""
    function = call.ctx.function
    return function is not None and function.cls is not None and function.cls.is_module


# -- created objects --------------------------------------------------------------------------------------------------


def _models(program: CheckedProgram, candidates: list[CallSite]) -> list[CallSite]:
    """The models outside that are trained; if unknown, all of them, unless one is created inside."""
    states = [(call, _tensorflow.state(call)) for call in candidates if _is_model(call)]
    outside = [call for call, state in states if state == OUT]
    if not outside:
        return []
    own = [call for call in outside if not call.name.startswith("keras.applications.")]
    if not _trains(program):  # the training is in another file
        return own or outside[-1:]
    inside = [call for call, state in states if state == IN]
    trained = [call for call in outside if _trained_models(program, call)]
    if any(
        _trained_models(program, call) for call in inside
    ):  # those outside are other models, unless the scope uses them
        return [call for call in trained if any(map(_tensorflow.is_in_scope, _trained_models(program, call)))]
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


def _trained_models(program: CheckedProgram, model: CallSite) -> list[CallSite]:
    """The calls that compile or train this model."""
    result = (call for method in _TRAINS for call in program.methods(method))
    return [call for call in result if call.receiver.creator is model.node]


def _optimizers(candidates: list[CallSite]) -> Iterator[CallSite]:
    for call in candidates:
        if call.name and _OPTIMIZERS.fullmatch(call.name) and _tensorflow.state(call) == OUT:
            yield call


def _metrics(program: CheckedProgram, candidates: list[CallSite]) -> Iterator[CallSite]:
    """Metric objects in the arguments of a `compile` outside the scope, and those that a compiled step updates."""
    metrics = [call for call in candidates if call.name and _METRICS.fullmatch(call.name)]
    updated = {id(node) for node in _updated(program)} if metrics else set()
    for call in metrics:
        if (_compile_of(call) is not None or id(call.node) in updated) and _tensorflow.state(call) == OUT:
            yield call


def _updated(program: CheckedProgram) -> Iterator[ast.AST]:
    """The calls that created the values that compiled code calls, or whose `update_state` it calls."""
    for call in program.all_calls:
        if call.method == "update_state" or isinstance(call.node.func, ast.Name):
            value = call.receiver if call.method else call.ctx.value(call.node.func)
            if value.creator is not None and call.ctx.compiled_tf:
                yield value.creator


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


def _finding_group(call: CallSite) -> ast.AST:
    """All objects of one `compile` are reported once."""
    return _compile_of(call) or call.node


def _outermost_call(call: CallSite) -> CallSite:
    """If a function creates and returns it, the call of that function belongs in the scope."""
    for _ in range(5):
        function = call.ctx.function
        if function is None or not function.callers or _tensorflow.knows_strategy(function):
            return call
        if function.returns is None or isinstance(function.node, ast.Lambda) or not _returns(function, call):
            return call
        call = function.callers[0]
    return call


def _returns(function: Function, call: CallSite) -> bool:
    """Whether a function gives away what the call in it creates, alone or with others."""
    assert function.returns is not None
    given = [function.returns, *(function.returns.items or ())]
    return any(one.creator is call.node or one.kind == MODEL for one in given)


def _scope_message(call: CallSite, shown: CallSite) -> str:
    target = _tensorflow.assignment_target(shown.node, shown.ctx)
    if target is not None:
        return f"{_short_source(target, shown.ctx)} is created outside the strategy's scope."
    return f"{_short_source(call.node.func, call.ctx)}(...) is created outside the strategy's scope."


def _short_source(node: ast.AST, ctx: RuleContext) -> str:
    return " ".join(ctx.source(node).split())


_HASHES = [f"keras.layers.{name}" for name in ("StringLookup", "IntegerLookup", "TextVectorization", "Hashing")]
_INPUTS = ("keras.Input", "keras.layers.Input", "keras.layers.InputLayer")
_STRINGS = ("tensorflow.string", "string")
_LOOKUP_FIX = "Apply it to the data: `dataset.map(lambda x, y: (layer(x), y))`, and give the model the numbers."
_STRINGS_FIX = "Do this in the data, which the host reads (`dataset.map`), and give the model the numbers."
_RAGGED_FIX = "Pad the rows to one length (`x.to_tensor(shape=(None, LENGTH))`) in the dataset, and mask the padding."


class HostOpInModel(Rule):
    """Strings, lookups or ragged rows in a model that trains on a TPU.

    What it does
        Reports `StringLookup`, `IntegerLookup`, `TextVectorization` and `Hashing` layers that are part of a model,
        `keras.Input` with `dtype=tf.string` or `ragged=True`, and `tf.strings` in a model's `call` or in a step, in a
        program that trains on a TPU.
    Why this is bad
        A TPU has no strings, hash tables and ragged tensors: the model does not compile ("Detected unsupported
        operations when trying to compile graph"). The same layers are right in the data pipeline, which runs on the
        host.
    Example
        model = keras.Sequential([keras.layers.StringLookup(vocabulary=words), keras.layers.Embedding(1000, 64)])
    Use instead
        lookup = keras.layers.StringLookup(vocabulary=words)
        data = data.map(lambda x, y: (lookup(x), y))
        model = keras.Sequential([keras.layers.Embedding(1000, 64)])
    Limitations
        Layers that another file adds to the model are not found. Nothing is reported of a model that only predicts
        (`predict`, `evaluate`, `save`), and with `tf.config.set_soft_device_placement(True)`, which lets the host run
        what a TPU cannot. `Normalization` and `Rescaling` run on a TPU.
    """

    code = "TPU707"
    name = "host-op-in-model"
    group = "tensorflow"
    why = "A TPU has no strings, hash tables and ragged tensors, so XLA does not compile the model."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        placed = program.calls("tensorflow.config.set_soft_device_placement")
        if not program.tpu_tf or any(call.ctx.constant(call.ctx.argument(call.node, "enabled", 0)) for call in placed):
            return
        for call in program.calls(*_HASHES):
            if _is_in_trained_model(call):
                name = call.name.rpartition(".")[2]
                message = f"{name} is part of a model, in a program that trains on a TPU."
                yield call.ctx.finding(call.node, message, _LOOKUP_FIX)
        for call in program.calls(*_INPUTS):
            ctx, dtype = call.ctx, call.ctx.argument(call.node, "dtype")
            if _only_predict(_models_by_part(program).get(id(call.node), ()), program):
                continue
            if ctx.constant(ctx.argument(call.node, "ragged")) is True:
                yield ctx.finding(call.node, "The model gets ragged rows on a TPU.", _RAGGED_FIX)
            elif dtype is not None and (ctx.name(dtype) in _STRINGS or ctx.constant(dtype) in _STRINGS):
                yield ctx.finding(call.node, "The model gets strings on a TPU.", _LOOKUP_FIX)
        for call in program.calls("tensorflow.strings."):
            if call.ctx.compiled_tf and not _only_predict(_instances(call), program):
                what = " ".join(call.ctx.source(call.node.func).split())
                yield call.ctx.finding(call.node, f"{what} runs in code that XLA compiles for a TPU.", _STRINGS_FIX)


def _is_in_trained_model(layer: CallSite) -> bool:
    """Whether a layer is made by a model's class, one of a Sequential, or called with an input of a model; not where
    the model only predicts."""
    models = _instances(layer) if _is_part_of_module(layer) else _models_by_part(layer.ctx.program).get(id(layer.node))
    return models is not None and not _only_predict(models, layer.ctx.program)


def _instances(call: CallSite) -> list[ast.AST]:
    """The calls that make a model of the class in whose method this call stands."""
    cls = call.ctx.function.cls if call.ctx.function is not None else None
    return [one.node for one in call.ctx.program.all_calls if one.value.ref is cls and cls is not None]


@remembered
def _models_by_part(program: CheckedProgram) -> dict[int, list[ast.AST]]:
    """The calls that make models, by the ids of the calls that make their layers and inputs."""
    result: dict[int, list[ast.AST]] = {}
    for call in program.calls(*_KERAS_MODELS):
        for given in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
            for part in _creators(given, call.ctx):
                result.setdefault(id(part), []).append(call.node)
    for call in program.methods("add", MODEL):
        for part in (part for given in call.node.args for part in _creators(given, call.ctx)):
            result.setdefault(id(part), []).extend([call.receiver.creator] if call.receiver.creator else [])
    for call in program.all_calls:
        inputs = [value.creator for value in map(call.ctx.value, call.node.args) if value.name in _INPUTS]
        for layer in _creators(call.node.func, call.ctx) if inputs else ():
            models = [model for one in inputs for model in result.get(id(one), ())]
            result.setdefault(id(layer), []).extend(models)
    return result


def _creators(node: ast.expr, ctx: RuleContext) -> Iterator[ast.AST]:
    """The calls that made a value, or the items of a list or dict of values."""
    if isinstance(node, (ast.List, ast.Tuple)):
        items = node.elts
    elif isinstance(node, ast.Dict):
        items = node.values
    else:
        items = [node]
    for one in items:
        made = one if isinstance(one, ast.Call) else ctx.value(one).creator
        if made is not None:
            yield made


_PREDICTIONS = ("predict", "predict_on_batch", "evaluate", "save", "export", "save_weights")
_NEUTRAL = ("compile", "build", "summary", "add", "adapt", "load_weights", "get_layer", "count_params", "get_config")
_READERS = ("tensorflow.saved_model.save", "keras.models.save_model", "keras.saving.save_model",
    "keras.utils.plot_model", "builtins.print")  # fmt: skip


def _only_predict(models: Sequence[ast.AST], program: CheckedProgram) -> bool:
    """Whether all of these models only predict (or are saved): none is trained, or goes where it may be."""
    uses = _uses_of_models(program)
    return bool(models) and all(uses.get(id(model)) == {"predicts"} for model in models)


@remembered
def _uses_of_models(program: CheckedProgram) -> dict[int, set[str]]:
    """How models are used ("predicts", "trained"), by the ids of the calls that make them; unknown uses may train."""
    result: dict[int, set[str]] = {}
    for call in program.all_calls:
        if call.receiver.creator is not None and call.method not in _NEUTRAL:
            how = "predicts" if call.method in _PREDICTIONS else "trained"
            result.setdefault(id(call.receiver.creator), set()).add(how)
        called = call.ctx.value(call.node.func).creator if isinstance(call.node.func, ast.Name) else None
        in_step = call.ctx.function is not None or call.ctx.loops or call.ctx.withs
        if called is not None and in_step:  # or in another model, which may be trained
            result.setdefault(id(called), set()).add("trained")
        for given in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
            for part in _creators(given, call.ctx) if call.name not in _READERS else ():
                result.setdefault(id(part), set()).add("trained")
    return result


class EagerStrategyRun(Rule):
    """`strategy.run` outside of a tf.function.

    What it does
        Reports, in a program for a TPU, `strategy.run(f)` where neither `f` nor a function around the call is a
        `tf.function`.
    Why this is bad
        TPUStrategy raises NotImplementedError ("TPUStrategy.run(fn, ...) does not support pure eager execution") with
        the first batch. The default strategy, which the program has without a TPU, accepts it.
    Example
        for batch in dataset:
            loss = strategy.run(train_step, args=(batch,))
    Use instead
        @tf.function
        def train_on(batch):
            return strategy.run(train_step, args=(batch,))

        for batch in dataset:
            loss = train_on(batch)
    Limitations
        Steps from other files, and functions with other decorators, are not judged.
    """

    code = "TPU709"
    name = "eager-strategy-run"
    group = "tensorflow"
    why = "TPUStrategy raises NotImplementedError: it runs only what a tf.function has traced."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.tpu_tf:
            return
        for call in (call for method in _RUNS for call in program.methods(method, STRATEGY)):
            given = call.ctx.argument(call.node, "fn", 0)
            step = call.ctx.value(given).ref if given is not None else None
            if isinstance(step, Function) and not _may_be_traced(step) and _runs_eagerly(call, ()):
                name = " ".join(call.ctx.source(call.node.func).split())
                what = "a lambda" if isinstance(step.node, ast.Lambda) else step.name
                message = f"{name} runs {what} without a tf.function."
                fix = "Put `@tf.function` above the function that is run, or above the one that calls this."
                yield call.ctx.finding(call.node, message, fix)


def _runs_eagerly(call: CallSite, seen: tuple[Function, ...]) -> bool:
    """Whether calls lead here from the top of the program, and none of them is in a tf.function."""
    function = call.ctx.function
    if function is None:
        return True
    if function in seen or _may_be_traced(function):
        return False
    return any(_runs_eagerly(one, (*seen, function)) for one in function.callers)


def _may_be_traced(function: Function) -> bool:
    return bool(function.decorators) or any(function is one for one in _given_to_tf_function(function.ctx.program))


@remembered
def _given_to_tf_function(program: CheckedProgram) -> list[Function]:
    calls = program.calls(_FUNCTION)
    return [ref for call in calls for one in call.node.args[:1] if (ref := call.ctx.value(one).ref) is not None]


_WEIGHTS, _MODEL_FILES = (".weights.h5",), (".keras", ".h5")


class WeightsFileName(Rule):
    """A file name that Keras 3 refuses.

    What it does
        Reports, in a program that trains on a TPU, `save_weights` to a name that does not end with `.weights.h5`,
        `save` to one that ends with neither `.keras` nor `.h5`, and `ModelCheckpoint` with such a name.
    Why this is bad
        Keras 3 raises ValueError. `save_weights` and `save` usually come after the training, which is then lost.
    Example
        model.fit(data, epochs=20)
        model.save_weights("model.h5")
    Use instead
        model.fit(data, epochs=20)
        model.save_weights("model.weights.h5")
    Limitations
        Nothing is reported in a program with `tf_keras` or `TF_USE_LEGACY_KERAS`, which have Keras 2, and of a name
        that is computed.
    """

    code = "TPU708"
    name = "weights-file-name"
    group = "tensorflow"
    why = "Keras 3 raises ValueError for this file name, after the training when the result is saved."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        legacy = any("TF_USE_LEGACY_KERAS" in cell.text or "tf_keras" in cell.text for cell in program.cells)
        if not program.tpu_tf or legacy:
            return
        for method, endings in (("save_weights", _WEIGHTS), ("save", _MODEL_FILES)):
            for call in program.methods(method, MODEL):
                if call.receiver.lib == "tf":
                    yield from _refused_name(call, endings)
        for call in program.calls("keras.callbacks.ModelCheckpoint"):
            weights = call.ctx.argument(call.node, "save_weights_only", 4)
            if weights is None or call.ctx.constant(weights) in (True, False):
                yield from _refused_name(call, _WEIGHTS if call.ctx.constant(weights) is True else _MODEL_FILES)


def _refused_name(call: CallSite, endings: tuple[str, ...]) -> Iterator[Finding]:
    path = call.ctx.argument(call.node, "filepath", 0)
    name = call.ctx.constant(path)
    if path is None or not isinstance(name, str) or name.endswith(endings) or "://" in name:
        return
    if call.ctx.argument(call.node, "options") is not None:  # of Keras 2
        return
    stem = name.removesuffix(".h5").removesuffix(".keras").removesuffix(".tf")
    message = f"{' '.join(call.ctx.source(call.node.func).split())} gets {name!r}, which Keras 3 refuses."
    yield call.ctx.finding(call.node, message, f'Write "{stem}{endings[0]}".')


RULES = (
    JitCompileOnTpu(),
    JitCompileMissing(),
    OutsideStrategyScope(),
    HostOpInModel(),
    WeightsFileName(),
    EagerStrategyRun(),
)
