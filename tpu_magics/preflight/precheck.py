"""The check that `%%tpu_train --preflight TARGET` runs before it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tpu_magics.backends.lowered import TraceResult
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import NO_SPMD, Options
from tpu_magics.launch.request import Request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.launch.watchdog import interruptible
from tpu_magics.preflight import compiler_versions
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.run import Callbacks, PreflightPipeline, note, trace_request
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import parse_all

__all__ = ["PreflightCheck", "preflight_check"]

PreflightCheck = Callable[[Request, Options], None]
GIB = 2**30
HINT = 200  # characters of a compiler's text


def preflight_check(
    target: str | Sequence[str], callbacks: Callable[[], AbstractContextManager[Callbacks]]
) -> PreflightCheck:
    """A check that raises TpuMagicsError, before the training forks, where its program does not compile for one of
    these TPUs or does not fit. `callbacks`: makes a context manager for each check; they get the result before it
    raises.

    Raises TpuMagicsError at once where a target is unknown or the compiler is missing.
    """
    targets = parse_all(target)
    compiler_versions.versions()

    def ask(request: Request, options: Options) -> None:
        def lower(world: int, devices: int | None) -> TraceResult:
            if request.program is not None:
                return request.program
            return trace_request(request, replace(options, background=False), TracingOptions(world, devices))

        with callbacks() as calls, interruptible():
            alone, own = 1 if options.processes == 1 else None, request.program is None
            pipeline = PreflightPipeline(
                request.name, lower, _is_spmd(options), alone, Store(default_folder()), (), calls, own
            )
            found = Preflight(request.name, tuple(pipeline.result(one) for one in targets))
            note(request.name, found.results)
            calls.found(found)
        _require(found, is_function=callable(request.hoistable))

    return ask


def _is_spmd(options: Options) -> bool:
    if options.spmd is not None:
        return options.spmd != NO_SPMD
    return options.processes is None and session.current.spmd is not None


def _require(found: Preflight, is_function: bool) -> None:
    bad = next((one for one in found.results if not one.fits), None)
    if bad is None:
        return
    what = f"`{found.function}`" if is_function else "This"
    raise TpuMagicsError(
        f"{what} was not trained: {_reason(bad)}.",
        "--preflight starts a training only if its program compiles for that TPU and fits.",
        f"{_todo(found.function if is_function else 'FUNCTION', bad)} To train anyway, leave out --preflight.",
    )


def _todo(function: str, bad: TargetResult) -> str:
    if bad.status != "too-large":
        return "See the table above."
    search = f"%tpu_preflight {function} ... --target {bad.name} --fit NAME finds the largest batch"
    return f"Use a smaller batch, bf16 or gradient checkpointing; {search}."


def _reason(one: TargetResult) -> str:
    memory = one.worst.memory
    if one.status == "too-large" and memory is not None and memory.available:
        needed, available = memory.needed / GIB, memory.available / GIB
        return f"on {one.name} it needs {needed:,.2f} GiB of HBM, but only {available:,.2f} GiB are available"
    texts = {"too-large": "it does not fit into the HBM of", "refused": "the compiler refuses it for"}
    text = next(iter(one.worst.error.splitlines()), "")[:HINT]
    return f"{texts.get(one.status, 'it could not be compiled for')} {one.name}{': ' if text else ''}{text}"
