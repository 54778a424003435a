"""Lower a TensorFlow training step to HLO for preflight."""

# Read and seen in TensorFlow 2.21, `tf.function(...).experimental_get_compiler_ir`:
# - tensorflow-cpu lowers for XLA:CPU only (`platform_name="TPU"`: no kernels registered for XLA_TPU_JIT). The HLO is
#   the one before XLA's optimisations. For dense, convolution, recurrent and transformer models with Keras'
#   optimizers it had no custom call, and a TPU's compiler accepted it unchanged. What differs: random numbers, where
#   the TPU's own lowering leaves the algorithm to the compiler (DefaultRngAlgForDeviceType), and XLA:CPU names
#   Philox.
# - Variables that the function assigns share their memory with the result (`alias_resource_update`), as on a TPU.
# - Without a device name it draws a random number, and so advances the global generator.

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.hlo.text import xla_name
from tpu_magics.backends.lowered import LoweredGraph, TraceResult
from tpu_magics.backends.tensorflow.availability import require_no_torch_xla

if TYPE_CHECKING:
    from tpu_magics.backends.tensorflow.hlo_program import HloProgram, ProgramInput
    from tpu_magics.backends.tensorflow.step import Step

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

    from tpu_magics.backends.tensorflow.hlo_program import program_of
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
    from tpu_magics.backends.tensorflow.hlo_program import ProgramInput

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
