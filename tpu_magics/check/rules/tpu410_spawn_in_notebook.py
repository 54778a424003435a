"""A notebook's function is started with `spawn`.

What it does
    Reports `xmp.spawn(f)` and `torch_xla.launch(f)` in a notebook if `f` is a function of the notebook and
    `start_method="fork"` is not given, outside a `%%tpu_train` cell.
Why this is bad
    By default both start new interpreters, which import the function by its name. A notebook's function is in no
    module: each worker fails with `Can't get attribute '_mp_fn' on <module '__main__'>`.
Example
    def _mp_fn(index):
        ...

    xmp.spawn(_mp_fn, args=())
Use instead
    xmp.spawn(_mp_fn, args=(), start_method="fork")
Limitations
    Functions that are imported from a file next to the notebook work with `spawn` and are not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _launches

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU410"
NAME = "spawn-in-notebook"
GROUP = "launch"
WHY = "A new interpreter cannot import a notebook's function: `Can't get attribute ... on <module '__main__'>`."
# Where the launchers take `start_method` by position.
POSITIONS = {_launches.SPAWN: 5, _launches.LAUNCH: 2}


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.notebook:
        return
    for launch in _launches.launches(program):
        if launch.kind in POSITIONS and not launch.ours and launch.function is not None and launch.ranks != 1:
            yield from _started_anew(launch)


def _started_anew(launch: _launches.LaunchSite) -> Iterator[Finding]:
    call = launch.call
    assert call is not None and launch.function is not None
    given = launch.argument("start_method", POSITIONS[launch.kind])
    if call.ctx.has_unknown_arguments(call.node) or (given is not None and call.ctx.constant(given) != "spawn"):
        return
    edits: tuple[Edit, ...] = _argument_edits.add_argument(call.node, 'start_method="fork"', call.ctx)
    if given is not None:
        edits = (call.ctx.replace(given, '"fork"'),)
    message = f"`{launch.kind}` starts new interpreters for `{launch.function.name}`, a function of this notebook."
    fix = 'Pass `start_method="fork"`, or put `%%tpu_train` at the top of the cell.'
    yield call.ctx.finding(given if given is not None else call.node, message, fix, edits=edits)
