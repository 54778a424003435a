"""What a rule can ask about the code around a node: which code runs where (on the XLA device, in each step, compiled by
XLA); and how it reports a finding there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.inference import library_results
from tpu_magics.check.inference.values import (
    ACCELERATOR,
    DATASET,
    LIST,
    LOADER,
    MODULE,
    NOTHING,
    OPTIMIZER,
    STRATEGY,
    UNKNOWN_VALUE,
    AbstractValue,
)
from tpu_magics.check.program import remembered
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from typing import Any

    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.program import CheckedProgram, Function


NAMED = (MODULE,)


class Loop:
    """A `for` or `while`. `is_step`: a step runs directly in it; `loader`: its iterable."""

    __slots__ = ("is_step", "loader", "node")

    def __init__(self, node: ast.For | ast.AsyncFor | ast.While, loader: AbstractValue) -> None:
        self.node = node
        self.loader = loader
        self.is_step = False


class RuleContext:
    """The surroundings of a node: program, cell, function and loops. Shared by all nodes with the same surroundings."""

    __slots__ = ("cell", "cell_index", "every_n", "function", "loops", "program", "withs")

    def __init__(
        self,
        program: CheckedProgram,
        cell: CodeCell,
        cell_index: int,
        function: Function | None,
        loops: tuple[Loop, ...],
        every_n: bool,
        withs: tuple[AbstractValue, ...] = (),
    ) -> None:
        self.program = program
        self.cell = cell
        self.cell_index = cell_index
        self.function = function
        self.loops = loops
        self.every_n = every_n
        self.withs = withs  # what the enclosing `with` statements entered, outermost first

    # -- values and names -----------------------------------------------------------------------------------------

    def value(self, node: ast.AST | None) -> AbstractValue:
        """The inferred value of an expression."""
        result: AbstractValue = getattr(node, "_value", UNKNOWN_VALUE)
        return result

    def name(self, node: ast.AST | None) -> str:
        """The canonical name of an expression, for a call that of its callee; "" if it has none."""
        if isinstance(node, ast.Call):
            node = node.func
        value = self.value(node)
        return value.name if value.kind in NAMED else ""

    def method(self, call: ast.AST) -> tuple[AbstractValue, str]:
        """The receiver and the method's name of `x.m(...)`; (UNKNOWN_VALUE, "") if the callee is not a method of a
        value."""
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            receiver = self.value(call.func.value)
            if receiver.kind != MODULE:
                return receiver, call.func.attr
        return UNKNOWN_VALUE, ""

    def constant(self, node: ast.AST | None) -> Any:
        """The Python constant of an expression, also through names; NOTHING if it is unknown."""
        return NOTHING if node is None else self.value(node).const

    def argument(self, call: ast.AST | None, name: str, position: int | None = None) -> ast.expr | None:
        """An argument by its keyword (also in a `**` dict literal), else by its position."""
        if not isinstance(call, ast.Call):
            return None
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
            if keyword.arg is None and (result := self._in_dict(keyword.value, name)) is not None:
                return result
        if position is None or position >= len(call.args):
            return None
        before = call.args[: position + 1]
        return None if any(isinstance(one, ast.Starred) for one in before) else call.args[position]

    def has_unknown_arguments(self, call: ast.Call) -> bool:
        """Whether the call has an unknown `*` or `**` argument: then a missing keyword proves nothing."""
        hidden = any(one.arg is None and self._dict(one.value) is None for one in call.keywords)
        return hidden or any(isinstance(one, ast.Starred) for one in call.args)

    def _dict(self, node: ast.expr) -> ast.AST | None:
        """The literal (or `dict(...)` call) behind a `**` argument, if all its keys are known."""
        value = self.value(node)
        if value.kind != LIST:
            return None
        creator = value.creator
        if isinstance(creator, ast.Dict):
            return creator if all(isinstance(key, ast.Constant) for key in creator.keys) else None
        if isinstance(creator, ast.Call):
            return creator if not creator.args and all(one.arg for one in creator.keywords) else None
        return None

    def _in_dict(self, node: ast.expr, name: str) -> ast.expr | None:
        creator = self._dict(node)
        if isinstance(creator, ast.Dict):
            pairs = zip(creator.keys, creator.values, strict=True)
            return next((value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name), None)
        if isinstance(creator, ast.Call):
            return next((one.value for one in creator.keywords if one.arg == name), None)
        return None

    # -- where the code runs ------------------------------------------------------------------------------------------

    @property
    def top_level(self) -> bool:
        return self.function is None

    @property
    def notebook(self) -> bool:
        return self.program.notebook

    @property
    def on_device(self) -> bool:
        """Whether torch code here runs on the XLA device."""
        return on_device(self)

    @property
    def in_step(self) -> bool:
        """Whether this code runs in each step of training or evaluation."""
        return in_step(self)

    @property
    def compiled_tf(self) -> bool:
        """Whether TensorFlow code here is compiled by XLA."""
        return compiled_tf(self)

    # -- code -----------------------------------------------------------------------------------------------------

    def source(self, node: ast.AST) -> str:
        """The source code of a node."""
        return self.cell.segment(node) if hasattr(node, "end_lineno") else ""

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The parent of a node."""
        key = ("parents", self.cell_index)
        if key not in self.program.memo:
            tree = self.cell.tree
            self.program.memo[key] = dict(_parents(tree)) if tree is not None else {}
        result: ast.AST | None = self.program.memo[key].get(node)
        return result

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """All ancestors of a node, innermost first."""
        result = self.parent(node)
        while result is not None:
            yield result
            result = self.parent(result)

    def replace(self, node: ast.AST, text: str) -> Edit:
        """The edit that writes `text` for a node."""
        start, end = self._span(node)
        return Edit(start, end, text)

    def insert_after(self, node: ast.AST, text: str) -> Edit:
        _, end = self._span(node)
        return Edit(end, end, text)

    def _span(self, node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        last, stop = getattr(node, "end_lineno", None) or line, getattr(node, "end_col_offset", None) or column
        return (line, self.cell.column(line, column)), (last, self.cell.column(last, stop))

    def _statement(self, node: ast.AST, first: int, last: int) -> tuple[int, int]:
        inside = next((one for one in (node, *self.parents(node)) if isinstance(one, ast.stmt)), None)
        if inside is None:
            return first, last
        body = getattr(inside, "body", None)
        end = body[0].lineno - 1 if body else inside.end_lineno or inside.lineno
        return min(first, inside.lineno), max(last if not body else first, end)

    def _line(self, line: int) -> str:
        lines = self.cell.lines
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def finding(
        self,
        node: ast.AST,
        message: str,
        fix: str,
        why: str | None = None,
        edits: Sequence[Edit] = (),
        advice: bool = False,
    ) -> Finding:
        """A finding of the current rule at this node."""
        (line, column), (last, stop) = self._span(node)
        found = self.finding_at(line, column, message, fix, why, edits, advice, (last, stop))
        return replace(found, statement=self._statement(node, line, last))

    def finding_at(
        self,
        line: int,
        column: int,
        message: str,
        fix: str,
        why: str | None = None,
        edits: Sequence[Edit] = (),
        advice: bool = False,
        end: tuple[int, int] | None = None,
    ) -> Finding:
        """A finding at a position without a node (a line magic): line from 1, column from 0."""
        last, stop = end or (line, len(self._line(line)))
        rule = self.program.rule
        return Finding(
            code=rule.code,
            group=rule.group,
            path=self.cell.path,
            cell=self.cell.number,
            line=line,
            column=column + 1,
            end_line=last,
            end_column=stop + 1,
            message=message,
            why=rule.why if why is None else why,
            fix=fix,
            source=self._line(line),
            advice=advice,
            edits=tuple(edits),
            unsafe=rule.unsafe_fix and bool(edits),
        )


def _parents(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in nodes_of(tree):
        for name in node._fields:
            value = getattr(node, name, None)
            for child in value if value.__class__ is list else (value,):
                if isinstance(child, ast.AST):
                    yield child, node


# -- which code runs where --------------------------------------------------------------------------------------------


# Methods that run on the host, once or for one sample: those that build a module or a dataset.
_HOST_METHODS = frozenset(
    ("__init__", "_init_weights", "init_weights", "reset_parameters", "from_pretrained", "save_pretrained",
     "__repr__", "extra_repr", "get_config", "build", "setup", "prepare_data", "configure_optimizers",
     "train_dataloader", "val_dataloader", "test_dataloader")
)  # fmt: skip
_STEP_METHODS = frozenset(("forward", "call", "training_step", "train_step", "compute_loss", "__call__"))
_OF_PROGRAMS = frozenset((OPTIMIZER, ACCELERATOR, LOADER))
_EVALUATION_METHODS = frozenset(("test_step", "validation_step", "prediction_step", "predict_step"))
_DATA = re.compile(
    r"(^|\.)(Sampler|BatchSampler|DataCollator\w*|\w*Dataset|Transform|\w*(Image|Video)Processor\w*|ProcessorMixin|"
    r"\w*FeatureExtract\w*|TorchvisionBackend|PilBackend)$"
)
_DATA_CLASS = re.compile(r"(Dataset|Sampler|DataModule|ImageProcessor|VideoProcessor|FeatureExtractor)$|Collat(e|or)")
# Parameters of a transform or a collator.
_SAMPLES = [[name] for name in ("img", "image", "pil_img", "sample", "examples", "features", "instances")]
_EXPORTS = re.compile(r"onnx[^/\\]*\.py$", re.IGNORECASE)
_TEST_FILE = re.compile(r"(^|[/\\])(test_[^/\\]*|[^/\\]*_test|conftest)\.py$")
_HOST_NAMES = re.compile(
    r"^(collate|_collate|\w*_collate(_fn)?$|preprocess|tokenize|compute_metrics|plot|show|visuali[sz]e|load_|"
    r"make_data|prepare_data|get_data|(get|sample|make|next)_(random_)?batch(es)?$|build_vocab|set_seed|seed_everything|"
    r"parse_args|transform(s)?$|augment$|prepare_mask)"
)
# Methods that run once, before a pipeline.
_PREPARES = re.compile(r"^_?(pre_?process|prepare)_(mask|image|text|audio|video)s?(_|$)")


def on_device(ctx: RuleContext) -> bool:
    """Whether torch code at this place runs on the XLA device."""
    function = ctx.function
    if function is not None:
        return not _is_host(function)
    return ctx.cell.magic in ("tpu_train", "tpu_check") or any(loop.is_step for loop in ctx.loops)


def in_step(ctx: RuleContext) -> bool:
    """Whether this place runs in each step."""
    if ctx.loops and any(loop.is_step for loop in ctx.loops):
        # The innermost loop with a step counts; code between the epoch loop and the step loop is not part of a step.
        return True
    return ctx.function is not None and _runs_at_each_step(ctx.function)


def compiled_tf(ctx: RuleContext) -> bool:
    """Whether TensorFlow code at this place is compiled by XLA."""
    return ctx.function is not None and _is_compiled(ctx.function)


def _runs_at_each_step(function: Function) -> bool:
    return _holds_for("in_step", function, _looks_in_step)


def _looks_in_step(function: Function, known_so_far: set[int]) -> bool:
    if _is_host(function):
        return False
    if function.steps and not _is_training_program(function):
        return True
    if _is_step_method(function):
        return True
    return any(_is_step_call(call.ctx, known_so_far) for call in function.callers)


def _is_step_call(ctx: RuleContext, known_so_far: set[int]) -> bool:
    if ctx.every_n:
        return False
    return any(loop.is_step for loop in ctx.loops) or (ctx.function is not None and id(ctx.function) in known_so_far)


def _is_training_program(function: Function) -> bool:
    """Whether it runs one whole program around a step, so that its other code does not run in each step."""
    if function.launched:
        return True
    if any(call.value.kind in _OF_PROGRAMS and call.value.creator is call.node for call in function.calls):
        return True
    callers = function.callers
    return bool(callers) and all(call.ctx.top_level and not call.ctx.loops for call in callers)


def _is_step_method(function: Function) -> bool:
    module = function.cls is not None and function.cls.is_module
    if module and function.name in _STEP_METHODS | _EVALUATION_METHODS:
        return True
    trainer = function.cls is not None and any(base.endswith("Trainer") for base in function.cls.all_bases())
    return trainer and function.name in ("compute_loss", "training_step", "prediction_step")


def _is_host(function: Function) -> bool:
    return _holds_for("host", function, _looks_host)


def _looks_host(function: Function, known_so_far: set[int]) -> bool:
    if function.launched or function.compiled:
        return False
    if function.host:
        return True
    if function.outer is not None and id(function.outer) in known_so_far:
        return True
    if function.name.startswith("test_") and is_test_of(function.ctx.program):
        return True
    if "onnx" in function.name or _EXPORTS.search(function.ctx.cell.path):  # traced on the host
        return True
    if function.cls is not None:
        return _is_host_method(function, known_so_far)
    if function.has_step:
        return False
    if _HOST_NAMES.match(function.name):
        return True
    return _is_called_on_host(function, known_so_far)


def is_test_of(program: CheckedProgram) -> bool:
    """Whether this is a test of pytest, unittest or absl, unlike `test_step` of a training program."""
    named = any(_TEST_FILE.search(cell.path) for cell in program.cells)
    return named or any(program.uses(name) for name in ("pytest", "unittest", "absl.testing"))


def _is_host_method(function: Function, known_so_far: set[int]) -> bool:
    assert function.cls is not None
    if any(_DATA.search(base) for base in function.cls.all_bases()):
        return True
    if function.cls.is_module:
        return function.name in _HOST_METHODS
    of_library = any(library_results.call(base).kind == DATASET for base in function.cls.all_bases())
    if of_library or _DATA_CLASS.search(function.cls.name):
        return True
    if "__getitem__" in function.cls.methods and "__len__" in function.cls.methods:
        return True
    if function.name == "__call__" and [one.arg for one in function.parameters][1:2] in _SAMPLES:
        return True
    return not function.has_step and (
        bool(_PREPARES.match(function.name)) or _is_called_on_host(function, known_so_far)
    )


def _is_called_on_host(function: Function, known_so_far: set[int]) -> bool:
    """Whether all visible calls of it are on the host."""
    callers = function.callers
    return bool(callers) and all(
        call.ctx.function is not None and id(call.ctx.function) in known_so_far for call in callers
    )


def _is_compiled(function: Function) -> bool:
    return _holds_for("compiled", function, _looks_compiled)


def _looks_compiled(function: Function, known_so_far: set[int]) -> bool:
    if function.compiled:
        return True
    program = function.ctx.program
    if program.tpu_tf and "tensorflow.function" in function.decorators:
        return True
    if function.of_keras and (program.tpu_tf or _compiles_models(program)):
        return True
    if function.cls is not None and function.cls.lib == "tf" and function.cls.is_module:
        steps = _STEP_METHODS | _EVALUATION_METHODS
        if function.name in steps and (program.tpu_tf or _compiles_models(program)):
            return True
    if function.outer is not None and id(function.outer) in known_so_far:
        return True
    return any(call.ctx.function is not None and id(call.ctx.function) in known_so_far for call in function.callers)


@remembered
def _compiles_models(program: CheckedProgram) -> bool:
    settings = (call.ctx.constant(call.ctx.argument(call.node, "jit_compile")) for call in program.methods("compile"))
    return any(one is True for one in settings)


def _holds_for(property_name: str, function: Function, answer: Callable[[Function, set[int]], bool]) -> bool:
    program = function.ctx.program
    if property_name not in program.memo:
        program.memo[property_name] = _spread(program, answer)
    return id(function) in program.memo[property_name]


def _spread(program: CheckedProgram, answer: Callable[[Function, set[int]], bool]) -> set[int]:
    """The functions for which `answer` is true, given those already found: the least fixed point."""
    dependents: dict[int, list[Function]] = {}
    for function in program.functions:
        for call in function.callers:
            if call.ctx.function is not None:
                dependents.setdefault(id(call.ctx.function), []).append(function)
        if function.outer is not None:
            dependents.setdefault(id(function.outer), []).append(function)
    result: set[int] = set()
    waiting = list(program.functions)
    while waiting:
        function = waiting.pop()
        if id(function) not in result and answer(function, result):
            result.add(id(function))
            waiting += dependents.get(id(function), ())
    return result


def under_strategy(ctx: RuleContext) -> bool:
    """Whether the place is inside `with strategy.scope():` of this function."""
    return any(value.kind == STRATEGY for value in ctx.withs)
