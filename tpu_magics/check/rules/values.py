"""Rules about values (TPU1xx): no branch on data, and no read of a value in a step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import ARRAY, BATCH, LIST, MODEL, NUMBER, TENSOR, AbstractValue
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _fix_messages, _shapes, _tensor_values, _truthiness, _weights_read
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


WHY_CPU = "The tensor is on the CPU, so reading it is cheap, but each side of the branch is another graph to compile."
WHY_TF = (
    "XLA compiles the graph before any value exists: tracing fails here, or a TPU may not support the control flow."
)
_STATEMENTS = (ast.If, ast.While, ast.Assert)
_HOLDERS = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Call)


class BranchOnValue(Rule):
    """A branch on a tensor's value.

    What it does
        Reports Python code in the step that needs a tensor's value to go on: `if`, `elif`, `while`, `assert`, the
        conditional expression, `and`, `or`, `not`, `bool()`, the condition of a comprehension, `match`, `in`, chained
        comparisons, `any()`, `all()`, `max()`, `min()`, `sorted()`, `torch.equal()`, `torch.allclose()`. Also an `if`
        on a number that was read from a tensor, if it decides what is computed. TensorFlow code is checked where XLA
        compiles it: in `tf.function(jit_compile=True)`, in a Keras model that is compiled with it, and under a
        TPUStrategy.
    Why this is bad
        XLA compiles a graph before any value exists. PyTorch/XLA has to stop there, run the graph so far and pass the
        value to Python; each side of the branch is then another graph to compile. TensorFlow fails to trace the code,
        or turns it into control flow that a TPU may not support.
    Example
        def training_step(model, x, y):
            loss = F.cross_entropy(model(x), y)
            if loss > 10:
                loss = loss / 2.0
            return loss
    Use instead
        def training_step(model, x, y):
            loss = F.cross_entropy(model(x), y)
            return torch.where(loss > 10, loss / 2.0, loss)
    Limitations
        Tensors that are returned by functions in other files, and branches inside libraries, are not checked. A branch
        on a shape, on `None`, on a flag or on a CPU tensor is fine and is not reported.
    """

    code = "TPU101"
    name = "branch-on-value"
    group = "values"
    why = "XLA must stop, run the graph so far and pass the value to Python; each side of the branch is another graph."
    nodes = (
        *_STATEMENTS,
        ast.IfExp,
        ast.BoolOp,
        ast.UnaryOp,
        ast.Compare,
        ast.Call,
        *_truthiness.COMPREHENSIONS,
        ast.Match,
    )

    def check(self, node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
        if not _truthiness.may_need_value(node, ctx) or not (
            _tensor_values.may_run_each_step(ctx) or _tensor_values.is_compiled_tf(ctx)
        ):
            return
        needed = _truthiness.first_needed(node, ctx)
        if needed is None or _tensor_values.runs_rarely(node, ctx) or _tensor_values.guarded(node, ctx):
            return
        if _tensor_values.is_made_on_cpu(_operand(needed, ctx), ctx) and not ctx.in_step:
            return
        if isinstance(node, _STATEMENTS) or not _is_in_test(node, ctx):
            yield _branch_finding(node, needed, ctx)


def _is_in_test(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this is part of a larger test, which is reported instead."""
    for parent, child in _tensor_values.expression_parents(node, ctx):
        if getattr(parent, "test", None) is child or (isinstance(parent, ast.comprehension) and child in parent.ifs):
            return True
        if (
            isinstance(parent, _HOLDERS)
            and _truthiness.may_need_value(parent, ctx)
            and _truthiness.first_needed(parent, ctx)
        ):
            return True
    return False


# -- the message ----------------------------------------------------------------------------------------------


def _branch_finding(node: ast.AST, needed: ast.expr, ctx: RuleContext) -> Finding:
    tf = ctx.value(needed).lib == "tf"
    why = WHY_TF if tf else WHY_CPU if _tensor_values.is_made_on_cpu(_operand(needed, ctx), ctx) else None
    place = getattr(node, "test", None) or (node.subject if isinstance(node, ast.Match) else node)
    return ctx.finding(
        place,
        f"{_branch_subject(node)} the value of {_tensor_values.short_source(_operand(needed, ctx), ctx)}.",
        _fix_messages.fix_message(node, needed, ctx, tf),
        why=why,
        edits=_fix_messages.edits(node, ctx),
    )


_SUBJECTS: dict[type, str] = {
    ast.If: "The branch depends on",
    ast.While: "The loop's condition depends on",
    ast.Assert: "The assertion depends on",
    ast.IfExp: "The conditional expression depends on",
    ast.Match: "The match depends on",
    **dict.fromkeys(_truthiness.COMPREHENSIONS, "The comprehension's condition depends on"),
}


def _branch_subject(node: ast.AST) -> str:
    if isinstance(node, ast.BoolOp):
        return f"`{'and' if isinstance(node.op, ast.And) else 'or'}` needs"
    if isinstance(node, ast.UnaryOp):
        return "`not` needs"
    if isinstance(node, ast.Compare):
        return "`in` needs" if len(node.ops) == 1 else "The chained comparison needs"
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func).rpartition('.')[2]}() needs"
    return _SUBJECTS[type(node)]


def _operand(needed: ast.expr, ctx: RuleContext) -> ast.expr:
    """The loss in `loss > best`."""
    if isinstance(needed, ast.Compare):
        sides = (needed.left, *needed.comparators)
        return next((one for one in sides if _tensor_values.is_readable(ctx.value(one), ctx)), needed)
    return needed


WHY_AFTER_SYNC = "The host waits here for the device in each step, instead of preparing the next step."


class ValueRead(Rule):
    """A tensor's value is read in each step.

    What it does
        Reports `.item()`, `.tolist()`, `.numpy()`, `.cpu()`, `.to("cpu")`, `float(t)`, `int(t)`, `complex(t)`,
        `np.array(t)` and other NumPy and `math` functions of a tensor, `torch.tensor([t])`, `xm.mesh_reduce`, and
        `scheduler.step(loss)` of ReduceLROnPlateau, if they run in each step of a training or evaluation loop.
    Why this is bad
        The value exists only after XLA has compiled and run everything before it. The read splits the step into two
        graphs, and the host waits for the device instead of preparing the next step.
    Example
        for x, y in loader:
            loss = step(x, y)
            total += loss.item()
    Use instead
        for x, y in loader:
            loss = step(x, y)
            total += loss.detach()  # stays on the device
        print(total.item())
    Limitations
        Reads inside libraries are not checked. Reads every N steps, after the loop, or in a function passed to
        `xm.add_step_closure` are fine and are not reported.
    """

    code = "TPU102"
    name = "value-read"
    group = "values"
    why = "XLA must compile and run everything up to this line, and the host waits: the step is split into two graphs."
    nodes = (ast.Call,)

    def check(self, node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
        if not _runs_often(ctx):
            return
        tensor = _tensor_values.read_tensor(node, ctx)
        if (
            tensor is None
            or _tensor_values.runs_rarely(node, ctx)
            or _tensor_values.guarded(node, ctx)
            or _is_reported_with_parent(node, ctx)
        ):
            return
        if _is_reported_beside(node, ctx):
            return
        read, source = (
            _tensor_values.short_source(_whole_chain(node, ctx), ctx),
            _tensor_values.short_source(tensor, ctx),
        )
        yield ctx.finding(
            node,
            f"{read} reads the value of {source} in each step.",
            _read_fix(node, tensor, ctx),
            why=WHY_AFTER_SYNC if _tensor_values.after_sync(node, ctx) else None,
        )


def _runs_often(ctx: RuleContext) -> bool:
    return _tensor_values.runs_each_step(ctx) or _tensor_values.is_compiled_tf(ctx)


def _whole_chain(node: ast.Call, ctx: RuleContext) -> ast.AST:
    """The chain that the read is part of: `preds.cpu().numpy()`."""
    whole: ast.AST = node
    for parent, child in _tensor_values.expression_parents(node, ctx):
        in_chain = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is child)
        if not in_chain:
            break
        whole = parent
    return whole if isinstance(whole, ast.Call) else node


def _is_reported_with_parent(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the read is part of another finding: a branch that decides what is computed, or the bounds of a loop."""
    for parent, child in _tensor_values.expression_parents(node, ctx):
        if isinstance(parent, ast.Call) and ctx.name(parent) == "builtins.range":
            return True
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and child is parent.test:
            return _truthiness.decides_tensor_work(parent, ctx)
    return False


def _is_reported_beside(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a read stands before it on this line: `add_batch(predictions=preds.cpu(), references=labels.cpu())`."""
    for parent, child in _tensor_values.expression_parents(node, ctx):
        if isinstance(parent, ast.stmt):
            return False
        for beside in ast.iter_child_nodes(parent):
            if beside is child:
                break
            if any(
                _tensor_values.read_tensor(one, ctx) is not None and _on_one_line(one, node) for one in nodes_of(beside)
            ):
                return True
    return False


def _on_one_line(one: ast.AST, other: ast.AST) -> bool:
    return getattr(one, "lineno", 0) == getattr(other, "lineno", 1)


def _read_fix(node: ast.Call, tensor: ast.expr, ctx: RuleContext) -> str:
    if _tensor_values.is_plateau_step(node, ctx):
        return "Step it once per epoch, after the loop, with the mean loss: add it up on the device, and read it once."
    if ctx.value(tensor).lib == "tf":
        return "Update a metric (`tf.keras.metrics.Mean`) in the step, and read its `result()` after the loop."
    name = _tensor_values.full_source(tensor, ctx)
    for parent, _ in _tensor_values.expression_parents(node, ctx):
        if isinstance(parent, ast.AugAssign):
            target = _tensor_values.short_source(parent.target, ctx)
            on_device = f"`{target} += {name}.detach()`" if name and parent.value is node else "without reading it"
            return f"Add it up on the device ({on_device}) and read {target} once after the loop."
        if _tensor_values.is_sink(parent, ctx):
            return _tensor_values.fix_message(name or "it", ctx)
    kept = name or "it"
    if _tensor_values.in_module(ctx):
        return f"Compute with {kept} as a tensor, or return it and read it outside of the model."
    how = "" if ctx.program.torch_tpu else ", or with `xm.add_step_closure`"
    return f"Keep {kept} on the device and read it once after the loop, or every N steps{how}."


class PrintedTensor(Rule):
    """A tensor is printed or logged in each step.

    What it does
        Reports tensors that are converted to text in each step of a loop: `print(t)`, f-strings, `%` and `.format()`,
        `str(t)`, `repr(t)`, `logging`, `tqdm` (`set_postfix`, `set_description`, `write`), `accelerator.print`,
        `xm.master_print`, and trackers such as `wandb.log` and `writer.add_scalar`.
    Why this is bad
        To show a tensor, its value must be read: XLA compiles and runs everything up to that line, and the host waits.
        A line that looks harmless splits the step into two graphs.
    Example
        for step, (x, y) in enumerate(loader):
            loss = train_step(x, y)
            print(f"loss {loss}")
    Use instead
        for step, (x, y) in enumerate(loader):
            loss = train_step(x, y)
            if step % 100 == 0:
                print(f"loss {loss}")
    Limitations
        Which log levels are enabled is unknown. A shape or a dtype can be printed at any time. A print of `loss.item()`
        is reported as TPU102.
    """

    code = "TPU103"
    name = "printed-tensor"
    group = "values"
    why = (
        "To show a tensor, its value must be read: XLA runs everything up to this line, and the host waits in each "
        "step."
    )
    nodes = (ast.Call, ast.JoinedStr, ast.BinOp)

    def check(self, node: ast.Call | ast.JoinedStr | ast.BinOp, ctx: RuleContext) -> Iterator[Finding]:
        if not _makes_text(node, ctx) or not _tensor_values.runs_each_step(ctx):
            return
        tensor = _shown_tensor(node, ctx)
        if (
            tensor is None
            or _is_in_reported_call(node, ctx)
            or _tensor_values.runs_rarely(node, ctx)
            or _tensor_values.guarded(node, ctx)
        ):
            return
        yield ctx.finding(
            node,
            f"{_text_subject(node)} reads the value of {_tensor_values.short_source(tensor, ctx)} in each step.",
            _tensor_values.fix_message(_tensor_values.full_source(tensor, ctx) or "it", ctx),
            why=WHY_AFTER_SYNC if _tensor_values.after_sync(node, ctx) else None,
        )


def _makes_text(node: ast.AST, ctx: RuleContext) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and _is_text(node.left, ctx)
    return isinstance(node, ast.JoinedStr) or _tensor_values.is_sink(node, ctx)


def _is_text(node: ast.expr, ctx: RuleContext) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(ctx.constant(node), str)


def _shown_tensor(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The first tensor that becomes text here."""
    return next((one for part in _text_parts(node) for one in _tensors_in_text(part, ctx)), None)


def _text_parts(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr):
        yield from (one.value for one in node.values if isinstance(one, ast.FormattedValue))
    elif isinstance(node, ast.BinOp):
        yield node.right
    elif isinstance(node, ast.Call):
        yield from node.args
        yield from (one.value for one in node.keywords if one.arg not in ("file", "global_step", "step"))


def _tensors_in_text(node: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The tensors in what is shown, also inside a tuple, a dict or another text."""
    if isinstance(node, ast.Starred):
        node = node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        inside = [one for part in node.elts for one in _tensors_in_text(part, ctx)]
    elif isinstance(node, ast.Dict):
        inside = [one for part in node.values for one in _tensors_in_text(part, ctx)]
    elif _makes_text(node, ctx):
        inside = [one for part in _text_parts(node) for one in _tensors_in_text(part, ctx)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and ctx.value(node).kind != TENSOR:
        inside = [one for part in (node.left, node.right) for one in _tensors_in_text(part, ctx)]
    elif isinstance(node, ast.IfExp):
        inside = [one for part in (node.body, node.orelse) for one in _tensors_in_text(part, ctx)]
    else:
        inside = [node] if _reads_when_shown(node, ctx) else []
    yield from inside


def _reads_when_shown(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    if value.lib == "tf":
        return _tensor_values.is_eager_result(value, ctx)
    if value.kind == BATCH or (value.kind == LIST and value.item is not None and value.item.kind == BATCH):
        return value.where == "device"
    return _tensor_values.holds_readable(value, ctx)


def _is_in_reported_call(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this text is inside a call that is reported itself."""
    return any(_makes_text(parent, ctx) for parent, _ in _tensor_values.expression_parents(node, ctx))


def _text_subject(node: ast.Call | ast.JoinedStr | ast.BinOp) -> str:
    if isinstance(node, ast.JoinedStr):
        return "The f-string"
    if isinstance(node, ast.BinOp):
        return "The text"
    return f"{ast.unparse(node.func) if not isinstance(node.func, ast.Attribute) else _method_name(node.func)}()"


def _method_name(func: ast.Attribute) -> str:
    return ast.unparse(func) if isinstance(func.value, (ast.Name, ast.Attribute)) else f".{func.attr}"


_SEQUENCES = ("torch.nn.ModuleList", "torch.nn.ParameterList", "builtins.range", "builtins.list", "builtins.tuple")


class LoopOverValue(Rule):
    """A loop or an index that depends on a tensor's value.

    What it does
        Reports `range(t)`, also of a number that was read from a tensor; a Python list, tuple, `nn.ModuleList` or NumPy
        array that is indexed or sliced with a tensor; a tensor that is indexed with a tensor of no dimension
        (`out[i, lengths[i] - 1]`), whose value torch reads; a list that is repeated by a tensor.
    Why this is bad
        Python needs the number, so XLA must run the graph so far and pass the value to Python. Each new number of
        iterations, and each item that is chosen, is another graph to compile.
    Example
        for i in range(lengths.max()):
            hidden = cell(x[:, i], hidden)
        out = experts[route](hidden)
    Use instead
        for i in range(x.shape[1]):  # a shape is known before anything runs
            hidden = torch.where((i < lengths)[:, None], cell(x[:, i], hidden), hidden)
        out = (torch.stack([expert(hidden) for expert in experts]) * one_hot_route).sum(0)
        last = hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1]  # an index for each row
    Limitations
        A tensor is known to have no dimension where it is reduced as a whole (`x.argmax()`), or is an item of a tensor
        that is named as lengths are or is made with one dimension. Lists that are returned by functions in other files
        are not checked. A loop over a tensor's rows is unrolled and reads no value.
    """

    code = "TPU104"
    name = "loop-over-value"
    group = "values"
    why = (
        "Python needs the number, so XLA stops and passes the value to Python; each new number is another graph to "
        "compile."
    )
    nodes = (ast.Call, ast.Subscript, ast.BinOp)

    def check(self, node: ast.Call | ast.Subscript | ast.BinOp, ctx: RuleContext) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            needed = _of_range(node, ctx)
        elif isinstance(node, ast.Subscript):
            needed = _of_index(node, ctx)
        else:
            needed = _of_repeat(node, ctx)
        if needed is None or not (_tensor_values.may_run_each_step(ctx) or _tensor_values.is_compiled_tf(ctx)):
            return
        if not _tensor_values.guarded(node, ctx) and not _tensor_values.runs_rarely(node, ctx):
            yield ctx.finding(
                node,
                _MESSAGES[type(node)].format(
                    _tensor_values.short_source(node, ctx), _tensor_values.short_source(needed, ctx)
                ),
                _loop_fix(node, needed, ctx),
            )


_MESSAGES: dict[type, str] = {
    ast.Call: "The number of iterations of {} depends on the value of {}.",
    ast.Subscript: "The item of {} depends on the value of {}.",
    ast.BinOp: "The length of {} depends on the value of {}.",
}


def _of_range(node: ast.Call, ctx: RuleContext) -> ast.expr | None:
    if ctx.name(node) != "builtins.range":
        return None
    return next((one for part in node.args for one in _data(part, ctx)), None)


def _data(bound: ast.expr, ctx: RuleContext) -> Iterator[ast.expr]:
    """The tensors, and numbers read from tensors, that a bound depends on."""
    if _tensor_values.is_computed(ctx.value(bound), ctx) and not _tensor_values.is_made_on_cpu(bound, ctx):
        yield bound
    for one in _tensor_values.reads_in(bound, ctx):
        yield _tensor_values.read_tensor(one, ctx) or one


def _of_index(node: ast.Subscript, ctx: RuleContext) -> ast.expr | None:
    """The index of a Python sequence. A dict uses the tensor's identity and reads nothing."""
    if not isinstance(node.ctx, ast.Load):
        return None
    inside = node.slice
    if _tensor_values.is_readable(ctx.value(node.value), ctx):
        return _single_index(inside, ctx)
    parts = [inside.lower, inside.upper, inside.step] if isinstance(inside, ast.Slice) else [inside]
    result = next((one for one in parts if one is not None and _tensor_values.is_computed(ctx.value(one), ctx)), None)
    if result is None or _is_random(result, ctx):
        return None
    return result if _is_sequence(ctx.value(node.value)) else None


_WHOLE = frozenset(("argmax", "argmin", "max", "min", "sum", "count_nonzero"))  # of all elements, unless told otherwise
_SAME = frozenset(("long", "int", "to", "clamp", "abs", "detach", "clone"))
_LENGTHS = re.compile(r"(^|_)(lens?|lengths?|counts?|sizes|offsets|num_\w+)$", re.IGNORECASE)
_VECTORS = frozenset(("torch.arange", "torch.randperm", "torch.bincount"))


def _single_index(index: ast.expr, ctx: RuleContext) -> ast.expr | None:
    """The tensor of no dimension among the indices of a tensor: torch reads its value to select."""
    for one in index.elts if isinstance(index, ast.Tuple) else [index]:
        value = ctx.value(one)
        computed = _tensor_values.is_computed(value, ctx) and value.lib != "tf" and value.dtype != "bool"
        if computed and _is_single(one, ctx) and not _is_random(one, ctx):
            return one
    return None


def _is_single(node: ast.expr, ctx: RuleContext, deeper: int = 3) -> bool:
    """Whether a tensor is known to have no dimension."""
    if isinstance(node, ast.BinOp):
        parts = [one for one in (node.left, node.right) if ctx.value(one).kind != NUMBER]
        return bool(parts) and all(_is_single(one, ctx, deeper) for one in parts)
    if isinstance(node, ast.Subscript):
        return ctx.value(node.slice).kind == NUMBER and _is_vector(node.value, ctx)
    if isinstance(node, ast.Name):
        given = _shapes.definitions(ctx).get(node.id, [])
        return deeper > 0 and len(given) == 1 and not given[0][1] and _is_single(given[0][0], ctx, deeper - 1)
    if not isinstance(node, ast.Call):
        return False
    if ctx.name(node).startswith("torch."):
        return ctx.name(node).rpartition(".")[2] in _WHOLE and len(node.args) == 1 and not node.keywords
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in _SAME:
        return _is_single(node.func.value, ctx, deeper)
    return node.func.attr in _WHOLE and not node.args and not node.keywords


def _is_vector(node: ast.expr, ctx: RuleContext) -> bool:
    return ctx.value(node).name in _VECTORS or bool(_LENGTHS.search(_shapes.last_part(node)))


def _is_random(index: ast.expr, ctx: RuleContext) -> bool:
    """Random rows of a corpus: `for at in torch.randint(...): tokens[at : at + width]` runs on the host."""
    return any(
        ctx.value(one).name in _tensor_values.MAKERS for one in nodes_of(index) if isinstance(one, (ast.Name, ast.Call))
    )


def _is_sequence(value: AbstractValue) -> bool:
    if value.kind != LIST:
        return value.kind == ARRAY
    if value.items is not None or isinstance(value.creator, (ast.List, ast.Tuple, ast.ListComp)):
        return True
    modules = value.item is not None and value.item.kind == MODEL  # of a ModuleDict the keys are strings
    return modules or value.name in _SEQUENCES


def _of_repeat(node: ast.BinOp, ctx: RuleContext) -> ast.expr | None:
    if not isinstance(node.op, ast.Mult):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, (ast.List, ast.Tuple)) and _tensor_values.is_computed(ctx.value(other), ctx):
            return other
    return None


def _loop_fix(node: ast.AST, needed: ast.expr, ctx: RuleContext) -> str:
    if isinstance(node, ast.Subscript) and ctx.value(node.value).kind != LIST and ctx.value(node.value).kind != ARRAY:
        return (
            f"Keep a dimension, so that the device looks it up: `{_shapes.atom(ctx, needed, 'index')}[None]`, and "
            "`squeeze` it from the result; or take all rows at once with a tensor of indices."
        )
    if isinstance(node, ast.Call):
        return "Run a fixed number of iterations (a shape, a maximum) and keep finished rows with `torch.where`."
    if isinstance(node, ast.BinOp):
        return "Use a list of fixed length, or a tensor of fixed shape with a mask."
    return "Stack the items into a tensor (`torch.stack(items)[index]`), or compute all of them and choose with a mask."


class WeightsReadBeforeSync(Rule):
    """The weights are read one by one before the step has run.

    What it does
        Reports reads of each of a model's weights (`.cpu()`, `.item()`, `.numpy()`, `.tolist()`, `.to("cpu")`,
        `float()` in a loop over `model.parameters()` or `model.state_dict().items()`; `torch.save(model.state_dict())`)
        between `optimizer.step()` and the sync of that step, in torch_xla programs that run without tpu_magics.
    Why this is bad
        torch_xla finds a compiled graph by a hash that does not tell which input stands where (2.9, pytorch/xla issue
        8353). Each read runs a graph of its own. Those of two weights of one shape (the two biases of an LSTM) can have
        one hash: then the second weight is read as the first one, and keeps this value in the training.
    Example
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step()
            best = {name: one.cpu() for name, one in model.state_dict().items()}
            torch_xla.sync()
    Use instead
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step()
            torch_xla.sync()
            best = {name: one.cpu() for name, one in model.state_dict().items()}
    Limitations
        Other values that are read one after the other before a sync can be mixed up as well, and are not reported; nor
        are reads in another function than the step. In a run of tpu_magics graphs are compared, so the values are
        right.
    """

    code = "TPU105"
    name = "weights-read-before-sync"
    group = "values"
    why = (
        "torch_xla may take the graphs of two weights for one: then one is read as the other, and keeps this value "
        "(pytorch/xla issue 8353)."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.uses("torch_xla") or program.uses("tpu_magics") or program.has_our_magics:
            return
        for call in _weights_read.reads(program):
            read = _tensor_values.short_source(call.node, call.ctx)
            fix = "Call `torch_xla.sync()` after the step, before this line."
            yield call.ctx.finding(call.node, f"{read} reads weights before the step has run.", fix)


RULES = (BranchOnValue(), ValueRead(), PrintedTensor(), LoopOverValue(), WeightsReadBeforeSync())
