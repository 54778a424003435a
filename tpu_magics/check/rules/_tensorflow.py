"""Shared by the rules of the group `tensorflow`: which TPU a program uses, and what runs in a strategy's scope."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import NOTHING, STRATEGY
from tpu_magics.check.program import LOCAL_TPU, RESOLVERS, STRATEGIES, remembered
from tpu_magics.check.rule_context import under_strategy
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

IN, OUT, UNKNOWN = "in", "out", "unknown"
_COLAB_NODE = "COLAB_TPU_ADDR"  # the address of Colab's TPU node; a TPU VM has none
_ENTERED = ("__enter__", "enter_context")
_SET = ("tensorflow.distribute.experimental_set_strategy",)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEP = 10


def strategies(program: CheckedProgram) -> list[CallSite]:
    """The calls that make a TPUStrategy."""
    return program.calls(*STRATEGIES)


def strategy_name(program: CheckedProgram) -> str:
    """The name of the program's TPUStrategy."""
    for call in program.methods("scope"):
        if isinstance(call.node.func, ast.Attribute):
            return call.ctx.source(call.node.func.value)
    for call in strategies(program):
        target = assignment_target(call.node, call.ctx)
        if target is not None:
            return call.ctx.source(target)
    return "strategy"


def assignment_target(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The target that a value is bound to on its line."""
    parent = ctx.parent(node)
    if isinstance(parent, ast.Assign):
        return parent.targets[0]
    return parent.target if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)) else None


def mentions(program: CheckedProgram, word: str) -> bool:
    """Whether a word stands anywhere in the code."""
    return any(word in cell.text for cell in program.cells)


# -- the TPU ----------------------------------------------------------------------------------------------------------


@remembered
def is_remote(program: CheckedProgram) -> bool:
    """Whether the TPU is certainly on another host than this code: a TPU node, by its name or address."""
    remote = [_is_remote(call) for call in program.calls(*RESOLVERS)]
    remote += [name != LOCAL_TPU for name in program.init_values("tpu")]
    return any(remote) and not any(is_local(call) for call in program.calls(*RESOLVERS))


def is_local(call: CallSite) -> bool:
    return bool(call.ctx.constant(call.ctx.argument(call.node, "tpu", 0)) == LOCAL_TPU)


def _is_remote(call: CallSite) -> bool:
    given = call.ctx.argument(call.node, "tpu", 0)
    name = call.ctx.constant(given)
    if isinstance(name, str) and name:
        return name != LOCAL_TPU
    if any(call.ctx.constant(call.ctx.argument(call.node, one)) not in (None, NOTHING) for one in ("zone", "project")):
        return True
    if mentions(call.ctx.program, _COLAB_NODE):
        return True
    return given is not None and known_prefix(given, call.ctx).startswith("grpc://")


def known_prefix(node: ast.expr, ctx: RuleContext, deep: int = 6) -> str:
    """The known start of a string or path; "" if it is unknown."""
    constant = ctx.constant(node)
    if isinstance(constant, (str, bytes)):
        return constant if isinstance(constant, str) else constant.decode(errors="replace")
    if isinstance(node, ast.Call) and ctx.name(node) in _LOCAL_PATHS:
        return "/"
    if deep == 0:
        return ""
    first = _first_part(node, ctx)
    return known_prefix(first, ctx, deep - 1) if first is not None else ""


# Calls that return a local path.
_LOCAL_PATHS = ("keras.utils.get_file", "tempfile.mkdtemp", "os.getcwd", "pathlib.Path.cwd", "pathlib.Path.home",
    "huggingface_hub.hf_hub_download", "huggingface_hub.snapshot_download")  # fmt: skip
_JOINS = ("os.path.join", "posixpath.join", "tensorflow.io.gfile.join", "pathlib.Path", "pathlib.PurePath", "str",
    "builtins.str", "os.fspath", "os.path.abspath", "os.path.expanduser", "glob.glob", "tensorflow.io.gfile.glob",
    "tensorflow.io.matching_files", "sorted", "builtins.sorted", "builtins.list", "tensorflow.constant")  # fmt: skip


def _first_part(node: ast.expr, ctx: RuleContext) -> ast.expr | None:
    if isinstance(node, ast.JoinedStr) and node.values:
        return node.values[0]
    if isinstance(node, ast.FormattedValue):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div, ast.Mod)):
        return node.left
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        return node.elts[0]
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return node.elt
    if isinstance(node, ast.Call):
        if ctx.name(node) in _JOINS and node.args:
            return node.args[0]
        text = isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "joinpath", "as_posix", "rstrip")
        return node.func.value if text and isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Name) and (only := _only_assigned(ctx.program).get(node.id)) is not None:
        return only
    creator = ctx.value(node).creator
    return creator if isinstance(creator, ast.expr) and creator is not node else None


@remembered
def _only_assigned(program: CheckedProgram) -> dict[str, ast.expr]:
    """The values of names that are assigned once in the whole program."""
    bound: Counter[str] = Counter()
    given: dict[str, ast.expr] = {}
    for node in (one for cell in program.cells if cell.tree is not None for one in nodes_of(cell.tree)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given[node.targets[0].id] = node.value
    return {name: value for name, value in given.items() if bound[name] == 1}


# -- the scope ---------------------------------------------------------------------------------------------------------


def is_entered(program: CheckedProgram) -> bool:
    """Whether a scope is entered without `with`, so that its extent is unknown."""
    if program.calls(*_SET):
        return True
    return any(program.methods(method) for method in _ENTERED)


def state(call: CallSite) -> str:
    """Whether a call runs in a strategy's scope: IN, OUT or UNKNOWN."""
    return _state(call.node, call.ctx, _DEEP)


def is_in_scope(call: CallSite) -> bool:
    return state(call) == IN


def is_receiver_in_scope(call: CallSite) -> bool:
    """Whether `x` of `x.method(...)` is bound in a scope."""
    func = call.node.func
    return isinstance(func, ast.Attribute) and call.ctx.source(func.value) in _bound_in_scope(call.ctx.program)


@remembered
def _bound_in_scope(program: CheckedProgram) -> set[str]:
    targets = ((assignment_target(one.node, one.ctx), one) for one in program.all_calls)
    return {one.ctx.source(target) for target, one in targets if target is not None and is_in_scope(one)}


def _state(node: ast.AST, ctx: RuleContext, deep: int) -> str:
    if under_strategy(ctx) or _is_under_with(node, ctx):
        return IN
    function = ctx.function
    if function is None:
        return OUT
    if deep == 0 or isinstance(function.node, ast.Lambda) or (function.cls is not None and function.cls.is_module):
        return UNKNOWN
    if not function.callers:
        return OUT if _uses_strategy(function) else UNKNOWN
    result = {_state(one.node, one.ctx, deep - 1) for one in function.callers}
    return IN if IN in result else OUT if result == {OUT} else UNKNOWN


def _is_under_with(node: ast.AST, ctx: RuleContext) -> bool:
    for outer in ctx.parents(node):
        if isinstance(outer, _FUNCTIONS):
            return False
        if isinstance(outer, ast.Lambda):
            return True  # its caller may be in the scope
        if isinstance(outer, (ast.With, ast.AsyncWith)) and any(_is_scope(item.context_expr) for item in outer.items):
            return True
    return False


def _is_scope(node: ast.expr) -> bool:
    """`strategy.scope()`, also as one side of a condition."""
    if isinstance(node, ast.IfExp):
        return _is_scope(node.body) or _is_scope(node.orelse)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scope"


def knows_strategy(function: Function) -> bool:
    """Whether a function creates a strategy, gets one, or enters a scope."""
    if any(value.kind == STRATEGY for value in (*function.argument_values.values(), *function.env.values())):
        return True
    return _uses_strategy(function)


def _uses_strategy(function: Function) -> bool:
    return any(call.method == "scope" or call.name in STRATEGIES for call in function.calls)


def is_on_client(call: CallSite) -> bool:
    """Whether a call is inside `with tf.device("/job:localhost")`, which keeps it on this machine."""
    for outer in call.ctx.parents(call.node):
        for item in outer.items if isinstance(outer, (ast.With, ast.AsyncWith)) else ():
            context = item.context_expr
            named = isinstance(context, ast.Call) and call.ctx.name(context) == "tensorflow.device" and context.args
            device = call.ctx.constant(context.args[0]) if named and isinstance(context, ast.Call) else None
            if isinstance(device, str) and "localhost" in device:
                return True
    return False
