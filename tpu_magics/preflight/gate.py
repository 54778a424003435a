"""What `%%tpu_train --preflight TARGET` asks before it trains.

What lives here: compiling the request that is about to be trained, and refusing it where it cannot fit. What does not:
the preflight itself (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tpu_magics.backends.lowered import Traced
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.plan import NO_SPMD, Options
from tpu_magics.launch.tracing import Asked
from tpu_magics.launch.train import Request
from tpu_magics.preflight import installed
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.run import STEPS, Telling, Way, note, trace_request
from tpu_magics.preflight.store import Store, default_folder
from tpu_magics.preflight.targets import parse_all

__all__ = ["Gate", "gate"]

Gate = Callable[[Request, Options], None]


def gate(target: str | Sequence[str], telling: Telling, done: Callable[[Preflight], None]) -> Gate:
    """Raises TpuMagicsError, before anything is forked for the training, where its program does not compile for one of
    these TPUs or does not fit. `done` gets the result first."""
    targets = parse_all(target)
    installed.versions()

    def ask(request: Request, options: Options) -> None:
        def lower(world: int, devices: int | None) -> Traced:
            return trace_request(request, replace(options, background=False), Asked(world, devices, STEPS))

        way = Way(request.name, lower, _is_spmd(options), None, Store(default_folder()), (), telling)
        found = Preflight(request.name, tuple(way.result(one) for one in targets))
        note(request.name, found.results)
        done(found)
        _require(found)

    return ask


def _is_spmd(options: Options) -> bool:
    if options.spmd is not None:
        return options.spmd != NO_SPMD
    return options.processes is None and session.current.spmd is not None


def _require(found: Preflight) -> None:
    bad = next((one for one in found.results if not one.fits), None)
    if bad is None:
        return
    raise TpuMagicsError(
        f"{found.function} is not trained: {_says(bad)}.",
        "--preflight lets a training start only where its program compiles for that TPU and fits.",
        f"Use a smaller batch, bf16 or gradient checkpointing; %tpu_preflight {found.function} ... --target "
        f"{bad.name} --fit NAME finds the largest batch. Without --preflight it is trained all the same.",
    )


def _says(one: TargetResult) -> str:
    memory = one.worst.memory
    if one.status == "too-large" and memory is not None and memory.available:
        needed, available = memory.needed / 2**30, memory.available / 2**30
        return f"on {one.name} it needs {needed:,.2f} GiB of HBM, and a program has {available:,.2f} GiB there"
    said = {"too-large": "it does not fit into the HBM of", "refused": "the compiler refuses it for"}
    text = next(iter(one.worst.error.splitlines()), "")[:200]
    return f"{said.get(one.status, 'it could not be compiled for')} {one.name}{': ' if text else ''}{text}"
