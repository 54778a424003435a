"""The values of expressions.

What lives here: one method for each kind of expression; each notes the value on its node. What does not: calls
(calls.py) and statements (walker.py).
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tpu_magics.check import stubs
from tpu_magics.check.names import CONVENTIONS, canonical
from tpu_magics.check.parameters import by_name
from tpu_magics.check.values import (
    A_NUMBER,
    A_SHAPE,
    ACCELERATOR,
    AN_ARRAY,
    ARRAY,
    BATCH,
    CLASS,
    DATASET,
    DEVICE,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODEL,
    MODULE,
    NO_IDEA,
    NOTHING,
    NUMBER,
    OUTPUT,
    TENSOR,
    TFDATA,
    UNKNOWN,
    Value,
    join,
)

if TYPE_CHECKING:
    from tpu_magics.check.program import Class, Function, Program
    from tpu_magics.check.rule_context import Place

MOST_ITEMS = 24  # of a list or tuple that are known one by one
EVERY_N = "%every-n"  # the name of a Python truth that holds only now and then
FLAGS = ("varies", "read", "shape")  # of numbers: what is computed from one has them too
TENSORS = (TENSOR, OUTPUT, BATCH)
# What a loop over something unknown gives, and its parts: sent to a device, it is a tensor and no model.
AN_ITEM = Value(UNKNOWN, name="%item")
_BUILTINS = frozenset(dir(builtins))
_MODULES: dict[str, Value] = {}


def module(name: str) -> Value:
    """The value that stands for a canonical name."""
    found = _MODULES.get(name)
    if found is None:
        found = _MODULES[name] = Value(MODULE, name=name)
    return found


def element(value: Value) -> Value:
    """What iterating over a value gives."""
    kind = value.kind
    if kind == LOADER:
        return Value(BATCH, lib=value.lib, where="device" if value.prepared else "")
    if kind == TFDATA:
        return Value(BATCH, lib="tf")
    if kind in (BATCH, OUTPUT):
        return Value(TENSOR, lib=value.lib, where=value.where)
    if kind == TENSOR:
        return value if value.name != "keras.Input" else value.with_(name="")
    if kind == ARRAY:
        return AN_ARRAY
    if value.item is not None:
        return value.item
    if value.items:
        return joined(value.items)
    if kind == NUMBER and (value.shape or value.read):
        return value.with_(const=NOTHING)
    if value.name == AN_ITEM.name:
        return value
    if kind == UNKNOWN and value.prepared:  # by accelerate: iterated over, it is a loader
        return Value(BATCH, lib="torch", where="device")
    return NO_IDEA


def gone_over(value: Value, node: ast.expr) -> Value:
    """What a loop goes over; of a call that is not known the loader it is given (`logger.log_every(loader, 10)`)."""
    if value.kind != UNKNOWN or not isinstance(node, ast.Call):
        return value
    given: Iterable[Value] = (getattr(one, "_value", NO_IDEA) for one in node.args)
    return next((one for one in given if one.kind == LOADER), value)


def where_together(places: Iterable[str]) -> str:
    """Where what is computed from tensors at these places is."""
    found = set(places)
    if "device" in found:
        return "device"
    return "host" if found == {"host"} else ""


def joined(values: Iterable[Value]) -> Value:
    found: Value | None = None
    for value in values:
        found = value if found is None else join(found, value)
    return found if found is not None else NO_IDEA


class Evaluator:
    """Finds values of expressions in a frame. `recording`: the second pass, in which nodes are given to rules."""

    program: Program
    at: Place
    env: dict[str, Value]
    recording: bool
    interests: frozenset[type]
    recorded: list[tuple[ast.AST, Place]]

    def value(self, node: ast.expr | None) -> Value:
        """Evaluate, note, record."""
        if node is None:
            return NO_IDEA
        found = _EXPRESSIONS.get(node.__class__, _unknown)(self, node)
        node._value = found  # type: ignore[attr-defined]
        if self.recording and node.__class__ in self.interests:
            self.recorded.append((node, self.at))
        return found

    def values(self, nodes: Iterable[ast.expr | None]) -> list[Value]:
        return [self.value(node) for node in nodes]

    # What walker.py gives:

    def bind(self, name: str, value: Value) -> None:
        raise NotImplementedError

    def unbind(self, name: str) -> None:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def assign_again(self, node: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def lookup_outer(self, name: str) -> Value | None:
        raise NotImplementedError

    def define_lambda(self, node: ast.Lambda) -> Function:
        raise NotImplementedError

    def star_import(self, name: str) -> Value | None:
        raise NotImplementedError

    def name_of(self, name: str) -> Value:
        found = self.env.get(name)
        if found is not None:
            return found
        found = self.lookup_outer(name)
        if found is not None:
            return found
        if name in _BUILTINS:
            return module("builtins." + name)
        found = self.star_import(name)
        if found is not None:
            return found
        return module(CONVENTIONS[name]) if name in CONVENTIONS else by_name(name)


def _unknown(walk: Evaluator, node: ast.AST) -> Value:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            walk.value(child)
    return NO_IDEA


def _constant(walk: Evaluator, node: ast.Constant) -> Value:
    return Value(NUMBER, const=node.value)


def _name(walk: Evaluator, node: ast.Name) -> Value:
    return walk.name_of(node.id)


# -- attributes ----------------------------------------------------------------------------------------------------

_DTYPES = {"float16": "float", "bfloat16": "float", "float32": "float", "bool": "bool", "int64": "int", "long": "int"}
_ACCELERATORS = frozenset(("is_main_process", "is_local_main_process", "process_index", "local_process_index"))


_PARAMETER = re.compile(r"^(p|param|parameter|w|weights?|x|tensor)$")


def _attribute(walk: Evaluator, node: ast.Attribute) -> Value:
    value = walk.value(node.value)
    if value.kind == UNKNOWN and node.attr == "grad" and isinstance(node.value, ast.Name):
        return Value(TENSOR) if _PARAMETER.match(node.value.id) else NO_IDEA
    return attribute(value, node.attr)


def attribute(value: Value, name: str) -> Value:
    """The attribute of a value."""
    kind = value.kind
    if kind == MODULE:
        return module(canonical(f"{value.name}.{name}"))
    if kind == TENSOR:
        return _tensor_attribute(value, name)
    if kind in (OUTPUT, BATCH):
        if name.startswith("num_"):
            return A_SHAPE
        if name in stubs.NUMBER_ATTRIBUTES:
            return _tensor_attribute(value, name)
        if name in _TUPLES:
            return Value(LIST, item=Value(TENSOR, lib=value.lib, where=value.where))
        dtype = "float" if name in _FLOATS else "int" if name == "indices" else ""
        return NO_IDEA if name == "past_key_values" else Value(TENSOR, lib=value.lib, where=value.where, dtype=dtype)
    handler = _ATTRIBUTES.get(kind)
    return handler(value, name) if handler is not None else value if value is AN_ITEM else NO_IDEA


# Of a ModelOutput: None, or one tensor for each layer.
_TUPLES = frozenset(
    ("hidden_states", "attentions", "cross_attentions", "encoder_hidden_states", "decoder_hidden_states",
     "encoder_attentions", "decoder_attentions")
)  # fmt: skip


_FLOATS = frozenset(("loss", "logits", "last_hidden_state", "pooler_output"))


def _tensor_attribute(value: Value, name: str) -> Value:
    if name in stubs.NUMBER_ATTRIBUTES:
        return A_SHAPE if name in ("shape", "ndim") else A_NUMBER
    if name in ("data", "T", "mT", "H", "grad", "real", "imag", "values", "indices"):
        return Value(TENSOR, lib=value.lib, where=value.where)
    return NO_IDEA


def _model_attribute(value: Value, name: str) -> Value:
    if name == "training":
        return A_NUMBER
    if name == "device":
        return Value(DEVICE)
    if name == "module":
        return value
    found = _own_attribute(value, name)
    if found is not None:
        return found
    if value.ref is None and name in ("weight", "bias"):
        return Value(TENSOR, lib=value.lib)
    return NO_IDEA


def _own_attribute(value: Value, name: str) -> Value | None:
    cls: Class | None = value.ref
    if cls is None:
        return None
    found = cls.attribute(name)
    if found is not None:
        return found
    method = cls.method(name)
    if method is None:
        return None
    if "property" in method.decorators or "functools.cached_property" in method.decorators:
        return method.returns
    return Value(FUNCTION, ref=method)


def _instance_attribute(value: Value, name: str) -> Value:
    found = _own_attribute(value, name)
    if found is not None:
        return by_name(name) if found.kind == UNKNOWN and found.item is None and _is_loss(name) else found
    if value.ref is not None and value.ref.is_module:
        return _model_attribute(value.with_(ref=None), name) if name in ("training", "device") else NO_IDEA
    return NO_IDEA


def _is_loss(name: str) -> bool:
    """Of what another file makes: `self.criterion = config.criterion`."""
    return name in ("criterion", "loss_fn")


def _accelerator_attribute(value: Value, name: str) -> Value:
    if name == "device":
        return Value(DEVICE, where="device")
    return Value(NUMBER, name="%rank") if name in _ACCELERATORS else A_NUMBER


def _loader_attribute(value: Value, name: str) -> Value:
    return Value(DATASET, lib=value.lib) if name == "dataset" else NO_IDEA


def _class_attribute(value: Value, name: str) -> Value:
    found = _own_attribute(value, name)
    return found if found is not None else NO_IDEA


def _array_attribute(value: Value, name: str) -> Value:
    return A_SHAPE if name in ("shape", "ndim", "size", "dtype") else AN_ARRAY


def _number_attribute(value: Value, name: str) -> Value:
    return A_NUMBER.with_(shape=value.shape, varies=value.varies)


def _list_attribute(value: Value, name: str) -> Value:
    if value.item is not None and value.item.kind in TENSORS and name in ("loss", "logits", "values", "indices"):
        return value.item
    return NO_IDEA


_ATTRIBUTES: dict[str, Callable[[Value, str], Value]] = {
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


def _binary(walk: Evaluator, node: ast.BinOp) -> Value:
    return binary(walk.value(node.left), node.op, walk.value(node.right))


def binary(left: Value, op: ast.operator, right: Value) -> Value:
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
        return Value(left.kind, varies=left.varies, name="%modulo" if left.const is NOTHING else "")
    return NO_IDEA


def _is_text(value: Value) -> bool:
    return isinstance(value.const, str)


def _dtype_of(left: Value, op: ast.operator, right: Value) -> str:
    if isinstance(op, _BIT_OPERATORS):
        return "bool" if "bool" in (left.dtype, right.dtype) else left.dtype
    if isinstance(op, ast.Div):
        return "float"
    kinds = {one.dtype for one in (left, right) if one.kind in TENSORS}
    if kinds == {"int"} or kinds == {"bool", "int"}:
        numbers = [one.const for one in (left, right) if one.kind == NUMBER]
        return "int" if all(isinstance(one, int) for one in numbers) else ""
    return "float" if "float" in kinds else ""


def _tensor_of(left: Value, right: Value, dtype: str) -> Value:
    both = [one for one in (left, right) if one.kind in TENSORS]
    where = where_together(one.where for one in both)
    shape = all(one.shape for one in both)  # of tf.shape(x): known when XLA compiles
    return Value(TENSOR, lib=next((one.lib for one in both if one.lib), ""), where=where, dtype=dtype, shape=shape)


def _number_of(left: Value, op: ast.operator, right: Value) -> Value:
    const = _folded(left.const, op, right.const)
    flags: dict[str, Any] = {flag: getattr(left, flag) or getattr(right, flag) for flag in FLAGS}
    name = "%modulo" if isinstance(op, ast.Mod) and left.const is NOTHING and not left.shape else ""
    if not name and "%rank" in (left.name, right.name):
        name = "%rank"
    return Value(NUMBER, const=const, name=name, **flags)


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


def _list_of(left: Value, op: ast.operator, right: Value) -> Value:
    lists = [one for one in (left, right) if one.kind == LIST]
    items = [element(one) for one in lists]
    if len(lists) == 2 and isinstance(op, ast.Add):
        if left.items is not None and right.items is not None and len(left.items) + len(right.items) <= MOST_ITEMS:
            return Value(LIST, items=(*left.items, *right.items), item=joined(items))
        known_items = [one for one in items if one is not NO_IDEA]
        return Value(LIST, item=joined(known_items) if known_items else None)
    return Value(LIST, item=joined(items))


_NEGATED = {"%rank": "%rank", "%modulo": EVERY_N, EVERY_N: "%modulo"}


def _unary(walk: Evaluator, node: ast.UnaryOp) -> Value:
    value = walk.value(node.operand)
    if isinstance(node.op, ast.Not):
        return Value(NUMBER, read=value.read, name=_NEGATED.get(value.name, ""))
    if value.kind in TENSORS:
        return Value(TENSOR, lib=value.lib, where=value.where, dtype=value.dtype)
    if value.kind == NUMBER and isinstance(node.op, ast.USub) and isinstance(value.const, (int, float)):
        return value.with_(const=-value.const)
    return value.with_(const=NOTHING) if value.kind == NUMBER else value if value.kind == ARRAY else NO_IDEA


_IDENTITY = (ast.Is, ast.IsNot, ast.In, ast.NotIn)


def _compare(walk: Evaluator, node: ast.Compare) -> Value:
    values = [walk.value(node.left), *walk.values(node.comparators)]
    if all(isinstance(op, _IDENTITY) for op in node.ops):
        return Value(NUMBER, name=_now_and_then(values, node))
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
    dtype = "bool" if unknown else ""  # where one of them is a tensor
    return Value(UNKNOWN if unknown else NUMBER, dtype=dtype, name=_now_and_then(values, node), **flags)


def _now_and_then(values: list[Value], node: ast.Compare) -> str:
    """`step % 100 == 0`, `step == 0`, `step in (1, 10)`: true only now and then. Ranks are told from steps."""
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


def told_apart(test: ast.expr, at: Place) -> tuple[list[str], list[str]]:
    """Names that are no tensors where a test holds, and where it fails: `isinstance(x, int)`, `torch.is_tensor(x)`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        holds, fails = told_apart(test.operand, at)
        return fails, holds
    if isinstance(test, ast.BoolOp):
        sides = [told_apart(one, at) for one in test.values]
        every = isinstance(test.op, ast.And)
        found = [name for holds, fails in sides for name in (holds if every else fails)]
        return (found, []) if every else ([], found)
    if not isinstance(test, ast.Call) or not test.args or not isinstance(test.args[0], ast.Name):
        return [], []
    return _by_type(test, test.args[0].id, at)


def _by_type(test: ast.Call, name: str, at: Place) -> tuple[list[str], list[str]]:
    asked = at.name(test)
    if asked in _TYPE_TESTS:
        return [], [name]
    if asked != "builtins.isinstance" or len(test.args) != 2:
        return [], []
    kinds = test.args[1]
    names = [at.name(one) for one in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])]
    if names and all(one in _TENSOR_TYPES for one in names):
        return [], [name]
    libraries = ("torch.", "tensorflow.", "keras.")
    return ([name], []) if all(one and not one.startswith(libraries) for one in names) else ([], [])


def _told_one_by_one(walk: Evaluator, node: ast.BoolOp) -> list[Value]:
    """The parts of `isinstance(x, float) and x > 3`: each knows what those before it have told."""
    before: dict[str, Value] = {}
    values = []
    for one in node.values:
        values.append(walk.value(one))
        holds, fails = told_apart(one, walk.at)
        for name in holds if isinstance(node.op, ast.And) else fails:
            if name in walk.env:
                before.setdefault(name, walk.env[name])
                walk.bind(name, NO_IDEA)
    for name, value in before.items():
        walk.bind(name, value)
    return values


def _bool_op(walk: Evaluator, node: ast.BoolOp) -> Value:
    values = _told_one_by_one(walk, node)
    found = joined(values)
    names = {value.name for value in values}
    if found.kind == NUMBER:
        every = EVERY_N in names if isinstance(node.op, ast.And) else names == {EVERY_N}
        rank = "%rank" if "%rank" in names else ""
        return Value(NUMBER, name=EVERY_N if every else rank, read=any(value.read for value in values))
    if isinstance(node.op, ast.And) and EVERY_N in names and found.kind == UNKNOWN:
        return Value(NUMBER, name=EVERY_N)
    return found


# Asked by code that is also traced by other compilers.
_NEVER_ON_XLA = frozenset(
    ("torch.jit.is_tracing", "torch.jit.is_scripting", "torch.compiler.is_compiling", "torch._dynamo.is_compiling",
     "transformers.utils.is_torchdynamo_compiling", "transformers.utils.is_tracing")
)  # fmt: skip


def _if_exp(walk: Evaluator, node: ast.IfExp) -> Value:
    walk.value(node.test)
    body, orelse = walk.value(node.body), walk.value(node.orelse)
    if walk.at.name(node.test) in _NEVER_ON_XLA:
        return orelse
    return body if _is_left_alone(walk, node) else join(body, orelse)


def _is_left_alone(walk: Evaluator, node: ast.IfExp) -> bool:
    """`norm.item() if isinstance(norm, torch.Tensor) else norm`: what is left alone is no tensor."""
    test = node.test
    if not isinstance(test, ast.Call) or len(test.args) != 2 or walk.at.name(test) != "builtins.isinstance":
        return False
    of_tensors = walk.at.name(test.args[1]) in ("torch.Tensor", "tensorflow.Tensor")
    return of_tensors and ast.dump(node.orelse) == ast.dump(test.args[0])


# -- containers ----------------------------------------------------------------------------------------------------


def _sequence(walk: Evaluator, node: ast.List | ast.Tuple | ast.Set) -> Value:
    values = walk.values(node.elts)
    starred = any(isinstance(one, ast.Starred) for one in node.elts)
    if len(values) <= MOST_ITEMS and not starred:
        return Value(
            LIST, items=tuple(values), item=joined(values) if values else None, made=node, const=_consts(values, node)
        )
    return Value(LIST, item=joined(values), made=node)


def _consts(values: list[Value], node: ast.AST) -> Any:
    if not values or not isinstance(node, (ast.List, ast.Tuple)) or any(value.const is NOTHING for value in values):
        return NOTHING
    return tuple(value.const for value in values)


def _dict(walk: Evaluator, node: ast.Dict) -> Value:
    for key in node.keys:
        walk.value(key)
    values = walk.values(node.values)
    item = joined(values) if values else None
    return Value(LIST, item=item, made=node, made_at=walk.at, name="builtins.dict")


def _subscript(walk: Evaluator, node: ast.Subscript) -> Value:
    value = walk.value(node.value)
    index = walk.value(node.slice)
    return subscript(value, index, node.slice)


def subscript(value: Value, index: Value, node: ast.expr) -> Value:
    """`value[index]`."""
    kind = value.kind
    if kind == TENSOR:
        return value.with_(name="", made=None) if value.name and value.name != "torch.randperm" else value
    if kind in (BATCH, OUTPUT):
        if isinstance(node, ast.Slice):
            return value
        return Value(TENSOR, lib=value.lib, where=value.where)
    if kind == LIST:
        return _list_item(value, index, node)
    if kind == NUMBER:
        return value.with_(const=NOTHING, name="")
    if kind in (LOADER, TFDATA):
        return NO_IDEA
    if kind == ARRAY:
        return value
    if kind == MODEL and value.ref is None:
        return value  # a Sequential or ModuleList
    if kind == DATASET and isinstance(index.const, str):
        return value  # of a DatasetDict a split, of a Dataset a column
    return value if value is AN_ITEM else NO_IDEA


def _list_item(value: Value, index: Value, node: ast.expr) -> Value:
    if isinstance(node, ast.Slice):
        return value.with_(items=None, const=NOTHING, item=element(value))
    if isinstance(value.made, ast.Dict) and index.const is not NOTHING:
        pairs = zip(value.made.keys, value.made.values, strict=True)
        for key, item in pairs:
            if isinstance(key, ast.Constant) and key.value == index.const:
                found: Value = getattr(item, "_value", NO_IDEA)
                return found
    if value.items is not None and isinstance(index.const, int) and -len(value.items) <= index.const < len(value.items):
        return value.items[index.const]
    return element(value)


def _slice(walk: Evaluator, node: ast.Slice) -> Value:
    walk.values((node.lower, node.upper, node.step))
    return NO_IDEA


def _comprehension(walk: Evaluator, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    targets = {name: walk.env.get(name) for generator in node.generators for name in names_in(generator.target)}
    for generator in node.generators:
        item = element(walk.value(generator.iter))
        walk.assign(generator.target, AN_ITEM if item is NO_IDEA else item)
        walk.values(generator.ifs)
    if isinstance(node, ast.DictComp):
        walk.value(node.key)
        item = walk.value(node.value)
    else:
        item = walk.value(node.elt)
    for name, before in targets.items():  # a comprehension's names are its own
        walk.unbind(name) if before is None else walk.bind(name, before)
    return Value(LIST, item=item, made=node, name="builtins.dict" if isinstance(node, ast.DictComp) else "")


def names_in(target: ast.expr) -> Iterable[str]:
    """The names that an assignment to this target binds."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(name for one in target.elts for name in names_in(one))
    return names_in(target.value) if isinstance(target, ast.Starred) else ()


def _joined_str(walk: Evaluator, node: ast.JoinedStr) -> Value:
    flags = walk.values(node.values)
    return Value(NUMBER, varies=any(one.varies for one in flags))


def _formatted(walk: Evaluator, node: ast.FormattedValue) -> Value:
    walk.value(node.format_spec)
    return walk.value(node.value)


def _named(walk: Evaluator, node: ast.NamedExpr) -> Value:
    value = walk.value(node.value)
    walk.assign(node.target, value)
    return value


def _starred(walk: Evaluator, node: ast.Starred) -> Value:
    return element(walk.value(node.value))


def _await(walk: Evaluator, node: ast.Await) -> Value:
    return walk.value(node.value)


def _yield(walk: Evaluator, node: ast.Yield) -> Value:
    """What a generator function gives is gathered: a list of such items, over the same loader as its loop."""
    item = walk.value(node.value)
    function, loops = walk.at.function, walk.at.loops
    if function is not None:
        over = loops[-1].loader if loops else NO_IDEA
        source = over if over.kind in (LOADER, TFDATA) else over.ref if isinstance(over.ref, Value) else None
        before = function.yields
        item = item if before is None or before.item is None else join(before.item, item)
        function.yields = Value(LIST, item=AN_ITEM if item is NO_IDEA else item, ref=source)
    return NO_IDEA


def _lambda(walk: Evaluator, node: ast.Lambda) -> Value:
    walk.values(one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None)
    return Value(FUNCTION, ref=walk.define_lambda(node))


def _call(walk: Evaluator, node: ast.Call) -> Value:
    from tpu_magics.check.calls import evaluate_call

    return evaluate_call(walk, node)


_EXPRESSIONS: dict[type, Callable[[Evaluator, Any], Value]] = {
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
