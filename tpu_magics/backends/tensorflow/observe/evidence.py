"""The evidence of a compile: which traced function it is, the call that caused it, what Keras was doing, and where the
batch came from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from tpu_magics.backends.observe.compiles import CompileEvidence
from tpu_magics.backends.observe.sites import outwards
from tpu_magics.backends.tensorflow.observe import traced_functions
from tpu_magics.backends.tensorflow.observe.dumps import DumpedModule
from tpu_magics.backends.tensorflow.observe.traced_functions import Literal
from tpu_magics.runs.events import Input

_STEM = re.compile(r"^__(?:inference|forward|backward)_(__backward_)?(.*?)(?:_\d+)+$")
_GRADIENT = "the gradient of "
ConcreteCall = tuple[Any, Sequence[Any]] | None  # a concrete function and its tensors


@dataclass(frozen=True)
class FunctionCall:
    """An outermost call of a traced function. `function`: None for a concrete one; `args`: the user's; `called`: the
    concrete call that ran last; `frame`: of the caller."""

    function: Any
    args: Sequence[Any]
    called: ConcreteCall
    frame: FrameType

    @property
    def concrete(self) -> Any:
        """The concrete function that ran; None if none ran."""
        return self.called[0] if self.called is not None else None

    @property
    def tensors(self) -> Sequence[Any]:
        """The tensors that it was called with."""
        return self.called[1] if self.called is not None else ()


@dataclass(frozen=True)
class FunctionFacts:
    """What a program was compiled for.

    `function`: its name; `number`: of the tf.function, in the order of first sight; `code`: where the Python function
    is defined; `keras`: Keras made it; `mode`: of the Keras call that runs it ("" for none); `trains`: it assigns
    trainable variables; `literals`: Python values it was traced for; `arrays`: Keras cuts the batches from arrays.
    """

    function: str = ""
    number: int = 0
    code: tuple[str, int] = ("", 0)
    keras: bool = False
    mode: str = ""
    trains: bool | None = None
    literals: Mapping[str, Literal] = field(default_factory=dict)
    arrays: bool = False


@dataclass(frozen=True)
class FunctionCompile(CompileEvidence):
    """One compile at a site."""

    facts: FunctionFacts = field(default_factory=FunctionFacts)


@dataclass(frozen=True)
class CompiledFunction:
    """What is known of one compile. `concrete`: None if its function is gone or was never called; `inputs`, `short`: as
    in CompileEvidence."""

    concrete: Any
    facts: FunctionFacts
    inputs: tuple[Input, ...]
    short: frozenset[tuple[int, int]]


class EvidenceCollector:
    """Collects facts from the calls of a run. `iterator`: the one that gave the last batch."""

    def __init__(self) -> None:
        self.iterator: Any = None
        self.programs: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.number = itertools.count(1)
        self.numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of tf.functions

    def on_inner_call(self, concrete: Any) -> None:
        """Another function was called during tracing."""
        self.programs[traced_functions.text_of(concrete.name)] = concrete

    def find(self, module: DumpedModule, call: FunctionCall) -> CompiledFunction:
        """What is known of a module that was compiled in a call."""
        concrete = self._program(module, call)
        loop = loop_of(call.frame)
        name = stem(module.function or traced_functions.text_of(getattr(concrete, "name", "")))
        inputs = () if name.startswith(_GRADIENT) else tuple(_inputs(module, concrete, call))
        if loop is not None:
            inputs = tuple(map(traced_functions.as_batch, inputs))
        short, arrays = short_batch(loop)
        code = getattr(call.function, "_key_for_call_stats", None)  # TensorFlow 2.21: the Python function's code
        facts = FunctionFacts(
            function=name,
            number=self._number(call.function),
            code=(getattr(code, "co_filename", ""), getattr(code, "co_firstlineno", 0)),
            keras=loop is not None,
            mode=mode_of(loop),
            trains=call.concrete is not None and traced_functions.trains(call.concrete),
            literals={**_literals(call.concrete), **_literals(concrete)},
            arrays=arrays,
        )
        return CompiledFunction(concrete, facts, inputs, short if arrays else frozenset(self._short(inputs, call.args)))

    def _program(self, module: DumpedModule, call: FunctionCall) -> Any:
        """The traced function that was compiled: an inner one, or the called one itself, possibly in its form under a
        gradient tape."""
        known = self.programs.get(module.function)
        if known is not None:
            return known
        own = "" if call.concrete is None else traced_functions.text_of(call.concrete.name)
        if own and module.function and stem(own) == stem(module.function):
            return call.concrete
        given = {**self.programs, own: call.concrete}
        return next((one for name, one in given.items() if name and module.is_of(name)), None)

    def _number(self, function: Any) -> int:
        if function is None:
            return 0
        if function not in self.numbers:
            self.numbers[function] = next(self.number)
        return self.numbers[function]

    def _short(self, inputs: Sequence[Input], args: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """(full, last) batch sizes, if the pipeline can yield a short batch and this may be it."""
        rows = {one.shape[0] for one in inputs if one.shape}
        for dataset in self._datasets(args):
            for full in batched(dataset):
                yield from ((full, last) for last in rows if last < full)

    def _datasets(self, args: Sequence[Any]) -> Iterator[Any]:
        """The source of the batch: an iterator among the arguments, else the one that was advanced last."""
        for one in [one for one in args if hasattr(one, "element_spec")] or [self.iterator]:
            # TensorFlow 2.21: OwnedIterator._dataset; a strategy's iterator has _iterators, one for each worker.
            for inner in (one, *(getattr(one, "_iterators", None) or ())):
                dataset = getattr(inner, "_dataset", None)
                if dataset is not None:
                    yield dataset


def _inputs(module: DumpedModule, concrete: Any, call: FunctionCall) -> Sequence[Input]:
    if concrete is not None and concrete is call.concrete:
        return traced_functions.inputs_of_call(concrete, call.tensors)
    if concrete is not None:
        return traced_functions.inputs_of_graph(traced_functions.names_of_arguments(concrete), module.report.graph)
    definition = _definition(module.function)
    names = traced_functions.names_of_definition(definition) if definition is not None else []
    return traced_functions.inputs_of_graph(names, module.report.graph)


def _literals(concrete: Any) -> dict[str, traced_functions.Literal]:
    return {} if concrete is None else traced_functions.literals(traced_functions.parameters_of(concrete))


def _definition(name: str) -> Any:
    """A FunctionDef by its name; None if it is gone."""
    from tensorflow.python.eager import context

    known = context.context()
    return known.get_function_def(name) if name and known.has_function(name) else None


def stem(name: str) -> str:
    """__inference_step_12 -> step"""
    match = _STEM.match(name)
    return f"{_GRADIENT}{match[2]}" if match and match[1] else match[2] if match else name


# -- what Keras was doing ---------------------------------------------------------------------------------------------


# Read in Keras 3.15 (src/backend/tensorflow/trainer.py, src/trainers/epoch_iterator.py, data_adapters/): the local
# names `epoch_iterator`, `begin_step` and `self` of fit, evaluate and predict; ArrayDataAdapter.batch_size and
# .partial_batch_size. Where a name is missing, nothing is known.

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
_TRAINER = "trainer.py"
_MODES = {
    **dict.fromkeys(("fit", "train_on_batch"), TRAINING),
    **dict.fromkeys(("evaluate", "test_on_batch"), EVALUATION),
    **dict.fromkeys(("predict", "predict_on_batch"), PREDICTION),
}
_DEEPEST = 16  # frames to search for Keras' loop
_MANY = "multi_step_on_iterator"


def loop_of(frame: FrameType | None) -> FrameType | None:
    """The frame of the innermost fit, evaluate, predict or ..._on_batch of Keras."""
    for _, one in zip(range(_DEEPEST), outwards(frame), strict=False):
        code = one.f_code
        if code.co_name in _MODES and code.co_filename.endswith(_TRAINER) and "keras" in code.co_filename:
            return one
    return None


def mode_of(loop: FrameType | None) -> str:
    """The mode of that call; "" without one."""
    return _MODES[loop.f_code.co_name] if loop is not None else ""


def model_of(loop: FrameType | None) -> Any:
    """The model of that call."""
    return loop.f_locals.get("self") if loop is not None else None


def short_batch(loop: FrameType | None) -> tuple[frozenset[tuple[int, int]], bool]:
    """((full, last),) if batches are cut from arrays and the last one is short; and whether there are arrays."""
    adapter: Any = getattr(_iterator_of(loop), "data_adapter", None)
    if type(adapter).__name__ != "ArrayDataAdapter":
        return frozenset(), False
    full, last = adapter.batch_size, adapter.partial_batch_size
    return (frozenset({(int(full), int(last))}) if full and last else frozenset()), True


def batch_parts(loop: FrameType | None) -> tuple[int | None, int]:
    """(gradient accumulation steps, replicas) of the model that trains."""
    model = model_of(loop)
    every = getattr(getattr(model, "optimizer", None), "gradient_accumulation_steps", None)
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    return int(every or 1), int(replicas)


def steps_in_call(frame: FrameType, function: Any) -> int:
    """Maximum number of steps in one call of `function` (`steps_per_execution`), if Keras calls it."""
    loop = loop_of(frame) if getattr(function, "name", "") == _MANY else None
    return int(getattr(model_of(loop), "steps_per_execution", 1)) if loop is not None else 1


def steps_done(frame: FrameType, most: int, result: Any) -> int:
    """Number of steps in a call of up to `most`: fewer at the end of an epoch, none without data. In the first epoch
    over data of unknown size, the last call counts as full."""
    has_value = getattr(result, "has_value", None)
    if has_value is not None and not bool(has_value()):
        return 0
    loop = loop_of(frame)
    batches = getattr(_iterator_of(loop), "num_batches", None)
    begin = loop.f_locals.get("begin_step") if loop is not None else None
    return max(1, min(most, batches - begin)) if batches and begin is not None else most


def batches_of_epoch(loop: FrameType | None) -> int | None:
    """Batches of each epoch of `fit`, when one begins; None if unknown, or if the epochs differ."""
    iterator = _iterator_of(loop)
    each, everything = getattr(iterator, "steps_per_epoch", None), getattr(iterator, "_num_batches", None)
    if each and everything and everything % each:
        return None  # Keras ends an epoch early where the data end, and begins again
    return each or everything


def epochs_of(loop: FrameType | None) -> range:
    """The numbers of the epochs of `fit`."""
    names = loop.f_locals if loop is not None else {}
    return range(int(names.get("initial_epoch", 0)), int(names.get("epochs", 0)))


def _iterator_of(loop: FrameType | None) -> Any:
    return loop.f_locals.get("epoch_iterator") if loop is not None else None


def batched(dataset: Any) -> Iterator[int]:
    """Batch sizes of the batch ops in a pipeline whose last batch may be short.

    TensorFlow 2.21, data/ops/batch_op.py: _batch_size and _drop_remainder, scalar tensors.
    """
    waiting, looked = [dataset], 0
    while waiting and looked < 200:
        one = waiting.pop()
        looked += 1
        size, drop = getattr(one, "_batch_size", None), getattr(one, "_drop_remainder", None)
        if size is not None and drop is not None and not bool(drop):
            yield int(size)
        inputs = getattr(one, "_inputs", None)
        waiting += inputs() if callable(inputs) else []
