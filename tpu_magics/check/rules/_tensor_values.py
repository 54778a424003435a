"""Which values XLA computes, how often code runs, and which calls read or show a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.expressions import EVERY_N
from tpu_magics.check.inference.values import (
    ACCELERATOR,
    ARGUMENTS,
    BATCH,
    FUNCTION,
    LIST,
    LOADER,
    NUMBER,
    OPTIMIZER,
    OUTPUT,
    SCHEDULER,
    TENSOR,
    TOKENIZER,
    TRAINER,
    AbstractValue,
)
from tpu_magics.check.program import CheckedProgram, Function, remembered
from tpu_magics.check.rules import _source
from tpu_magics.check.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.inference.values import AbstractValue
    from tpu_magics.check.program import CallSite, Function
    from tpu_magics.check.rule_context import RuleContext


STRUCTURES = (OUTPUT, BATCH)
# Values that the main body of a program creates, and a helper only receives.
_OF_PROGRAMS = frozenset((ACCELERATOR, ARGUMENTS, LOADER, OPTIMIZER, TOKENIZER, TRAINER))
_TIME_TO_LOG = re.compile(
    r"^(should|do|will|must|time_to|is_time_to)_(log|print|report|record|eval|save)|^log_(now|this)"
)
_SYNCS = frozenset(("torch_xla.sync", "torch_xla.core.xla_model.mark_step", "torch_xla.core.xla_model.wait_device_ops"))
_EXITS = frozenset(("sys.exit", "os._exit", "builtins.exit", "builtins.quit"))


def is_computed(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether it is certainly a tensor, and XLA computes its value here."""
    return value.kind == TENSOR and _here(value, ctx)


def is_readable(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether it is a tensor, or a result of a model or loader: for operations that only tensors have."""
    return (value.kind == TENSOR or value.kind in STRUCTURES) and _here(value, ctx)


def holds_readable(value: AbstractValue, ctx: RuleContext, deep: int = 3) -> bool:
    """Whether it contains such tensors: showing it reads them."""
    if value.kind != LIST:
        return is_readable(value, ctx)
    inside = (*(value.items or ()), *((value.item,) if value.item is not None else ()))
    return deep > 0 and any(holds_readable(one, ctx, deep - 1) for one in inside)


def _here(value: AbstractValue, ctx: RuleContext) -> bool:
    if value.where == "host" or value.shape:
        return False
    return is_compiled_tf(ctx) if value.lib == "tf" else ctx.on_device


def is_eager_result(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether it is a TensorFlow tensor that eager code gets from compiled code: `loss = train_step(x)`."""
    eager = value.lib == "tf" and value.kind == TENSOR and value.where != "host" and not ctx.compiled_tf
    return eager and _has_compiled(ctx.program)


@remembered
def _has_compiled(program: CheckedProgram) -> bool:
    """Whether TensorFlow code of this program is compiled by XLA."""
    return program.tpu_tf or any(one.compiled for one in program.functions)


def is_compiled_tf(ctx: RuleContext) -> bool:
    return ctx.program.uses("tensorflow") and ctx.compiled_tf


_WITH_STEPS = ("training_step", "train_step", "compute_loss")


def in_module(ctx: RuleContext) -> bool:
    """Whether code here is a part of a model, which knows no steps: a method such as `forward`."""
    function = ctx.function
    while function is not None and function.outer is not None and function.cls is None:
        function = function.outer
    if function is None or function.cls is None or not function.cls.is_module:
        return False
    return function.name.rpartition(".")[2] not in _WITH_STEPS and not any(loop.is_step for loop in ctx.loops)


def runs_each_step(ctx: RuleContext) -> bool:
    """Whether code here runs in each step, not only every N steps."""
    return ctx.in_step and not ctx.every_n


def may_run_each_step(ctx: RuleContext) -> bool:
    """Whether code runs, or may run, in each step: also functions that are not called here, or called from such code.
    Code before, between and after the steps runs rarely."""
    if ctx.every_n:
        return False
    return ctx.in_step or (ctx.function is not None and _may_be_in_step(ctx.function))


def _may_be_in_step(function: Function) -> bool:
    memo = function.ctx.program.memo
    key = ("no program", id(function))
    if key not in memo:
        memo[key] = False  # for recursive functions
        memo[key] = not _is_program(function) and _has_step_callers(function)
    return bool(memo[key])


# Functions that run once by their names: what is made, merged, loaded or saved.
_ONCE = re.compile(
    r"^(__init__|__post_init__|_?(reset|init)_(parameters|weights)|(un)?merge(_\w+)?|(load|save|export|convert)_\w+|"
    r"from_\w+|(de)?quantize)$"
)


def _has_step_callers(function: Function) -> bool:
    if _ONCE.match(function.name):
        return any(call.ctx.in_step for call in function.callers)
    return not function.callers or any(may_run_each_step(call.ctx) or call.ctx.top_level for call in function.callers)


def _is_program(function: Function) -> bool:
    """Whether it contains steps, or creates models, loaders or optimizers."""
    if function.has_step:
        return True
    return any(call.value.kind in _OF_PROGRAMS or _makes_steps(call) for call in function.calls)


def _makes_steps(call: CallSite) -> bool:
    value = call.ctx.value(call.node.func)
    return value.kind == FUNCTION and value.ref is not None and bool(value.ref.has_step)


def is_periodic(test: ast.expr, ctx: RuleContext) -> bool:
    """Whether a test holds only in some steps: `step % 100 == 0`."""
    return ctx.value(test).name == EVERY_N


def guarded(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether such a test comes before this in the same expression: `step % 100 == 0 and loss.item() > 3`."""
    for parent, child in expression_parents(node, ctx):
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: next(i for i, value in enumerate(parent.values) if value is child)]
            if any(is_periodic(value, ctx) for value in before):
                return True
        if isinstance(parent, ast.IfExp) and child is parent.body and is_periodic(parent.test, ctx):
            return True
    return False


def expression_parents(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(parent, child) from a node up to its statement, the statement included."""
    child = node
    for parent in ctx.parents(node):
        yield parent, child
        if isinstance(parent, (ast.stmt, ast.match_case, ast.ExceptHandler)):
            return
        child = parent


def runs_rarely(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this runs rarely.

    Code in a `raise`, an `except`, an assertion's message, a block that leaves the loop, and under a flag for logging.
    """
    child = node
    for parent in ctx.parents(node):
        of_assert = isinstance(parent, ast.Assert) and child is parent.msg
        if of_assert or isinstance(parent, (ast.Raise, ast.ExceptHandler)):
            return True
        if isinstance(parent, ast.If) and child is not parent.test and _is_rare_branch(parent, child, ctx):
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.For, ast.While)):
            return False
        child = parent
    return False


def _is_rare_branch(parent: ast.If, child: ast.AST, ctx: RuleContext) -> bool:
    block = parent.body if any(one is child for one in parent.body) else parent.orelse
    flags = (getattr(one, "attr", getattr(one, "id", "")) for one in nodes_of(parent.test))
    if block is parent.body and _tests_for_cpu(parent.test):
        return True
    return _leaves(block, ctx) or (block is parent.body and any(_TIME_TO_LOG.search(flag) for flag in flags))


def _tests_for_cpu(test: ast.expr) -> bool:
    """`if device.type == "cpu":`, where a read is free."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    return any(isinstance(one, ast.Constant) and one.value == "cpu" for one in (test.left, *test.comparators))


def _leaves(block: list[ast.stmt], ctx: RuleContext) -> bool:
    last = block[-1] if block else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ctx.name(last.value) in _EXITS
    return isinstance(last, (ast.Raise, ast.Break))


def after_sync(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a statement before this in the loop's body has already synced."""
    if not ctx.loops:
        return False
    body = ctx.loops[-1].node.body
    holders = {id(one) for one in (node, *ctx.parents(node))}
    before = body[: next((number for number, one in enumerate(body) if id(one) in holders), 0)]
    calls = (one.value for one in before if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call))
    return any(_cuts(call, ctx) for call in calls)


def _cuts(call: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(call)
    stepped = (
        name == "torch_xla.core.xla_model.optimizer_step" and ctx.constant(ctx.argument(call, "barrier", 1)) is True
    )
    return stepped or name in _SYNCS


def short_source(node: ast.AST, ctx: RuleContext, most: int = 60) -> str:
    """The code of an expression on one line, shortened."""
    return _source.shortened(ctx.source(node), most)


def full_source(node: ast.AST, ctx: RuleContext) -> str:
    """The whole code of an expression; "" if it is long."""
    text = short_source(node, ctx, 10_000)
    return text if len(text) <= 50 else ""


def imported_name(root: str, ctx: RuleContext) -> str:
    """The name of a package in this program: `import tensorflow as tf` -> "tf"; "" if it is not imported."""
    return _imported_names(ctx.program).get(root, "")


@remembered
def _imported_names(program: CheckedProgram) -> dict[str, str]:
    trees = [cell.tree for cell in program.cells if cell.tree is not None]
    names = [alias for tree in trees for one in tree.body if isinstance(one, ast.Import) for alias in one.names]
    return {alias.name: alias.asname or alias.name for alias in reversed(names)}


_METHODS = frozenset(("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__index__", "__array__"))
_NUMBERS = frozenset(("builtins.float", "builtins.int", "builtins.complex"))
# These move their argument to the host first.
_TO_HOST = frozenset(("torch_xla.core.xla_model.mesh_reduce", "torch_xla.core.xla_model._maybe_convert_to_cpu"))
_OF_LISTS = frozenset(("torch.tensor", "torch.as_tensor"))


def read_tensor(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The tensor whose value a call reads; None if XLA computes none of them."""
    if not isinstance(node, ast.Call):
        return None
    tensor = next(_given(node, ctx), None)
    return None if tensor is None or is_made_on_cpu(tensor, ctx) else tensor


def is_plateau_step(node: ast.Call, ctx: RuleContext) -> bool:
    """`scheduler.step(loss)` of ReduceLROnPlateau, which reads the loss as a number."""
    receiver, method = ctx.method(node)
    return method == "step" and receiver.kind == SCHEDULER and receiver.name.endswith("ReduceLROnPlateau")


_PASSING = frozenset("builtins." + one for one in ("int", "float", "bool", "max", "min", "abs", "round", "sum"))


def reads_in(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The parts of a number that were read from tensors, here or earlier."""
    if isinstance(node, ast.BinOp):
        yield from reads_in(node.left, ctx)
        yield from reads_in(node.right, ctx)
    elif isinstance(node, ast.Call):
        tensor = read_tensor(node, ctx)
        if tensor is not None:
            yield node
        elif ctx.name(node) in _PASSING or ctx.name(node).startswith("math."):
            for one in node.args:
                yield from reads_in(one, ctx)
        elif not ctx.name(node) and ctx.value(node).kind == NUMBER and ctx.value(node).read and _is_own(node, ctx):
            yield node
    elif ctx.value(node).kind == NUMBER and ctx.value(node).read:
        yield node


def _is_own(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a function of this program is called, which reads and returns the value."""
    return ctx.value(node.func).kind == FUNCTION


def _given(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    func = node.func
    if isinstance(func, ast.Attribute) and _reads_its_receiver(node, func, ctx):
        yield func.value
    if is_plateau_step(node, ctx):
        yield from (one for one in node.args[:1] if is_computed(ctx.value(one), ctx))
    name = ctx.name(node)
    if not name or not node.args:
        return
    if name in _NUMBERS or name in _TO_HOST:
        wanted = node.args[1:2] if name in _TO_HOST and len(node.args) > 1 else node.args[:1]
        yield from (one for one in wanted if _readable(ctx.value(one), ctx))
    elif name.startswith(("numpy.", "math.")):
        yield from (one for one in node.args if is_computed(ctx.value(one), ctx) or _is_list(one, ctx))
    elif name in _OF_LISTS:
        yield from (one for one in node.args[:1] if _is_list(one, ctx))


def _reads_its_receiver(node: ast.Call, func: ast.Attribute, ctx: RuleContext) -> bool:
    if func.attr not in _METHODS and (func.attr != "to" or ctx.value(node).where != "host"):
        return False
    return _readable(ctx.value(func.value), ctx)


def _readable(value: AbstractValue, ctx: RuleContext) -> bool:
    return is_readable(value, ctx) or is_eager_result(value, ctx)


def _is_list(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    return value.kind == LIST and holds_readable(value, ctx, 1)


# These create a tensor on the CPU unless they get a device.
MAKERS = frozenset(
    ("torch.tensor", "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.zeros", "torch.ones",
     "torch.full", "torch.arange", "torch.linspace", "torch.empty", "torch.eye", "torch.from_numpy")
)  # fmt: skip


_PERMUTATION = "torch.randperm"


def is_made_on_cpu(tensor: ast.expr, ctx: RuleContext) -> bool:
    """`torch.randint(0, 9, (1,)).item()` has no device argument and runs on the CPU. A tensor with a name may have been
    moved and counts like any other, except a permutation, with which the host shuffles its data."""
    value = ctx.value(tensor)
    if value.name == _PERMUTATION and value.creator_ctx is not None:
        return value.creator_ctx.argument(value.creator, "device") is None and value.where != "device"
    if not isinstance(tensor, ast.Call) or ctx.name(tensor) not in MAKERS:
        return False
    return ctx.argument(tensor, "device") is None and not ctx.program.calls("torch.set_default_device")


_LEVELS = frozenset(("debug", "info", "warning", "warn", "error", "critical", "exception", "log"))
_NAMES = frozenset(
    ("builtins.print", "builtins.str", "builtins.repr", "builtins.format", "torch_xla.core.xla_model.master_print",
     "tqdm.tqdm.write", "tqdm.write", "pprint.pprint", "rich.print", "IPython.display.display", "sys.stdout.write",
     "sys.stderr.write", "warnings.warn", "click.echo", "wandb.log", "wandb.run.log", "mlflow.log_metric",
     "mlflow.log_metrics", "trackio.log", "swanlab.log", *(f"logging.{level}" for level in _LEVELS))
)  # fmt: skip
_BARS = frozenset(("set_postfix", "set_postfix_str", "set_description", "set_description_str"))
_WRITERS = frozenset(("add_scalar", "add_scalars", "add_text", "add_histogram", "log_metric", "log_metrics"))
_LOGGER = re.compile(r"(^|_)log(ger|ging)?$", re.I)
_ATTRIBUTES = _BARS | _WRITERS | _LEVELS | {"print", "write", "format"}


def is_sink(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a call shows the values that it is given."""
    if not isinstance(node, ast.Call):
        return False
    name = ctx.name(node)
    if name:
        owner, _, last = name.rpartition(".")
        return name in _NAMES or (last in _LEVELS and owner in ("absl.logging", "loguru.logger"))
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr not in _ATTRIBUTES:
        return False
    # `run = wandb.init()`, then `run.log({...})`.
    tracked = func.attr == "log" and node.args and isinstance(node.args[0], ast.Dict) and ctx.program.uses("wandb")
    return bool(tracked) or _shows(func, ctx)


def _shows(func: ast.Attribute, ctx: RuleContext) -> bool:
    method, owner = func.attr, func.value
    if method in _BARS or method in _WRITERS:
        return True
    if method == "print":
        return True
    if method == "format":
        return isinstance(ctx.constant(owner), str)
    receiver = ctx.value(owner)
    if method == "log" and receiver.kind == ACCELERATOR:
        return True
    return (
        _shown_name(owner, ctx).startswith("tqdm")
        if method == "write"
        else bool(_LOGGER.search(_shown_name(owner, ctx)))
    )


def _shown_name(node: ast.expr, ctx: RuleContext) -> str:
    if isinstance(node, ast.Call):  # logging.getLogger("train").info(...)
        return "logger" if ctx.name(node).rpartition(".")[2] in ("getLogger", "get_logger") else ""
    return last_name(node)


def later(ctx: RuleContext) -> str:
    """After what a value can be read that every step has."""
    return "loop" if ctx.program.torch_tpu else "step with `xm.add_step_closure`"


def fix_message(name: str, ctx: RuleContext) -> str:
    """The fix for a value that is shown in each step."""
    if in_module(ctx):
        return f"Return {name}, and show it outside of the model, or remove this line."
    if ctx.program.uses("torch_xla") or not ctx.program.uses("tensorflow"):
        return f"Show {name} every N steps (`if step % 100 == 0:`), or after the {later(ctx)}."
    return f"Show {name} every N steps (`if step % 100 == 0:`), or after the loop."
