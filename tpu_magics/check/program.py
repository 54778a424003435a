"""The program as a whole: its cells, functions, classes and calls."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from tpu_magics.check.inference.values import FUNCTION, AbstractValue
from tpu_magics.check.rule import Rule

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.rule_context import RuleContext

RESOLVER = "tensorflow.distribute.cluster_resolver.TPUClusterResolver"
RESOLVERS = (RESOLVER, RESOLVER + ".connect", "tensorflow.distribute.experimental.TPUClusterResolver")
STRATEGIES = ("tensorflow.distribute.TPUStrategy", "tensorflow.distribute.experimental.TPUStrategy")
XLA_ROOTS = ("torch_xla", "accelerate", "tpu_magics")
TRAINING_MAGICS = ("tpu_init", "tpu_train", "tpu_preflight")
_FRAMEWORK = re.compile(r"--framework[= ]+(\S+)")


@dataclass
class CallSite:
    """One call. `name` is canonical ("" if the callee has none), `method` and `receiver` are set for `x.m()`."""

    node: ast.Call
    ctx: RuleContext
    name: str
    method: str
    receiver: AbstractValue
    value: AbstractValue


@dataclass(eq=False)
class Function:
    """A function, method or lambda of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    name: str
    cls: Class | None
    ctx: RuleContext  # where it is defined
    outer: Function | None = None
    launched: bool = False
    host: bool = False  # by its use: a collate function, passed to map() ...
    steps: bool = False  # performs a step outside its loops
    has_step: bool = False
    evidence: dict[str, int] | None = None  # how its names are used (parameters.py)
    runs_model: bool = False  # calls a model outside its loops
    argument_values: dict[str, AbstractValue] = field(
        default_factory=dict
    )  # parameters, joined over the call sites of this pass
    previous_arguments: dict[str, AbstractValue] = field(default_factory=dict)  # of the pass before
    returns: AbstractValue | None = None
    returned_parameters: frozenset[str] = (
        frozenset()
    )  # parameters that it returns unchanged; "" among them: and other values
    yields: AbstractValue | None = None  # of a generator: a list of its items
    reads: set[str] = field(default_factory=set)
    env: dict[str, AbstractValue] = field(default_factory=dict)  # its names at the end
    inner: list[Function] = field(default_factory=list)
    calls: list[CallSite] = field(default_factory=list)
    callers: list[CallSite] = field(default_factory=list)
    decorators: tuple[str, ...] = ()
    compiled: bool = False  # tf.function(jit_compile=True), or passed to strategy.run
    of_keras: bool = False  # a loss or metric of a Keras model

    @property
    def memo(self) -> dict[Any, Any]:
        return self.ctx.program.memo

    @property
    def parameters(self) -> list[ast.arg]:
        spec = self.node.args
        return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]


@dataclass(eq=False)
class Class:
    """A class of the program. `is_module`: a torch or Keras module; `lib` says which."""

    node: ast.ClassDef
    name: str
    bases: tuple[str, ...]
    parents: tuple[Class, ...]
    is_module: bool
    lib: str
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, AbstractValue] = field(default_factory=dict)

    def method(self, name: str) -> Function | None:
        return next((one.methods[name] for one in self.line() if name in one.methods), None)

    def attribute(self, name: str) -> AbstractValue | None:
        return next((one.attributes[name] for one in self.line() if name in one.attributes), None)

    def line(self) -> Iterator[Class]:
        seen: list[Class] = []
        waiting = [self]
        while waiting:
            one = waiting.pop(0)
            if one not in seen:
                seen.append(one)
                waiting.extend(one.parents)
                yield one

    def all_bases(self) -> Iterator[str]:
        for one in self.line():
            yield from one.bases


class CheckedProgram:
    """Cells that share their names, or one file."""

    def __init__(self, cells: Sequence[CodeCell]) -> None:
        self.cells = list(cells)
        self.notebook = any(cell.number is not None or cell.path.startswith("In [") for cell in self.cells)
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.globals: dict[str, AbstractValue] = {}
        self.imported: set[str] = set()  # canonical names of everything imported
        self.all_calls: list[CallSite] = []
        self.rule = Rule()  # the one that is being checked
        self._by_name: dict[str, list[CallSite]] | None = None
        self._by_method: dict[str, list[CallSite]] = {}
        self.recorded: list[tuple[ast.AST, RuleContext]] = []  # nodes that rules are interested in
        self.memo: dict[Any, Any] = {}  # what `remembered` functions and rule_context.py have computed

    def uses(self, root: str) -> bool:
        """Whether anything of this package (dotted) is imported."""
        key = ("uses", root, len(self.imported))  # more is imported as the walk goes on
        if key not in self.memo:
            self.memo[key] = any(name == root or name.startswith(root + ".") for name in self.imported)
        return bool(self.memo[key])

    def trained_by(self, words: str) -> AbstractValue | None:
        """The function that `%tpu_train WORDS` trains: options and their values may stand before it."""
        values = (self.globals.get(word) for word in words.split())
        return next((one for one in values if one is not None and one.kind == FUNCTION), None)

    def calls(self, *names: str) -> list[CallSite]:
        """Calls of these canonical names, in order; a name that ends in "." stands for everything below it."""
        index = self._index()
        exact = [name for name in names if not name.endswith(".")]
        below = tuple(name for name in names if name.endswith("."))
        result = [call for name in exact for call in index.get(name, ())]
        if below:
            result += [call for name, calls in index.items() if name.startswith(below) for call in calls]
        return _in_order(result)

    def methods(self, method: str, kind: str = "") -> list[CallSite]:
        """Calls `x.method(...)` on a value, of that kind if one is given."""
        self._index()
        return [call for call in self._by_method.get(method, ()) if not kind or call.receiver.kind == kind]

    def _index(self) -> dict[str, list[CallSite]]:
        if self._by_name is None:
            value_of_name: dict[str, list[CallSite]] = defaultdict(list)
            by_method: dict[str, list[CallSite]] = defaultdict(list)
            for call in self.all_calls:
                if call.name:
                    value_of_name[call.name].append(call)
                if call.method:
                    by_method[call.method].append(call)
            self._by_name, self._by_method = dict(value_of_name), dict(by_method)
        return self._by_name

    @cached_property
    def has_our_magics(self) -> bool:
        """Whether a cell has a magic of tpu_magics, on top or in a line."""
        lines = (magic.name for cell in self.cells for magic in cell.line_magics)
        return any(name.startswith("tpu_") for name in (*lines, *(cell.magic for cell in self.cells)))

    @cached_property
    def xla_in_arguments(self) -> bool:
        """Whether the script was given an XLA device (`--device=xla`)."""
        words = (word for cell in self.cells for one in cell.argv for word in one.split("="))
        return any(word.partition(":")[0] == "xla" for word in words)

    @cached_property
    def for_tpu(self) -> bool:
        """Whether the code says that it is for a TPU: unlike Trainer's or accelerate's, which run on a GPU as well."""
        named = self.uses("torch_xla") or self.uses("tpu_magics") or self.torch_tpu
        return self.tpu_tf or named or self.has_our_magics

    @property
    def xla(self) -> bool:
        """Whether this is torch code meant for XLA."""
        return (
            any(self.uses(root) for root in XLA_ROOTS)
            or self.uses("transformers.TrainingArguments")
            or bool(self.calls("transformers.TrainingArguments", "transformers.Trainer"))
            or self.has_our_magics
        )

    @cached_property
    def torch_tpu(self) -> bool:
        """Whether this is torch code for TorchTPU, which has none of torch_xla's functions."""
        if any(self.uses(root) for root in ("torch_xla", "tensorflow")):
            return False
        return self.uses("torch_tpu") or (
            self.uses("torch") and any(re.search(r"""["']tpu(:\d+)?["']""", cell.text) for cell in self.cells)
        )

    @cached_property
    def tpu_tf(self) -> bool:
        """Whether TensorFlow runs on a TPU: the code finds a TPU, or the notebook trains with our magics."""
        return self.looks_for_tpu or self._has_tensorflow_in_magics()

    @property
    def has_tensorflow(self) -> bool:
        """Whether TensorFlow or Keras is imported."""
        return self.uses("tensorflow") or self.uses("keras")

    @property
    def is_tensorflows(self) -> bool:
        """Whether TensorFlow trains, and not torch beside it."""
        return self.tpu_tf or (self.uses("tensorflow") and not self.uses("torch"))

    @property
    def looks_for_tpu(self) -> bool:
        """Whether the code itself makes TensorFlow find a TPU."""
        return bool(self.calls(*RESOLVERS, *STRATEGIES, "tensorflow.tpu.experimental."))

    @property
    def local_tpu(self) -> bool:
        """Whether TensorFlow certainly uses the TPU of this host: its resolvers are "local", or %tpu_init finds it."""
        resolvers = self.calls(*RESOLVERS)
        local = all(call.ctx.constant(call.ctx.argument(call.node, "tpu", 0)) == "local" for call in resolvers)
        return local and (bool(resolvers) or self._has_tensorflow_in_magics())

    def _has_tensorflow_in_magics(self) -> bool:
        if not self.has_tensorflow:
            return False
        here = [cell.magic for cell in self.cells]
        here += [magic.name for cell in self.cells for magic in cell.line_magics]
        return any(name in TRAINING_MAGICS for name in here) and "torch" not in self._init_frameworks

    @property
    def _init_frameworks(self) -> list[str]:
        """The values of `%tpu_init --framework VALUE`, in the order of the cells."""
        magics = (magic for cell in self.cells for magic in cell.line_magics if magic.name == "tpu_init")
        return [match[1].strip("\"'") for magic in magics if (match := _FRAMEWORK.search(magic.words))]


_Key = TypeVar("_Key", Function, CheckedProgram)
_Result = TypeVar("_Result")


def remembered(compute: Callable[[_Key], _Result]) -> Callable[[_Key], _Result]:
    """A function of a program, or of one of its functions, that is computed once."""

    @wraps(compute)
    def once(key: _Key) -> _Result:
        if (compute, key) not in key.memo:
            key.memo[compute, key] = compute(key)
        result: _Result = key.memo[compute, key]
        return result

    return once


def _in_order(calls: Iterable[CallSite]) -> list[CallSite]:
    return sorted(calls, key=lambda one: (one.ctx.cell_index, one.node.lineno, one.node.col_offset))
