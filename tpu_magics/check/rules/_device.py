"""Code that starts the XLA runtime, puts objects of the notebook on its device, or is for another device.

Each call that starts the runtime was tried with torch_xla 2.9, accelerate 1.15 and transformers 5.23. These do not
start it: `torch.device("xla")`, `xr.device_type()`, `xr.use_spmd()`, transformers' `set_seed`,
`xmp.MpModelWrapper`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import DEVICE, MODEL, NUMBER, AbstractValue
from tpu_magics.check.program import remembered
from tpu_magics.check.rules import _launches
from tpu_magics.check.rules._launches import END
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


_XM, _XR = "torch_xla.core.xla_model.", "torch_xla.runtime."
DEVICES = ("torch_xla.device", "torch_xla.torch_xla.device", _XM + "xla_device")
ACCELERATORS = ("accelerate.Accelerator", "accelerate.PartialState", "accelerate.AcceleratorState")
# With tpu_magics these do not start the runtime in a notebook.
QUIETED = ("accelerate.utils.set_seed", "transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_OTHERS = (
    *("torch_xla.devices", "torch_xla.real_devices", "torch_xla.device_count", "torch_xla.sync",
        "torch_xla.manual_seed"),
    *(_XM + one for one in ("get_xla_supported_devices", "xla_real_devices", "is_master_ordinal", "master_print",
        "get_local_ordinal", "get_ordinal", "xrt_world_size", "set_rng_state", "mark_step", "wait_device_ops",
        "get_memory_info", "rendezvous")),
    *(_XR + one for one in ("world_size", "global_ordinal", "local_ordinal", "global_device_count",
        "global_runtime_device_count", "addressable_device_count", "addressable_runtime_device_count",
        "local_device_count", "process_index", "process_count", "is_bf16_supported")),
)  # fmt: skip
_NAMES_OF_DEVICES = (*DEVICES, "")  # accelerator.device has no name of its own
ALL = (*DEVICES, *ACCELERATORS, *QUIETED, *_OTHERS)


@remembered
def starters(program: CheckedProgram) -> list[CallSite]:
    """Calls that start the runtime where they run, in order; `.to("xla")` and `device="xla"` are among them."""
    named = {id(call.node) for call in program.calls(*ALL)}
    return [call for call in program.all_calls if id(call.node) in named or _names_xla(call)]


def _names_xla(call: CallSite) -> bool:
    """`x.to("xla")`, `torch.ones(3, device="xla")`, also through `torch.device("xla")`."""
    if call.name == "torch.distributed.init_process_group":
        return _is_text(call.ctx.constant(call.ctx.argument(call.node, "backend", 0)))
    if call.method not in ("to", "") or call.name == "torch.device":
        return False
    given = [one.value for one in call.node.keywords if one.arg == "device"]
    if call.method == "to":
        given += call.node.args[:1]
    return any(_is_text(call.ctx.constant(one)) for one in given)


def _is_text(constant: object) -> bool:
    return isinstance(constant, str) and (constant == "xla" or constant.startswith("xla:"))


def is_xla_device(value: AbstractValue) -> bool:
    """Whether a value certainly is an XLA device."""
    if _is_text(value.const):
        return True
    return value.kind == DEVICE and value.where == "device" and value.name in _NAMES_OF_DEVICES


def on_cpu(call: CallSite) -> bool:
    """`Accelerator(cpu=True)`."""
    return call.ctx.constant(call.ctx.argument(call.node, "cpu")) is True


def xla_devices_in(node: ast.AST, ctx: RuleContext) -> list[ast.expr]:
    """The XLA devices that an expression uses: `x.to(device)`, `torch.ones(3, device=device)`."""
    result: list[ast.expr] = []
    for one in nodes_of(node):
        if not isinstance(one, ast.Call):
            continue
        given = [keyword.value for keyword in one.keywords if keyword.arg == "device"]
        if isinstance(one.func, ast.Attribute) and one.func.attr == "to":
            given += one.args[:1]
        elif ctx.name(one) == _XM + "send_cpu_data_to_device":
            given += one.args[1:2]
        result += [expression for expression in given if is_xla_device(ctx.value(expression))]
    return result


NODES = (ast.Assign, ast.AnnAssign, ast.Expr)
Statement = ast.Assign | ast.AnnAssign | ast.Expr


def collect_statements(node: Statement, ctx: RuleContext) -> None:
    """Keep the statements of the top level for later."""
    if ctx.function is None and isinstance(node.value, (ast.Call, ast.Tuple, ast.BinOp, ast.Dict, ast.List)):
        ctx.program.memo.setdefault("top_statements", {})[id(node)] = (node, ctx)


def top_level(program: CheckedProgram) -> Sequence[tuple[Statement, RuleContext]]:
    """The statements of the notebook itself, without those of a cell that workers run."""
    result = program.memo.get("top_statements", {}).values()
    return [(node, ctx) for node, ctx in result if not _launches.launches_of(ctx)]


def bound_names(node: Statement, ctx: RuleContext) -> list[str]:
    """The names that a statement binds; for `model.to(device)` that of the model."""
    if isinstance(node, ast.Expr):
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            if isinstance(owner, ast.Name) and call.func.attr == "to" and ctx.value(owner).kind == MODEL:
                return [owner.id]
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [one.id for target in targets for one in nodes_of(target) if isinstance(one, ast.Name)]


def users(name: str, position: _launches.Position, program: CheckedProgram) -> Iterator[_launches.LaunchSite]:
    """The launches after `position` whose workers read the notebook's `name`, or get it as an argument."""
    for launch in _launches.launches(program):
        if launch.position > position and (name in _given(launch) or _is_read(name, launch, program)):
            yield launch


def _is_read(name: str, launch: _launches.LaunchSite, program: CheckedProgram) -> bool:
    return any(name in function.reads for function in _launches.worker_functions(launch, program))


def _given(launch: _launches.LaunchSite) -> set[str]:
    """The names in a launch's arguments."""
    if launch.call is not None:
        skipped = 1 if launch.call.node.args else 0
        parts: list[ast.expr] = [*launch.call.node.args[skipped:], *(one.value for one in launch.call.node.keywords)]
        return {one.id for part in parts for one in nodes_of(part) if isinstance(one, ast.Name)}
    return {word.partition("=")[2] or word for word in launch.words.split()}


def parameters_for(name: str, launch: _launches.LaunchSite) -> Iterator[str]:
    """The parameters of the launched function that get the notebook's `name`."""
    if launch.function is None:
        return
    given = launch.argument("args", 1)
    if launch.call is None:
        words = launch.words.split()
        positional = [word for word in words if "=" not in word and not word.startswith("-")]
        yield from (word.partition("=")[0] for word in words if word.partition("=")[2] == name)
        if launch.position[1] != END:
            positional = positional[1:]  # `%tpu_train f model`
    else:
        elements = given.elts if isinstance(given, (ast.Tuple, ast.List)) else []
        positional = [one.id if isinstance(one, ast.Name) else "" for one in elements]
    index_first = launch.kind in (_launches.SPAWN, _launches.LAUNCH)
    parameters = launch.function.parameters[1 if index_first else 0 :]
    yield from (parameter.arg for parameter, word in zip(parameters, positional, strict=False) if word == name)


@remembered
def statements(program: CheckedProgram) -> dict[int, tuple[Statement, RuleContext, str, _launches.LaunchSite]]:
    """The statements of the notebook that move objects to an XLA device that later workers use."""
    return {id(result[0]): result for result in _device_statements(program)}


def _device_statements(program: CheckedProgram) -> Iterator[tuple[Statement, RuleContext, str, _launches.LaunchSite]]:
    if not _launches.launches(program):
        return
    for node, ctx in top_level(program):
        assert node.value is not None
        if not xla_devices_in(node.value, ctx):
            continue
        position = _launches.position_of(ctx, node)
        for name in bound_names(node, ctx):
            launch = next(users(name, position, program), None)
            if launch is not None:
                yield node, ctx, name, launch
                break


def is_reported(call: CallSite, reported: dict[int, tuple[Statement, RuleContext, str, _launches.LaunchSite]]) -> bool:
    """Whether the call stands in one of these statements."""
    return bool(reported) and any(id(parent) in reported for parent in call.ctx.parents(call.node))


_TPU = re.compile(r"(?<![a-z])(tpus?|xla)(?![a-z])|(?<![a-z_])(strategy|resolver)(?![a-z_])", re.IGNORECASE)
_OTHER = re.compile(r"(?<![a-z])(cuda|gpus?|cpus?|mps|rocm|[xnh]pu|mlu|musa|sdaa)(?![a-z])", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_EQUAL = (ast.Eq, ast.Is, ast.In, ast.Gt, ast.GtE)
_UNEQUAL = (ast.NotEq, ast.IsNot, ast.NotIn, ast.Lt, ast.LtE)


def is_in_other_device_branch(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a condition around this node selects another device than a TPU."""
    inner, others = node, 0
    for outer in ctx.parents(node):
        if isinstance(outer, _FUNCTIONS):
            return False
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            if _is_other_branch(outer, inner):
                return True
            others += _sides(outer.test)[0] < 0
            if others > 1:  # where it is neither an XPU nor an NPU, nor a TPU by any of these tests, it is a GPU
                return True
        if isinstance(outer, ast.Try) and inner in outer.handlers and _looks_for_tpu(outer):
            return True
        inner = outer
    return False


def _is_other_branch(node: ast.If | ast.IfExp, inner: ast.AST) -> bool:
    body = node.body if isinstance(node.body, list) else [node.body]
    when_true, when_false = _sides(node.test)
    return (when_true if any(one is inner for one in body) else when_false) < 0


def _looks_for_tpu(node: ast.Try) -> bool:
    """`try: TPUClusterResolver(...)`: its handlers run where there is no TPU."""
    names = (
        one for statement in node.body for one in ast.walk(statement) if isinstance(one, (ast.Name, ast.Attribute))
    )
    return any((one.id if isinstance(one, ast.Name) else one.attr) in _RESOLVING for one in names)


_RESOLVING = ("TPUClusterResolver", "TPUStrategy", "xla_device", "torch_xla")


def _sides(test: ast.expr) -> tuple[int, int]:
    """For a condition, the device of its true and of its false side: 1 a TPU, -1 another device, 0 unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        one, other = _sides(test.operand)
        return other, one
    if isinstance(test, ast.BoolOp):
        return _of_several(test)
    if isinstance(test, ast.Compare):
        return _of_comparison(test)
    return _of_words(ast.unparse(test))


def _of_several(test: ast.BoolOp) -> tuple[int, int]:
    when_true, when_false = zip(*map(_sides, test.values), strict=True)
    if isinstance(test.op, ast.And):
        return _first(when_true), _common(when_false)
    return _common(when_true), _first(when_false)


def _first(devices: Sequence[int]) -> int:
    return next(filter(None, devices), 0)


def _common(devices: Sequence[int]) -> int:
    return devices[0] if len(set(devices)) == 1 else 0


def _of_comparison(test: ast.Compare) -> tuple[int, int]:
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    nothing = isinstance(right, ast.Constant) and right.value in (None, 0, False, "")
    what = left if nothing or not _of_words(ast.unparse(right))[0] else right
    one, other = _of_words(ast.unparse(what))
    if nothing and isinstance(operator, (ast.Eq, ast.Is, ast.LtE)):  # `strategy is None`, `len(tpus) == 0`
        return other, one
    if nothing:
        return one, other
    return (one, other) if isinstance(operator, _EQUAL) else (other, one) if isinstance(operator, _UNEQUAL) else (0, 0)


def _of_words(text: str) -> tuple[int, int]:
    if _OTHER.search(text):
        return -1, 0  # "not on a GPU" may be on a TPU
    return (1, -1) if _TPU.search(text) else (0, 0)


def is_for_other_device(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this code, or the whole program, is for another device than a TPU."""
    return is_gpu_program(ctx.program) or is_in_other_device_branch(node, ctx)


@remembered
def is_gpu_program(program: CheckedProgram) -> bool:
    """Whether the program puts things on a GPU and does not use XLA."""
    if program.for_tpu:
        return False
    if (
        program.uses("transformer_engine")
        or program.calls(*_FOR_GPUS)
        or any(call.receiver.kind != NUMBER for call in program.methods("cuda"))
    ):
        return True
    listed = program.calls(*_LISTED)
    if any(call.ctx.constant(call.ctx.argument(call.node, "device_type", 0)) == "GPU" for call in listed):
        return True
    devices = [call for call in (*program.calls("torch.device"), *program.methods("to")) if call.node.args]
    return any(_is_cuda(call.ctx.constant(call.node.args[0])) for call in devices)


_FOR_GPUS = (
    "torch.cuda.set_device",
    "tensorflow.distribute.MirroredStrategy",
    "tensorflow.distribute.MultiWorkerMirroredStrategy",
)
_LISTED = ("tensorflow.config.list_physical_devices", "tensorflow.config.experimental.list_physical_devices")


@remembered
def mentions_only_gpus(program: CheckedProgram) -> bool:
    """Whether the text mentions CUDA and never a TPU: accelerate's launcher also starts workers on GPUs."""
    texts = [cell.text for cell in program.cells]
    return any(map(_GPUS.search, texts)) and not any(map(_TPUS.search, texts))


_GPUS = re.compile(r"nvidia-smi|torch\.cuda\b|[\"']cuda\b")
_TPUS = re.compile(r"(?<![a-z])(tpus?|xla)(?![a-z])", re.IGNORECASE)


def _is_cuda(constant: object) -> bool:
    return isinstance(constant, str) and constant.partition(":")[0] == "cuda"
