"""Lower a TensorFlow training step to HLO for preflight: a function's, or the first step of a run before it is
executed. Importing this module imports no framework."""

from __future__ import annotations

import hashlib
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.hlo.proto import number_ops
from tpu_magics.backends.hlo.text import xla_name
from tpu_magics.backends.lowered import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    LoweredGraph,
    OpScope,
    SourceLine,
    TraceResult,
)
from tpu_magics.backends.tensorflow.availability import require_no_torch_xla

if TYPE_CHECKING:
    from tpu_magics.backends.tensorflow.step import Step

# Read and seen in TensorFlow 2.21, `tf.function(...).experimental_get_compiler_ir`:
# - tensorflow-cpu lowers for XLA:CPU only (`platform_name="TPU"`: no kernels registered for XLA_TPU_JIT). The HLO is
#   the one before XLA's optimisations. For dense, convolution, recurrent and transformer models with Keras'
#   optimizers it had no custom call, and a TPU's compiler accepted it unchanged. What differs: random numbers, where
#   the TPU's own lowering leaves the algorithm to the compiler (DefaultRngAlgForDeviceType), and XLA:CPU names
#   Philox.
# - Variables that the function assigns share their memory with the result (`alias_resource_update`), as on a TPU.
# - Without a device name it draws a random number, and so advances the global generator.

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_ONE_REPLICA = (
    "The program is for one replica. The all-reduce of gradients that a strategy with several replicas adds is "
    "not included."
)
_KEPT_POLICY = "Precision {requested} was requested, but {model} was created with the policy {policy} and keeps it."
_NO_POLICY = (
    "Precision {requested} was requested. It sets Keras' policy for models created afterwards; this step is unchanged."
)
_DYNAMIC = "The result shape of {op}{place} depends on values; the program is compiled for the largest possible shape."


def lower(
    function: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    precision: str = "",
    cell_names: Mapping[str, str] | None = None,
) -> TraceResult:
    """Lower one step without executing it.

    The step's Python body runs once, as in tracing. No variable and no random generator changes. Variables that the
    first step would create (weights of an unbuilt model, metrics, the optimizer's slots) are created, as `fit` does
    before its first step.

    Args:
        function: a tf.function (jit_compile or not); a Python function over tensors; a compiled Keras model, or its
            train_step.
        args: arrays, tensors, tf.TensorSpecs, in any nest of tuples, lists and mappings. A tf.data.Dataset stands for
            one of its elements, an iterator for a supply of such elements. For a Keras model: x, y and sample_weight,
            or one tuple of them. Everything else is a constant of the step.
        kwargs: as args.
        precision: the value of `--precision`; it only affects models created after it was set.
        cell_names: file names of cells -> "In [n]".

    Returns:
        One graph, of form "hlo". `settled` is True: a traced function is one graph for one set of shapes.

    Raises:
        TpuMagicsError: the step cannot be traced, XLA refuses an op of it (each with its line), a shape is unknown,
            or torch_xla is in this process.
    """
    started = time.monotonic()
    require_no_torch_xla()
    from tpu_magics.backends.tensorflow.source_locations import SourceLocations
    from tpu_magics.backends.tensorflow.step import step_of

    places = SourceLocations(cell_names or {})
    step = step_of(function, args, kwargs or {})
    program = _program(step, places)
    graph = LoweredGraph(
        module=program.module,
        form="hlo",
        hash=program.hash,
        donors=program.donors,
        site=places.of_function(step.source),
        parameters=program.parameters,
        places=program.places,
        scopes=program.scopes,
    )
    return TraceResult(
        graphs=(graph,),
        syncs=1,
        settled=True,
        seconds=time.monotonic() - started,
        batch=step.arguments.batch(),
        ranks_known=False,
        notes=_notes(step, program, precision),
    )


def _program(step: Step, places: Any) -> HloProgram:
    import tensorflow as tf

    from tpu_magics.backends.tensorflow.lowering_errors import lowering_error, tracing_error

    compiled = tf.function(step.call, jit_compile=True, autograph=False)
    given = step.arguments.trace_values()
    try:
        step.prepare()
        concrete = compiled.get_concrete_function(*given)
        write = compiled.experimental_get_compiler_ir(*given)
    except Exception as error:
        raise tracing_error(step, error, places) from error
    try:
        serialized = _hlo(write, concrete)
    except Exception as error:
        raise lowering_error(step.name, error, concrete.graph, places) from error
    return program_of(serialized, step.name, places.of_graph(concrete.graph), _values(step, concrete))


def _hlo(write: Any, concrete: Any) -> bytes:
    """The program is made for the device of the variables."""
    device = next((one.device for one in concrete.variables if one.device), _CPU)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="device_name is being deprecated")
        return bytes(write(stage="hlo_serialized", device_name=device))


def _values(step: Step, concrete: Any) -> list[ProgramInput]:
    """Arguments and captures, in XLA's order."""

    variables = {id(one.handle): one for one in concrete.variables}
    leaves = step.arguments.leaves
    found = [ProgramInput(leaf.name, xla_name(leaf.spec.dtype.name), tuple(leaf.spec.shape)) for leaf in leaves]
    for captured in concrete.captured_inputs:
        one = variables.get(id(captured), captured)
        name = one.name.removesuffix(":0") if one is not captured else "a captured tensor"
        found.append(ProgramInput(name, xla_name(one.dtype.name), tuple(one.shape)))
    return found


def _notes(step: Step, program: HloProgram, precision: str) -> tuple[str, ...]:
    dynamic = [_DYNAMIC.format(op=op, place=f" at {place}" if place else "") for op, place in program.dynamic]
    return (_ONE_REPLICA, *step.arguments.notes, *step.notes, *dynamic, *_precision_notes(step, precision))


def _precision_notes(step: Step, requested: str) -> list[str]:
    if not requested:
        return []
    if step.model is None:
        return [_NO_POLICY.format(requested=requested)]
    policy = step.model.dtype_policy.name
    wanted = {"bf16": "mixed_bfloat16", "fp32": "float32"}.get(requested)
    return [] if policy == wanted else [_KEPT_POLICY.format(requested=requested, model=step.model.name, policy=policy)]


# -- reproducible HLO -------------------------------------------------------------------------------------------------


# Instructions and messages were read in TensorFlow 2.21 (xla/service/hlo.proto).


@dataclass(frozen=True)
class ProgramInput:
    """A possible parameter of the program: an argument or a captured value. `dtype`: "f32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] {self.name}".strip()


@dataclass(frozen=True)
class HloProgram:
    """`hash`: of the module without names and numbers of ops; `places`, `scopes`: op number -> source line, and what
    the op belongs to; `dynamic`: op types whose result shape depends on values, with their lines."""

    module: bytes
    hash: str
    donors: tuple[int, ...]
    parameters: tuple[str, ...]
    places: Mapping[int, SourceLine]
    scopes: Mapping[int, OpScope]
    dynamic: tuple[tuple[str, SourceLine | None], ...]


def program_of(
    serialized: bytes, name: str, lines: Mapping[str, SourceLine], values: Sequence[ProgramInput]
) -> HloProgram:
    """Args: a serialized HloModuleProto; the step's name; op name -> source line; possible parameters."""
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto.FromString(serialized)
    _normalise_names(module, name)
    _replace_copies(module)
    donors = {one.parameter_number for one in module.input_output_alias.entries}
    dynamic = tuple(dict.fromkeys(_dynamic(module, lines)))
    hash_ = _hash(module)
    module.ClearField("input_output_alias")  # the compiler refuses a module with both donors (see Graph) and this
    made = number_ops(module.SerializeToString(deterministic=True))
    return HloProgram(
        module=made.module,
        hash=hash_,
        donors=tuple(sorted(donors)),
        parameters=_parameters(module, values),
        places={number: lines[name] for number, name in made.names.items() if name in lines},
        scopes={number: scope for number, name in made.names.items() if (scope := scope_of(name)).phase},
        dynamic=dynamic,
    )


# As Keras 3 names the scopes of its optimizers, with a number behind it where there are several.
_OPTIMIZER = re.compile(
    r"(?:adam|adamw|sgd|rmsprop|adagrad|adadelta|adamax|nadam|ftrl|lion|adafactor|lamb|muon|loss_scale_optimizer)(?:_\d+)?"
)
_TAPE = "gradient_tape"


def scope_of(name: str) -> OpScope:
    """Phase and layer in an op's name: "gradient_tape/model/dense/MatMul/MatMul_1" is backward of model.dense."""
    first, *rest = name.split("/")
    if first == _TAPE:
        return OpScope(".".join(rest[:-2]), BACKWARD)
    if _OPTIMIZER.fullmatch(first):
        return OpScope(first, OPTIMIZER)
    return OpScope(".".join((first, *rest[:-1])), FORWARD) if len(rest) > 1 else OpScope()


def _instructions(module: Any) -> Iterator[Any]:
    return (instruction for computation in module.computations for instruction in computation.instructions)


def _normalise_names(module: Any, name: str) -> None:
    """Replace names that contain TensorFlow's running function numbers, which differ in each trace."""
    module.name, module.id = name, 0
    for number, computation in enumerate(module.computations):
        if computation.name == module.entry_computation_name:
            computation.name = module.entry_computation_name = name
        else:
            computation.name = f"computation.{number}"
    for number, instruction in enumerate(_instructions(module)):
        instruction.name = f"{instruction.opcode}.{number}"


def _replace_copies(module: Any) -> None:
    """TensorFlow puts a copy before each updated variable. StableHLO has none, and jaxlib's conversion fails on it
    (seen in 0.10.2); a reshape to the same shape is equivalent."""
    for instruction in _instructions(module):
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"


def _hash(module: Any) -> str:
    from tensorflow.compiler.xla.service import hlo_pb2

    bare = hlo_pb2.HloModuleProto()
    bare.CopyFrom(module)
    bare.name = bare.entry_computation_name = ""
    for computation in bare.computations:
        computation.name = ""
    for instruction in _instructions(bare):
        instruction.ClearField("metadata")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _dynamic(module: Any, lines: Mapping[str, SourceLine]) -> Iterator[tuple[str, SourceLine | None]]:
    for instruction in _instructions(module):
        if instruction.opcode == "set-dimension-size":
            yield instruction.metadata.op_type, lines.get(instruction.metadata.op_name)


def _parameters(module: Any, values: Sequence[ProgramInput]) -> tuple[str, ...]:
    """The program's parameters are in the order of the values, without those that became constants."""
    from tensorflow.compiler.xla import xla_data_pb2

    left = list(values)
    found = []
    for shape in module.host_program_shape.parameters:
        dtype = xla_data_pb2.PrimitiveType.Name(shape.element_type).lower()
        value = ProgramInput("", dtype, tuple(shape.dimensions))
        place = next((n for n, one in enumerate(left) if (one.dtype, one.shape) == (value.dtype, value.shape)), None)
        if place is not None:
            value = left[place]
            del left[: place + 1]
        found.append(str(value))
    return tuple(found)


# -- the first step of a run ------------------------------------------------------------------------------------------


# Keras 3.15, backend/tensorflow/trainer.py: `fit` passes its epoch iterator to `_maybe_symbolic_build` before it traces
# or trains anything. TensorFlow 2.21: every tf.function is called through Function.__call__.

Ask = Callable[[TraceResult], None]
MOST = 5  # tf.functions checked to find one that trains


class _FirstStep:
    """Calls `ask` once. `ask` may raise, and so end the run before its first step."""

    def __init__(self, ask: Ask, precision: str, cells: Mapping[str, str]) -> None:
        self.found = False
        self._ask, self._precision, self._cells = ask, precision, cells
        self._busy = False
        self._seen: set[int] = set()

    def of_fit(self, model: Any, iterator: Any) -> None:
        import tensorflow as tf

        data = getattr(iterator, "_distributed_dataset", None)
        if not self.found and isinstance(data, tf.data.Dataset):
            self._look(model, (data,), {})

    def of_function(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        import tensorflow as tf

        wanted = not (self.found or self._busy or id(function) in self._seen) and len(self._seen) < MOST
        theirs = getattr(function.python_function, "__module__", "") or ""
        if wanted and tf.executing_eagerly() and not theirs.startswith(("keras.", "tensorflow.")):
            self._seen.add(id(function))
            self._look(function, args, kwargs)

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._busy = True
        try:
            found = lower(function, args, kwargs, precision=self._precision, cell_names=self._cells)
        finally:
            self._busy = False
        if any(graph.donors for graph in found.graphs):  # it assigns variables, so it trains
            self.found = True
            self._ask(found)


@contextmanager
def before_first_step(ask: Ask, precision: str, cells: Mapping[str, str]) -> Iterator[Callable[[], bool]]:
    """Inside it, `ask` gets the lowered program of the first training step before it is executed: of the model and the
    data of `model.fit`, or of a tf.function that assigns variables. An exception of `ask` ends the run. Yields a
    function that returns whether there was such a step."""
    first_step = _FirstStep(ask, precision, cells)
    with ExitStack() as patches:
        for kind, name, look in _patch_points(first_step):
            patches.enter_context(_wrapped(kind, name, look))
        yield lambda: first_step.found


def _patch_points(first_step: _FirstStep) -> Iterator[tuple[Any, str, Callable[..., None]]]:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    def fit(model: Any, iterator: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if sys._getframe(2).f_code.co_name == "fit":  # not `evaluate`
            first_step.of_fit(model, iterator)

    def call(function: Any, *args: Any, **kwargs: Any) -> None:
        first_step.of_function(function, args, kwargs)

    yield TensorFlowTrainer, "_maybe_symbolic_build", fit
    yield Function, "__call__", call


@contextmanager
def _wrapped(kind: Any, name: str, look: Callable[..., None]) -> Iterator[None]:
    original = getattr(kind, name)

    @wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        look(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(kind, name, called)
    try:
        yield
    finally:
        setattr(kind, name, original)
