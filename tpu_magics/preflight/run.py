"""A function -> what the compilers of the TPUs say of it: the road of a preflight.

What lives here: the order of things: trace, compile, search. What does not: the things themselves (way.py, probing.py,
fit/), and how the result looks (panel/preflight.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.launch import session
from tpu_magics.launch.plan import ALL_DEVICES, Options
from tpu_magics.launch.watchdog import interruptible
from tpu_magics.preflight import installed
from tpu_magics.preflight.fit import search
from tpu_magics.preflight.probing import Probing, Ranked, require_change, require_steps
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import Target, parse_all
from tpu_magics.preflight.way import Call, Telling, Way, trace_request
from tpu_magics.runs import preflights

__all__ = ["SearchInterrupted", "Telling", "Way", "note", "preflight", "trace_request"]


class SearchInterrupted(TrainingInterrupted):
    """The person stopped a search. `found`: what it had found by then."""

    def __init__(self, found: Preflight, kept: bool) -> None:
        goes_on = "Run it again to go on: what was compiled is kept." if kept else ""
        super().__init__(
            f"The search for the largest {found.fit[0].name} was interrupted.",
            " ".join(f"{one.target}: {_known(found, one.target)}." for one in found.fit),
            f"What was found by then is shown. {goes_on}".strip(),
        )
        self.found = found


def preflight(
    function: Any,
    *args: Any,
    target: str | Sequence[str],
    kwargs: Mapping[str, Any] | None = None,
    fit: str | None = None,
    steps: int = STEPS,
    precision: str | None = None,
    processes: int | None = None,
    spmd: bool | None = None,
    force: bool = False,
    kept: bool = True,
    packages: Sequence[str] = (),
    telling: Telling | None = None,
) -> Preflight:
    """Compile `function(*args, **kwargs)` for TPUs that are not here; see `tpu_magics.preflight`.

    Raises SearchInterrupted, with what was found, where the person stops the search that `fit` asks for.
    """
    targets = parse_all(target)
    options = Options(processes, precision, steps=steps, force=force, spmd=ALL_DEVICES if spmd else None)
    options.check()
    _require_ranks(targets, processes)
    installed.versions(packages)
    store = Store(default_folder()) if kept else None
    going = _Going(options, _is_spmd(spmd, processes), store, packages, telling or Telling())
    call = Call(function, args, dict(kwargs or {}))
    with interruptible():
        return _compiled(call, targets, going) if fit is None else _searched(call, targets, going, fit)


@dataclass(frozen=True)
class _Going:
    """What all sizes of a search have in common."""

    options: Options
    spmd: bool
    store: Store | None
    packages: Sequence[str]
    tell: Telling

    def way(self, call: Call) -> Way:
        lower, own = call.lowering(self.options), not call.is_tensorflows
        return Way(call.name, lower, self.spmd, self.options.processes, self.store, self.packages, self.tell, own)


def _compiled(call: Call, targets: Sequence[Target], going: _Going) -> Preflight:
    way = going.way(call)
    return _noted(Preflight(call.name, tuple(way.result(one) for one in targets)))


def _searched(call: Call, targets: Sequence[Target], going: _Going, name: str) -> Preflight:
    """The largest size for each target, and what the compiler said of the one to take."""
    way = going.way(call)
    size = Size.of(name, call.function, call.args, call.kwargs, session.current.notebook.namespace)
    first = way.traced(targets[0])
    require_steps(f"{size.name} = {size.now}", first, going.options.steps or STEPS)
    if not way.torch_xla:
        require_change(size, call, first, lambda other: going.way(other).traced(targets[0]))
    start = _noted(Preflight(call.name, tuple(way.result(one) for one in targets)))
    probing = Probing(size, call, start, going.way)
    ranked = [Ranked.of(one) for one in start.results]
    fit = search(size.name, size.now, ranked, probing.probe, tell=going.tell.line)
    found = Preflight(call.name, tuple(probing.recommended(one) for one in fit), fit)
    if any(one.interrupted for one in fit):
        raise SearchInterrupted(found, kept=going.store is not None)
    return found


def _known(found: Preflight, target: str) -> str:
    """ "104 fits, 128 does not"."""
    one = next(each for each in found.fit if each.target == target)
    fits = "no size that fits is known" if one.largest is None else f"{one.largest:,} fits"
    return f"{fits}, {one.beyond:,} does not" if one.beyond is not None else fits


# -- what is asked for ------------------------------------------------------------------------------------------------


def _require_ranks(targets: Sequence[Target], processes: int | None) -> None:
    """Raises TpuMagicsError where there are more ranks than a target has."""
    few = next((one for one in targets if processes is not None and processes > one.ranks), None)
    if few is not None:
        raise TpuMagicsError(
            f"-n {processes} is not possible on {few.name}.",
            f"A training has {few.ranks} {'rank' if few.ranks == 1 else 'ranks'} there, one for each device.",
            f"Leave -n away for {few.ranks}, or name a larger target.",
        )


def _is_spmd(asked: bool | None, processes: int | None) -> bool:
    """As a training here would be, where it is not said."""
    if asked is None:
        return processes is None and session.current.spmd is not None
    return asked


# -- what is said of it -----------------------------------------------------------------------------------------------


def _noted(found: Preflight) -> Preflight:
    note(found.function, found.results)
    return found


def note(name: str, results: Sequence[TargetResult]) -> None:
    """For the checklist of %tpu_check --ready."""
    now = time.time()
    for one in results:
        memory = one.worst.memory
        preflights.note(
            preflights.Record(
                function=name,
                target=one.name,
                status=one.status,
                needed=memory.needed if memory is not None else None,
                available=memory.available if memory is not None else None,
                t=now,
            )
        )
