"""Rules about number formats (TPU5xx): bfloat16 by autocast, no float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference.values import BATCH, MODEL, NOTHING, OUTPUT, TENSOR, UNKNOWN
from tpu_magics.check.rule import Rule
from tpu_magics.check.rule_context import RuleContext, is_test_of
from tpu_magics.check.rules import _device
from tpu_magics.check.rules._launches import END, NOTEBOOK, OURS, LaunchSite, launches
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function


_FLOAT16 = frozenset(("torch.float16", "torch.half", "tensorflow.float16", "tensorflow.half"))
FLOAT16_TENSORS = frozenset(("torch.HalfTensor", "torch.cuda.HalfTensor"))
_TEXTS = frozenset(("float16", "fp16", "half", "torch.float16", "torch.half"))


def is_float16(node: ast.expr | None, ctx: RuleContext, texts: bool = False) -> bool:
    """Whether an expression is the dtype float16; `texts`: also its names as strings."""
    if node is None:
        return False
    if ctx.name(node) in _FLOAT16 and not isinstance(node, ast.Call):
        return True
    return texts and ctx.constant(node) in _TEXTS


def _is_for_other_device(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether code is for another device: accelerate and the Trainer choose theirs, whatever else the program moves."""
    whole = not ctx.program.xla and _device.is_gpu_program(ctx.program)
    if whole or _device.is_in_other_device_branch(node, ctx) or is_test_of(ctx.program):
        return True
    function = ctx.function
    if function is not None and re.search(r"_(available|supported)(_|$)", function.name):  # it tries what there is
        return True
    spec = function.node.args if function is not None and not ctx.program.xla else None
    defaults = () if spec is None else (*spec.defaults, *spec.kw_defaults)
    # A wrapper for GPUs, or integer weights for a GPU's kernel.
    if any(ctx.constant(one) == "cuda" or ctx.name(one) in ("torch.int8", "torch.uint8") for one in defaults):
        return True
    return _is_chosen(node, ctx)


_PRECISIONS = re.compile(r"fp16|half|float16|16-|mixed|precision|upcast|dtype|(^|\W|_)amp(\W|_|$)", re.IGNORECASE)


def _is_chosen(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a setting that is not known here asks for float16: `if args.fp16:`, `elif precision == "16-mixed":`."""
    for outer in ctx.parents(node):
        if isinstance(outer, (ast.If, ast.IfExp)) and not any(part is node for part in nodes_of(outer.test)):
            written = ast.unparse(outer.test)
            if (
                ctx.constant(outer.test) is NOTHING
                and _PRECISIONS.search(written)
                and not mentions_gpu(outer.test, ctx)
            ):
                return True
    return False


def mentions_gpu(node: ast.expr | None, ctx: RuleContext) -> bool:
    """`enabled=torch.cuda.is_available()`, `enabled=device.type == "cuda"`, through a name as well."""
    return node is not None and ("cuda" in ast.unparse(node).lower() or ctx.value(node).name.startswith("torch.cuda"))


def constants(node: ast.expr | None, ctx: RuleContext) -> tuple[Any, ...]:
    """The possible constants of an expression: one, or for a parameter one for each launch or call of its function;
    NOTHING for an unknown one."""
    result = ctx.constant(node)
    if result is not NOTHING or not isinstance(node, ast.Name) or ctx.function is None:
        return (result,)
    names = [one.arg for one in ctx.function.parameters]
    if node.id not in names or ctx.function.cls is not None or _is_set(node.id, ctx.function):
        return (result,)
    return tuple(_passed_constants(ctx.function, node.id, names.index(node.id))) or (
        _default_constant(ctx.function, node.id),
    )


def _is_set(name: str, function: Function) -> bool:
    """Whether the function assigns the parameter."""
    stores = (one for one in nodes_of(function.node) if isinstance(one, ast.Name) and one.id == name)
    return any(not isinstance(one.ctx, ast.Load) for one in stores)


def _passed_constants(function: Function, name: str, position: int) -> Iterator[Any]:
    default = _default_constant(function, name)
    for launch in launches(function.ctx.program):
        if launch.function is function:
            yield _launched_constant(launch, position, default)
    for call in function.callers:
        given = call.ctx.argument(call.node, name, position)
        yield (
            call.ctx.constant(given)
            if given is not None
            else NOTHING
            if call.ctx.has_unknown_arguments(call.node)
            else default
        )


def _launched_constant(launch: LaunchSite, position: int, default: Any) -> Any:
    """The argument of a launch; the launchers of torch_xla pass the index before the other arguments."""
    if launch.kind == OURS and launch.call is None:
        return NOTHING if _has_arguments(launch) else default
    if launch.kind == OURS and launch.call is not None:
        return _positional(launch.call, position + 1, default)
    place = position - (0 if launch.kind == NOTEBOOK else 1)
    given = launch.argument("args", 1)
    if given is None or launch.call is None:
        return default
    items = launch.call.ctx.value(given).items
    if items is None or place < 0:
        return NOTHING
    return items[place].const if place < len(items) else default


def _positional(call: CallSite, position: int, default: Any) -> Any:
    """The value at this position of `tpu_magics.train(function, *args)`; `default` without one."""
    given = call.node.args[: position + 1]
    if any(isinstance(one, ast.Starred) for one in given):
        return NOTHING
    return call.ctx.constant(given[position]) if len(given) > position else default


def _has_arguments(launch: LaunchSite) -> bool:
    """Whether `%%tpu_train` or `%tpu_train NAME` has words that are not options. The value of an option may count as
    one: then nothing is reported."""
    words = launch.words.split()[0 if launch.position[1] == END else 1 :]
    return any(not word.startswith("-") for word in words)


def _default_constant(function: Function, name: str) -> Any:
    spec = function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    pairs = [*zip(reversed(positional), reversed(spec.defaults), strict=False)]
    pairs += [
        (one, default) for one, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if default is not None
    ]
    return next((function.ctx.constant(default) for one, default in pairs if one.arg == name), NOTHING)


VARIABLES = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_FP16", "XLA_DOWNCAST_FP16")
_OFF = frozenset(("", "0", "false", "no", "off", "none"))
_SETTERS = frozenset(("os.putenv", "os.environ.setdefault", "os.environ.__setitem__"))
_MAPPINGS = frozenset(("os.environ.update", "builtins.dict", "dict"))
_WORDS = re.compile(rf"\b({'|'.join(VARIABLES)})(?:\s*=\s*|\s+)[\"']?([\w$]*)")
_INSTEAD = (
    "Write `%tpu_init --precision {level}` in a notebook, "
    '`Accelerator(mixed_precision="bf16")` or `torch.autocast("xla", dtype=torch.bfloat16)` in code.'
)
_SHELL = re.compile(rf"^\s*!.*?\b({'|'.join(VARIABLES)})=[\"']?([\w$]*)")


class Bf16Environment(Rule):
    """bfloat16 enabled through environment variables.

    What it does
        Reports `XLA_USE_BF16`, `XLA_DOWNCAST_BF16`, `XLA_USE_FP16` and `XLA_DOWNCAST_FP16` set in `os.environ` (by
        item, `update`, `setdefault`, `os.putenv`, or in a dict that becomes an environment), with `%env`, and with
        `export` or before a command on a `!` line.
    Why this is bad
        The variables are deprecated: torch_xla 2.9 warns about them, and a later version ignores them. They turn every
        float32 tensor into bfloat16 while `tensor.dtype` still says float32, and they have no effect after the process
        has created an XLA tensor.
    Example
        os.environ["XLA_USE_BF16"] = "1"
    Use instead
        %tpu_init --precision bf16
        # or, in code:
        accelerator = Accelerator(mixed_precision="bf16")
        with torch.autocast("xla", dtype=torch.bfloat16): ...
    Limitations
        A variable that is set outside the program (a shell, a Dockerfile, the environment of a service), and a name
        that is composed at run time, are not found.
    """

    code = "TPU501"
    name = "bf16-environment"
    group = "precision"
    why = (
        "The variable is deprecated in torch_xla; it makes float32 tensors 16-bit while tensor.dtype still says "
        "float32, and it has no effect after the process has created an XLA tensor."
    )
    nodes = (ast.Assign, ast.Call, ast.Dict)

    def check(self, node: ast.Assign | ast.Call | ast.Dict, ctx: RuleContext) -> Iterator[Finding]:
        for variable, value, place in _settings(node, ctx):
            if not _is_off(value, ctx):
                yield _environment_finding(place, variable, ctx)

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for index, cell in enumerate(program.cells):
            if any(one in cell.text for one in VARIABLES):
                yield from _check_lines(cell, RuleContext(program, cell, index, None, (), False))


def _settings(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    """The variables that a node sets: name, value, and where it is written."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and (name := _variable(target.slice, ctx)):
                yield name, node.value, node
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and isinstance(ctx.constant(value), (str, int)) and (name := _variable(key, ctx)):
                yield name, value, key
    else:
        yield from _settings_of_call(node, ctx)


def _settings_of_call(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    assert isinstance(node, ast.Call)
    for keyword in node.keywords:
        if keyword.arg in VARIABLES and ctx.name(node) in _MAPPINGS:
            yield keyword.arg, keyword.value, keyword.value
    if len(node.args) == 2 and ctx.name(node) in _SETTERS and (name := _variable(node.args[0], ctx)):
        yield name, node.args[1], node


def _variable(node: ast.expr, ctx: RuleContext) -> str:
    name = ctx.constant(node)
    return name if isinstance(name, str) and name in VARIABLES else ""


def _is_off(value: ast.expr, ctx: RuleContext) -> bool:
    """Whether it is disabled, or restored to its previous value."""
    if isinstance(value, ast.Call) and ctx.name(value) == "builtins.str" and value.args:
        value = value.args[0]
    constant = ctx.constant(value)
    if constant is not NOTHING:
        return str(constant).strip().lower() in _OFF
    return _puts_back(value, ctx)


def _puts_back(value: ast.expr, ctx: RuleContext) -> bool:
    """`os.environ["XLA_USE_BF16"] = saved`, where `saved` comes from the environment."""
    creator = ctx.value(value).creator
    return any(isinstance(one, ast.Call) and ctx.name(one).startswith("os.") for one in (value, creator)) or (
        isinstance(value, ast.Name) and re.search(r"old|saved|previous|before|orig", value.id) is not None
    )


def _environment_fix(variable: str) -> str:
    if "FP16" in variable:
        return f"Remove it: a TPU computes in bfloat16. {_INSTEAD.format(level='bf16')}"
    return f"Remove it. {_INSTEAD.format(level='bf16-downcast' if 'DOWNCAST' in variable else 'bf16')}"


def _environment_finding(node: ast.AST, variable: str, ctx: RuleContext) -> Finding:
    return ctx.finding(node, f"{variable} is set in the environment.", _environment_fix(variable))


# -- lines that are not Python ----------------------------------------------------------------------------------------


def _check_lines(cell: CodeCell, ctx: RuleContext) -> Iterator[Finding]:
    magics = {one.line: one.words for one in cell.line_magics if one.name in ("env", "set_env")}
    shell = cell.magic in ("bash", "sh", "script") or bool(cell.line_magics) or ctx.notebook
    for number, line in enumerate(cell.lines, start=1):
        result = _WORDS.search(magics[number]) if number in magics else _shell_setting(line, cell) if shell else None
        if result is not None and result[2].lower() not in _OFF:
            yield ctx.finding_at(
                number, line.find(result[1]), f"{result[1]} is set in the environment.", _environment_fix(result[1])
            )


def _shell_setting(line: str, cell: CodeCell) -> re.Match[str] | None:
    if cell.magic in ("bash", "sh", "script"):
        return None if line.lstrip().startswith("#") else _WORDS.search(line)
    return _SHELL.search(line)


_NO_FLOAT16 = "A TPU computes in bfloat16, which has the range of float32, and not in float16."

_WHY_SCALER = (
    "bfloat16 has the range of float32, so a TPU needs no scaling, and the scaler reads on the host in each step "
    "whether a gradient overflowed."
)
_WHY_CUDA = 'Autocast for "cuda" does nothing on an XLA device: its operations stay in float32.'
_WHY_ACCELERATE = "accelerate raises an error for fp16 on a TPU, which computes in bfloat16."
_AUTOCAST = 'Write `torch.autocast("xla", dtype=torch.bfloat16)`.'
_SCALER = (
    "Remove the scaler, and call `loss.backward()` and `optimizer.step()` directly; for mixed precision write "
    '`torch.autocast("xla", dtype=torch.bfloat16)`.'
)

_CUDA_AUTOCASTS = ("torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast")
_AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch_xla.amp.autocast")
_SCALERS = (
    "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler", "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler", "torch_xla.amp.GradScaler", "torch_xla.amp.grad_scaler.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
)  # fmt: skip
_ACCELERATE = ("accelerate.Accelerator", "accelerate.notebook_launcher", "accelerate.debug_launcher")
_POLICIES = (
    "keras.mixed_precision.set_global_policy", "keras.mixed_precision.set_dtype_policy", "keras.DTypePolicy",
    "keras.config.set_dtype_policy", "keras.mixed_precision.Policy", "keras.mixed_precision.DTypePolicy",
    "keras.dtype_policies.DTypePolicy", "keras.mixed_precision.experimental.set_policy",
    "keras.mixed_precision.experimental.Policy",
)  # fmt: skip
_FLOATX = ("keras.backend.set_floatx", "keras.config.set_floatx")
_CPU = "cpu"

MessageParts = tuple[str, str, str]  # message, fix, why


class CudaAmp(Rule):
    """Mixed precision as on a GPU.

    What it does
        Reports `torch.cuda.amp.autocast` and `GradScaler` (also `torch.amp.GradScaler` and `torch_xla.amp.GradScaler`),
        `torch.autocast("cuda")`, autocast to float16, `mixed_precision="fp16"` of `Accelerator` and
        `notebook_launcher`, float16 as the default dtype, models that are loaded as float16, and Keras' `mixed_float16`
        policy.
    Why this is bad
        A TPU computes in bfloat16, which has the range of float32, and not in float16. Autocast for "cuda" leaves XLA
        operations in float32. A gradient scaler is not needed there, and it reads on the host in each step whether a
        gradient overflowed. `Accelerator(mixed_precision="fp16")` raises an error on a TPU.
    Example
        scaler = torch.cuda.amp.GradScaler()
        with torch.cuda.amp.autocast():
            loss = model(**batch).loss
    Use instead
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = model(**batch).loss
    Limitations
        A precision from a configuration file or the command line, or one that is passed through two functions, is
        unknown. Code under a condition for a GPU or under an option that asks for float16, tests, and programs that
        move everything to "cuda" and do not use XLA, are not reported.
    """

    code = "TPU502"
    name = "cuda-amp"
    group = "precision"
    why = _NO_FLOAT16
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        parts = (
            _loaded_half(node, ctx) if any(one.arg in _LOADING or one.arg is None for one in node.keywords) else None
        )
        if parts is None and (handler := _HANDLERS.get(ctx.name(node))) is not None:
            parts = handler(node, ctx)
        if parts is not None and not _is_for_other_device(node, ctx):
            message, fix, why = parts
            yield ctx.finding(node, message, fix, why=why)


def _is_disabled(node: ast.Call, ctx: RuleContext) -> bool:
    """`enabled=False`, or enabled only with a GPU."""
    enabled = ctx.argument(node, "enabled")
    return enabled is not None and (ctx.constant(enabled) is False or mentions_gpu(enabled, ctx))


def _cuda_autocast(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    if _is_disabled(node, ctx):
        return None
    return f"{ctx.source(node.func)} enables mixed precision for CUDA.", _AUTOCAST, _WHY_CUDA


def _autocast(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    device = ctx.constant(ctx.argument(node, "device_type", 0))
    if _is_disabled(node, ctx) or device == _CPU:
        return None
    if device == "cuda":
        return f"{ctx.source(node.func)} enables mixed precision for CUDA.", _AUTOCAST, _WHY_CUDA
    position = 2 if ctx.name(node) == "torch_xla.amp.autocast" else 1
    if is_float16(ctx.argument(node, "dtype", position), ctx):
        return f"{ctx.source(node.func)} computes in float16.", _AUTOCAST, _NO_FLOAT16
    return None


def _scaler(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    device = ctx.constant(ctx.argument(node, "device", 0))
    if _is_disabled(node, ctx) or (isinstance(device, str) and device.partition(":")[0] not in ("cuda", "xla")):
        return None
    return f"{ctx.source(node.func)} scales gradients for float16.", _SCALER, _WHY_SCALER


def _accelerate(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    precisions = constants(ctx.argument(node, "mixed_precision"), ctx)
    if "fp16" not in precisions or ctx.constant(ctx.argument(node, "cpu")) is True:
        return None
    called, written = ctx.source(node.func), ctx.constant(ctx.argument(node, "mixed_precision")) == "fp16"
    fix = 'Write `mixed_precision="bf16"`.' if written else 'Pass "bf16" to the function, or make that its default.'
    return f'{called} uses mixed_precision="fp16".', fix, _WHY_ACCELERATE


def _default_dtype(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    given = node.args[0] if node.args else ctx.argument(node, "d") or ctx.argument(node, "t")
    named = ctx.name(given) in FLOAT16_TENSORS or ctx.constant(given) in FLOAT16_TENSORS
    if given is None or not (named or is_float16(given, ctx)):
        return None
    fix = 'Leave the default float32 and use `torch.autocast("xla", dtype=torch.bfloat16)`.'
    return f"{ctx.source(node.func)} makes float16 the default dtype.", fix, _NO_FLOAT16


def _policy(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    named = ctx.constant(
        ctx.argument(node, "name", 0) or ctx.argument(node, "policy") or ctx.argument(node, "dtype_policy")
    )
    if named not in ("mixed_float16", "float16"):
        return None
    instead = "mixed_bfloat16" if named == "mixed_float16" else "bfloat16"
    return f"The Keras policy is {named}.", f'Write `"{instead}"`.', _NO_FLOAT16


def _floatx(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    if ctx.constant(ctx.argument(node, "value", 0) or ctx.argument(node, "floatx")) != "float16":
        return None
    return (
        "Keras' default dtype is set to float16.",
        'Leave "float32" and set the policy "mixed_bfloat16".',
        _NO_FLOAT16,
    )


# Keywords for the dtype of a loaded or wrapped model, and the calls for which `dtype` is one of them.
_LOADING = ("torch_dtype", "dtype", "compute_dtype")
_LOADERS = ("from_pretrained", "from_config", "from_single_file")


def _loaded_half(node: ast.Call, ctx: RuleContext) -> MessageParts | None:
    for name in _LOADING:
        given = ctx.argument(node, name)
        if given is not None and is_float16(given, ctx, texts=True) and _is_loader(node, name, ctx):
            parts = f"{ctx.source(node.func)} uses {name}={ctx.source(given)}."
            return parts, f"Write `{name}=torch.bfloat16`.", _NO_FLOAT16
    return None


def _is_loader(node: ast.Call, keyword: str, ctx: RuleContext) -> bool:
    if keyword == "torch_dtype":
        return True
    name = ctx.name(node)
    if keyword == "compute_dtype":
        return name.startswith("torch_xla.") or name.endswith("FullyShardedDataParallel")
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return called in _LOADERS or name in ("transformers.pipeline",)


_HANDLERS: dict[str, Callable[[ast.Call, RuleContext], MessageParts | None]] = {
    **dict.fromkeys(_CUDA_AUTOCASTS, _cuda_autocast),
    **dict.fromkeys(_AUTOCASTS, _autocast),
    **dict.fromkeys(_SCALERS, _scaler),
    **dict.fromkeys(_ACCELERATE, _accelerate),
    "torch.set_default_dtype": _default_dtype,
    "torch.set_default_tensor_type": _default_dtype,
    **dict.fromkeys(_POLICIES, _policy),
    **dict.fromkeys(_FLOATX, _floatx),
}


_KINDS = (TENSOR, OUTPUT, BATCH, MODEL)
_CASTS = ("to", "type")
_TF_CASTS = ("tensorflow.cast", "tensorflow.dtypes.cast")


class Half(Rule):
    """Models and tensors converted to float16.

    What it does
        Reports `.half()`, `.to(torch.float16)`, `.to(dtype=torch.half)`, `.type(torch.float16)` of models and tensors,
        tensors created with `dtype=torch.float16`, and `tf.cast(x, tf.float16)` in TensorFlow code for a TPU.
    Why this is bad
        A TPU computes in bfloat16. It has no units for float16, whose range (up to 65504) also makes losses and
        gradients overflow without a scaler.
    Example
        model = model.half().to(device)
        mask = torch.zeros(8, 128, dtype=torch.float16, device=device)
    Use instead
        model = model.to(torch.bfloat16).to(device)
        mask = torch.zeros(8, 128, dtype=torch.bfloat16, device=device)
    Limitations
        A dtype from a configuration is unknown. float16 NumPy arrays on the host, tensors that stay on the CPU, code
        under a condition for a GPU, and programs for a GPU only are fine.
    """

    code = "TPU503"
    name = "half"
    group = "precision"
    why = (
        "A TPU computes in bfloat16 and has no units for float16, whose small range makes losses and gradients "
        "overflow."
    )
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        result = _half_method(node, ctx) or _half_function(node, ctx)
        if result is not None and not _is_for_other_device(node, ctx):
            message, fix = result
            yield ctx.finding(node, message, fix)


def _half_method(node: ast.Call, ctx: RuleContext) -> tuple[str, str] | None:
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("half", *_CASTS):
        return None
    receiver, whose = ctx.value(func.value), ctx.source(func.value)
    if not _is_ours(func, node, ctx):
        return None
    whose = whose if len(whose) <= 60 and "\n" not in whose else "the result"
    if func.attr == "half":
        sure = receiver.kind in _KINDS or _is_torch(ctx)
        return (
            (f"{whose} is converted to float16.", f"Write `{whose}.to(torch.bfloat16)`.")
            if sure and not node.args
            else None
        )
    given = [*node.args, *(one.value for one in node.keywords if one.arg in ("dtype", "dst_type"))]
    if any(_is_float16(one, ctx) for one in given):
        return f"{whose} is converted to float16.", "Write `torch.bfloat16` instead of float16."
    return None


def _is_float16(node: ast.expr, ctx: RuleContext) -> bool:
    return is_float16(node, ctx) or ctx.name(node) in FLOAT16_TENSORS or ctx.constant(node) in FLOAT16_TENSORS


def _is_ours(func: ast.Attribute, node: ast.Call, ctx: RuleContext) -> bool:
    """Whether it is or may be a tensor or model; on the host only if it is moved to a device here."""
    receiver = ctx.value(func.value)
    if receiver.lib == "tf" or (receiver.kind not in _KINDS and receiver.kind != UNKNOWN):
        return False
    on_host = receiver.where == "host" or (isinstance(func.value, ast.Call) and ctx.method(func.value)[1] == "cpu")
    return not on_host or _is_sent(node, ctx)


def _is_sent(node: ast.Call, ctx: RuleContext) -> bool:
    """`x.to(device, torch.float16)`, `x.half().to(device)`."""
    outer = ctx.parent(node)
    given = [*node.args, *(one.value for one in node.keywords if one.arg == "device")]
    return (isinstance(outer, ast.Attribute) and outer.attr == "to") or any(
        not _is_float16(one, ctx) and ctx.constant(one) not in ("cpu", True, False) for one in given
    )


def _is_torch(ctx: RuleContext) -> bool:
    return ctx.program.uses("torch") or ctx.program.xla


def _half_function(node: ast.Call, ctx: RuleContext) -> tuple[str, str] | None:
    """`torch.zeros(..., dtype=torch.float16)`, `tf.cast(x, tf.float16)`."""
    name = ctx.name(node)
    if name.startswith("torch.") and _is_made_half(node, name, ctx):
        return f"{ctx.source(node.func)} creates a float16 tensor.", "Create it with `dtype=torch.bfloat16`."
    if name in _TF_CASTS and ctx.program.tpu_tf and is_float16(ctx.argument(node, "dtype", 1), ctx, texts=True):
        whose = ctx.source(node.args[0]) if node.args else "A tensor"
        return f"{whose} is converted to float16.", "Write `tf.bfloat16` instead of float16."
    return None


def _is_made_half(node: ast.Call, name: str, ctx: RuleContext) -> bool:
    dtype = ctx.argument(node, "dtype")
    if name not in FLOAT16_TENSORS and (dtype is None or not is_float16(dtype, ctx)):
        return False
    value, device = ctx.value(node), ctx.constant(ctx.argument(node, "device"))
    on_host = value.where == "host" or (ctx.function is not None and not ctx.on_device and not _is_of_module(ctx))
    elsewhere = isinstance(device, str) and device.partition(":")[0] in ("cuda", "cpu")
    return (value.kind == TENSOR or name in FLOAT16_TENSORS) and not on_host and not elsewhere


def _is_of_module(ctx: RuleContext) -> bool:
    """A module's `__init__` creates the tensors of its forward."""
    return ctx.function is not None and ctx.function.cls is not None and ctx.function.cls.is_module


RULES = (Bf16Environment(), CudaAmp(), Half())
