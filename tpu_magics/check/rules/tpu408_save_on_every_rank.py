"""Every rank writes the same file.

What it does
    Reports `torch.save`, `xm.save(..., master_only=False)`, `save_pretrained`, `np.save`, `json.dump`, `pickle.dump`
    and safetensors' `save_file` that every rank of launched workers runs; and, in a program that launches nothing
    itself, a function with its own Accelerator that saves a model's weights on every rank.
Why this is bad
    All ranks write to the same path at the same time: the file may be corrupted, and eight chips wait for the disk. A
    file that `torch.save` writes from an XLA device also needs XLA to be loaded again.
Example
    def training_function(model):
        ...
        torch.save(model.state_dict(), "model.pt")
Use instead
    def training_function(model):
        ...
        xm.save(model.state_dict(), "model.pt")  # moved to the CPU, written by the main rank only

    # after %%tpu_train the trained weights are in the notebook's model: it can be saved in the next cell
Limitations
    Other ways to write (`open(...).write`, `to_csv`, `savefig`) are not checked. Saves under a condition on the rank,
    with `accelerator.save`, with `is_main_process=`, or to a path that contains the rank are fine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _launches, _ranks, _runtime, _spelling, _workers
from tpu_magics.check.values import ACCELERATOR, MODEL

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU408"
NAME = "save-on-every-rank"
GROUP = "launch"
WHY = "All ranks write the same file at the same time: it may be corrupted, and all of them wait for the disk."
SAVES = ("torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "json.dump", "pickle.dump",
    "safetensors.torch.save_file", "safetensors.torch.save_model", "joblib.dump", "torch.jit.save")  # fmt: skip
XM_SAVE = "torch_xla.core.xla_model.save"
METHODS = ("save_pretrained",)
_GUARDS = ("is_main_process", "save_function")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    launched = bool(_launches.launches(program))
    if not launched and not program.uses("accelerate"):
        return
    calls = [*program.calls(*SAVES, XM_SAVE), *(call for method in METHODS for call in program.methods(method))]
    for call in calls:
        if (_workers.may_be_several(call.ctx) or (not launched and _is_accelerated(call))) and not _is_allowed(call):
            yield _finding(call)


def _is_accelerated(call: CallSite) -> bool:
    """Whether a function with its own Accelerator saves the model's weights: `accelerate launch` or another launcher
    runs it in each process."""
    sharded = any("Parallel" in name for name in call.ctx.program.imported)  # then all ranks take part in a save
    if sharded or not _saves_model(call) or call.ctx.function is None:
        return False
    own = set(_workers.around(call.ctx.function))
    made = [one for one in call.ctx.program.calls("accelerate.Accelerator") if one.ctx.function in own]
    prepares = any(one.ctx.function in own for one in call.ctx.program.methods("prepare", ACCELERATOR))
    return prepares and bool(made) and not any(map(_runtime.on_cpu, made))


def _is_allowed(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    if call.name == XM_SAVE and ctx.constant(ctx.argument(node, "master_only", 2)) is not False:
        return True
    if any(ctx.argument(node, name) is not None for name in _GUARDS) or ctx.has_unknown_arguments(node):
        return True
    return _is_in_memory(call) or _has_own_path(node, ctx) or _ranks.is_guarded(node, ctx)


def _is_in_memory(call: CallSite) -> bool:
    """`torch.save(x, io.BytesIO())`, also through a name."""
    for given in call.node.args[1:2]:
        values = [given]
        if isinstance(given, ast.Name) and call.ctx.function is not None:
            values += _ranks.definitions(call.ctx.function).get(given.id, [])
        if any("BytesIO" in call.ctx.source(one) for one in values):
            return True
    return False


def _has_own_path(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether the rank is part of an argument: each rank writes a file of its own."""
    parts = [*node.args, *(one.value for one in node.keywords)]
    return any(_ranks.depends(one, ctx) for one in (*parts, *_opened(node, ctx)))


def _opened(node: ast.Call, ctx: RuleContext) -> Iterator[ast.expr]:
    """The path of `with open(path, "w") as file` around `json.dump(x, file)`."""
    for parent in ctx.parents(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in parent.items)
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return


# -- the message ------------------------------------------------------------------------------------------------------


def _finding(call: CallSite) -> Finding:
    ctx = call.ctx
    code = _spelling.quoted(ctx.source(call.node.func))
    fix = _fix(call)
    if any(one.ours for one in _workers.launches_of(ctx)) and _saves_model(call):
        fix += " After %%tpu_train the notebook's model has the trained weights: save it in the next cell."
    return ctx.finding(
        call.node, f"{code} runs on every rank and writes the same file on each.", fix, edits=_edits(call)
    )


def _saves_model(call: CallSite) -> bool:
    return call.name == "torch.save" or call.receiver.kind == MODEL


def _fix(call: CallSite) -> str:
    ctx = call.ctx
    hugging_face = bool(ctx.program.methods("prepare", "accelerator"))
    if call.name == XM_SAVE:
        return "Remove `master_only=False`, or include the rank in the path."
    if call.name == "torch.save":
        given = ", ".join(ctx.source(one) for one in call.node.args)
        return f"Write `{'accelerator' if hugging_face else 'xm'}.save({given})`: one rank writes it, from the CPU."
    if call.receiver.kind == MODEL and ctx.program.calls("transformers.Trainer"):
        return "Call `trainer.save_model(...)`, which writes on one rank."
    if call.receiver.kind == MODEL and hugging_face:
        return "Pass `is_main_process=accelerator.is_main_process, save_function=accelerator.save`."
    return f"Put it under `if {'accelerator.is_main_process' if hugging_face else 'xm.is_master_ordinal()'}:`."


def _edits(call: CallSite) -> tuple[Edit, ...]:
    """`xm.save` takes the same two arguments."""
    xm = _spelling.xm(call.ctx)
    if call.name != "torch.save" or not xm or len(call.node.args) != 2 or call.node.keywords:
        return ()
    return (call.ctx.replace(call.node.func, f"{xm}.save"),)
