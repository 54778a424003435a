"""Walks the statements of a program in order, twice, and infers the values.

The first pass finds what functions return and receive, and what loops carry from one iteration to the next. The second
pass uses that, notes the values on the nodes and records the nodes that rules are interested in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.calls import JIT, evaluate_call
from tpu_magics.check.inference.expressions import (
    EVERY_N,
    UNKNOWN_ITEM,
    Evaluator,
    attribute,
    binary,
    element,
    iterated_value,
    module,
    names_in,
    narrow,
    subscript,
)
from tpu_magics.check.inference.parameters import (
    MODEL_USE,
    SURELY,
    guess_parameter,
    usage_evidence,
    value_of_annotation,
    value_of_name,
)
from tpu_magics.check.inference.values import (
    BATCH,
    CLASS,
    FUNCTION,
    INSTANCE,
    LIST,
    LOADER,
    MODEL,
    MODULE,
    NOTHING,
    NUMBER,
    OPTIMIZER,
    TENSOR,
    UNKNOWN,
    UNKNOWN_VALUE,
    AbstractValue,
    canonical,
    join,
)
from tpu_magics.check.program import CheckedProgram, Class, Function
from tpu_magics.check.rule_context import Loop, RuleContext
from tpu_magics.check.syntax import last_name, nodes_of, root_name, trained_definition

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell


_TORCH_MODULES = ("torch.nn.Module", "torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
_LIGHTNING = ("LightningModule", "PreTrainedModel", "PyTorchModelHubMixin")
_KERAS_MODULES = ("keras.Model", "keras.models.Model", "keras.layers.Layer", "keras.Layer", "keras.Sequential",
    "keras.models.Sequential", "keras.losses.Loss", "keras.metrics.Metric", "tensorflow.Module")  # fmt: skip
_MISSING: Any = object()
_TORCH_TENSOR = AbstractValue(TENSOR, lib="torch")
_TORCH_MODEL = AbstractValue(MODEL, lib="torch")
# Libraries that create no torch models or loaders, whatever the names say.
_OTHER_LIBRARIES = re.compile(
    r"(sklearn|xgboost|lightgbm|catboost|argparse|json|joblib|pickle|spacy|gensim|numpy|pandas|scipy|tiktoken|jinja2|"
    r"sentencepiece|tokenizers|nltk|importlib|evaluate|statsmodels|onnx\w*|jax|flax|builtins|re|os|yaml|socket|codecs)\b"
)


class Walker(Evaluator):
    """One walk over a program. `recorded` holds (node, place) of the nodes in `interests`."""

    def __init__(self, program: CheckedProgram, interests: frozenset[type]) -> None:
        self.program = program
        self.interests = interests
        self.recorded: list[tuple[ast.AST, RuleContext]] = []
        self.recording = False
        self.env: dict[str, AbstractValue] = {}
        self.stars: list[str] = []
        self._journal: dict[str, Any] | None = None
        self._functions: dict[int, Function] = {}
        self._classes: dict[int, Class] = {}
        self._loops: dict[int, Loop] = {}
        self._carried: dict[int, dict[str, AbstractValue]] = {}
        self._moved: dict[int, set[str]] = {}
        self._waiting: list[Function] = []
        self._class: Class | None = None
        self._numeric = False
        self._only_tf = False
        self._libraries: dict[str, str] = {}

    # -- both passes --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Walk everything."""
        self._pass()
        # Between the passes, from callers to callees: the return values for the actual arguments.
        for function in [
            one for one in reversed(self.program.functions) if one.outer is None and _has_known_arguments(one)
        ]:
            self._function_body(function)
        self.recording = True
        for function in self.program.functions:
            function.previous_arguments, function.argument_values = function.argument_values, {}
        self._pass()

    def _pass(self) -> None:
        self.program.globals = self.env = {}
        for index, cell in enumerate(self.program.cells):
            if cell.tree is not None:
                self._cell(index, cell)
        self._only_tf = self.program.uses("tensorflow") and not self.program.uses("torch")
        self._numeric = self.program.uses("numpy") or self.program.uses("pandas")
        result = self.program.globals.items()
        self._libraries = {name: value.name for name, value in result if value.kind == MODULE}
        waiting, self._waiting = self._waiting, []
        # First from callees to callers, for return values; then from callers to callees, for arguments.
        for function in reversed(waiting) if self.recording else waiting:
            self._function_body(function)

    def _cell(self, index: int, cell: CodeCell) -> None:
        self.ctx = RuleContext(self.program, cell, index, None, (), False)
        assert cell.tree is not None
        self._block(cell.tree.body)
        if cell.magic == "tpu_train":
            self._launched_by_cell(cell)
        for magic in cell.line_magics:
            if magic.name == "tpu_train" and (value := self.program.trained_by(magic.words)) is not None:
                value.ref.launched = True

    def _launched_by_cell(self, cell: CodeCell) -> None:
        """`%%tpu_train` trains the cell's last function (design: three ways to write a cell)."""
        assert cell.tree is not None
        last = trained_definition(cell.tree)
        if last is not None:
            self._launch(last.name)

    def _launch(self, name: str) -> None:
        value = self.env.get(name)
        if value is not None and value.kind == FUNCTION:
            value.ref.launched = True

    # -- names --------------------------------------------------------------------------------------------------------

    def bind(self, name: str, value: AbstractValue) -> None:
        if self._journal is not None and name not in self._journal:
            self._journal[name] = self.env.get(name, _MISSING)
        self.env[name] = value

    def unbind(self, name: str) -> None:
        if self._journal is not None and name not in self._journal:
            self._journal[name] = self.env.get(name, _MISSING)
        self.env.pop(name, None)

    def lookup_outer(self, name: str) -> AbstractValue | None:
        function = self.ctx.function
        if function is None:
            return None
        outer = function.outer
        while outer is not None:
            if name in outer.env:
                return outer.env[name]
            outer = outer.outer
        result = self.program.globals.get(name)
        if result is not None:
            function.reads.add(name)
        return result

    def star_import(self, name: str) -> AbstractValue | None:
        for star in self.stars:
            full = canonical(f"{star}.{name}")
            if library_results.call(full) is not UNKNOWN_VALUE:
                return module(full)
        return None

    def call(self, node: ast.Call) -> AbstractValue:
        return evaluate_call(self, node)

    def assign(self, target: ast.expr, value: AbstractValue) -> None:
        target._value = value  # type: ignore[attr-defined]
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, AbstractValue(LIST, item=element(value)))
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)

    def _unpack(self, targets: Sequence[ast.expr], value: AbstractValue) -> None:
        items = value.items
        star = next((number for number, one in enumerate(targets) if isinstance(one, ast.Starred)), len(targets))
        for number, target in enumerate(targets):
            index = number if number < star else number - len(targets)  # after a star they count from the end
            if items is not None and number != star and -len(items) <= index < len(items):
                self.assign(target, items[index])
            elif isinstance(target, ast.Starred):
                self.assign(target.value, AbstractValue(LIST, item=element(value)))
            else:
                self.assign(target, element(value))

    def _assign_attribute(self, target: ast.Attribute, value: AbstractValue) -> None:
        owner = self.value(target.value)
        cls = owner.ref if owner.kind in (INSTANCE, MODEL) else None
        if isinstance(cls, Class):
            before = cls.attributes.get(target.attr)
            cls.attributes[target.attr] = value if before is None else join(before, value)

    def _assign_item(self, target: ast.Subscript, value: AbstractValue) -> None:
        owner = self.value(target.value)
        self.value(target.slice)
        if self.recording and ast.Subscript in self.interests:
            self.recorded.append((target, self.ctx))
        if owner.kind == LIST:
            item = value if owner.item is None else join(owner.item, value)
            self.assign_again(target.value, owner.with_(item=item, items=None, const=NOTHING, creator=None))

    def assign_again(self, node: ast.expr, value: AbstractValue) -> None:
        """Updates the value of a name or attribute that changed in place."""
        if isinstance(node, ast.Name) and node.id in self.env:
            self.bind(node.id, value)
        elif isinstance(node, ast.Attribute):
            self._assign_attribute(node, value)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt]) -> bool:
        """Walks statements; True if their end is not reached (return, raise, continue, break)."""
        outer_context = self.ctx
        ended = False
        for statement in body:
            handler = _STATEMENTS.get(statement.__class__)
            ended = (handler(self, statement) if handler is not None else self._other(statement)) or ended
        self.ctx = outer_context
        return ended

    def record(self, node: ast.AST) -> None:
        if self.recording and node.__class__ in self.interests:
            self.recorded.append((node, self.ctx))

    def _other(self, node: ast.stmt) -> bool:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
            elif isinstance(child, ast.stmt):
                self._block([child])
        self.record(node)
        return False

    def _expression(self, node: ast.Expr) -> bool:
        self.value(node.value)
        self.record(node)
        return False

    def _assignment(self, node: ast.Assign) -> bool:
        value = self.value(node.value)
        self.record(node)
        for target in node.targets:
            self.assign(target, value)
            if value.kind == UNKNOWN and isinstance(node.value, ast.Call):
                self._named_by_convention(target, node.value)
        return False

    def _named_by_convention(self, target: ast.expr, call: ast.Call) -> None:
        """`train_loader, val_loader = get_loaders()` from another file: values by the names."""
        if not _OTHER_LIBRARIES.match(self.ctx.name(call)):
            for name in names_in(target):
                result = value_of_name(name)
                if result.kind in (LOADER, MODEL, OPTIMIZER):
                    self.bind(name, result)
                elif self._evidence().get(name, 0) == MODEL_USE:
                    self.bind(name, _TORCH_MODEL)
                elif self._evidence().get(name, 0) >= SURELY:
                    self.bind(name, _TORCH_TENSOR)

    def _annotated(self, node: ast.AnnAssign) -> bool:
        value = self.value(node.value)
        self.record(node)
        if self._class is not None and self.ctx.function is None and isinstance(node.target, ast.Name):
            declared = value_of_annotation(node.annotation)  # the field of a dataclass
            if declared is not None and (node.value is None or (value.const is None and declared.kind != NUMBER)):
                self.assign(node.target, declared)
                return False
        if node.value is not None:
            self.assign(node.target, value)
        return False

    def _augmented(self, node: ast.AugAssign) -> bool:
        target = node.target
        if isinstance(target, ast.Name):
            before = self.name_of(target.id)
        elif isinstance(target, ast.Attribute):
            before = attribute(self.value(target.value), target.attr)
        else:
            before = subscript(self.value(target.value), self.value(target.slice), target.slice)
        target._value = before  # type: ignore[union-attr]
        value = self.value(node.value)
        self.record(node)
        if isinstance(target, ast.Subscript):
            self.record(target)
        after = binary(before, node.op, value)
        if after.kind == NUMBER and self.ctx.loops:
            after = after.with_(varies=True, const=NOTHING)
        if isinstance(target, ast.Name):
            self.bind(target.id, after)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, after)
        return False

    def _return(self, node: ast.Return) -> bool:
        value = self.value(node.value)
        self.record(node)
        function = self.ctx.function
        if function is not None and node.value is not None:
            before = function.returns
            function.returns = value if before is None else join(before, value)
            function.returned_parameters = function.returned_parameters | _passed(node.value, function)
        return True

    def _leave(self, node: ast.stmt) -> bool:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        self.record(node)
        return True

    def _if(self, node: ast.If) -> bool:
        test = self.value(node.test)
        self.record(node)
        outer_context = self.ctx
        if test.name == EVERY_N and not outer_context.every_n:
            self.ctx = self._with_context(every_n=True)
        here, there = narrow(node.test, self.ctx)
        then, ended = self._branch(node.body, here)
        self.ctx = outer_context
        if test.name == "%modulo" and ended and outer_context.loops and not node.orelse:
            self.ctx = self._with_context(
                every_n=True
            )  # `if step % 100: continue`: the rest of the block runs every 100 steps
            return False
        if test.name == "%modulo" and node.orelse and not outer_context.every_n:
            self.ctx = self._with_context(every_n=True)
        other, other_ended = self._branch(node.orelse, there) if node.orelse else ({}, False)
        self.ctx = outer_context
        self._merge(then, ended, other, other_ended)
        if ended and not node.orelse:
            for name in there:
                self.bind(name, UNKNOWN_VALUE)
        return ended and other_ended and bool(node.orelse)

    def _replay(self, changes: dict[str, AbstractValue], ended: bool) -> None:
        if not ended:
            for name, value in changes.items():
                self.bind(name, value)

    def _branch(
        self, body: Sequence[ast.stmt], no_tensors: Iterable[str] = ()
    ) -> tuple[dict[str, AbstractValue], bool]:
        """Walks a branch and undoes its bindings: (name -> value at its end, whether its end is not reached)."""
        outer, self._journal = self._journal, {}
        narrowed = {name: UNKNOWN_VALUE.with_() for name in no_tensors if name in self.env}
        for name, value in narrowed.items():
            self.bind(name, value)
        ended = self._block(body)
        journal, self._journal = self._journal, outer
        changes: dict[str, AbstractValue] = {}
        for name, before in journal.items():
            if name in self.env and self.env[name] is not narrowed.get(name):
                changes[name] = self.env[name]
            if before is _MISSING:
                self.env.pop(name, None)
            else:
                self.env[name] = before
        return changes, ended

    def _merge(
        self, then: dict[str, AbstractValue], ended: bool, other: dict[str, AbstractValue], other_ended: bool
    ) -> None:
        if ended and other_ended:
            # Neither branch continues: the rest is dead code, or in a loop; the names keep their values.
            other_ended = ended = False
        if ended or other_ended:
            self._replay(other if ended else then, False)
            return
        for name in {**then, **other}:
            before = self.env.get(name)
            one, two = then.get(name, before), other.get(name, before)
            if one is None or two is None:
                result = one or two
                assert result is not None
                self.bind(name, result)
            else:
                self.bind(name, join(one, two))

    # -- loops --------------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor) -> bool:
        over = iterated_value(self.value(node.iter), node.iter)
        loop = self._loops.get(id(node))
        if loop is None:
            loop = self._loops[id(node)] = Loop(node, over)
        loop.loader = over
        self.record(node)
        item = element(over)
        item = UNKNOWN_ITEM if item is UNKNOWN_VALUE else item
        if item.kind == NUMBER and not item.varies and over.name != "builtins.range":
            # `for length in (7, 9, 12)`: another number in each iteration.
            several = over.items is not None and len({one.const for one in over.items}) > 1
            item = item.with_(varies=several, const=NOTHING)
        self._carry(node)
        self.assign(node.target, item)
        if over.kind == LOADER or over.ref.__class__ is AbstractValue:
            self._host_before_move(node, over)
        self._loop_body(node, loop)
        return False

    def _while(self, node: ast.While) -> bool:
        loop = self._loops.get(id(node))
        if loop is None:
            loop = self._loops[id(node)] = Loop(node, UNKNOWN_VALUE)
        self._carry(node)
        outer_context = self.ctx
        self.ctx = self._with_context(loops=(*outer_context.loops, loop))
        self.value(node.test)
        self.record(node)
        self.ctx = outer_context
        self._loop_body(node, loop)
        return False

    def _carry(self, node: ast.stmt) -> None:
        """At the start of a loop a name has its value from before the loop or from the previous iteration."""
        for name, value in self._carried.get(id(node), {}).items():
            before = self.env.get(name)
            self.bind(name, value if before is None else join(before, value))

    def _loop_body(self, node: ast.For | ast.AsyncFor | ast.While, loop: Loop) -> None:
        outer_context = self.ctx
        self.ctx = self._with_context(
            loops=(*outer_context.loops, loop), every_n=False if loop.is_step else outer_context.every_n
        )
        before = {name: self.env.get(name) for name in _assigned(node)}
        self._block(node.body)
        self._carried[id(node)] = {
            name: self.env[name] for name, value in before.items() if name in self.env and self.env[name] is not value
        }
        self.ctx = outer_context
        for name, value in before.items():  # the body may not have run
            if value is not None and name in self.env and self.env[name] is not value:
                self.bind(name, join(value, self.env[name]))
        if node.orelse:
            self._block(node.orelse)

    def _host_before_move(self, node: ast.For | ast.AsyncFor, over: AbstractValue) -> None:
        """The batches of a plain loader are on the host until the loop's body moves them."""
        loader = over if over.kind == LOADER else over.ref
        if loader.kind != LOADER or loader.prepared:
            return
        moved = self._moved.get(id(node))
        if moved is None:
            names = set(names_in(node.target))
            nodes = [one for statement in node.body for one in nodes_of(statement)]
            parts = names | {part for one in nodes for part in _parts_of(one, names)}
            moved = names if any(_moved_by(one) & parts for one in nodes) else set()
            self._moved[id(node)] = moved
        for name in moved:
            self.bind(name, _on_host(self.env.get(name, UNKNOWN_VALUE)))

    # -- with, try, match ---------------------------------------------------------------------------------------------

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        outer_context = self.ctx
        entered = []
        for item in node.items:
            value = self.value(item.context_expr)
            entered.append(value)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        self.record(node)
        self.ctx = self._with_context(withs=(*outer_context.withs, *entered))
        ended = self._block(node.body)
        self.ctx = outer_context
        return ended

    def _try(self, node: Any) -> bool:
        ended = self._block(node.body)
        self.record(node)
        for handler in node.handlers:
            self.value(handler.type)
            if handler.name:
                self.bind(handler.name, UNKNOWN_VALUE)
            then, _ = self._branch(handler.body)
            self._merge(then, _, {}, False)
        self._block(node.orelse)
        ended_finally = self._block(node.finalbody)
        return (ended and not node.handlers) or ended_finally

    def _match(self, node: Any) -> bool:
        subject = self.value(node.subject)
        self.record(node)
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
                if isinstance(name, str):
                    self.bind(name, subject if pattern is case.pattern else UNKNOWN_VALUE)
            self.value(case.guard)
            then, ended = self._branch(case.body)
            self._merge(then, ended, {}, False)
        return False

    # -- imports ------------------------------------------------------------------------------------------------------

    def _import(self, node: ast.Import) -> bool:
        for alias in node.names:
            full = canonical(alias.name)
            self.program.imported.add(full)
            if alias.asname:
                self.bind(alias.asname, module(full))
            else:
                self.bind(alias.name.partition(".")[0], module(canonical(alias.name.partition(".")[0])))
        self.record(node)
        return False

    def _import_from(self, node: ast.ImportFrom) -> bool:
        package = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(package)
                self.program.imported.add(canonical(package))
                continue
            full = canonical(f"{package}.{alias.name}")
            self.program.imported.add(full)
            self.bind(alias.asname or alias.name, module(full))
        self.record(node)
        return False

    # -- definitions --------------------------------------------------------------------------------------------------

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        self.values(node.decorator_list)
        self.values(one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None)
        function = self._functions.get(id(node))
        if function is None:
            function = self._new_function(node, node.name)
        function.ctx, function.outer = self.ctx, self.ctx.function
        self._decorated(function, node.decorator_list)
        self._waiting.append(function)
        if self._class is None:
            self.bind(node.name, AbstractValue(FUNCTION, ref=function))
        self.record(node)
        return False

    def _new_function(self, node: Any, name: str) -> Function:
        cls = self._class
        function = self._functions[id(node)] = Function(node, name, cls, self.ctx)
        self._register(function)
        if cls is not None:
            cls.methods.setdefault(name, function)
        return function

    def define_lambda(self, node: ast.Lambda) -> Function:
        function = self._functions.get(id(node))
        if function is None:
            function = Function(node, "<lambda>", None, self.ctx)
            self._functions[id(node)] = function
            self._register(function)
        function.ctx, function.outer = self.ctx, self.ctx.function
        self._waiting.append(function)
        return function

    def _register(self, function: Function) -> None:
        self.program.functions.append(function)
        if self.ctx.function is not None:
            self.ctx.function.inner.append(function)

    def _decorated(self, function: Function, nodes: Sequence[ast.expr]) -> None:
        function.decorators = tuple(self._decorator(node) for node in nodes)
        for node in nodes:
            if isinstance(node, ast.Call) and self._decorator(node) in ("tensorflow.function", "functools.partial"):
                jit = any(one.arg in JIT and self.ctx.constant(one.value) is True for one in node.keywords)
                function.compiled = function.compiled or jit

    def _decorator(self, node: ast.expr) -> str:
        name = self.ctx.name(node)
        return name.removeprefix("builtins.") if name else ""

    def _class_definition(self, node: ast.ClassDef) -> bool:
        self.values(node.bases)
        bases = [self.ctx.value(one.value if isinstance(one, ast.Subscript) else one) for one in node.bases]
        for keyword in node.keywords:
            self.value(keyword.value)
        self.values(node.decorator_list)
        cls = self._classes.get(id(node))
        if cls is None:
            cls = self._classes[id(node)] = _new_class(node, bases)
            self.program.classes.append(cls)
        outer_class, self._class = self._class, cls
        outer, self.env = self.env, dict(self.env)
        journal, self._journal = self._journal, None
        self._block(node.body)
        for name, value in self.env.items():
            if outer.get(name) is not value:
                cls.attributes.setdefault(name, value)
        self.env, self._journal, self._class = outer, journal, outer_class
        self.bind(node.name, AbstractValue(CLASS, ref=cls, name=node.name))
        self.record(node)
        return False

    def _with_context(
        self,
        loops: tuple[Loop, ...] | None = None,
        every_n: bool | None = None,
        withs: tuple[AbstractValue, ...] | None = None,
    ) -> RuleContext:
        """The current context with some changes."""
        ctx = self.ctx
        return RuleContext(
            ctx.program,
            ctx.cell,
            ctx.cell_index,
            ctx.function,
            ctx.loops if loops is None else loops,
            ctx.every_n if every_n is None else every_n,
            ctx.withs if withs is None else withs,
        )

    # -- bodies -------------------------------------------------------------------------------------------------------

    def _function_body(self, function: Function) -> None:
        node = function.node
        outer_env, outer_ctx, outer_class = self.env, self.ctx, self._class
        self.env, self._journal, self._class = {}, None, None
        ctx = function.ctx
        self.ctx = RuleContext(self.program, ctx.cell, ctx.cell_index, function, (), False)
        self._parameters(function)
        waiting, self._waiting = self._waiting, []
        if isinstance(node, ast.Lambda):
            function.returns = self.value(node.body)
        else:
            function.returns = function.yields = None
            function.returned_parameters = frozenset()
            self._block(node.body)
        function.env = self.env
        inner, self._waiting = self._waiting, waiting
        self.env, self.ctx, self._class = outer_env, outer_ctx, outer_class
        for one in reversed(inner) if self.recording else inner:
            self._function_body(one)

    def _parameters(self, function: Function) -> None:
        spec = function.node.args
        defaults = _defaults(spec)
        for number, argument in enumerate(function.parameters):
            name = argument.arg
            if number == 0 and function.cls is not None and "staticmethod" not in function.decorators:
                self.env[name] = AbstractValue(INSTANCE, ref=function.cls)
                continue
            guessed = guess_parameter(function, argument, defaults.get(name), self._evidence())
            if self._only_tf and guessed.kind in (TENSOR, BATCH, MODEL) and not guessed.lib:
                guessed = guessed.with_(lib="tf")
            self.env[name] = self._given(function, name, guessed, defaults.get(name))
        if spec.vararg is not None:
            self.env[spec.vararg.arg] = AbstractValue(LIST)
        if spec.kwarg is not None:
            self.env[spec.kwarg.arg] = AbstractValue(LIST)

    def _evidence(self) -> dict[str, int]:
        """The evidence from the use of names in this function or cell."""
        function, cell = self.ctx.function, self.ctx.cell
        if function is None:
            key = ("evidence", self.ctx.cell_index)
            if key not in self.program.memo:
                body: Any = cell.tree.body if cell.tree is not None else []
                self.program.memo[key] = usage_evidence(body, self._numeric, self._libraries)
            result: dict[str, int] = self.program.memo[key]
            return result
        if function.evidence is None:
            body = function.node.body
            function.evidence = usage_evidence(body, self._numeric, self._libraries)
        return function.evidence

    def _given(self, function: Function, name: str, guessed: AbstractValue, default: ast.expr | None) -> AbstractValue:
        """Values from call sites win over a guess, if they are known."""
        given = function.argument_values.get(name) or function.previous_arguments.get(name)
        if given is None or given.kind == UNKNOWN or (guessed.kind == NUMBER and default is None):
            return guessed  # an annotation says that it is a number
        given = given.with_(creator=None, name="") if given.kind == TENSOR and given.name else given
        if default is None:
            return given if given.kind != NUMBER or given.const is not None else join(given, guessed)
        before = getattr(default, "_value", UNKNOWN_VALUE)
        return join(given, before)


_NOT_PASSED = frozenset(("",))


def _passed(node: ast.expr, function: Function) -> frozenset[str]:
    """The parameters that a return statement returns unchanged (`return v if exists(v) else d`); "" for other
    values."""
    if isinstance(node, ast.IfExp):
        return _passed(node.body, function) | _passed(node.orelse, function)
    names = {one.arg for one in function.parameters}
    return frozenset((node.id,)) if isinstance(node, ast.Name) and node.id in names else _NOT_PASSED


def _has_known_arguments(function: Function) -> bool:
    return any(value.kind != UNKNOWN for value in function.argument_values.values())


def _defaults(spec: ast.arguments) -> dict[str, ast.expr]:
    positional = [*spec.posonlyargs, *spec.args]
    result = dict(
        zip([one.arg for one in positional][len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
    )
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return {**result, **{one.arg: default for one, default in pairs if default is not None}}


def _new_class(node: ast.ClassDef, bases: Sequence[AbstractValue]) -> Class:
    names = tuple(base.name for base in bases if base.kind in (MODULE, CLASS) and base.name)
    parents = tuple(base.ref for base in bases if base.kind == CLASS)
    lib = next((result for name in names if (result := _module_lib(name))), "")
    lib = lib or next((parent.lib for parent in parents if parent.is_module), "")
    return Class(node, node.name, names, parents, bool(lib), lib)


def _module_lib(name: str) -> str:
    last = name.rpartition(".")[2]
    if (
        name in _TORCH_MODULES
        or last in _LIGHTNING
        or last.endswith("PreTrainedModel")
        or last == "GradientCheckpointingLayer"
    ):
        return "torch"
    if name in _KERAS_MODULES:
        return "tf"
    value = library_results.call(name)
    return value.lib if value.kind == MODEL else ""


def _assigned(node: ast.stmt) -> Iterable[str]:
    """Names that a loop's body may bind (cached on the node)."""
    result: set[str] | None = getattr(node, "_assigned", None)
    if result is None:
        nodes = list(nodes_of(node))
        result = {one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
        result |= {one.func.value.id for one in nodes if _appends(one)}  # type: ignore[attr-defined]
        node._assigned = result  # type: ignore[attr-defined]
    return result


def _appends(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.attr in ("append", "extend", "add", "insert")


_MOVERS = frozenset(("send_to_device", "to_device", "move_to_device", "move_to", "send_cpu_data_to_device"))


def _moved_by(node: ast.AST) -> set[str]:
    """Names moved by `x.to(device)`, `{k: v.to(d) for k, v in batch.items()}` or `send_to_device(batch, device)`."""
    if not isinstance(node, ast.Call):
        return set()
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in ("to", "cuda", "items"):
        return {root_name(func.value)}
    return {root_name(one) for one in node.args} if last_name(node) in _MOVERS else set()


def _parts_of(node: ast.AST, names: set[str]) -> Iterable[str]:
    """Names bound to a part of these: `ids = batch["ids"]`, `x, y = batch`, `for image in images`."""
    if isinstance(node, ast.comprehension):
        return names_in(node.target) if root_name(node.iter) in names else ()
    if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call) and root_name(node.value) in names:
        return tuple(name for target in node.targets for name in names_in(target))
    return ()


def _on_host(value: AbstractValue) -> AbstractValue:
    if value.kind in (TENSOR, BATCH):
        return value if value.where == "device" else value.with_(where="host")
    if value.kind == LIST:
        items = tuple(map(_on_host, value.items)) if value.items is not None else None
        return value.with_(items=items, item=_on_host(value.item) if value.item is not None else None)
    return value


_STATEMENTS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Expr: Walker._expression,
    ast.Assign: Walker._assignment,
    ast.AnnAssign: Walker._annotated,
    ast.AugAssign: Walker._augmented,
    ast.Return: Walker._return,
    ast.Raise: Walker._leave,
    ast.Continue: Walker._leave,
    ast.Break: Walker._leave,
    ast.If: Walker._if,
    ast.For: Walker._for,
    ast.AsyncFor: Walker._for,
    ast.While: Walker._while,
    ast.With: Walker._with,
    ast.AsyncWith: Walker._with,
    ast.Try: Walker._try,
    ast.Import: Walker._import,
    ast.ImportFrom: Walker._import_from,
    ast.FunctionDef: Walker._define,
    ast.AsyncFunctionDef: Walker._define,
    ast.ClassDef: Walker._class_definition,
}
for _optional, _handler in (("TryStar", Walker._try), ("Match", Walker._match)):
    if hasattr(ast, _optional):  # newer than the oldest Python we run on
        _STATEMENTS[getattr(ast, _optional)] = _handler
