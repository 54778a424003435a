"""The values of expressions: one function for each kind of expression. Calls are in calls.py."""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.parameters import value_of_name
from tpu_magics.check.inference.values import (
    A_NUMBER,
    A_SHAPE,
    ACCELERATOR,
    AN_ARRAY,
    ARRAY,
    BATCH,
    CLASS,
    CONVENTIONS,
    DATASET,
    DEVICE,
    DICT,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODEL,
    MODULE,
    NOTHING,
    NUMBER,
    OUTPUT,
    TENSOR,
    TFDATA,
    UNKNOWN,
    UNKNOWN_VALUE,
    AbstractValue,
    canonical,
    join,
)

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram, Class, Function
    from tpu_magics.check.rule_context import RuleContext


MOST_ITEMS = 24  # items of a list or tuple that are tracked one by one
EVERY_N = "%every-n"  # the name of a condition that holds only every N steps
FLAGS = ("varies", "read", "shape")  # of numbers: the result of a computation has them too
TENSORS = (TENSOR, OUTPUT, BATCH)
# An item of an unknown iterable, and its parts: moved to a device, it is a tensor and not a model.
UNKNOWN_ITEM = AbstractValue(UNKNOWN, name="%item")
_BUILTINS = frozenset(dir(builtins))
_MODULES: dict[str, AbstractValue] = {}


def module(name: str) -> AbstractValue:
    """The value that stands for a canonical name."""
    result = _MODULES.get(name)
    if result is None:
        result = _MODULES[name] = AbstractValue(MODULE, name=name)
    return result


def element(value: AbstractValue) -> AbstractValue:
    """The item of an iteration over a value."""
    kind = value.kind
    if kind == LOADER:
        return AbstractValue(BATCH, lib=value.lib, where="device" if value.prepared else "")
    if kind == TFDATA:
        return AbstractValue(BATCH, lib="tf")
    if kind in (BATCH, OUTPUT):
        return AbstractValue(TENSOR, lib=value.lib, where=value.where)
    if kind == TENSOR:
        return value if value.name != "keras.Input" else value.with_(name="")
    if kind == ARRAY:
        return AN_ARRAY
    if value.name == DICT:
        return A_NUMBER  # a key
    if value.item is not None:
        return value.item
    if value.items:
        return join_all(value.items)
    if kind == NUMBER and (value.shape or value.read):
        return value.with_(const=NOTHING)
    if value.name == UNKNOWN_ITEM.name:
        return value
    if kind == UNKNOWN and value.prepared:  # by accelerate: in a loop it is a loader
        return AbstractValue(BATCH, lib="torch", where="device")
    return UNKNOWN_VALUE


def iterated_value(value: AbstractValue, node: ast.expr) -> AbstractValue:
    """The iterable of a loop; for an unknown call the loader among its arguments (`logger.log_every(loader, 10)`)."""
    if value.kind != UNKNOWN or not isinstance(node, ast.Call):
        return value
    given: Iterable[AbstractValue] = (getattr(one, "_value", UNKNOWN_VALUE) for one in node.args)
    return next((one for one in given if one.kind == LOADER), value)


def common_placement(places: Iterable[str]) -> str:
    """The device of a result that is computed from tensors on these devices."""
    result = set(places)
    if "device" in result:
        return "device"
    return "host" if result == {"host"} else ""


def join_all(values: Iterable[AbstractValue]) -> AbstractValue:
    result: AbstractValue | None = None
    for value in values:
        result = value if result is None else join(result, value)
    return result if result is not None else UNKNOWN_VALUE


class Evaluator:
    """Evaluates expressions in a frame. `recording`: the second pass, which records nodes for the rules."""

    program: CheckedProgram
    ctx: RuleContext
    env: dict[str, AbstractValue]
    recording: bool
    interests: frozenset[type]
    recorded: list[tuple[ast.AST, RuleContext]]

    def value(self, node: ast.expr | None) -> AbstractValue:
        """Evaluate, note, record."""
        if node is None:
            return UNKNOWN_VALUE
        result = _EXPRESSIONS.get(node.__class__, _unknown)(self, node)
        node._value = result  # type: ignore[attr-defined]
        if self.recording and node.__class__ in self.interests:
            self.recorded.append((node, self.ctx))
        return result

    def values(self, nodes: Iterable[ast.expr | None]) -> list[AbstractValue]:
        return [self.value(node) for node in nodes]

    # Implemented in walker.py:

    def bind(self, name: str, value: AbstractValue) -> None:
        raise NotImplementedError

    def unbind(self, name: str) -> None:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: AbstractValue) -> None:
        raise NotImplementedError

    def assign_again(self, node: ast.expr, value: AbstractValue) -> None:
        raise NotImplementedError

    def lookup_outer(self, name: str) -> AbstractValue | None:
        raise NotImplementedError

    def define_lambda(self, node: ast.Lambda) -> Function:
        raise NotImplementedError

    def star_import(self, name: str) -> AbstractValue | None:
        raise NotImplementedError

    def call(self, node: ast.Call) -> AbstractValue:
        raise NotImplementedError

    def name_of(self, name: str) -> AbstractValue:
        result = self.env.get(name)
        if result is not None:
            return result
        result = self.lookup_outer(name)
        if result is not None:
            return result
        if name in _BUILTINS:
            return module("builtins." + name)
        result = self.star_import(name)
        if result is not None:
            return result
        return module(CONVENTIONS[name]) if name in CONVENTIONS else value_of_name(name)


def _unknown(walk: Evaluator, node: ast.AST) -> AbstractValue:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            walk.value(child)
    return UNKNOWN_VALUE


def _constant(walk: Evaluator, node: ast.Constant) -> AbstractValue:
    return AbstractValue(NUMBER, const=node.value)


def _name(walk: Evaluator, node: ast.Name) -> AbstractValue:
    return walk.name_of(node.id)


# -- attributes ----------------------------------------------------------------------------------------------------

_ACCELERATORS = frozenset(("is_main_process", "is_local_main_process", "process_index", "local_process_index"))


_PARAMETER = re.compile(r"^(p|param|parameter|w|weights?|x|tensor)$")


def _attribute(walk: Evaluator, node: ast.Attribute) -> AbstractValue:
    value = walk.value(node.value)
    if value.kind == UNKNOWN and node.attr == "grad" and isinstance(node.value, ast.Name):
        return AbstractValue(TENSOR) if _PARAMETER.match(node.value.id) else UNKNOWN_VALUE
    return attribute(value, node.attr)


def attribute(value: AbstractValue, name: str) -> AbstractValue:
    """The attribute of a value."""
    kind = value.kind
    if kind == MODULE:
        return module(canonical(f"{value.name}.{name}"))
    if kind == TENSOR:
        return _tensor_attribute(value, name)
    if kind in (OUTPUT, BATCH):
        if name.startswith("num_"):
            return A_SHAPE
        if name in library_results.NUMBER_ATTRIBUTES:
            return _tensor_attribute(value, name)
        if name in _TUPLES:
            return AbstractValue(LIST, item=AbstractValue(TENSOR, lib=value.lib, where=value.where))
        dtype = "float" if name in _FLOATS else "int" if name == "indices" else ""
        return (
            UNKNOWN_VALUE
            if name == "past_key_values"
            else AbstractValue(TENSOR, lib=value.lib, where=value.where, dtype=dtype)
        )
    handler = _ATTRIBUTES.get(kind)
    return handler(value, name) if handler is not None else value if value is UNKNOWN_ITEM else UNKNOWN_VALUE


# Fields of a ModelOutput: None, or one tensor for each layer.
_TUPLES = frozenset(
    ("hidden_states", "attentions", "cross_attentions", "encoder_hidden_states", "decoder_hidden_states",
     "encoder_attentions", "decoder_attentions")
)  # fmt: skip


_FLOATS = frozenset(("loss", "logits", "last_hidden_state", "pooler_output"))


def _tensor_attribute(value: AbstractValue, name: str) -> AbstractValue:
    if name in library_results.NUMBER_ATTRIBUTES:
        return A_SHAPE if name in ("shape", "ndim") else A_NUMBER
    if name in ("data", "T", "mT", "H", "grad", "real", "imag", "values", "indices"):
        return AbstractValue(TENSOR, lib=value.lib, where=value.where)
    return UNKNOWN_VALUE


def _model_attribute(value: AbstractValue, name: str) -> AbstractValue:
    if name == "training":
        return A_NUMBER
    if name == "device":
        return AbstractValue(DEVICE)
    if name == "module":
        return value
    result = _own_attribute(value, name)
    if result is not None:
        return result
    if value.ref is None and name in ("weight", "bias"):
        return AbstractValue(TENSOR, lib=value.lib)
    return UNKNOWN_VALUE


def _own_attribute(value: AbstractValue, name: str) -> AbstractValue | None:
    cls: Class | None = value.ref
    if cls is None:
        return None
    result = cls.attribute(name)
    if result is not None:
        return result
    method = cls.method(name)
    if method is None:
        return None
    if "property" in method.decorators or "functools.cached_property" in method.decorators:
        return method.returns
    return AbstractValue(FUNCTION, ref=method)


def _instance_attribute(value: AbstractValue, name: str) -> AbstractValue:
    result = _own_attribute(value, name)
    if result is not None:
        return value_of_name(name) if result.kind == UNKNOWN and result.item is None and _is_loss(name) else result
    if value.ref is not None and value.ref.is_module:
        return _model_attribute(value.with_(ref=None), name) if name in ("training", "device") else UNKNOWN_VALUE
    return UNKNOWN_VALUE


def _is_loss(name: str) -> bool:
    """Whether it is a loss from another file: `self.criterion = config.criterion`."""
    return name in ("criterion", "loss_fn")


def _accelerator_attribute(value: AbstractValue, name: str) -> AbstractValue:
    if name == "device":
        return AbstractValue(DEVICE, where="device")
    return AbstractValue(NUMBER, name="%rank") if name in _ACCELERATORS else A_NUMBER


def _loader_attribute(value: AbstractValue, name: str) -> AbstractValue:
    return AbstractValue(DATASET, lib=value.lib) if name == "dataset" else UNKNOWN_VALUE


def _class_attribute(value: AbstractValue, name: str) -> AbstractValue:
    result = _own_attribute(value, name)
    return result if result is not None else UNKNOWN_VALUE


def _array_attribute(value: AbstractValue, name: str) -> AbstractValue:
    return A_SHAPE if name in ("shape", "ndim", "size", "dtype") else AN_ARRAY


def _number_attribute(value: AbstractValue, name: str) -> AbstractValue:
    return A_NUMBER.with_(shape=value.shape, varies=value.varies)


def _list_attribute(value: AbstractValue, name: str) -> AbstractValue:
    if value.item is not None and value.item.kind in TENSORS and name in ("loss", "logits", "values", "indices"):
        return value.item
    return UNKNOWN_VALUE


_ATTRIBUTES: dict[str, Callable[[AbstractValue, str], AbstractValue]] = {
    MODEL: _model_attribute,
    INSTANCE: _instance_attribute,
    CLASS: _class_attribute,
    ACCELERATOR: _accelerator_attribute,
    LOADER: _loader_attribute,
    ARRAY: _array_attribute,
    NUMBER: _number_attribute,
    LIST: _list_attribute,
}


# -- operators -----------------------------------------------------------------------------------------------------

_FOLD: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}
_BIT_OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor)
_SMALL = 1 << 40


def _binary(walk: Evaluator, node: ast.BinOp) -> AbstractValue:
    return binary(walk.value(node.left), node.op, walk.value(node.right))


def binary(left: AbstractValue, op: ast.operator, right: AbstractValue) -> AbstractValue:
    """`left op right`."""
    if left.kind in TENSORS or right.kind in TENSORS:
        if _is_text(left) or _is_text(right):
            return A_NUMBER
        return _tensor_of(left, right, _dtype_of(left, op, right))
    if left.kind == ARRAY or right.kind == ARRAY:
        return AN_ARRAY
    if left.kind == NUMBER and right.kind == NUMBER:
        return _number_of(left, op, right)
    if left.kind == LIST or right.kind == LIST:
        return _list_of(left, op, right)
    if (
        isinstance(op, ast.Mod)
        and not left.shape
        and not _is_text(left)
        and {left.kind, right.kind} <= {NUMBER, UNKNOWN}
    ):
        # `step % config.log_every`, `self.state.global_step % 10`
        return AbstractValue(left.kind, varies=left.varies, name="%modulo" if left.const is NOTHING else "")
    return UNKNOWN_VALUE


def _is_text(value: AbstractValue) -> bool:
    return isinstance(value.const, str)


def _dtype_of(left: AbstractValue, op: ast.operator, right: AbstractValue) -> str:
    if isinstance(op, _BIT_OPERATORS):
        return "bool" if "bool" in (left.dtype, right.dtype) else left.dtype
    if isinstance(op, ast.Div):
        return "float"
    kinds = {one.dtype for one in (left, right) if one.kind in TENSORS}
    if kinds == {"int"} or kinds == {"bool", "int"}:
        numbers = [one.const for one in (left, right) if one.kind == NUMBER]
        return "int" if all(isinstance(one, int) for one in numbers) else ""
    return "float" if "float" in kinds else ""


def _tensor_of(left: AbstractValue, right: AbstractValue, dtype: str) -> AbstractValue:
    both = [one for one in (left, right) if one.kind in TENSORS]
    where = common_placement(one.where for one in both)
    shape = all(one.shape for one in both)  # of tf.shape(x): known when XLA compiles
    return AbstractValue(
        TENSOR, lib=next((one.lib for one in both if one.lib), ""), where=where, dtype=dtype, shape=shape
    )


def _number_of(left: AbstractValue, op: ast.operator, right: AbstractValue) -> AbstractValue:
    const = _folded(left.const, op, right.const)
    flags: dict[str, Any] = {flag: getattr(left, flag) or getattr(right, flag) for flag in FLAGS}
    name = "%modulo" if isinstance(op, ast.Mod) and left.const is NOTHING and not left.shape else ""
    if not name and "%rank" in (left.name, right.name):
        name = "%rank"
    return AbstractValue(NUMBER, const=const, name=name, **flags)


def _folded(left: Any, op: ast.operator, right: Any) -> Any:
    if left is NOTHING or right is NOTHING or op.__class__ not in _FOLD:
        return NOTHING
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add):
        return left + right if len(left) + len(right) < 2000 else NOTHING
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)) or max(abs(left), abs(right)) > _SMALL:
        return NOTHING
    try:
        return _FOLD[op.__class__](left, right)
    except (ArithmeticError, ValueError):
        return NOTHING


def _list_of(left: AbstractValue, op: ast.operator, right: AbstractValue) -> AbstractValue:
    lists = [one for one in (left, right) if one.kind == LIST]
    items = [element(one) for one in lists]
    if len(lists) == 2 and isinstance(op, ast.Add):
        if left.items is not None and right.items is not None and len(left.items) + len(right.items) <= MOST_ITEMS:
            return AbstractValue(LIST, items=(*left.items, *right.items), item=join_all(items))
        known_items = [one for one in items if one is not UNKNOWN_VALUE]
        return AbstractValue(LIST, item=join_all(known_items) if known_items else None)
    return AbstractValue(LIST, item=join_all(items))


_NEGATED = {"%rank": "%rank", "%modulo": EVERY_N, EVERY_N: "%modulo"}


def _unary(walk: Evaluator, node: ast.UnaryOp) -> AbstractValue:
    value = walk.value(node.operand)
    if isinstance(node.op, ast.Not):
        return AbstractValue(NUMBER, read=value.read, name=_NEGATED.get(value.name, ""))
    if value.kind in TENSORS:
        return AbstractValue(TENSOR, lib=value.lib, where=value.where, dtype=value.dtype)
    if value.kind == NUMBER and isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
        return value.with_(const=-value.const)
    return value.with_(const=NOTHING) if value.kind == NUMBER else value if value.kind == ARRAY else UNKNOWN_VALUE


_IDENTITY = (ast.Is, ast.IsNot, ast.In, ast.NotIn)


def _compare(walk: Evaluator, node: ast.Compare) -> AbstractValue:
    values = [walk.value(node.left), *walk.values(node.comparators)]
    if all(isinstance(op, _IDENTITY) for op in node.ops):
        return AbstractValue(NUMBER, name=_periodic_name(values, node))
    if any(_is_text(value) or value.const is None for value in values):
        return A_NUMBER
    tensors = [value for value in values if value.kind in TENSORS]
    if tensors:
        first = _tensor_of(tensors[0], tensors[-1], "bool")
        return first if len(node.ops) == 1 else first.with_(dtype="bool")
    if any(value.kind == ARRAY for value in values):
        return AN_ARRAY
    flags: dict[str, Any] = {flag: any(getattr(value, flag) for value in values) for flag in FLAGS}
    unknown = any(value.kind == UNKNOWN for value in values)
    dtype = "bool" if unknown else ""  # if one of them is a tensor
    return AbstractValue(UNKNOWN if unknown else NUMBER, dtype=dtype, name=_periodic_name(values, node), **flags)


def _periodic_name(values: list[AbstractValue], node: ast.Compare) -> str:
    """Marks conditions that hold only every N steps: `step % 100 == 0`, `step == 0`, `step in (1, 10)`; not those on
    ranks."""
    if any(value.name == "%rank" for value in values):
        return "%rank"
    op = node.ops[0]
    if isinstance(op, (ast.Eq, ast.In)):
        if any(value.name == "%modulo" for value in values):
            return EVERY_N
        return EVERY_N if values[0].varies and values[0].kind == NUMBER else ""
    return "%modulo" if any(value.name == "%modulo" for value in values) and isinstance(op, (ast.NotEq, ast.Gt)) else ""


_TYPE_TESTS = frozenset(("torch.is_tensor", "tensorflow.is_tensor", "keras.ops.is_tensor"))
_TENSOR_TYPES = frozenset(("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "tensorflow.Tensor"))


def narrow(test: ast.expr, ctx: RuleContext) -> tuple[list[str], list[str]]:
    """Names that are not tensors if a test is true, and if it is false: `isinstance(x, int)`, `torch.is_tensor(x)`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        holds, fails = narrow(test.operand, ctx)
        return fails, holds
    if isinstance(test, ast.BoolOp):
        sides = [narrow(one, ctx) for one in test.values]
        every = isinstance(test.op, ast.And)
        result = [name for holds, fails in sides for name in (holds if every else fails)]
        return (result, []) if every else ([], result)
    if not isinstance(test, ast.Call) or not test.args or not isinstance(test.args[0], ast.Name):
        return [], []
    return _by_type(test, test.args[0].id, ctx)


def _by_type(test: ast.Call, name: str, ctx: RuleContext) -> tuple[list[str], list[str]]:
    predicate = ctx.name(test)
    if predicate in _TYPE_TESTS:
        return [], [name]
    if predicate != "builtins.isinstance" or len(test.args) != 2:
        return [], []
    kinds = test.args[1]
    names = [ctx.name(one) for one in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])]
    if names and all(one in _TENSOR_TYPES for one in names):
        return [], [name]
    libraries = ("torch.", "tensorflow.", "keras.")
    return ([name], []) if all(one and not one.startswith(libraries) for one in names) else ([], [])


def _narrowed_operands(walk: Evaluator, node: ast.BoolOp) -> list[AbstractValue]:
    """The operands of `isinstance(x, float) and x > 3`: each is narrowed by those before it."""
    before: dict[str, AbstractValue] = {}
    values = []
    for one in node.values:
        values.append(walk.value(one))
        holds, fails = narrow(one, walk.ctx)
        for name in holds if isinstance(node.op, ast.And) else fails:
            if name in walk.env:
                before.setdefault(name, walk.env[name])
                walk.bind(name, UNKNOWN_VALUE)
    for name, value in before.items():
        walk.bind(name, value)
    return values


def _bool_op(walk: Evaluator, node: ast.BoolOp) -> AbstractValue:
    values = _narrowed_operands(walk, node)
    result = join_all(values)
    names = {value.name for value in values}
    if result.kind == NUMBER:
        every = EVERY_N in names if isinstance(node.op, ast.And) else names == {EVERY_N}
        rank = "%rank" if "%rank" in names else ""
        return AbstractValue(NUMBER, name=EVERY_N if every else rank, read=any(value.read for value in values))
    if isinstance(node.op, ast.And) and EVERY_N in names and result.kind == UNKNOWN:
        return AbstractValue(NUMBER, name=EVERY_N)
    return result


# Conditions in code that other compilers trace as well.
_NEVER_ON_XLA = frozenset(
    ("torch.jit.is_tracing", "torch.jit.is_scripting", "torch.compiler.is_compiling", "torch._dynamo.is_compiling",
     "transformers.utils.is_torchdynamo_compiling", "transformers.utils.is_tracing")
)  # fmt: skip


def _if_exp(walk: Evaluator, node: ast.IfExp) -> AbstractValue:
    """`norm.item() if isinstance(norm, torch.Tensor) else norm`: the second `norm` is not a tensor."""
    walk.value(node.test)
    holds, fails = narrow(node.test, walk.ctx)
    body, orelse = (_narrowed(walk, *side) for side in ((node.body, holds), (node.orelse, fails)))
    return orelse if walk.ctx.name(node.test) in _NEVER_ON_XLA else join(body, orelse)


def _narrowed(walk: Evaluator, node: ast.expr, no_tensors: list[str]) -> AbstractValue:
    """The value of an expression in which these names are no tensors."""
    before = {name: walk.env[name] for name in no_tensors if name in walk.env}
    for name in before:
        walk.bind(name, A_NUMBER)
    value = walk.value(node)
    for name, old in before.items():
        walk.bind(name, old)
    return value


# -- containers ----------------------------------------------------------------------------------------------------


def _sequence(walk: Evaluator, node: ast.List | ast.Tuple | ast.Set) -> AbstractValue:
    values = walk.values(node.elts)
    starred = any(isinstance(one, ast.Starred) for one in node.elts)
    if len(values) <= MOST_ITEMS and not starred:
        return AbstractValue(
            LIST,
            items=tuple(values),
            item=join_all(values) if values else None,
            creator=node,
            creator_ctx=walk.ctx,
            const=_consts(values, node),
        )
    return AbstractValue(LIST, item=join_all(values), creator=node, creator_ctx=walk.ctx)


def _consts(values: list[AbstractValue], node: ast.AST) -> Any:
    if not values or not isinstance(node, (ast.List, ast.Tuple)) or any(value.const is NOTHING for value in values):
        return NOTHING
    return tuple(value.const for value in values)


def _dict(walk: Evaluator, node: ast.Dict) -> AbstractValue:
    for key in node.keys:
        walk.value(key)
    values = walk.values(node.values)
    item = join_all(values) if values else None
    return AbstractValue(LIST, item=item, creator=node, creator_ctx=walk.ctx, name="builtins.dict")


def _subscript(walk: Evaluator, node: ast.Subscript) -> AbstractValue:
    value = walk.value(node.value)
    index = walk.value(node.slice)
    return subscript(value, index, node.slice)


def subscript(value: AbstractValue, index: AbstractValue, node: ast.expr) -> AbstractValue:
    """`value[index]`."""
    kind = value.kind
    if kind == TENSOR:
        return value.with_(name="", creator=None) if value.name and value.name != "torch.randperm" else value
    if kind in (BATCH, OUTPUT):
        if isinstance(node, ast.Slice):
            return value
        return AbstractValue(TENSOR, lib=value.lib, where=value.where)
    if kind == LIST:
        return _list_item(value, index, node)
    if kind == NUMBER:
        return value.with_(const=NOTHING, name="")
    if kind in (LOADER, TFDATA):
        return UNKNOWN_VALUE
    if kind == ARRAY:
        return value
    if kind == MODEL and value.ref is None:
        return value  # a Sequential or ModuleList
    if kind == DATASET and isinstance(index.const, str):
        return value  # a split of a DatasetDict, a column of a Dataset
    return value if value is UNKNOWN_ITEM else UNKNOWN_VALUE


def _list_item(value: AbstractValue, index: AbstractValue, node: ast.expr) -> AbstractValue:
    if isinstance(node, ast.Slice):
        return value.with_(items=None, const=NOTHING, item=element(value))
    if isinstance(value.creator, ast.Dict) and index.const is not NOTHING:
        pairs = zip(value.creator.keys, value.creator.values, strict=True)
        for key, item in pairs:
            if isinstance(key, ast.Constant) and key.value == index.const:
                result: AbstractValue = getattr(item, "_value", UNKNOWN_VALUE)
                return result
    if value.items is not None and isinstance(index.const, int) and -len(value.items) <= index.const < len(value.items):
        return value.items[index.const]
    return element(value)


def _slice(walk: Evaluator, node: ast.Slice) -> AbstractValue:
    walk.values((node.lower, node.upper, node.step))
    return UNKNOWN_VALUE


def _comprehension(
    walk: Evaluator, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> AbstractValue:
    targets = {name: walk.env.get(name) for generator in node.generators for name in names_in(generator.target)}
    for generator in node.generators:
        item = element(walk.value(generator.iter))
        walk.assign(generator.target, UNKNOWN_ITEM if item is UNKNOWN_VALUE else item)
        walk.values(generator.ifs)
    if isinstance(node, ast.DictComp):
        walk.value(node.key)
        item = walk.value(node.value)
    else:
        item = walk.value(node.elt)
    for name, before in targets.items():  # a comprehension has its own names
        walk.unbind(name) if before is None else walk.bind(name, before)
    name = "builtins.dict" if isinstance(node, ast.DictComp) else ""
    return AbstractValue(LIST, item=item, creator=node, creator_ctx=walk.ctx, name=name)


def names_in(target: ast.expr) -> Iterable[str]:
    """The names that an assignment to this target binds."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(name for one in target.elts for name in names_in(one))
    return names_in(target.value) if isinstance(target, ast.Starred) else ()


def _joined_str(walk: Evaluator, node: ast.JoinedStr) -> AbstractValue:
    flags = walk.values(node.values)
    return AbstractValue(NUMBER, varies=any(one.varies for one in flags))


def _formatted(walk: Evaluator, node: ast.FormattedValue) -> AbstractValue:
    walk.value(node.format_spec)
    return walk.value(node.value)


def _named(walk: Evaluator, node: ast.NamedExpr) -> AbstractValue:
    value = walk.value(node.value)
    walk.assign(node.target, value)
    return value


def _starred(walk: Evaluator, node: ast.Starred) -> AbstractValue:
    return element(walk.value(node.value))


def _await(walk: Evaluator, node: ast.Await) -> AbstractValue:
    return walk.value(node.value)


def _yield(walk: Evaluator, node: ast.Yield) -> AbstractValue:
    """Collects the items of a generator function: a list of them, with the loader of its loop."""
    item = walk.value(node.value)
    function, loops = walk.ctx.function, walk.ctx.loops
    if function is not None:
        over = loops[-1].loader if loops else UNKNOWN_VALUE
        source = over if over.kind in (LOADER, TFDATA) else over.ref if isinstance(over.ref, AbstractValue) else None
        before = function.yields
        item = item if before is None or before.item is None else join(before.item, item)
        function.yields = AbstractValue(LIST, item=UNKNOWN_ITEM if item is UNKNOWN_VALUE else item, ref=source)
    return UNKNOWN_VALUE


def _lambda(walk: Evaluator, node: ast.Lambda) -> AbstractValue:
    walk.values(one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None)
    return AbstractValue(FUNCTION, ref=walk.define_lambda(node))


def _call(walk: Evaluator, node: ast.Call) -> AbstractValue:
    return walk.call(node)


_EXPRESSIONS: dict[type, Callable[[Evaluator, Any], AbstractValue]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.IfExp: _if_exp,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.JoinedStr: _joined_str,
    ast.FormattedValue: _formatted,
    ast.NamedExpr: _named,
    ast.Starred: _starred,
    ast.Await: _await,
    ast.Yield: _yield,
    ast.Lambda: _lambda,
}
