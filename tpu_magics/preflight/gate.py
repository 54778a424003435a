"""What `%%tpu_train --preflight TARGET` asks before it trains.

What lives here: compiling the request that is about to be trained, and refusing it where it cannot fit. What does not:
the preflight itself (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tpu_magics.backends.lowered import Traced
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import NO_SPMD, Options
from tpu_magics.launch.request import Request
from tpu_magics.launch.tracing import TracingOptions
from tpu_magics.launch.watchdog import interruptible
from tpu_magics.preflight import installed
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.run import Telling, Way, note, trace_request
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import parse_all

__all__ = ["Gate", "gate"]

Gate = Callable[[Request, Options], None]
GIB = 2**30
HINT = 200  # characters of a compiler's text


def gate(target: str | Sequence[str], telling: Callable[[], AbstractContextManager[Telling]]) -> Gate:
    """Raises TpuMagicsError, before anything is forked for the training, where its program does not compile for one of
    these TPUs or does not fit. `telling`: who hears of it, each time that it is asked; of the result before it raises.

    Raises TpuMagicsError at once where a target is not known, or the compiler is missing.
    """
    targets = parse_all(target)
    installed.versions()

    def ask(request: Request, options: Options) -> None:
        def lower(world: int, devices: int | None) -> Traced:
            if request.program is not None:
                return request.program
            return trace_request(request, replace(options, background=False), TracingOptions(world, devices))

        with telling() as tell, interruptible():
            alone, own = 1 if options.processes == 1 else None, request.program is None
            way = Way(request.name, lower, _is_spmd(options), alone, Store(default_folder()), (), tell, own)
            found = Preflight(request.name, tuple(way.result(one) for one in targets))
            note(request.name, found.results)
            tell.found(found)
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
        f"{what} is not trained: {_says(bad)}.",
        "--preflight lets a training start only where its program compiles for that TPU and fits.",
        f"{_todo(found.function if is_function else 'FUNCTION', bad)} Without --preflight it is trained all the same.",
    )


def _todo(function: str, bad: TargetResult) -> str:
    if bad.status != "too-large":
        return "Look at what the table above names."
    search = f"%tpu_preflight {function} ... --target {bad.name} --fit NAME finds the largest batch"
    return f"Use a smaller batch, bf16 or gradient checkpointing; {search}."


def _says(one: TargetResult) -> str:
    memory = one.worst.memory
    if one.status == "too-large" and memory is not None and memory.available:
        needed, available = memory.needed / GIB, memory.available / GIB
        return f"on {one.name} it needs {needed:,.2f} GiB of HBM, and a program has {available:,.2f} GiB there"
    said = {"too-large": "it does not fit into the HBM of", "refused": "the compiler refuses it for"}
    text = next(iter(one.worst.error.splitlines()), "")[:HINT]
    return f"{said.get(one.status, 'it could not be compiled for')} {one.name}{': ' if text else ''}{text}"
