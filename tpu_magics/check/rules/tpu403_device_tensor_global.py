"""Workers use objects that the notebook has put on its own device.

What it does
    Reports tensors and models that the notebook (or the main process of a script) moves to an XLA device and that the
    launched function reads as globals or receives as arguments, and optimizers that the notebook creates for CPU
    parameters and the function uses without `accelerator.prepare`.
Why this is bad
    A worker has a device of its own and cannot use a tensor on the notebook's XLA device; and creating that tensor
    starts the runtime before the workers. An optimizer keeps the parameters that it was created with: on XLA
    `model.to(device)` replaces a model's parameters, so the optimizer trains nothing, without an error.
Example
    weights = torch.ones(10).to(xm.xla_device())

    def training_function(model):
        loss = cross_entropy(model(x), y, weight=weights)
Use instead
    weights = torch.ones(10)

    def training_function(model):
        device = xm.xla_device()
        loss = cross_entropy(model(x), y, weight=weights.to(device))
Limitations
    Tensors that reach the function inside other objects are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _device_globals, _launches, _workers
from tpu_magics.check.values import MODEL, OPTIMIZER

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU403"
NAME = "device-tensor-global"
GROUP = "launch"
WHY = "A worker has its own device and runtime: it cannot use objects on the notebook's XLA device."
WHY_OPTIMIZER = (
    "Moving a model to an XLA device replaces its parameters; this optimizer keeps the old ones and trains nothing, "
    "without an error."
)
NODES = _device_globals.NODES
check = _device_globals.collect_statements


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not _launches.launches(program):
        return
    for node, ctx, name, launch in _device_globals.statements(program).values():
        yield _on_device(node, ctx, name, launch)
    for node, ctx in _device_globals.top_level(program):
        yield from _optimizer(node, ctx, program)


def _on_device(node: _device_globals.Statement, ctx: RuleContext, name: str, launch: _launches.LaunchSite) -> Finding:
    assert node.value is not None
    who = _who(launch)
    model = ctx.value(node.value).kind == MODEL
    what = "model" if model else "tensor"
    fix = f"Leave `{name}` on the CPU here, and move it to the device inside {who}."
    if model:
        fix = f"Leave `{name}` on the CPU here, and write `{name}.to(device)` (or accelerator.prepare) inside {who}."
    return ctx.finding(node.value, f"The {what} `{name}` is moved to an XLA device here, and {who} uses it.", fix)


def _who(launch: _launches.LaunchSite) -> str:
    return f"`{launch.function.name}`" if launch.function is not None else "the launched function"


# -- optimizers -------------------------------------------------------------------------------------------------------


def _optimizer(node: _device_globals.Statement, ctx: RuleContext, program: CheckedProgram) -> Iterator[Finding]:
    value = ctx.value(node.value)
    if value.kind != OPTIMIZER or value.lib == "tf" or value.prepared or value.made is not node.value:
        return
    position = _launches.position_of(ctx, node)
    for name in _device_globals.bound_names(node, ctx):
        launch = next(_device_globals.users(name, position, program), None)
        if launch is not None and not _is_prepared(name, launch, program):
            who = _who(launch)
            fix = f"Create it inside {who}, after the model is on its device, or pass it through `accelerator.prepare`."
            message = f"The optimizer `{name}` is created here for parameters on the CPU, and {who} uses it."
            assert node.value is not None
            yield ctx.finding(node.value, message, fix, WHY_OPTIMIZER)


def _is_prepared(name: str, launch: _launches.LaunchSite, program: CheckedProgram) -> bool:
    """Whether the workers pass the optimizer to accelerate (or to a Trainer, which does)."""
    names = {name, *_device_globals.parameters_for(name, launch)}
    for function in _workers.worker_functions(launch, program):
        for call in function.calls:
            if call.method not in ("prepare", "prepare_optimizer") and not call.name.endswith("Trainer"):
                continue
            parts = [*call.node.args, *(one.value for one in call.node.keywords)]
            if any(isinstance(one, ast.Name) and one.id in names for part in parts for one in nodes_of(part)):
                return True
    return False
