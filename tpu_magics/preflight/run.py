"""Run a preflight: trace, compile, search."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.launch import session
from tpu_magics.launch.minder import minded
from tpu_magics.launch.plan import ALL_DEVICES, Options
from tpu_magics.preflight import compiler_versions
from tpu_magics.preflight.pipeline import Callbacks, FunctionCall, PreflightPipeline, trace_request
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.search import search
from tpu_magics.preflight.search_probe import SearchProbe, SearchTarget, require_change, require_steps
from tpu_magics.preflight.sizes import Size
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import Target, parse_all
from tpu_magics.runs import preflights

__all__ = ["Callbacks", "PreflightPipeline", "SearchInterrupted", "note", "preflight", "trace_request"]


class SearchInterrupted(TrainingInterrupted):
    """The user interrupted a search. `found`: the results so far."""

    def __init__(self, found: Preflight, kept: bool) -> None:
        again = "Run it again to continue: compiled results are cached." if kept else ""
        super().__init__(
            f"The search for the largest {found.fit[0].name} was interrupted.",
            " ".join(f"{one.target}: {_known(found, one.target)}." for one in found.fit),
            f"The results so far are shown. {again}".strip(),
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
    callbacks: Callbacks | None = None,
) -> Preflight:
    """Compile `function(*args, **kwargs)` for TPUs that are not here; see `tpu_magics.preflight`.

    Raises SearchInterrupted, with the results so far, where the user interrupts the search that `fit` asks for.
    """
    targets = parse_all(target)
    options = Options(processes, precision, steps=steps, force=force, spmd=ALL_DEVICES if spmd else None)
    options.check()
    _require_ranks(targets, processes)
    compiler_versions.versions(packages)
    store = Store(default_folder()) if kept else None
    settings = _Settings(options, _is_spmd(spmd, processes), store, packages, callbacks or Callbacks())
    call = FunctionCall(function, args, dict(kwargs or {}))
    with minded():
        return _compiled(call, targets, settings) if fit is None else _searched(call, targets, settings, fit)


@dataclass(frozen=True)
class _Settings:
    """What all sizes of a search share."""

    options: Options
    spmd: bool
    store: Store | None
    packages: Sequence[str]
    callbacks: Callbacks

    def pipeline(self, call: FunctionCall) -> PreflightPipeline:
        lower, own = call.lowering(self.options), not call.is_tensorflows
        return PreflightPipeline(
            call.name, lower, self.spmd, self.options.processes, self.store, self.packages, self.callbacks, own
        )


def _compiled(call: FunctionCall, targets: Sequence[Target], settings: _Settings) -> Preflight:
    pipeline = settings.pipeline(call)
    return _with_note(Preflight(call.name, tuple(pipeline.result(one) for one in targets)))


def _searched(call: FunctionCall, targets: Sequence[Target], settings: _Settings, name: str) -> Preflight:
    """The largest size for each target, and the compile results for the recommended one."""
    pipeline = settings.pipeline(call)
    size = Size.of(name, call.function, call.args, call.kwargs, session.current.notebook.namespace)
    first = pipeline.traced(targets[0])
    require_steps(f"{size.name} = {size.now}", first, settings.options.steps or STEPS)
    if not pipeline.torch_xla:
        require_change(size, call, first, lambda other: settings.pipeline(other).traced(targets[0]))
    start = _with_note(Preflight(call.name, tuple(pipeline.result(one) for one in targets)))
    probe = SearchProbe(size, call, start, settings.pipeline)
    ranked = [SearchTarget.of(one) for one in start.results]
    fit = search(size.name, size.now, ranked, probe.probe, log=settings.callbacks.line)
    found = Preflight(call.name, tuple(probe.recommended(one) for one in fit), fit)
    if any(one.interrupted for one in fit):
        raise SearchInterrupted(found, kept=settings.store is not None)
    return found


def _known(found: Preflight, target: str) -> str:
    """ "104 fits, 128 does not"."""
    one = next(each for each in found.fit if each.target == target)
    fits = "no size is known to fit" if one.largest is None else f"{one.largest:,} fits"
    return f"{fits}, {one.beyond:,} does not" if one.beyond is not None else fits


# -- checks of the request ------------------------------------------------------------------------------------------


def _require_ranks(targets: Sequence[Target], processes: int | None) -> None:
    """Raises TpuMagicsError where there are more ranks than a target has."""
    few = next((one for one in targets if processes is not None and processes > one.ranks), None)
    if few is not None:
        raise TpuMagicsError(
            f"-n {processes} is not possible on {few.name}.",
            f"A training there has {few.ranks} {'rank' if few.ranks == 1 else 'ranks'}, one for each device.",
            f"Leave out -n for {few.ranks}, or choose a larger target.",
        )


def _is_spmd(requested: bool | None, processes: int | None) -> bool:
    """The session's default where it is None."""
    if requested is None:
        return processes is None and session.current.spmd is not None
    return requested


# -- for %tpu_check --ready -----------------------------------------------------------------------------------------


def _with_note(found: Preflight) -> Preflight:
    note(found.function, found.results)
    return found


def note(name: str, results: Sequence[TargetResult]) -> None:
    """Record the results for the checklist of %tpu_check --ready."""
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
