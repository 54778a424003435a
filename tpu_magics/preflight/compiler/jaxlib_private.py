"""Every use of jaxlib's private API.

Read in jaxlib 0.7.2 and 0.10.2, with libtpu 0.0.21.1 and 0.0.52; all four pairs compile, and so does jaxlib 0.6.2 with
libtpu 0.0.17, as Kaggle's TPU image has them. jax itself is not imported: its public
`jax.experimental.topologies.get_topology_desc` does no more than `devices` does, and its import takes 2 s, where these
parts take 0.4 s (measured). Its public `jax.jit(...).lower(...).compile()` ends with SIGSEGV for libtpu 0.0.21.1, when
it queries a default layout.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

BYTECODE, PORTABLE = b"ML\xefR", b"StableHLO_v"  # a portable artifact is MLIR bytecode with this as its producer
PRODUCER = 16  # bytes in which the producer's name begins
DONOR, ALIAS = "jax.buffer_donor", "tf.aliasing_output"  # attributes of parameters that XLA reads


class TopologyRefused(Exception):
    """libtpu does not support that topology; its text."""


class NotAProgram(Exception):
    """MLIR does not accept the module; its text."""


def devices(topology: str, options: Mapping[str, Any]) -> list[Any]:
    """The compile-only devices of a topology. Raises TopologyRefused.

    jax/_src/xla_bridge.py, make_pjrt_tpu_topology, and jax/experimental/topologies.py (jax 0.7.2 and 0.10.2).
    """
    import libtpu
    from jaxlib import xla_client

    if not xla_client.pjrt_plugin_loaded("tpu"):
        xla_client.load_pjrt_plugin_dynamically("tpu", libtpu.get_library_path())
        xla_client.initialize_pjrt_plugin("tpu")
    try:
        found = xla_client.make_tfrt_tpu_c_api_device_topology(topology, **options)
        return list(found._make_compile_only_devices())
    except RuntimeError as error:  # XlaRuntimeError and JaxRuntimeError are such
        raise TopologyRefused(str(error)) from error


@contextmanager
def context() -> Iterator[Any]:
    """An MLIR context with the dialects that a module may have (jax/_src/interpreters/mlir.py, make_ir_context)."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    with ir.Context() as made:
        registry = ir.DialectRegistry()
        _registering().register_dialects(registry)
        made.append_dialect_registry(registry)
        made.load_all_available_dialects()
        sdy.register_dialect(made)
        mhlo.register_mhlo_dialect(made)
        chlo.register_dialect(made)
        stablehlo.register_dialect(made)
        yield made


def _registering() -> Any:
    """The module that knows the dialects of MLIR's own that jaxlib was built with."""
    from jaxlib.mlir import _mlir_libs

    try:
        return import_module("._jax_mlir_ext", _mlir_libs.__name__)
    except ImportError:  # jaxlib 0.6.2, as on Kaggle
        return import_module(".register_jax_dialects", _mlir_libs.__name__)


def parse(made: Any, module: bytes, form: str) -> Any:
    """An MLIR module of StableHLO (text, bytecode or portable artifact; `form` "stablehlo") or of a serialized
    HloModuleProto ("hlo"). Raises NotAProgram."""
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    try:
        if form == "hlo":
            module = _jax.mlir.hlo_to_stablehlo(module)
        if module.startswith(BYTECODE) and PORTABLE in module[: len(BYTECODE) + PRODUCER]:
            return stablehlo.deserialize_portable_artifact(made, module)
        return ir.Module.parse(module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise NotAProgram(str(error)) from error


def donate(module: Any, donors: Iterable[int]) -> None:
    """Mark parameters whose memory the outputs may reuse. The conversion from HLO to StableHLO loses these marks.
    Raises NotAProgram where a parameter is not there."""
    from jaxlib.mlir import ir

    main = main_of(module)
    marks = list(main.arg_attrs)
    for number in donors:
        if number >= len(marks):
            raise NotAProgram(f"parameter {number} is to be donated, and the program has {len(marks)} parameters")
        given = {one.name: one.attr for one in marks[number]}
        if ALIAS not in given:
            marks[number] = ir.DictAttr.get({**given, DONOR: ir.BoolAttr.get(True)}, module.context)
    main.arg_attrs = ir.ArrayAttr.get(marks, module.context)


def main_of(module: Any) -> Any:
    """The function that is run. Raises NotAProgram where there is none."""
    for one in module.body.operations:
        if one.operation.name == "func.func" and one.name.value == "main":
            return one
    raise NotAProgram('the module has no function "main"')


def signature(module: Any) -> list[str]:
    """Types of what the program takes and gives: "tensor<32x128xi64>"."""
    kind = main_of(module).type
    return [str(one) for one in (*kind.inputs, *kind.results)]


def compile_module(module: Any, chosen: Sequence[Any], replicas: int, partitions: int, dump: Path) -> Any:
    """The executable. XLA dumps into `dump`. Raises RuntimeError with the compiler's text.

    jax/_src/compiler.py, get_compile_options and backend_compile_and_load (jax 0.7.2 and 0.10.2).
    """
    from jaxlib import xla_client

    options = _options(chosen, replicas, partitions, dump)
    together = xla_client.DeviceList(tuple(chosen))
    compiler = chosen[0].client.compile
    try:
        return compiler(module, executable_devices=together, compile_options=options)
    except TypeError:  # jaxlib 0.7.2 takes bytecode, 0.10.2 modules only
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        return compiler(bytecode.getvalue(), executable_devices=together, compile_options=options)


def _options(chosen: Sequence[Any], replicas: int, partitions: int, dump: Path) -> Any:
    import numpy
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, partitions
    numbers = numpy.array([one.id for one in chosen], dtype=int).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(numbers)
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    if partitions > 1:  # as torch_xla compiles; else results that nobody annotated count as whole on each device
        build.allow_spmd_sharding_propagation_to_output = [True]
    # The dump is requested here and not in XLA_FLAGS: each graph gets a folder of its own, and no flag of a process
    # that has libtpu loaded is changed.
    build.debug_options.xla_dump_to = str(dump)
    build.debug_options.xla_dump_hlo_as_text = True
    return options


def cost(executable: Any) -> dict[str, float]:
    """XLA's cost analysis. Its "optimal_seconds" is wrong (seen negative), and never to be shown."""
    found = executable.cost_analysis()
    return dict(found[0] if isinstance(found, list) else found)
