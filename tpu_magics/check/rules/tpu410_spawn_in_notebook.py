"""Workers of a notebook's function that are started by `spawn`.

What it does
    Reports `xmp.spawn(f)` and `torch_xla.launch(f)` in a notebook where `f` is a function of the notebook and
    `start_method="fork"` is not given, outside of a `%%tpu_train` cell.
Why it is bad
    Both start new interpreters by default, which import the function by its name. A notebook's function is in no
    module: each worker dies with `Can't get attribute '_mp_fn' on <module '__main__'>`.
Example
    def _mp_fn(index):
        ...

    xmp.spawn(_mp_fn, args=())
Use instead
    xmp.spawn(_mp_fn, args=(), start_method="fork")
What it cannot see
    Functions that are imported from a file beside the notebook, which `spawn` can start, are not reported.
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
WHY = "A new interpreter cannot import a function of a notebook: `Can't get attribute ... on <module '__main__'>`."
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
    edits: tuple[Edit, ...] = _argument_edits.added(call.node, 'start_method="fork"', call.ctx)
    if given is not None:
        edits = (call.ctx.replace(given, '"fork"'),)
    message = f"`{launch.kind}` starts new interpreters for `{launch.function.name}`, a function of this notebook."
    fix = 'Give `start_method="fork"`, or put `%%tpu_train` on top of the cell.'
    yield call.ctx.finding(given if given is not None else call.node, message, fix, edits=edits)
