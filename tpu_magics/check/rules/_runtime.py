"""Calls that start the XLA runtime in their process.

Each was tried with torch_xla 2.9, accelerate 1.15 and transformers 5.23. These do not start it: `torch.device("xla")`,
`xr.device_type()`, `xr.use_spmd()`, transformers' `set_seed`, `xmp.MpModelWrapper`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.values import DEVICE, AbstractValue

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

_XM, _XR = "torch_xla.core.xla_model.", "torch_xla.runtime."
DEVICES = ("torch_xla.device", "torch_xla.torch_xla.device", _XM + "xla_device")
ACCELERATORS = ("accelerate.Accelerator", "accelerate.PartialState", "accelerate.AcceleratorState")
# With tpu_magics these do not start the runtime in a notebook.
QUIETED = ("accelerate.utils.set_seed", "transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_OTHERS = (
    *("torch_xla.devices", "torch_xla.real_devices", "torch_xla.device_count", "torch_xla.sync",
        "torch_xla.manual_seed"),
    *(_XM + one for one in ("get_xla_supported_devices", "xla_real_devices", "is_master_ordinal", "master_print",
        "get_local_ordinal", "get_ordinal", "xrt_world_size", "set_rng_state", "mark_step", "wait_device_ops",
        "get_memory_info", "rendezvous")),
    *(_XR + one for one in ("world_size", "global_ordinal", "local_ordinal", "global_device_count",
        "global_runtime_device_count", "addressable_device_count", "addressable_runtime_device_count",
        "local_device_count", "process_index", "process_count", "is_bf16_supported")),
)  # fmt: skip
_NAMES_OF_DEVICES = (*DEVICES, "")  # accelerator.device has no name of its own
ALL = (*DEVICES, *ACCELERATORS, *QUIETED, *_OTHERS)


def starters(program: CheckedProgram) -> Iterator[CallSite]:
    """Calls that start the runtime where they run, in order; `.to("xla")` and `device="xla"` are among them."""
    if "runtime_starters" not in program.memo:
        named = {id(call.node) for call in program.calls(*ALL)}
        program.memo["runtime_starters"] = [
            call for call in program.all_calls if id(call.node) in named or _names_xla(call)
        ]
    yield from program.memo["runtime_starters"]


def _names_xla(call: CallSite) -> bool:
    """`x.to("xla")`, `torch.ones(3, device="xla")`, also through `torch.device("xla")`."""
    if call.name == "torch.distributed.init_process_group":
        return _is_text(call.ctx.constant(call.ctx.argument(call.node, "backend", 0)))
    if call.method not in ("to", "") or call.name == "torch.device":
        return False
    given = [one.value for one in call.node.keywords if one.arg == "device"]
    if call.method == "to":
        given += call.node.args[:1]
    return any(_is_text(call.ctx.constant(one)) for one in given)


def _is_text(constant: object) -> bool:
    return isinstance(constant, str) and (constant == "xla" or constant.startswith("xla:"))


def is_xla_device(value: AbstractValue) -> bool:
    """Whether a value certainly is an XLA device."""
    if _is_text(value.const):
        return True
    return value.kind == DEVICE and value.where == "device" and value.name in _NAMES_OF_DEVICES


def on_cpu(call: CallSite) -> bool:
    """`Accelerator(cpu=True)`."""
    return call.ctx.constant(call.ctx.argument(call.node, "cpu")) is True


def xla_devices_in(node: ast.AST, ctx: RuleContext) -> list[ast.expr]:
    """The XLA devices that an expression uses: `x.to(device)`, `torch.ones(3, device=device)`."""
    found: list[ast.expr] = []
    for one in nodes_of(node):
        if not isinstance(one, ast.Call):
            continue
        given = [keyword.value for keyword in one.keywords if keyword.arg == "device"]
        if isinstance(one.func, ast.Attribute) and one.func.attr == "to":
            given += one.args[:1]
        elif ctx.name(one) == _XM + "send_cpu_data_to_device":
            given += one.args[1:2]
        found += [expression for expression in given if is_xla_device(ctx.value(expression))]
    return found
