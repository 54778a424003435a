"""Which models the launcher can build once in the notebook, and why it cannot build the others (see launch/hoist)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check import hoisting
from tpu_magics.check.inference.methods import SAME_MODEL
from tpu_magics.check.inference.values import CLASS, DEVICE, LIST, MODEL, MODULE, TENSOR
from tpu_magics.check.program import remembered
from tpu_magics.check.rules import _device, _ranks
from tpu_magics.check.syntax import nodes_of, root, root_name

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, Class, Function
    from tpu_magics.check.rule_context import RuleContext

WEIGHTLESS = frozenset(
    ("ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "LeakyReLU", "ELU", "Identity", "Flatten",
     "Unflatten", "Upsample", "PixelShuffle", "Softplus", "Hardtanh", "CosineSimilarity", "PairwiseDistance", "Fold",
     "Unfold", "ReLU6", "Mish", "GLU", "Hardswish")
)  # fmt: skip
_WEIGHTLESS_ENDS = ("Loss", "LossV2", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Pool1d", "Pool2d", "Pool3d",
    "Pad1d", "Pad2d", "Pad3d")  # fmt: skip
_WRAPPERS = ("torch.nn.parallel.", "torch.nn.DataParallel", "torch.distributed.", "torch_xla.distributed.")
# Libraries without stubs.
_OTHER_LIBRARIES = ("diffusers.", "sentence_transformers.", "segmentation_models_pytorch.", "monai.networks.")
_IS_MODEL = re.compile(
    r"\.(\w*(Model|Pipeline|Transformer|Unet)|U[Nn]et\w*|\w*(Model|Pipeline|AutoencoderKL)\.from_pretrained)$"
)
_BARE = ("torch.nn.Module", "torch.nn.modules.module.Module")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def builds_model(call: CallSite) -> bool:
    """Whether a call builds a model with weights."""
    value, name = call.value, call.name
    if name.startswith(_OTHER_LIBRARIES) and _IS_MODEL.search(name):
        return True
    if value.kind != MODEL or value.lib == "tf" or value.creator is not call.node:
        return False
    last = name.rpartition(".")[2] if name else value.name
    if name.startswith(_WRAPPERS) or last in WEIGHTLESS or last.endswith(_WEIGHTLESS_ENDS):
        return False
    return value.ref is None or _has_weights(value.ref)


def _has_weights(cls: Class) -> bool:
    """Whether a module class of the program has layers or parameters, as far as its code shows."""
    known = cls.method("__init__")
    if known is None:
        return not cls.methods or any(base not in _BARE for base in cls.all_bases())
    return any(call.value.kind in (MODEL, TENSOR, LIST) for call in known.calls) or not _is_bare(cls)


def _is_bare(cls: Class) -> bool:
    return all(base in _BARE or base in {one.name for one in cls.line()} for base in cls.all_bases())


def model_builds(calls: list[CallSite]) -> Iterator[CallSite]:
    """The calls that build a model, without those that are part of another model."""
    result = [call for call in calls if builds_model(call)]
    nodes = {id(call.node) for call in result}
    yield from (call for call in result if not _is_part(call, nodes))


def _is_part(call: CallSite, nodes: set[int]) -> bool:
    for parent in call.ctx.parents(call.node):
        if isinstance(parent, ast.stmt):
            return False
        if id(parent) in nodes:
            return True
    return False


# -- reasons against hoisting -----------------------------------------------------------------------------------------


def reason(call: CallSite, function: Function | None) -> str:
    """Why the model of this call in `function` (None: a cell's statements) cannot be built once in the notebook; "" if
    it can."""
    if call.ctx.function is not function:
        inner = call.ctx.function
        return f"it is in `{inner.name}`, not in the launched function itself" if inner is not None else ""
    result = _context(call) or _part_problem(call, function)
    return result or (problem(call, function) if function is not None else "")


def _part_problem(call: CallSite, function: Function | None) -> str:
    """Why a part of the model prevents that: `nn.Sequential(*[nn.Linear(8, 8) for _ in range(n)])`."""
    for part in function.calls if function is not None else ():
        if part.node is call.node or not _spans(call.node, part.node) or not builds_model(part):
            continue
        result = _context(part, call.node)
        if result:
            return f"its part `{' '.join(call.ctx.source(part.node).split())[:50]}` cannot be hoisted: {result}"
    return ""


def _spans(outer: ast.Call, inner: ast.Call) -> bool:
    last, end = outer.end_lineno or outer.lineno, outer.end_col_offset or 0
    place = (inner.lineno, inner.col_offset)
    return (outer.lineno, outer.col_offset) <= place < (last, end)


def _context(call: CallSite, until: ast.AST | None = None) -> str:
    child: ast.AST = call.node
    for parent in call.ctx.parents(call.node):
        if isinstance(parent, _FUNCTIONS) or parent is until:
            return ""
        result = _around(parent, child, call.ctx)
        if result:
            return result
        child = parent
    return ""


def _around(parent: ast.AST, child: ast.AST, ctx: RuleContext) -> str:
    if isinstance(parent, (ast.With, ast.AsyncWith)) and isinstance(child, ast.stmt):
        harmful = (item.context_expr for item in parent.items if not _is_harmless(item, ctx))
        result = (hoisting.IN_WITH.format(code=ctx.source(one), line=parent.lineno) for one in harmful)
        return next(result, "")
    conditional = any(one is child and is_conditional for one, is_conditional in hoisting.children(parent))
    return hoisting.place_problem(parent, getattr(child, "lineno", 0)) if conditional else ""


def _is_harmless(item: ast.withitem, ctx: RuleContext) -> bool:
    node = item.context_expr
    if not isinstance(node, ast.Call):
        return False
    return ctx.name(node) in hoisting.HARMLESS_CONTEXTS or (
        isinstance(node.func, ast.Attribute) and node.func.attr in hoisting.HARMLESS_METHODS
    )


def helper_reason(call: CallSite, helper: Function, function: Function | None) -> str:
    """Why the model that a helper function builds and returns cannot be hoisted."""
    if helper.outer is not None:
        return hoisting.IN_FUNCTION.format(name=helper.name, line=helper.node.lineno)
    result = reason(call, function)
    return result or _returned(helper) or side_effects(helper)


def _returned(helper: Function) -> str:
    """Whether a helper returns something else than a model that it builds."""
    built = {id(one.node) for one in helper.calls if one.value.kind == MODEL and one.method not in SAME_MODEL}
    assigned = _ranks.definitions(helper)
    for node in nodes_of(helper.node):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        values = assigned.get(node.value.id, []) if isinstance(node.value, ast.Name) else [node.value]
        if not values or any(id(one) not in built for one in values):
            code = " ".join(helper.ctx.source(node.value).split())[:50]
            return f"`{helper.name}` returns `{code}` (line {node.lineno}), which is not a call that builds a model"
    return ""


# -- arguments, classes and helper functions --------------------------------------------------------------------------


BUILDERS = ("from_pretrained", "from_config", "_from_config", "load_from_checkpoint")
_PLAIN_DATA = ("types.SimpleNamespace", "argparse.Namespace", "collections.OrderedDict")
_MORE_THAN_READING = (ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_DEVICE_PACKAGES = ("torch_xla.", "accelerate.")
_DEPTH = 6


def problem(call: CallSite, function: Function) -> str:
    """Why a call cannot run in the notebook; "" if it can."""
    result = _callee(call, function)
    if result:
        return result
    for given in (*call.node.args, *(one.value for one in call.node.keywords)):
        result = _problem(given, call, function, _DEPTH)
        if result:
            return f"its argument `{' '.join(call.ctx.source(given).split())[:50]}` {result}"
    return ""


def _callee(call: CallSite, function: Function) -> str:
    name = root_name(call.node.func)
    if call.ctx.value(root(call.node.func)).kind != MODULE:
        result = _changed(name, call, function)
        if result:
            return f"it {result}"
    cls = call.ctx.value(call.node.func)
    if cls.kind != CLASS:
        return ""
    if any(one is cls.ref.node for one in nodes_of(function.node)):
        return f"its class `{cls.ref.name}` is defined inside the launched function"
    init = cls.ref.method("__init__")
    return f"its class `{cls.ref.name}` uses the device" if init is not None and _uses_device(init) else ""


def _uses_device(function: Function) -> bool:
    starters = {id(call.node) for call in _device.starters(function.ctx.program)}
    return any(id(call.node) in starters or call.name.startswith(_DEVICE_PACKAGES) for call in function.calls)


# -- expressions -----------------------------------------------------------------------------------------------------


def _problem(node: ast.expr, call: CallSite, function: Function, depth: int) -> str:
    """Why an expression has no value before the function runs."""
    if isinstance(node, _MORE_THAN_READING):
        return "does more than read values"
    value = call.ctx.value(node)
    if (isinstance(node, ast.Attribute) and node.attr == "device") or _is_device(node, call.ctx):
        return hoisting.ON_DEVICE
    if isinstance(node, ast.Name):
        return _name_problem(node.id, call, function, depth)
    parts: list[ast.expr] = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    if isinstance(node, ast.Call):
        if value.kind == MODEL:
            return ""
        if not _is_pure(node, call.ctx):
            return hoisting.UNKNOWN_RESULT.format(code=call.ctx.source(node.func))
        parts = [*node.args, *(one.value for one in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) and not call.ctx.name(node) else []
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        parts = [one.iter for one in node.generators]
    return next((text for one in parts if (text := _problem(one, call, function, depth))), "")


def _is_device(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    return _device.is_xla_device(value) or (value.kind == DEVICE and value.where == "device")


def _is_pure(node: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(node)
    if name:
        owner = name.split(".")[-2] if name.endswith(BUILDERS) else name.rpartition(".")[2]
        return (
            name.removeprefix("builtins.") in hoisting.PURE_BUILTINS or owner.endswith("Config") or name in _PLAIN_DATA
        )
    callee = ctx.value(node.func)
    if callee.kind == CLASS:
        return not callee.ref.is_module
    return isinstance(node.func, ast.Attribute) and node.func.attr in hoisting.PURE_METHODS


# -- names -----------------------------------------------------------------------------------------------------------


def _name_problem(name: str, call: CallSite, function: Function, depth: int) -> str:
    stored = _stored(function).get(name, [])
    parameter = any(one.arg == name for one in function.parameters)
    if not stored:
        index = parameter and name == _ranks.index_parameter(function)
        return f"needs `{name}`, which is known only in a worker" if index else _changed(name, call, function)
    values = _plain(function).get(name, [])
    if parameter or len(stored) > 1 or len(values) != 1 or depth == 0:
        return f"needs `{name}`, which is set while the function runs (line {stored[-1]})"
    return _problem(values[0], call, function, depth - 1) or _changed(name, call, function)


@remembered
def _stored(function: Function) -> dict[str, list[int]]:
    """The names that a function sets, other than in comprehensions, and the lines."""
    result: dict[str, list[int]] = {}
    for node in nodes_of(function.node):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            result.setdefault(node.id, []).append(node.lineno)
    return result


def _plain(function: Function) -> dict[str, list[ast.expr]]:
    """The values of unconditional assignments `name = value`."""
    result: dict[str, list[ast.expr]] = {}
    for statement in _always(function.node.body if isinstance(function.node.body, list) else []):
        if isinstance(statement, ast.Assign):
            names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
        else:
            is_name = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            names = [statement.target.id] if is_name else []  # type: ignore[attr-defined]
        value: ast.expr | None = getattr(statement, "value", None)
        if value is not None:
            for name in names:
                result.setdefault(name, []).append(value)
    return result


def _always(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _always(statement.body)


def _changed(name: str, call: CallSite, function: Function) -> str:
    """Whether the function has changed the object behind a name before the call."""
    for node in nodes_of(function.node):
        if getattr(node, "lineno", call.node.lineno) < call.node.lineno and _changes(node) == name:
            return f"needs `{name}`, which is changed in line {getattr(node, 'lineno', 0)}"
    return ""


def _changes(node: ast.AST) -> str:
    """The name of the object that a node changes in place: `cfg` for `cfg.sub.width = 8` and `cfg.update(...)`."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return root_name(node)
    is_method = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in hoisting.MUTATORS
    )
    return root_name(node.func.value) if is_method else ""  # type: ignore[attr-defined]


# -- helper functions ------------------------------------------------------------------------------------------------


def side_effects(helper: Function) -> str:
    """The side effects of calling a helper in the notebook."""
    own = {*_stored(helper), *(one.arg for one in helper.parameters)}
    for node in nodes_of(helper.node):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return f"`{helper.name}` sets global or outer names (line {node.lineno})"
        changed = _changes(node)
        if changed and changed not in own:
            return f"`{helper.name}` changes `{changed}`, which it does not create (line {getattr(node, 'lineno', 0)})"
    return f"`{helper.name}` uses the device" if _uses_device(helper) else ""
