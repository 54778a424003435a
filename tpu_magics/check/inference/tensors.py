"""Device and dtype of tensors that are made or moved, and the results of tensor methods."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.expressions import TENSORS, Evaluator, common_placement
from tpu_magics.check.inference.values import (
    A_NUMBER,
    A_SHAPE,
    AN_ARRAY,
    DEVICE,
    LIST,
    NONE,
    NUMBER,
    OUTPUT,
    TENSOR,
    UNKNOWN,
    UNKNOWN_VALUE,
    AbstractValue,
)

if TYPE_CHECKING:
    Arguments = Sequence[AbstractValue]


_OF_ARRAYS = ("torch.from_numpy", "torch.as_tensor", "torch.tensor")


def create_tensor(
    walk: Evaluator, node: ast.Call, name: str, value: AbstractValue, arguments: Arguments
) -> AbstractValue:
    where = value.where or _where_given(walk, node) or _where_of_parts(name, arguments)
    dtype = _dtype_given(walk, node) or value.dtype
    if not dtype and name in _OF_ARRAYS and node.args and isinstance(node.args[0], ast.Compare):
        dtype = "bool"
    if not dtype and name in _CASTS:
        dtype = dtype_of(arguments[1]) if len(arguments) > 1 else "float" if _is_float(arguments) else ""
    if name in ("torch.max", "torch.min") and (
        (len(arguments) > 1 and arguments[1].kind == NUMBER) or has_keyword(node, "dim")
    ):
        return AbstractValue(OUTPUT, lib="torch", where=where)
    if name in ("torch.where", "tensorflow.where") and len(node.args) == 1 and not node.keywords:
        kind = OUTPUT if value.lib == "torch" else TENSOR  # torch gives a tuple
        return AbstractValue(kind, lib=value.lib, where=where, dtype="int", name=name)
    if name == "torch.nonzero":
        kind = OUTPUT if has_keyword(node, "as_tuple") else TENSOR
        return AbstractValue(kind, lib="torch", where=where, dtype="int", name=name)
    if name == "torch.unique":
        kind = OUTPUT if any(has_keyword(node, one) for one in ("return_inverse", "return_counts")) else TENSOR
        return AbstractValue(kind, lib="torch", where=where, name=name)
    if not dtype and name in ("torch.tensor", "torch.as_tensor") and arguments:
        const = arguments[0].const
        first = const[0] if isinstance(const, tuple) and const else const
        dtype = "bool" if isinstance(first, bool) else "int" if isinstance(first, int) else ""
    return value.with_(where=where, dtype=dtype, creator=node, creator_ctx=walk.ctx, name=name)


def _is_float(arguments: Arguments) -> bool:
    return bool(arguments) and isinstance(arguments[0].const, float)


def has_keyword(node: ast.Call, name: str) -> bool:
    return any(one.arg == name for one in node.keywords)


def _where_given(walk: Evaluator, node: ast.Call) -> str:
    for keyword in node.keywords:
        if keyword.arg == "device":
            return where_of_device(walk.ctx.value(keyword.value))
    return ""


def _where_of_parts(name: str, arguments: Arguments) -> str:
    # A parameter moves with its module, wherever its initial value was.
    return "" if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter") else where_of(arguments)


def where_of_device(value: AbstractValue) -> str:
    """ "host" or "device" for a tensor on this device; "cpu" is the host."""
    if isinstance(value.const, str):
        return "host" if value.const.startswith("cpu") else "device"
    if value.kind == DEVICE:
        return value.where or "device"
    return ""


def where_of(arguments: Arguments) -> str:
    tensors = [one for one in arguments if one.kind in TENSORS]
    tensors += [one.item for one in arguments if one.kind == LIST and one.item is not None and one.item.kind in TENSORS]
    return common_placement(one.where for one in tensors)


_CASTS = frozenset(("tensorflow.cast", "tensorflow.convert_to_tensor", "tensorflow.constant"))


def _dtype_given(walk: Evaluator, node: ast.Call) -> str:
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            return dtype_of(walk.ctx.value(keyword.value))
    return ""


def dtype_of(value: AbstractValue) -> str:
    """ "bool", "int", "float" or "" of a dtype given as `torch.bool`, `tf.int32`, `bool` or a string."""
    last = value.const if isinstance(value.const, str) else value.name.rpartition(".")[2]
    if last in ("bool", "bool_"):
        return "bool"
    if last.startswith(("int", "uint", "long", "short")):
        return "int"
    return "float" if last.startswith(("float", "bfloat", "half", "double")) else ""


_OF_DICTS = ("items", "keys", "values")
# `key.endswith("ids")`
_OF_STRINGS = frozenset(dir(str)) - {"index", "split", "count"}


def tensor_method(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    lib, where = value.lib, value.where
    if not where and _builds_a_module(walk):
        where = "host"
    if method in library_results.TENSOR_NUMBERS or (
        method.startswith(("is_", "_is_")) and method not in library_results.TENSOR_READS
    ):
        return A_SHAPE
    if method.startswith("get_"):
        return UNKNOWN_VALUE  # `cache.get_seq_length()`: not a tensor
    if method in _OF_STRINGS and not method.startswith("_"):
        return A_NUMBER
    if method in _OF_DICTS:
        return AbstractValue(LIST, item=UNKNOWN_VALUE)  # what it is called on is one
    if method in library_results.TENSOR_READS:
        return AbstractValue(
            NUMBER,
            read=where != "host",
            name="Tensor." + method if method in ("equal", "allclose", "is_nonzero") else "",
        )
    if method == "tolist":
        return AbstractValue(LIST, item=AbstractValue(NUMBER, read=where != "host"), read=where != "host")
    if method == "numpy":
        return AN_ARRAY
    if method == "cpu":
        return AbstractValue(TENSOR, lib=lib, where="host", dtype=value.dtype)
    if method in ("to", "cuda", "type_as"):
        return move_tensor(walk, node, value, method, arguments)
    if method in ("type",):
        return AbstractValue(TENSOR, lib=lib, where=where) if arguments else A_NUMBER
    if method in ("backward", "register_hook", "retain_grad"):
        return NONE
    if method in ("max", "min") and (arguments or has_keyword(node, "dim")):
        tensor = bool(arguments) and arguments[0].kind in TENSORS
        return AbstractValue(TENSOR if tensor else OUTPUT, lib=lib, where=where)
    if method == "nonzero":
        return AbstractValue(
            OUTPUT if has_keyword(node, "as_tuple") else TENSOR, lib=lib, where=where, dtype="int", name="torch.nonzero"
        )
    if method == "unique":
        return AbstractValue(OUTPUT if node.keywords else TENSOR, lib=lib, where=where, name="torch.unique")
    if method in library_results.TENSOR_MANY:
        return AbstractValue(OUTPUT, lib=lib, where=where)
    return AbstractValue(TENSOR, lib=lib, where=where, dtype=_method_dtype(walk, node, value, method))


def _builds_a_module(walk: Evaluator) -> bool:
    """Whether this is an `__init__`: its tensors are on the host, such as the rates of `linspace(...).tolist()`."""
    function = walk.ctx.function
    return function is not None and function.cls is not None and function.name.rpartition(".")[2] == "__init__"


_KEEPS = frozenset([
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "transpose", "permute", "contiguous", "detach", "clone",
    "expand", "expand_as", "repeat", "view_as", "masked_fill", "roll", "flip", "t", "index_select", "gather"
])  # fmt: skip


def _method_dtype(walk: Evaluator, node: ast.Call, value: AbstractValue, method: str) -> str:
    given = _dtype_given(walk, node)
    if given:
        return given
    if method in library_results.TENSOR_BOOLS:
        return "bool"
    if method in library_results.TENSOR_INTS:
        return "int"
    if method in library_results.TENSOR_FLOATS:
        return "float"
    return value.dtype if method in _KEEPS else ""


def move_tensor(
    walk: Evaluator, node: ast.Call, value: AbstractValue, method: str, arguments: Arguments
) -> AbstractValue:
    where, dtype = value.where, value.dtype
    if method == "cuda":
        where = "device"
    for one in [*arguments, *(walk.ctx.value(keyword.value) for keyword in node.keywords)]:
        if one.kind == DEVICE or (isinstance(one.const, str) and dtype_of(one) == ""):
            where = where_of_device(one)
        elif one.kind in TENSORS:
            where, dtype = one.where, one.dtype
        elif one.kind == UNKNOWN:
            where = "" if _may_be_device(node) else where
        else:
            dtype = dtype_of(one) or dtype
    return AbstractValue(value.kind, lib=value.lib, where=where, dtype=dtype)


def _may_be_device(node: ast.Call) -> bool:
    """Whether the argument of `.to()` may be a device: `self.device`, but not `self.dtype`."""
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
    return any("type" not in str(getattr(one, "attr", getattr(one, "id", ""))) for one in given)
