"""What of torch_xla has which counterpart in TorchTPU (TPU801). Only with `--migrate`: torch_xla code is not wrong.

With torch_tpu 0.2.0 and torch 2.15, on XLA:CPU in place of a TPU, these were called: devices, moves, seeds, waiting,
memory, torch.compile, autocast, checkpointing, saving and loading, torch.profiler. Attention and Pallas need a TPU, and
collectives, FSDP and DTensor several processes: there only the names were looked up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_magics.check.inference.library_results import XM, XR
from tpu_magics.check.inference.values import canonical
from tpu_magics.check.program import remembered
from tpu_magics.check.rule import Rule

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


class Counterpart(NamedTuple):
    """What to write for a name of torch_xla. `call`: stands for a whole call, `callee`: for the function that is called
    with the same arguments; both "" where it takes a person."""

    todo: str
    call: str = ""
    callee: str = ""


def _call(text: str) -> Counterpart:
    return Counterpart(f"Write `{text}`.", call=text)


_DEVICE = _call('torch.device("tpu")')
_STEP = Counterpart(
    "Remove it: TorchTPU runs operations as they come. Compile the step, `step = torch.compile(step, backend="
    '"tpu")`, for the speed of one graph.'
)
_WAIT = _call("torch.accelerator.synchronize()")
_DATA = Counterpart('Iterate over the DataLoader itself, and move each batch: `batch.to("tpu")`.')
_LAUNCH = Counterpart(
    "Call `torch.tpu.distributed.set_tpu_launch_env()` once, start the processes by torchrun or torch.multiprocessing, "
    'and call `torch.distributed.init_process_group("tpu")` in each: it needs exactly one device for each process.'
)
_METRICS = Counterpart(
    'There is none. `TORCH_LOGS="recompiles"` tells what torch.compile compiles again, and torch.profiler the times.'
)
_MESH = Counterpart(
    "Use DTensor: `torch.distributed.device_mesh.init_device_mesh` and `torch.distributed.tensor.distribute_tensor`."
)
_FSDP = Counterpart("Use `torch.distributed.fsdp.fully_shard`.")
_CHECKPOINT = Counterpart("Use `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`.")


def _distributed(name: str) -> Counterpart:
    return Counterpart(f"Use `torch.distributed.{name}`, after `torch.distributed.init_process_group`.")


# By canonical name; one that ends in "." is for all below it, the longest counts.
COUNTERPARTS: dict[str, Counterpart] = {
    "torch_xla.device": _DEVICE,
    XM + "xla_device": _DEVICE,
    XR + "xla_device": _DEVICE,
    "torch_xla.sync": _STEP,
    XM + "mark_step": _STEP,
    "torch_xla.step": _STEP,
    "torch_xla.compile": Counterpart('Write `torch.compile(..., backend="tpu")`.'),
    "torch_xla.experimental.eager_mode": Counterpart("Remove it: TorchTPU runs operations as they come."),
    XM + "wait_device_ops": _WAIT,
    "torch_xla.manual_seed": Counterpart("Write `torch.manual_seed`.", callee="torch.manual_seed"),
    XM + "set_rng_state": Counterpart("Write `torch.manual_seed`.", callee="torch.manual_seed"),
    XM + "get_rng_state": Counterpart("Use `torch.accelerator.random.get_rng_state()`."),
    XM + "optimizer_step": Counterpart(
        "Write `optimizer.step()`. With several processes wrap the model in DistributedDataParallel: it averages the "
        "gradients, which optimizer_step did."
    ),
    XM + "reduce_gradients": Counterpart("Wrap the model in DistributedDataParallel: it averages the gradients."),
    XM + "save": Counterpart("Write `torch.save`, in rank 0 alone."),
    XM + "send_cpu_data_to_device": Counterpart('Move it by `.to("tpu")`.'),
    XM + "xla_real_devices": Counterpart("Use `torch.accelerator.current_accelerator()`."),
    XM + "get_xla_supported_devices": Counterpart("Use `torch.accelerator.device_count()`."),
    XM + "xla_device_hw": Counterpart("Use `torch.accelerator.current_accelerator()`."),
    XM + "get_memory_info": Counterpart("Use `torch.accelerator.get_memory_info()`."),
    XM + "master_print": Counterpart("Print if `torch.distributed.get_rank()` is 0."),
    XM + "is_master_ordinal": _distributed("get_rank() == 0"),
    XM + "rendezvous": _distributed("barrier()"),
    XM + "mesh_reduce": _distributed("all_gather_object"),
    XM + "all_reduce": _distributed("all_reduce"),
    XM + "all_gather": _distributed("all_gather_into_tensor"),
    XM + "reduce_scatter": _distributed("reduce_scatter_tensor"),
    XM + "all_to_all": _distributed("all_to_all_single"),
    XM + "collective_permute": _distributed("batch_isend_irecv"),
    XM + "get_ordinal": _distributed("get_rank()"),
    XM + "get_local_ordinal": Counterpart("Read `LOCAL_RANK` from the environment: torchrun sets it."),
    XM + "xrt_world_size": _distributed("get_world_size()"),
    XR + "global_ordinal": _distributed("get_rank()"),
    XR + "world_size": _distributed("get_world_size()"),
    XR + "local_ordinal": Counterpart("Read `LOCAL_RANK` from the environment: torchrun sets it."),
    XR + "device_type": Counterpart("Use `torch.accelerator.current_accelerator().type`."),
    XR + "global_device_count": Counterpart("Use `torch.accelerator.device_count()`, which counts this process's."),
    XR + "addressable_device_count": _call("torch.accelerator.device_count()"),
    XR + "use_spmd": _MESH,
    XR + "initialize_cache": Counterpart("There is none that is public in torch_tpu 0.2.0."),
    "torch_xla.launch": _LAUNCH,
    "torch_xla.distributed.xla_multiprocessing.": _LAUNCH,
    "torch_xla.distributed.parallel_loader.": _DATA,
    "torch_xla.distributed.spmd.": _MESH,
    "torch_xla.distributed.fsdp.": _FSDP,
    "torch_xla.experimental.spmd_fully_sharded_data_parallel.": _FSDP,
    "torch_xla.amp.autocast": Counterpart('Write `torch.autocast("tpu", torch.bfloat16)`.'),
    "torch_xla.amp.syncfree.": Counterpart("Use the optimizer of torch.optim with this name."),
    "torch_xla.utils.checkpoint.": _CHECKPOINT,
    "torch_xla.debug.metrics.": _METRICS,
    "torch_xla.debug.profiler.": Counterpart("Use torch.profiler: TorchTPU registers with it."),
    "torch_xla.experimental.custom_kernel.flash_attention": Counterpart(
        "Use `torch.nn.functional.scaled_dot_product_attention`."
    ),
    "torch_xla.experimental.custom_kernel.": Counterpart("Use `torch.tpu.pallas.jax_op` for a kernel in Pallas."),
    "torch_xla.experimental.scan.": Counterpart("Write the loop in Python, within what torch.compile compiles."),
}
_LONGEST = sorted((name for name in COUNTERPARTS if name.endswith(".")), key=len, reverse=True)
_UNKNOWN = Counterpart("TorchTPU has no name of its own for it: look for PyTorch's, as for a GPU.")

_BF16 = 'Remove it, and write `torch.autocast("tpu", torch.bfloat16)` or `model.to(torch.bfloat16)`.'
_DEBUG = 'Remove it; `TORCH_LOGS="recompiles"` tells what is compiled again.'
VARIABLES = {
    "PJRT_DEVICE": "Remove it: TorchTPU takes the TPU that is there.",
    **dict.fromkeys(("XLA_USE_BF16", "XLA_DOWNCAST_BF16"), _BF16),
    **dict.fromkeys(("PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"), _DEBUG),
}
_STRINGS = {"xla://": "env://", "openxla": "tpu"}
_KEYWORDS = {"device", "device_type", "backend", "init_method"}
_XLA = re.compile(r"xla(:\d+)?\Z")


def counterpart(name: str) -> Counterpart:
    """What stands for a canonical name of torch_xla."""
    found = COUNTERPARTS.get(name)
    if found is None:
        prefix = next((one for one in _LONGEST if f"{name}.".startswith(one)), None)
        found = _UNKNOWN if prefix is None else COUNTERPARTS[prefix]
    return found


class TorchXlaName(Rule):
    """Something of torch_xla that TorchTPU has otherwise.

    What it does
        Lists, with `--migrate` alone, what of torch_xla is used: names, imports, the device "xla", environment
        variables; and says what stands for each in TorchTPU. `--fix` writes what is mechanical: devices, seeds, waiting
        for the device.
    Why this is bad
        torch_xla 2.9 is the last release. TorchTPU (`pip install torch_tpu`, Python 3.12 or newer) runs PyTorch on TPUs
        with PyTorch's own names.
    Example
        import torch_xla.core.xla_model as xm

        device = xm.xla_device()
        model.to(device)
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.mark_step()
    Use instead
        device = torch.device("tpu")
        model.to(device)
        loss.backward()
        optimizer.step()
    Limitations
        What `--fix` leaves has to be written before the program runs again. What a library does with torch_xla, e.g.
        accelerate, is not seen. Collectives, FSDP, DTensor, attention and Pallas were not run with TorchTPU.
    """

    code = "TPU801"
    name = "torch-xla-name"
    group = "migrate"
    why = "torch_xla 2.9 is the last release; TorchTPU runs PyTorch on TPUs with PyTorch's own names."
    opt_in = True
    nodes = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Name, ast.Constant)

    def check(self, node: ast.AST, ctx: RuleContext) -> Iterator[Finding]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imported(node, ctx)
        elif isinstance(node, ast.Constant):
            yield from _constant(node, ctx)
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load):
            yield from _used(node, ctx)


def _imported(node: ast.Import | ast.ImportFrom, ctx: RuleContext) -> Iterator[Finding]:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
    found = next((name for name in modules if name.partition(".")[0] == "torch_xla"), None)
    if found is not None and not getattr(node, "level", 0):
        todo = 'Remove it when nothing uses it: where torch_tpu is installed, `import torch` knows the device "tpu".'
        yield ctx.finding(node, f"`{found}` is imported.", todo)


def _used(node: ast.Attribute | ast.Name, ctx: RuleContext) -> Iterator[Finding]:
    name, parent = canonical(ctx.name(node)), ctx.parent(node)
    inside = isinstance(parent, ast.Attribute) and ctx.name(parent) != ""
    if inside or not name.startswith("torch_xla.") or not _is_itself(node, name, ctx):
        return
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    found = counterpart(name)
    edits: tuple[Edit, ...] = ()
    if call is not None and _has_torch(ctx):
        if found.call and _means_default(call):
            edits = (ctx.replace(call, found.call),)
        elif found.callee and len(call.args) == 1 and not call.keywords:
            edits = (ctx.replace(node, found.callee),)
    yield ctx.finding(call or node, f"`{name}` is torch_xla's.", found.todo, edits=edits)


def _is_itself(node: ast.Attribute | ast.Name, name: str, ctx: RuleContext) -> bool:
    """Whether a name is that of the import; a variable that holds the same is reported where it is set."""
    return isinstance(node, ast.Attribute) or name.endswith(_imported_names(ctx.program).get(node.id, " "))


@remembered
def _imported_names(program: CheckedProgram) -> dict[str, str]:
    """What `from ... import` brings, anywhere: the name here -> its own."""
    found = (one for cell in program.cells if cell.tree is not None for one in ast.walk(cell.tree))
    names = (name for one in found if isinstance(one, ast.ImportFrom) for name in one.names)
    return {name.asname or name.name: name.name for name in names}


def _means_default(call: ast.Call) -> bool:
    """Whether the call names no device of its own."""
    return not call.args and not call.keywords


def _has_torch(ctx: RuleContext) -> bool:
    imported = ctx.program.globals.get("torch")
    return imported is not None and imported.name == "torch"


def _constant(node: ast.Constant, ctx: RuleContext) -> Iterator[Finding]:
    text, parent = node.value, ctx.parent(node)
    if not isinstance(text, str):
        return
    if text in VARIABLES:
        if isinstance(parent, (ast.Subscript, ast.Call)) and "environ" in ast.unparse(parent):
            yield ctx.finding(node, f"`{text}` is torch_xla's variable.", VARIABLES[text])
    elif (_XLA.match(text) or text in _STRINGS) and _is_of_torch(parent, ctx):
        new = _STRINGS.get(text) or text.replace("xla", "tpu")
        todo = f'Write "{new}".'
        yield ctx.finding(node, f'"{text}" is torch_xla\'s.', todo, edits=(ctx.replace(node, f'"{new}"'),))


def _is_of_torch(parent: ast.AST | None, ctx: RuleContext) -> bool:
    """Whether a text here is a device or a backend for torch."""
    if isinstance(parent, ast.keyword):
        return parent.arg in _KEYWORDS
    if isinstance(parent, ast.Call):
        is_method = isinstance(parent.func, ast.Attribute) and parent.func.attr == "to"
        return is_method or ctx.name(parent).startswith("torch.")
    if isinstance(parent, ast.Compare):
        sides = (ast.unparse(side) for side in (parent.left, *parent.comparators))
        return any(re.search(r"device|\.type$", side) for side in sides)
    return False


RULES = (TorchXlaName(),)
