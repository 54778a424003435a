"""The XLA runtime starts before the workers.

What it does
    Reports `Accelerator()`, `xm.xla_device()`, `torch_xla.device()`, `xr.world_size()`, `tensor.to("xla")`,
    accelerate's `set_seed`, `TrainingArguments(...)` and the like if they run in the notebook (or in the main process
    of a script) before workers are launched.
Why this is bad
    Each of them starts the XLA runtime in the launching process. The workers cannot start it again: `xmp.spawn` and
    `torch_xla.launch` fail with "Runtime is already initialized", accelerate fails with its own error, and tpu_magics
    does not launch.
Example
    accelerator = Accelerator()

    def training_function(model):
        model = accelerator.prepare(model)

    notebook_launcher(training_function, (model,))
Use instead
    def training_function(model):
        accelerator = Accelerator()
        model = accelerator.prepare(model)

    notebook_launcher(training_function, (model,))
Limitations
    The effects of imported modules are unknown. A notebook that launches nothing may use the device in its own cells,
    unless all of its training is in a function that nothing calls yet; so may code after the launch, and a function
    that only workers call. In a notebook that uses tpu_magics, `set_seed` and `TrainingArguments` do not start the
    runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _device_globals, _launches, _runtime, _spelling, _workers

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU402"
NAME = "device-too-early"
GROUP = "launch"
WHY = (
    "It starts the XLA runtime in the launching process, and the workers then cannot start it: "
    '"Runtime is already initialized".'
)
_DEPTH = 6


NODES = _device_globals.NODES
check = _device_globals.collect_statements


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    starters = list(_runtime.starters(program))
    if not starters:
        return
    launches = [one for one in _launches.launches(program) if one.ours or one.ranks != 1]
    if not launches and not _is_launched_later(program):
        return
    reported = _device_globals.statements(program)
    quiet = _launches.has_magics(program)
    for call in starters:
        if (quiet and call.name in _runtime.QUIETED) or _runtime.on_cpu(call):
            continue
        launch = _launch_behind(call, launches)
        if (launch is None and (launches or not _is_first_use(call))) or _device_globals.is_reported(call, reported):
            continue
        yield _finding(call, launch)


def _finding(call: CallSite, launch: _launches.LaunchSite | None) -> Finding:
    ctx = call.ctx
    where = "in the notebook" if ctx.notebook else "in the main process"
    before = f", before {_what(launch)} starts the workers" if launch is not None else ", not in the training function"
    name = launch.function.name if launch is not None and launch.function is not None else "the training function"
    code = _spelling.quoted(ctx.source(call.node))
    return ctx.finding(
        call.node, f"{code} runs {where}{before}.", _fix(call, _spelling.quoted(name) if launch else name)
    )


def _what(launch: _launches.LaunchSite) -> str:
    return f"`{launch.kind if launch.call is None or launch.kind != _launches.OURS else 'tpu_magics.train'}`"


def _fix(call: CallSite, name: str) -> str:
    if call.name == "accelerate.utils.set_seed":
        return f"Call it inside {name}, or use `transformers.set_seed`, which does not start the runtime."
    if call.name in _runtime.ACCELERATORS:
        return f"Create it inside {name}: each worker needs its own."
    return f"Move it into {name}."


# -- calls before a launch


def _launch_behind(call: CallSite, launches: list[_launches.LaunchSite]) -> _launches.LaunchSite | None:
    """The first launch that the call runs before, in the same process."""
    if _workers.launches_of(call.ctx):
        return None
    return next((one for one in launches if _is_before(call, one, call.ctx.program, _DEPTH)), None)


def _is_before(call: CallSite, launch: _launches.LaunchSite, program: CheckedProgram, depth: int) -> bool:
    function = call.ctx.function
    own = _launches.position_of(call.ctx, call.node)
    launching = launch.call.ctx.function if launch.call is not None else None
    if function is launching:
        return own < launch.position
    if function is None:
        return any(own < one for one in _reached_from_top(launching, depth)) if launching is not None else False
    return depth > 0 and any(_is_before(one, launch, program, depth - 1) for one in function.callers)


def _reached_from_top(function: Function, depth: int) -> list[_launches.Position]:
    """The positions at which the top level calls a function, at the latest the end."""
    found: list[_launches.Position] = []
    for call in function.callers:
        if call.ctx.function is None:
            found.append(_launches.position_of(call.ctx, call.node))
        elif depth > 0 and call.ctx.function is not function:
            found += _reached_from_top(call.ctx.function, depth - 1)
    return found or [(len(function.ctx.program.cells), 0, 0)]


# -- a notebook without a launch


def _is_launched_later(program: CheckedProgram) -> bool:
    """Whether a notebook's training is in a function that nothing calls yet, and it trains nowhere itself."""
    if not program.notebook:
        return False
    steps = [call for call in program.all_calls if _is_step(call)]
    return bool(steps) and not any(_runs_in_notebook(call.ctx, _DEPTH) for call in steps)


def _is_step(call: CallSite) -> bool:
    return call.name.endswith((".optimizer_step", ".mark_step")) or call.method in ("backward", "train", "fit", "step")


def _runs_in_notebook(ctx: RuleContext, depth: int) -> bool:
    if ctx.function is None:
        return True
    return depth > 0 and any(_runs_in_notebook(one.ctx, depth - 1) for one in ctx.function.callers)


def _is_first_use(call: CallSite) -> bool:
    """The device or the accelerator itself, at notebook level."""
    return call.ctx.top_level and call.name in (*_runtime.DEVICES, *_runtime.ACCELERATORS)
