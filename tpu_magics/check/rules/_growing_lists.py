"""Lists, dicts and tensors that grow in each step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.inference.values import BATCH, LIST, OUTPUT, TENSOR, UNKNOWN
from tpu_magics.check.rules._changing_numbers import changes, step_loop
from tpu_magics.check.rules._source import origin, own_nodes
from tpu_magics.check.syntax import last_name, nodes_of, root_name

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Loop, RuleContext


_TAKES = frozenset(("append", "extend", "insert", "appendleft"))
_EMPTIES = frozenset(("clear", "pop", "popleft", "remove"))
_JOINS = frozenset(("cat", "concat", "concatenate", "hstack", "vstack", "dstack"))
_SUMS = frozenset(("stack", "sum", "mean", "max", "min", "add_n", *_JOINS))
_LETS_GO = re.compile(r"\.(detach|item|cpu|tolist|numpy|data)\b|\b(float|int|no_grad|gather\w*|reduce)\(")
_HOLDERS = (ast.Tuple, ast.List, ast.Dict)
_TENSORS = (TENSOR, OUTPUT, BATCH)


class GrowingContainer(NamedTuple):
    """A container to which a tensor is added: its name in the code, and the tensors."""

    name: str
    holder: ast.expr
    given: tuple[ast.expr, ...]


def growing_container(node: ast.Call | ast.Assign | ast.AugAssign, ctx: RuleContext) -> GrowingContainer | None:
    """The container to which this adds a tensor that may be on the device, in each step."""
    result = _taking(node, ctx)
    if result is None or not ctx.in_step or ctx.every_n or not ctx.on_device:
        return None
    holder, given = result
    tensors = tuple(one for part in given for one in _tensors_in(part, ctx))
    return GrowingContainer(ctx.source(holder), holder, tensors) if tensors else None


def _taking(node: ast.Call | ast.Assign | ast.AugAssign, ctx: RuleContext) -> tuple[ast.expr, list[ast.expr]] | None:
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in _TAKES and node.args and not ctx.name(node):
            return (func.value, node.args[-1:]) if ctx.value(func.value).kind in (LIST, UNKNOWN) else None
        return None
    if isinstance(node, ast.AugAssign):
        adds = isinstance(node.op, ast.Add) and isinstance(node.value, (ast.List, ast.Tuple))
        return (node.target, [node.value]) if adds else None
    target, value = node.targets[0], node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and isinstance(value.right, ast.List):
        return (target, [value.right]) if ast.unparse(target) == ast.unparse(value.left) else None  # `a = a + [loss]`
    if isinstance(target, ast.Subscript) and ctx.value(target.value).kind == LIST and _is_new_key(target.slice, ctx):
        return target.value, [node.value]
    return None


def _is_new_key(key: ast.expr, ctx: RuleContext) -> bool:
    """`history[step] = loss`: a new key in each step."""
    return not isinstance(key, (ast.Constant, ast.Slice)) and changes(ctx, key)


def _tensors_in(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    if isinstance(node, _HOLDERS):
        for one in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from _tensors_in(one, ctx)
    elif ctx.value(node).kind in _TENSORS and ctx.value(node).where != "host":
        yield node


# -- lifetime ---------------------------------------------------------------------------------------------------------


def _step_nodes(ctx: RuleContext) -> list[ast.AST]:
    """All nodes that run in each step around this code, cached."""
    loop = step_loop(ctx)
    key = ("step-nodes", id(loop.node) if loop is not None else id(ctx.function))
    if key not in ctx.program.memo:
        ctx.program.memo[key] = list(own_nodes(_step_body(ctx)))
    result: list[ast.AST] = ctx.program.memo[key]
    return result


def _step_body(ctx: RuleContext) -> list[ast.stmt]:
    loop = step_loop(ctx)
    if loop is not None:
        return loop.node.body
    body = ctx.function.node.body if ctx.function is not None else []
    return body if isinstance(body, list) else []


def outlives_step(container: GrowingContainer, ctx: RuleContext) -> bool:
    """Whether the container is older than the step, is never emptied in it, and has no fixed size."""
    root = root_name(container.holder)
    if not root or (step_loop(ctx) is None and not _comes_from_outside(root, ctx)):
        return False
    creator, _ = origin(ctx, container.holder)
    if isinstance(creator, ast.Call) and any(one.arg == "maxlen" for one in creator.keywords):
        return False
    return not any(_is_reset(one, container.name, root) for one in _step_nodes(ctx))


def _comes_from_outside(root: str, ctx: RuleContext) -> bool:
    """In a function that runs in each step: an attribute of self, or a name of an outer scope."""
    function = ctx.function
    if function is None:
        return False
    if root == "self":
        return True
    given = {one.arg for one in function.parameters}
    return root not in given and not any(_binds(one, root) for one in _step_nodes(ctx))


def _binds(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _is_reset(node: ast.AST, name: str, root: str) -> bool:
    if isinstance(node, ast.Call):
        func = node.func
        return isinstance(func, ast.Attribute) and func.attr in _EMPTIES and ast.unparse(func.value) in (name, root)
    if isinstance(node, ast.Delete):
        return any(root_name(one) == root for one in node.targets)
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        written = ast.unparse(target)
        if written in (name, root) and node.value is not None:
            return not any(isinstance(one, ast.Name) and one.id == root for one in nodes_of(node.value)) or (
                isinstance(node.value, ast.Subscript)
            )
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice) and root_name(target) == root:
            return True
    return False


# -- use --------------------------------------------------------------------------------------------------------------


def use_in_step(container: GrowingContainer, ctx: RuleContext) -> ast.Call | None:
    """The call in the step that uses the whole container."""
    for nodes in _bodies(container, ctx):
        for node in nodes:
            if isinstance(node, ast.Call) and _computes(node, container.name) and not _of_numbers(node):
                return node
    return None


def _bodies(container: GrowingContainer, ctx: RuleContext) -> Iterator[Iterable[ast.AST]]:
    yield _step_nodes(ctx)
    function = ctx.function
    if container.name.startswith("self.") and function is not None and function.cls is not None:
        for method in function.cls.methods.values():
            runs = any(call.ctx.in_step for call in method.callers)
            if runs and method is not function and isinstance(method.node.body, list):
                yield own_nodes(method.node.body)


def _computes(node: ast.Call, name: str) -> bool:
    return (
        last_name(node) in _SUMS
        and bool(node.args)
        and ast.unparse(node.args[0]) in (name, f"list({name})", f"tuple({name})")
    )


def _of_numbers(node: ast.Call) -> bool:
    """NumPy reads its arguments to the host, which another rule reports."""
    return ast.unparse(node.func).startswith(("np.", "numpy.", "statistics."))


def undetached_loss(container: GrowingContainer, ctx: RuleContext) -> ast.expr | None:
    """The loss of the backward pass, if it is kept without detach."""
    losses = set(_backward_from(ctx))
    for given in container.given:
        written = ast.unparse(given)
        if not _LETS_GO.search(written) and (written in losses or _root_of_output(given) in losses):
            return given
    return None


def _root_of_output(node: ast.expr) -> str:
    """`outputs` of `outputs.loss`."""
    return ast.unparse(node.value) if isinstance(node, ast.Attribute) and node.attr == "loss" else ""


def _backward_from(ctx: RuleContext) -> Iterator[str]:
    """The losses of `loss.backward()` and `accelerator.backward(loss)` in this step."""
    for node in _step_nodes(ctx):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            yield ast.unparse(node.args[0] if node.args else node.func.value)


def is_only_read(container: GrowingContainer, ctx: RuleContext) -> bool:
    """Whether a detached entry is enough: no backward pass uses the container."""
    if len(container.given) != 1 or not isinstance(container.given[0], (ast.Name, ast.Attribute)):
        return False
    text = ctx.cell.text
    root = re.escape(root_name(container.holder))
    return not re.search(rf"\b{root}\b[^\n]*\.backward\(|backward\([^\n]*\b{root}\b", text)


# -- growing tensors --------------------------------------------------------------------------------------------------


def grown_tensor(node: ast.Assign, ctx: RuleContext) -> str:
    """The name of `x = torch.cat([x, new])` in a step, or in a loop that calls a model with it; else ""."""
    target, value = node.targets[0], node.value
    if not isinstance(value, ast.Call) or not isinstance(target, (ast.Name, ast.Attribute)) or not value.args:
        return ""
    name = ctx.name(value)
    if name.rpartition(".")[2] not in _JOINS or not name.startswith("torch.") or ctx.value(value).where == "host":
        return ""
    written, parts = ctx.source(target), value.args[0]
    if not isinstance(parts, (ast.List, ast.Tuple)) or written not in [ctx.source(one) for one in parts.elts]:
        return ""
    if not ctx.on_device or ctx.every_n or not ctx.loops:
        return ""
    # In a step a bounded loop makes the same shapes each time.
    if any(_is_reassigned(written, node, loop) for loop in ctx.loops if loop.is_step or loop is ctx.loops[-1]):
        return ""
    if not (_in_decoding_loop(written, ctx) or _grows_in_step(ctx)):
        return ""
    return written


def _grows_in_step(ctx: RuleContext) -> bool:
    loop = step_loop(ctx)
    return loop is not None and ctx.loops[-1] is loop


def _is_reassigned(written: str, node: ast.Assign, loop: Loop) -> bool:
    """Whether each iteration of the loop starts with a new tensor of that name."""
    tests = {ast.unparse(one.test) for one in nodes_of(loop.node) if isinstance(one, ast.If) and _holds(one, node)}
    if _is_target(loop.node, written) or any(_surely_assigns(one, written, node, tests) for one in loop.node.body):
        return True
    return _rebinds_before(loop.node.body, written, node)


def _surely_assigns(line: ast.stmt, written: str, node: ast.Assign, tests: set[str]) -> bool:
    """Whether a statement, other than the node, assigns the name whenever the node runs, under the node's `tests`."""
    if isinstance(line, ast.If):
        blocks = [line.body] if ast.unparse(line.test) in tests else [line.body, line.orelse]
        return all(any(_surely_assigns(one, written, node, tests) for one in each) for each in blocks)
    if isinstance(line, (ast.With, ast.AsyncWith, ast.Try)):
        return any(_surely_assigns(one, written, node, tests) for one in line.body)
    return line is not node and _assigns(line, written) and not _is_selected(line, written)


def _is_selected(line: ast.stmt, written: str) -> bool:
    """`ids = ids[order]`, which is as long as it was."""
    value = getattr(line, "value", None)
    return isinstance(value, ast.Subscript) and ast.unparse(value.value) == written


def _holds(line: ast.If, node: ast.AST) -> bool:
    return any(part is node for one in line.body for part in nodes_of(one))


def _rebinds_before(block: Sequence[ast.stmt], written: str, node: ast.Assign) -> bool:
    """Whether what surely runs before the node makes another tensor of that name, not one that is made of the old."""
    for one in block:
        if one is node:
            return False
        inside = next(
            (each for each in _blocks(one) if any(node is part for line in each for part in nodes_of(line))), []
        )
        if inside:
            return _rebinds_before(inside, written, node)
        if _rebinds(one, written):
            return True
    return False


def _blocks(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    yield from (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
    yield from (handler.body for handler in getattr(node, "handlers", ()))


def _rebinds(node: ast.stmt, written: str) -> bool:
    if isinstance(node, ast.If):
        return all(any(_rebinds(one, written) for one in each) for each in (node.body, node.orelse))
    if isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
        return any(_rebinds(one, written) for one in node.body)
    return _assigns(node, written) and not _is_made_of(node, written)


def _assigns(node: ast.stmt, written: str) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(ast.unparse(part) == written for part in parts)


def _is_made_of(node: ast.stmt, written: str) -> bool:
    value = getattr(node, "value", None)
    return value is not None and any(
        isinstance(one, ast.expr) and ast.unparse(one) == written for one in nodes_of(value)
    )


def _is_target(node: ast.AST, written: str) -> bool:
    target = getattr(node, "target", None)
    return target is not None and any(isinstance(one, ast.Name) and one.id == written for one in nodes_of(target))


def _in_decoding_loop(written: str, ctx: RuleContext) -> bool:
    """`logits = model(ids); ids = torch.cat([ids, next_id], dim=-1)`: the model gets the growing tensor."""
    return any(
        isinstance(one, ast.Call)
        and ctx.value(one.func).kind == "model"
        and any(ast.unparse(given) == written for given in (*one.args, *(keyword.value for keyword in one.keywords)))
        for one in own_nodes(ctx.loops[-1].node.body)
    )
