"""Rules about the launch of workers, and about what no TPU runs (TPU401 to TPU404, TPU410 to TPU412)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.hoisting import COMPREHENSIONS
from tpu_magics.check.inference.library_results import REMOVED, XM
from tpu_magics.check.inference.values import MODEL, OPTIMIZER, canonical
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _device, _hoist, _launches, _source
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


class ModelInFunction(Rule):
    """A model that every worker builds for itself.

    What it does
        Reports models that are built inside the function that a notebook launches (`notebook_launcher`, `xmp.spawn`,
        `torch_xla.launch`). If tpu_magics launches it (`%%tpu_train`, `%tpu_train`, `tpu_magics.train`), such a model
        is hoisted: built once in the notebook. Then only models that cannot be hoisted are reported, with the reason;
        as advice where a loop builds one in each pass.
    Why this is bad
        Eight processes build the model eight times, each in host memory. A small host runs out of memory, and a process
        is killed with SIGSEGV or SIGKILL before the first step.
    Example
        def training_function():
            model = AutoModel.from_pretrained("bert-base-cased")

        notebook_launcher(training_function)
    Use instead
        model = AutoModel.from_pretrained("bert-base-cased")

        def training_function(model):
            ...

        notebook_launcher(training_function, (model,))
    Limitations
        The size of a model is unknown. In a script's `_mp_fn` it is normal to build the model, and nothing is reported,
        except `from_pretrained` with `start_method="fork"`. Nothing is reported with one process or with `--hoist off`.
    """

    code = "TPU401"
    name = "model-in-function"
    group = "launch"
    why = (
        "Each process builds its own copy: eight of them run out of host memory, and one is killed with SIGSEGV before "
        "the first step."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        reported: set[int] = set()
        for launch in _launches.launches(program):
            if not launch.ours and _device.mentions_only_gpus(program):
                continue
            if launch.ranks == 1 or "--hoist off" in " ".join(launch.words.split()) or _is_hoist_off(launch):
                continue
            for call, problem in _models_built(launch, program):
                if id(call.node) not in reported and (problem or not launch.ours) and _matters(call, launch):
                    reported.add(id(call.node))
                    yield _model_finding(call, launch, problem)


def _is_hoist_off(launch: _launches.LaunchSite) -> bool:
    return launch.call is not None and launch.call.ctx.constant(launch.argument("hoist")) in (False, "off")


def _matters(call: CallSite, launch: _launches.LaunchSite) -> bool:
    """In a script the workers build their own models: those of xmp.spawn are new interpreters, as in torch_xla's
    examples, and those of `%tpu_train script.py` run the script."""
    if call.ctx.notebook or launch.kind == _launches.NOTEBOOK or (launch.ours and launch.call is not None):
        return True
    if launch.ours:
        return False
    forks = launch.call is not None and launch.call.ctx.constant(launch.argument("start_method")) == "fork"
    return forks and call.name.endswith(".from_pretrained")


# -- models that are built --------------------------------------------------------------------------------------------


def _models_built(launch: _launches.LaunchSite, program: CheckedProgram) -> Iterator[tuple[CallSite, str]]:
    """The calls of a launch's workers that build models, each with the reason against hoisting."""
    function = launch.function
    own = function.calls if function is not None else _statements(launch, program)
    yield from ((call, _hoist.reason(call, function)) for call in _hoist.model_builds(own))
    helpers = {}
    for call in own:
        helper = _launches.targets(program).get(id(call.node))
        if (
            helper is not None
            and call.value.kind == MODEL
            and call.value.creator is not call.node
            and _builds_model(helper)
        ):
            helpers[helper] = call
            yield call, _hoist.helper_reason(call, helper, function)
    for other in sorted(_launches.worker_functions(launch, program) - {function}, key=lambda one: one.node.lineno):
        if not _is_method(other) and other not in helpers:
            for call in _hoist.model_builds(other.calls):
                yield call, _hoist.reason(call, function)


def _is_method(function: Function) -> bool:
    """The layers that a class creates for itself are parts of the model."""
    return function.cls is not None or isinstance(function.ctx.parent(function.node), ast.ClassDef)


def _builds_model(helper: Function) -> bool:
    """Whether a function builds the model that it returns."""
    return any(True for _ in _hoist.model_builds(helper.calls))


def _statements(launch: _launches.LaunchSite, program: CheckedProgram) -> list[CallSite]:
    """The calls of a cell whose plain statements are trained; its leading definitions are the notebook's."""
    return [call for call in program.all_calls if call.ctx.top_level and launch in _launches.launches_of(call.ctx)]


# -- the message ------------------------------------------------------------------------------------------------------


def _model_finding(call: CallSite, launch: _launches.LaunchSite, problem: str) -> Finding:
    ctx = call.ctx
    code = _source.quoted(ctx.source(call.node))
    name = launch.function.name if launch.function is not None else ""
    if launch.ours:
        where = f"of `{name}`" if name else "of this cell"
        message = f"{code} is built by each worker {where} and cannot be hoisted: {problem}."
        fix = f"Build it in an earlier cell and pass it: `%%tpu_train model`, `def {_function_name(name)}(model)`."
        if _is_built_often(call):  # each fold of a cross-validation has a model of its own
            fix = "No change is needed where one copy in each process fits into the host's memory."
        return ctx.finding(call.node, message, fix, advice=_is_built_often(call))
    message = f"{code} builds a model inside `{name}`, in each process of {launch.kind}."
    return ctx.finding(call.node, message, _model_fix(launch, _function_name(name)))


def _is_built_often(call: CallSite) -> bool:
    """Whether a loop builds a model in each pass, itself or by a function that it calls."""
    ctx = call.ctx
    callers = ctx.function.callers if ctx.function is not None else []
    parents = (one for each in (call, *callers) for one in each.ctx.parents(each.node))
    return (
        bool(ctx.loops)
        or any(one.ctx.loops for one in callers)
        or any(isinstance(one, COMPREHENSIONS) for one in parents)
    )


def _function_name(name: str) -> str:
    return name if name.isidentifier() else "training_function"


def _model_fix(launch: _launches.LaunchSite, name: str) -> str:
    form, start = f"def {name}(model)", f"notebook_launcher({name}, (model,))"
    if launch.kind != _launches.NOTEBOOK:
        start = f'{launch.kind}({name}, args=(model,), start_method="fork")'
        form = f"def {name}(index, model)"
    return f"Build it once, before the launch, and pass it: `{form}` and `{start}`."


_DEPTH = 6


class DeviceTooEarly(Rule):
    """The XLA runtime starts before the workers.

    What it does
        Reports `Accelerator()`, `xm.xla_device()`, `torch_xla.device()`, `xr.world_size()`, `tensor.to("xla")`,
        accelerate's `set_seed`, `TrainingArguments(...)` and the like if they run in the notebook (or in the main
        process of a script) before workers are launched.
    Why this is bad
        Each of them starts the XLA runtime in the launching process. The workers cannot start it again: `xmp.spawn` and
        `torch_xla.launch` fail with "Runtime is already initialized", accelerate fails with its own error, and
        tpu_magics does not launch.
    Example
        accelerator = Accelerator()

        def training_function(model):
            model = accelerator.prepare(model)

        notebook_launcher(training_function, (model,))
    Use instead
        def training_function(model):
            accelerator = Accelerator()
            model = accelerator.prepare(model)

        notebook_launcher(training_function, (model,))
    Limitations
        The effects of imported modules are unknown. A notebook that launches nothing may use the device in its own
        cells, unless all of its training is in a function that nothing calls yet; so may code after the launch, and a
        function that only workers call. In a notebook that uses tpu_magics, `set_seed` and `TrainingArguments` do not
        start the runtime.
    """

    code = "TPU402"
    name = "device-too-early"
    group = "launch"
    why = (
        "It starts the XLA runtime in the launching process, and the workers then cannot start it: "
        '"Runtime is already initialized".'
    )
    nodes = _device.NODES

    def check(self, node: _device.Statement, ctx: RuleContext) -> Iterable[Finding]:
        _device.collect_statements(node, ctx)
        return ()

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        starters = list(_device.starters(program))
        if not starters:
            return
        launches = [one for one in _launches.launches(program) if one.ours or one.ranks != 1]
        if not launches and not _is_launched_later(program):
            return
        reported = _device.statements(program)
        quiet = _launches.has_magics(program)
        for call in starters:
            if (quiet and call.name in _device.QUIETED) or _device.on_cpu(call):
                continue
            launch = _launch_behind(call, launches)
            if (launch is None and (launches or not _is_first_use(call))) or _device.is_reported(call, reported):
                continue
            yield _early_finding(call, launch)


def _early_finding(call: CallSite, launch: _launches.LaunchSite | None) -> Finding:
    ctx = call.ctx
    where = "in the notebook" if ctx.notebook else "in the main process"
    before = (
        f", before {_launcher_name(launch)} starts the workers"
        if launch is not None
        else ", not in the training function"
    )
    name = launch.function.name if launch is not None and launch.function is not None else "the training function"
    code = _source.quoted(ctx.source(call.node))
    return ctx.finding(
        call.node, f"{code} runs {where}{before}.", _early_fix(call, _source.quoted(name) if launch else name)
    )


def _launcher_name(launch: _launches.LaunchSite) -> str:
    return f"`{launch.kind if launch.call is None or launch.kind != _launches.OURS else 'tpu_magics.train'}`"


def _early_fix(call: CallSite, name: str) -> str:
    if call.name == "accelerate.utils.set_seed":
        return f"Call it inside {name}, or use `transformers.set_seed`, which does not start the runtime."
    if call.name in _device.ACCELERATORS:
        return f"Create it inside {name}: each worker needs its own."
    return f"Move it into {name}."


# -- calls before a launch


def _launch_behind(call: CallSite, launches: list[_launches.LaunchSite]) -> _launches.LaunchSite | None:
    """The first launch that the call runs before, in the same process."""
    if _launches.launches_of(call.ctx):
        return None
    return next((one for one in launches if _is_before(call, one, call.ctx.program, _DEPTH)), None)


def _is_before(call: CallSite, launch: _launches.LaunchSite, program: CheckedProgram, depth: int) -> bool:
    function = call.ctx.function
    own = _launches.position_of(call.ctx, call.node)
    launching = launch.call.ctx.function if launch.call is not None else None
    if function is launching:
        return own < launch.position
    if function is None:
        return any(own < one for one in _reached_from_top(launching, depth)) if launching is not None else False
    return depth > 0 and any(_is_before(one, launch, program, depth - 1) for one in function.callers)


def _reached_from_top(function: Function, depth: int) -> list[_launches.Position]:
    """The positions at which the top level calls a function, at the latest the end."""
    result: list[_launches.Position] = []
    for call in function.callers:
        if call.ctx.function is None:
            result.append(_launches.position_of(call.ctx, call.node))
        elif depth > 0 and call.ctx.function is not function:
            result += _reached_from_top(call.ctx.function, depth - 1)
    return result or [(len(function.ctx.program.cells), 0, 0)]


# -- a notebook without a launch


def _is_launched_later(program: CheckedProgram) -> bool:
    """Whether a notebook's training is in a function that nothing calls yet, and it trains nowhere itself."""
    if not program.notebook:
        return False
    steps = [call for call in program.all_calls if _is_step(call)]
    return bool(steps) and not any(_runs_in_notebook(call.ctx, _DEPTH) for call in steps)


def _is_step(call: CallSite) -> bool:
    return call.name.endswith((".optimizer_step", ".mark_step")) or call.method in ("backward", "train", "fit", "step")


def _runs_in_notebook(ctx: RuleContext, depth: int) -> bool:
    if ctx.function is None:
        return True
    return depth > 0 and any(_runs_in_notebook(one.ctx, depth - 1) for one in ctx.function.callers)


def _is_first_use(call: CallSite) -> bool:
    """The device or the accelerator itself, at notebook level."""
    return call.ctx.top_level and call.name in (*_device.DEVICES, *_device.ACCELERATORS)


WHY_OPTIMIZER = (
    "Moving a model to an XLA device replaces its parameters; this optimizer keeps the old ones and trains nothing, "
    "without an error."
)


class DeviceTensorGlobal(Rule):
    """Workers use objects that the notebook has put on its own device.

    What it does
        Reports tensors and models that the notebook (or the main process of a script) moves to an XLA device and that
        the launched function reads as globals or receives as arguments, and optimizers that the notebook creates for
        CPU parameters and the function of another launcher than `%%tpu_train` uses without `accelerator.prepare`.
    Why this is bad
        A worker has a device of its own and cannot use a tensor on the notebook's XLA device; and creating that tensor
        starts the runtime before the workers. An optimizer keeps the parameters that it was created with: on XLA
        `model.to(device)` replaces a model's parameters, so the optimizer trains nothing, without an error. (Under
        `%%tpu_train` the parameters stay the same objects, and the optimizer trains them.)
    Example
        weights = torch.ones(10).to(xm.xla_device())

        def training_function(model):
            loss = cross_entropy(model(x), y, weight=weights)
    Use instead
        weights = torch.ones(10)

        def training_function(model):
            device = xm.xla_device()
            loss = cross_entropy(model(x), y, weight=weights.to(device))
    Limitations
        Tensors that reach the function inside other objects are not found.
    """

    code = "TPU403"
    name = "device-tensor-global"
    group = "launch"
    why = "A worker has its own device and runtime: it cannot use objects on the notebook's XLA device."
    nodes = _device.NODES

    def check(self, node: _device.Statement, ctx: RuleContext) -> Iterable[Finding]:
        _device.collect_statements(node, ctx)
        return ()

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not _launches.launches(program):
            return
        for node, ctx, name, launch in _device.statements(program).values():
            yield _device_finding(node, ctx, name, launch)
        for node, ctx in _device.top_level(program):
            yield from _optimizer_findings(node, ctx, program)


def _device_finding(node: _device.Statement, ctx: RuleContext, name: str, launch: _launches.LaunchSite) -> Finding:
    assert node.value is not None
    who = _launched_name(launch)
    model = ctx.value(node.value).kind == MODEL
    what = "model" if model else "tensor"
    fix = f"Leave `{name}` on the CPU here, and move it to the device inside {who}."
    if model:
        fix = f"Leave `{name}` on the CPU here, and write `{name}.to(device)` (or accelerator.prepare) inside {who}."
    return ctx.finding(node.value, f"The {what} `{name}` is moved to an XLA device here, and {who} uses it.", fix)


def _launched_name(launch: _launches.LaunchSite) -> str:
    return f"`{launch.function.name}`" if launch.function is not None else "the launched function"


# -- optimizers -------------------------------------------------------------------------------------------------------


def _optimizer_findings(node: _device.Statement, ctx: RuleContext, program: CheckedProgram) -> Iterator[Finding]:
    value = ctx.value(node.value)
    if value.kind != OPTIMIZER or value.lib == "tf" or value.prepared or value.creator is not node.value:
        return
    position = _launches.position_of(ctx, node)
    for name in _device.bound_names(node, ctx):
        # With our launcher `model.to(device)` keeps the parameters.
        launch = next((one for one in _device.users(name, position, program) if not one.ours), None)
        if launch is not None and not _is_prepared(name, launch, program):
            who = _launched_name(launch)
            fix = f"Create it inside {who}, after the model is on its device, or pass it through `accelerator.prepare`."
            message = f"The optimizer `{name}` is created here for parameters on the CPU, and {who} uses it."
            assert node.value is not None
            yield ctx.finding(node.value, message, fix, WHY_OPTIMIZER)


def _is_prepared(name: str, launch: _launches.LaunchSite, program: CheckedProgram) -> bool:
    """Whether the workers pass the optimizer to accelerate (or to a Trainer, which does)."""
    names = {name, *_device.parameters_for(name, launch)}
    for function in _launches.worker_functions(launch, program):
        for call in function.calls:
            if call.method not in ("prepare", "prepare_optimizer") and not call.name.endswith("Trainer"):
                continue
            parts = [*call.node.args, *(one.value for one in call.node.keywords)]
            if any(isinstance(one, ast.Name) and one.id in names for part in parts for one in nodes_of(part)):
                return True
    return False


WHY_NOTEBOOK = (
    "On a TPU, accelerate ignores num_processes and starts one process per chip; before 1.3 it passed the number to "
    "torch_xla, which accepts only 1 or None."
)
# Numbers that a host with one or eight chips starts anyway.
FINE = (None, 0, 1, 8)


class RefusedNprocs(Rule):
    """A number of processes that torch_xla does not support.

    What it does
        Reports `xmp.spawn(f, nprocs=N)` with any number except 1 and None, and `notebook_launcher(f, num_processes=N)`
        with any number except 1 and 8, if the call is not in a `%%tpu_train` cell.
    Why this is bad
        torch_xla starts one process per chip, or a single one. `xmp.spawn` raises `Unsupported nprocs (N)` for any
        other number. `notebook_launcher` ignores the number on a TPU since accelerate 1.3; before, it passed it to
        `xmp.spawn`.
    Example
        xmp.spawn(_mp_fn, args=(flags,), nprocs=8)
    Use instead
        xmp.spawn(_mp_fn, args=(flags,))
        # in a cell with %%tpu_train on top nprocs=8 is honoured, and rehearsed where there is no TPU
    Limitations
        Numbers that are known only at run time are not checked. `num_processes=8` is the form of the guides for a host
        with eight chips and is not reported, although a host with four chips starts four processes. Calls with
        `mixed_precision="fp16"` are taken to be for GPUs.
    """

    code = "TPU404"
    name = "refused-nprocs"
    group = "launch"
    why = (
        "torch_xla accepts only 1 or None, and raises `Unsupported nprocs` for any other number before a worker starts."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for launch in _launches.launches(program):
            if launch.call is None or launch.ours or not isinstance(launch.ranks, int):
                continue
            if _device.mentions_only_gpus(program):
                continue
            if launch.kind == _launches.SPAWN and launch.ranks != 1:
                yield _spawn_finding(launch)
            elif launch.kind == _launches.NOTEBOOK and launch.ranks not in FINE and not _for_gpus(launch):
                yield _notebook_finding(launch)


def _spawn_finding(launch: _launches.LaunchSite) -> Finding:
    assert launch.call is not None
    given = launch.argument("nprocs", 2)
    ctx, node = launch.call.ctx, given if given is not None else launch.call.node
    fix = "Remove nprocs: torch_xla starts one process per chip (with nprocs=1 a single one)."
    edits = (ctx.replace(given, "None"),) if given is not None else ()
    return ctx.finding(node, f"`xmp.spawn` is called with {launch.ranks} processes.", fix, edits=edits)


def _notebook_finding(launch: _launches.LaunchSite) -> Finding:
    assert launch.call is not None
    ctx, given = launch.call.ctx, launch.argument("num_processes", 2)
    message = f"`notebook_launcher` is called with {launch.ranks} processes."
    fix = "Remove num_processes, or put `%%tpu_train` at the top of the cell, which uses the number."
    return ctx.finding(given if given is not None else launch.call.node, message, fix, WHY_NOTEBOOK)


def _for_gpus(launch: _launches.LaunchSite) -> bool:
    assert launch.call is not None
    return bool(launch.call.ctx.constant(launch.argument("mixed_precision", 3)) == "fp16")


# Where the launchers take `start_method` by position.
POSITIONS = {_launches.SPAWN: 5, _launches.LAUNCH: 2}


class SpawnInNotebook(Rule):
    """A notebook's function is started with `spawn`.

    What it does
        Reports `xmp.spawn(f)` and `torch_xla.launch(f)` in a notebook if `f` is a function of the notebook and
        `start_method="fork"` is not given, outside a `%%tpu_train` cell.
    Why this is bad
        By default both start new interpreters, which import the function by its name. A notebook's function is in no
        module: each worker fails with `Can't get attribute '_mp_fn' on <module '__main__'>`.
    Example
        def _mp_fn(index):
            ...

        xmp.spawn(_mp_fn, args=())
    Use instead
        xmp.spawn(_mp_fn, args=(), start_method="fork")
    Limitations
        Functions that are imported from a file next to the notebook work with `spawn` and are not reported.
    """

    code = "TPU410"
    name = "spawn-in-notebook"
    group = "launch"
    why = "A new interpreter cannot import a notebook's function: `Can't get attribute ... on <module '__main__'>`."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.notebook:
            return
        for launch in _launches.launches(program):
            if launch.kind in POSITIONS and not launch.ours and launch.ranks != 1:
                yield from _started_anew(launch)


def _started_anew(launch: _launches.LaunchSite) -> Iterator[Finding]:
    call = launch.call
    if call is None or launch.function is None:
        return
    given = launch.argument("start_method", POSITIONS[launch.kind])
    if call.ctx.has_unknown_arguments(call.node) or (given is not None and call.ctx.constant(given) != "spawn"):
        return
    edits: tuple[Edit, ...] = _source.add_argument(call.node, 'start_method="fork"', call.ctx)
    if given is not None:
        edits = (call.ctx.replace(given, '"fork"'),)
    message = f"`{launch.kind}` starts new interpreters for `{launch.function.name}`, a function of this notebook."
    fix = 'Pass `start_method="fork"`, or put `%%tpu_train` at the top of the cell.'
    yield call.ctx.finding(given if given is not None else call.node, message, fix, edits=edits)


_EXTENSIONS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")
_LIBRARIES = ("torch.ops.load_library", "torch.classes.load_library", "tensorflow.load_op_library")
_JITS = ("triton.jit", "triton.autotune")
_KERNEL_FIX = "Write it with operations of the framework, which XLA fuses, or as a Pallas kernel."


class CustomOp(Rule):
    """A kernel that was not made for a TPU.

    What it does
        Reports Triton kernels (`@triton.jit`), extensions that `torch.utils.cpp_extension` builds, and libraries of
        operations (`torch.ops.load_library`, `tf.load_op_library`) in a program for a TPU.
    Why this is bad
        XLA compiles operations that it knows, for a TPU. A kernel in CUDA, C++ or Triton is none of them: torch_xla
        has no implementation of it, and TensorFlow has none that is registered for a TPU.
    Example
        kernels = torch.utils.cpp_extension.load("kernels", ["kernels.cu"])
        out = kernels.swish(x.to("xla"))
    Use instead
        out = x * torch.sigmoid(x)
    Limitations
        Kernels inside libraries (flash-attn, bitsandbytes, xformers) are not found.
    """

    code = "TPU411"
    name = "custom-op"
    group = "launch"
    why = "XLA compiles only operations that it knows: a TPU has no implementation of this kernel."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.for_tpu:
            return
        for call in program.calls(*_EXTENSIONS, *_LIBRARIES):
            if not _device.is_in_other_device_branch(call.node, call.ctx):
                what = " ".join(call.ctx.source(call.node.func).split())
                yield call.ctx.finding(call.node, f"{what} loads operations that a TPU does not have.", _KERNEL_FIX)
        for function in program.functions:
            if any(name in _JITS for name in function.decorators):
                yield function.ctx.finding(
                    function.node, f"{function.name} is a Triton kernel, which a TPU does not run.", _KERNEL_FIX
                )


class RemovedName(Rule):
    """A name that torch_xla or transformers has removed.

    What it does
        Reports `xm.xrt_world_size` and `xm.get_ordinal` (removed in torch_xla 2.7), `xr.xla_device` (2.8), the modules
        `torch_xla.experimental.pjrt` and `.xla_sharding` (2.5), and of transformers `AdamW` (4.50) and
        `is_torch_tpu_available` (4.51): calls of them, and their imports.
    Why this is bad
        `AttributeError: module 'torch_xla.core.xla_model' has no attribute 'xrt_world_size'`, once the workers run.
        Notebooks that were written before 2025 call them.
    Example
        sampler = DistributedSampler(data, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal())
    Use instead
        sampler = DistributedSampler(data, num_replicas=xr.world_size(), rank=xr.global_ordinal())
    Limitations
        Code that asks which version is installed is left out: a function with both, the old name and what stands for
        it, and names behind a `hasattr` of them or in a `try` with `except ImportError` or `AttributeError`.
        In a notebook with tpu_magics `%tpu_init` and `%%tpu_train` restore the two of `xla_model`, and this is advice.
    """

    code = "TPU412"
    name = "removed-name"
    group = "launch"
    why = "Current versions raise AttributeError or ImportError for it."
    nodes = (ast.Import, ast.ImportFrom)

    def check(self, node: ast.Import | ast.ImportFrom, ctx: RuleContext) -> Iterator[Finding]:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
        for one in node.names:
            yield from _removed(f"{module}{one.name}", one, ctx)

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for call in program.calls(*REMOVED):
            if isinstance(call.node.func, ast.Attribute):  # else its import is reported
                yield from _removed(call.name, call.node, call.ctx)


_MISSING = {"ImportError", "ModuleNotFoundError", "AttributeError"}


def _asks_for_version(node: ast.AST, name: str, now: str, ctx: RuleContext) -> bool:
    """Whether the code around a use of `name` expects that it may be missing; `now`: what stands for it today."""
    words = {*name.split("."), *now.split(".")}
    today = ctx.program.calls(now, now + ".") if ctx.function is not None else ()
    if any(one.ctx.function is ctx.function for one in today):
        return True
    for outer in ctx.parents(node):
        if isinstance(outer, ast.Try):
            caught = (one for handler in outer.handlers if handler.type is not None for one in nodes_of(handler.type))
            if any(isinstance(one, ast.Name) and one.id in _MISSING for one in caught):
                return True
        if isinstance(outer, (ast.If, ast.IfExp)):
            calls = (one for one in nodes_of(outer.test) if isinstance(one, ast.Call) and len(one.args) == 2)
            asked = (one.args[1] for one in calls if ctx.name(one) == "builtins.hasattr")
            if any(isinstance(one, ast.Constant) and one.value in words for one in asked):
                return True
    return False


def _removed(name: str, node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
    name = canonical(name)
    if name not in REMOVED or not ctx.program.xla or _device.is_in_other_device_branch(node, ctx):
        return
    version, now = REMOVED[name]
    if _asks_for_version(node, name, now, ctx):
        return
    edits: tuple[Edit, ...] = ()
    if isinstance(node, ast.Call) and name.startswith("torch_xla."):  # these take no arguments today
        now += "()"
        imported = ctx.program.globals.get("torch_xla")
        edits = (ctx.replace(node, now),) if imported is not None and imported.name == "torch_xla" else ()
    restored = name.startswith(XM) and ctx.program.has_our_magics
    why = "tpu_magics restores it in this notebook; elsewhere torch_xla raises AttributeError." if restored else None
    message = f"`{name}` was removed in {name.partition('.')[0]} {version}."
    yield ctx.finding(node, message, f"Write `{now}`.", why, edits=edits, advice=restored)


class CudaOrCpu(Rule):
    """A device that is CUDA or else the CPU.

    What it does
        Reports `"cuda" if torch.cuda.is_available() else "cpu"`, and the same with an `if` statement, a name for the
        condition or torch.accelerator, in code that tpu_magics trains with and that never names an XLA device.
    Why this is bad
        A TPU's host has no CUDA: the training runs on its CPU, without an error, and the TPU is idle.
    Example
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Use instead
        device = torch_xla.device()
    Limitations
        A program that also names an XLA device or a TPU, or leaves the device to accelerate or a Trainer, is not
        reported.
    """

    code = "TPU413"
    name = "cuda-or-cpu"
    group = "launch"
    why = "A TPU's host has no CUDA: the training runs on its CPU, without an error, and the TPU is idle."
    nodes = (ast.IfExp, ast.If)

    def check(self, node: ast.IfExp | ast.If, ctx: RuleContext) -> Iterator[Finding]:
        if not _chooses_cpu(node) or not _asks_for_gpu(node.test, ctx) or _names_xla(ctx.program):
            return
        test = _source.shortened(ctx.source(node.test))
        message = f"The device is CUDA if `{test}`, else the CPU: on a TPU it is the CPU."
        yield ctx.finding(node.test, message, 'Write `torch_xla.device()` (TorchTPU: `torch.device("tpu")`).')


_GPU_CHECKS = ("torch.cuda.is_available", "torch.cuda.device_count", "torch.accelerator.is_available")
_OTHER_DEVICES = ("accelerate", "transformers.Trainer", "transformers.Seq2SeqTrainer", "pytorch_lightning", "lightning")


def _chooses_cpu(node: ast.IfExp | ast.If) -> bool:
    """Whether its other side is, or holds, the CPU's name, and its own side is no such thing."""
    here, other = ([one] if isinstance(one, ast.expr) else one for one in (node.body, node.orelse))
    return _names_cpu(other) and not _names_cpu(here)


def _names_cpu(parts: Iterable[ast.AST]) -> bool:
    nodes = (node for part in parts for node in nodes_of(part))
    return any(isinstance(node, ast.Constant) and node.value == "cpu" for node in nodes)


def _asks_for_gpu(test: ast.expr, ctx: RuleContext) -> bool:
    """Whether the condition asks for a GPU, itself or by a name (`use_cuda = ... and torch.cuda.is_available()`)."""
    if any(ctx.name(node.func) in _GPU_CHECKS for node in nodes_of(test) if isinstance(node, ast.Call)):
        return True
    names = {node.id for node in nodes_of(test) if isinstance(node, ast.Name)}
    checks = ctx.program.calls(*_GPU_CHECKS)
    return bool(names) and any(names & set(_source.target_names(one.ctx, one.node)) for one in checks)


def _names_xla(program: CheckedProgram) -> bool:
    """Whether the device may be another one after all, or the code is none that we train with."""
    known = program.calls(*_device.DEVICES) or any(map(program.uses, _OTHER_DEVICES))
    named = any(re.search(r"[\"'](xla|tpu)[:\"']|xla_device", cell.text) for cell in program.cells)
    return bool(known) or named or not program.has_our_magics or program.xla_in_arguments


RULES = (
    ModelInFunction(),
    DeviceTooEarly(),
    DeviceTensorGlobal(),
    RefusedNprocs(),
    SpawnInNotebook(),
    CustomOp(),
    RemovedName(),
    CudaOrCpu(),
)
