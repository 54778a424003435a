"""How often a line runs in all, from the loops around it in the user's source. Nothing of the user's is run to know."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FrameType, WrapperDescriptorType
from typing import Any

from tpu_magics.backends.observe.sites import locals_of, parsed

# Calls that iterate over their argument once, by the last part of their name.
_WRAPPERS = ("enumerate", "tqdm", "track", "progress_bar", "master_bar")
# Calls that return a loader over all batches of their argument.
_LOADERS = ("DataLoader", "MpDeviceLoader", "per_device_loader")
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BRANCHES = (ast.If, ast.ExceptHandler, ast.match_case)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_GET_ITER = dis.opmap["GET_ITER"]
_UNKNOWN = object()


def header(frame: FrameType) -> ast.For | None:
    """The innermost `for` statement with the frame's current line in its head, where the loop begins or goes on."""
    loops = [node for node, _ in _path(frame) if isinstance(node, ast.For)]
    inner = loops[-1] if loops else None
    return inner if inner and frame.f_lineno <= (inner.iter.end_lineno or inner.iter.lineno) else None


def around(frames: Sequence[FrameType], head: ast.For | None) -> frozenset[tuple[int, int]]:
    """The loops around `head`, which is in the first of the frames."""
    paths = ((frame, node) for frame in frames for node, _ in _until(head, frame))
    return frozenset((id(frame.f_code), node.lineno) for frame, node in paths if isinstance(node, (ast.For, ast.While)))


def iterated(loop: ast.For, frame: FrameType, begun: Any, caller: FrameType) -> Any:
    """The object that a `for` statement of `frame` iterates over, inside enumerate() or a progress bar; None if
    unknown. `begun`: the object whose iteration `caller` has begun there."""
    node = _unwrapped(loop.iter)
    itself = caller is frame and frame.f_code.co_code[frame.f_lasti] == _GET_ITER and node is loop.iter
    if itself and not any(isinstance(one, _COMPREHENSIONS) for one in ast.walk(node)):
        return begun
    if isinstance(node, ast.Call):
        return begun if _name(node.func) in _LOADERS else None
    found = _value(node, frame)
    return None if found is _UNKNOWN else found


def times(frames: Sequence[FrameType], head: ast.For | None = None) -> int | None:
    """How often the current line of the first frame runs in all, or the loop with `head` there begins; None if unknown.
    `frames`: that frame and its callers. A branch that is not in a loop runs once."""
    total, in_loop = 1, False
    for frame in reversed(frames):
        for node, field in _until(head, frame) if _is_readable(frame) else [(None, "")]:
            count = _repetitions(node, field, frame, in_loop)
            if count is None:
                return None
            total *= count
            in_loop = in_loop or (isinstance(node, ast.For) and field == "body")
        if _in_comprehension(frame):
            return None
    return total


def _repetitions(node: ast.AST | None, field: str, frame: FrameType, in_loop: bool) -> int | None:
    """How often one statement runs the part of it that contains the line."""
    if isinstance(node, ast.For) and field == "body":
        return _count(node.iter, frame)
    unknown = node is None or (isinstance(node, (ast.While, ast.AsyncFor)) and field != "orelse")
    return None if unknown or (in_loop and isinstance(node, _BRANCHES)) else 1


def _count(node: ast.expr, frame: FrameType) -> int | None:
    """The number of iterations over an expression."""
    found = _value(_unwrapped(node), frame)
    return len(found) if type(found) is range else None


# -- the source -------------------------------------------------------------------------------------------------------


def _is_readable(frame: FrameType) -> bool:
    """Whether there is source to look at. A lambda has no loops; its source is not needed."""
    name = frame.f_code.co_name
    if name.startswith("<") and name not in ("<module>", "<lambda>") and not name.startswith("<cell"):
        return False
    tree = parsed(frame.f_code.co_filename)
    return tree is not None and bool(tree.body)


def _path(frame: FrameType) -> list[tuple[ast.AST, str]]:
    """The statements of the frame's own function around its current line, the outermost first, each with the name of
    the block that goes on to the next one ("" for the last)."""
    code = frame.f_code
    return [] if code.co_name == "<lambda>" else _path_to(code.co_filename, frame.f_lineno)


def _until(head: ast.For | None, frame: FrameType) -> list[tuple[ast.AST, str]]:
    path = _path(frame)
    return next((path[:n] for n, (node, _) in enumerate(path) if node is head), path)


@lru_cache(maxsize=1024)
def _path_to(path: str, line: int) -> list[tuple[ast.AST, str]]:
    found: list[tuple[ast.AST, str]] = []
    node: ast.AST | None = parsed(path)
    while node is not None:
        field, inner = next(_blocks(node, line), ("", None))
        found.append((node, field))
        if isinstance(node, (ast.Module, *_SCOPES)):
            found.clear()
        node = inner
    return found


def _blocks(node: ast.AST, line: int) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.match_case):
                if any(_spans(one, line) for one in child.body):
                    yield field, child
            elif isinstance(child, (ast.stmt, ast.ExceptHandler)) and _spans(child, line):
                yield field, child


def _spans(node: ast.stmt | ast.expr | ast.ExceptHandler, line: int) -> bool:
    first = min((one.lineno for one in getattr(node, "decorator_list", ())), default=node.lineno)
    return first <= line <= (node.end_lineno or node.lineno)


def _in_comprehension(frame: FrameType) -> bool:
    """Whether a comprehension may be running the line as a loop: from CPython 3.12 on it has no frame of its own."""
    path = _path(frame) if sys.version_info >= (3, 12) else []
    parts = [child for child in ast.iter_child_nodes(path[-1][0]) if isinstance(child, ast.expr)] if path else []
    nodes = [node for part in parts for node in ast.walk(part) if isinstance(node, _COMPREHENSIONS)]
    return any(_spans(node, frame.f_lineno) for node in nodes)


# -- values -----------------------------------------------------------------------------------------------------------


def _unwrapped(node: ast.expr) -> ast.expr:
    """The argument of enumerate() and progress bars."""
    while isinstance(node, ast.Call) and _name(node.func) in _WRAPPERS:
        named = [one.value for one in node.keywords if one.arg == "iterable"]
        if not (node.args or named):
            break
        node = (node.args or named)[0]
    return node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of an expression of names, attributes, items, integers and `range`; _UNKNOWN for any other."""
    reader = _READERS.get(type(node))
    return reader(node, frame) if reader is not None else _UNKNOWN


def _of_constant(node: ast.Constant, _frame: FrameType) -> Any:
    return node.value


def _of_name(node: ast.Name, frame: FrameType) -> Any:
    for names in (locals_of(frame), frame.f_globals, vars(builtins)):
        if node.id in names:
            return names[node.id]
    return _UNKNOWN


def _of_attribute(node: ast.Attribute, frame: FrameType) -> Any:
    """What is stored in the object or its class: no property and no `__getattr__` is run."""
    owner = _value(node.value, frame)
    if owner is _UNKNOWN or not isinstance(type(owner).__getattribute__, WrapperDescriptorType):  # it is the user's
        return _UNKNOWN
    found = inspect.getattr_static(owner, node.attr, _UNKNOWN)
    return _UNKNOWN if hasattr(type(found), "__get__") else found


def _of_item(node: ast.Subscript, frame: FrameType) -> Any:
    owner, key = _value(node.value, frame), _value(node.slice, frame)
    if type(key) not in (int, str) or type(owner) not in (dict, list, tuple):
        return _UNKNOWN
    try:
        return owner[key]
    except LookupError:
        return _UNKNOWN


def _of_operation(node: ast.BinOp, frame: FrameType) -> Any:
    left, right, operation = _value(node.left, frame), _value(node.right, frame), _OPERATIONS.get(type(node.op))
    if operation is None or type(left) is not int or type(right) is not int:
        return _UNKNOWN
    return operation(left, right) if right or not isinstance(node.op, ast.FloorDiv) else _UNKNOWN


def _of_call(node: ast.Call, frame: FrameType) -> Any:
    """`range(...)`, tqdm's `trange(...)`, `len(...)` of a list, `int(...)`."""
    function, args = _value(node.func, frame), [_value(one, frame) for one in node.args]
    if function is len and len(args) == 1 and type(args[0]) in (list, tuple, dict, range, str):
        return len(args[0])
    if any(type(one) is not int for one in args):
        return _UNKNOWN
    if (function is range and not node.keywords) or _name(node.func) == "trange":
        return range(*args) if 1 <= len(args) <= 3 and args[2:] != [0] else _UNKNOWN
    return args[0] if function is int and len(args) == 1 else _UNKNOWN


_READERS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _of_constant,
    ast.Name: _of_name,
    ast.Attribute: _of_attribute,
    ast.Subscript: _of_item,
    ast.BinOp: _of_operation,
    ast.Call: _of_call,
}
