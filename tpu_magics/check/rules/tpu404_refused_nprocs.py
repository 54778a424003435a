"""A number of processes that torch_xla does not support.

What it does
    Reports `xmp.spawn(f, nprocs=N)` with any number except 1 and None, and `notebook_launcher(f, num_processes=N)` with
    any number except 1 and 8, if the call is not in a `%%tpu_train` cell.
Why this is bad
    torch_xla starts one process per chip, or a single one. `xmp.spawn` raises `Unsupported nprocs (N)` for any other
    number. `notebook_launcher` ignores the number on a TPU since accelerate 1.3; before, it passed it to `xmp.spawn`.
Example
    xmp.spawn(_mp_fn, args=(flags,), nprocs=8)
Use instead
    xmp.spawn(_mp_fn, args=(flags,))
    # in a cell with %%tpu_train on top nprocs=8 is honoured, and rehearsed where there is no TPU
Limitations
    Numbers that are known only at run time are not checked. `num_processes=8` is the form of the guides for a host with
    eight chips and is not reported, although a host with four chips starts four processes. Calls with
    `mixed_precision="fp16"` are taken to be for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _launches

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU404"
NAME = "refused-nprocs"
GROUP = "launch"
WHY = "torch_xla accepts only 1 or None, and raises `Unsupported nprocs` for any other number before a worker starts."
WHY_NOTEBOOK = (
    "On a TPU, accelerate ignores num_processes and starts one process per chip; before 1.3 it passed the number to "
    "torch_xla, which accepts only 1 or None."
)
# Numbers that a host with one or eight chips starts anyway.
FINE = (None, 0, 1, 8)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for launch in _launches.launches(program):
        if launch.call is None or launch.ours or not isinstance(launch.ranks, int):
            continue
        if _launches.is_for_gpus(program):
            continue
        if launch.kind == _launches.SPAWN and launch.ranks != 1:
            yield _spawn(launch)
        elif launch.kind == _launches.NOTEBOOK and launch.ranks not in FINE and not _for_gpus(launch):
            yield _notebook(launch)


def _spawn(launch: _launches.LaunchSite) -> Finding:
    assert launch.call is not None
    given = launch.argument("nprocs", 2)
    ctx, node = launch.call.ctx, given if given is not None else launch.call.node
    fix = "Remove nprocs: torch_xla starts one process per chip (with nprocs=1 a single one)."
    edits = (ctx.replace(given, "None"),) if given is not None else ()
    return ctx.finding(node, f"`xmp.spawn` is called with {launch.ranks} processes.", fix, edits=edits)


def _notebook(launch: _launches.LaunchSite) -> Finding:
    assert launch.call is not None
    ctx, given = launch.call.ctx, launch.argument("num_processes", 2)
    message = f"`notebook_launcher` is called with {launch.ranks} processes."
    fix = "Remove num_processes, or put `%%tpu_train` at the top of the cell, which uses the number."
    return ctx.finding(given if given is not None else launch.call.node, message, fix, WHY_NOTEBOOK)


def _for_gpus(launch: _launches.LaunchSite) -> bool:
    assert launch.call is not None
    return bool(launch.call.ctx.constant(launch.argument("mixed_precision", 3)) == "fp16")
