"""How fast one device can run a program at best, by its FLOPs and by its bytes (the roofline), and the thresholds of
the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tpu_magics.backends.lowered import TraceResult
from tpu_magics.preflight.compile_result import CompileResult, Multiplications

# -- thresholds -------------------------------------------------------------------------------------------------------


ROWS = 8  # of a tile, T(8,128)
SETTLES = 3  # steps that a function has to take: the first makes the optimiser's state, and the next two are compared


@dataclass(frozen=True)
class Threshold:
    """`good` and better speaks for a TPU, `bad` and worse against it, and what is between for neither."""

    good: float
    bad: float
    of: str
    source: str


THRESHOLDS = {
    "matmul": Threshold(0.5, 0.5, "all FLOPs", "Google: dominated by matrix computations"),
    "step": Threshold(
        *(1e-3, 2e-4, "the least seconds of a step"),
        source="measured: torch_xla 2.9 took 1.2 ms of one core to trace a step of 2 linear layers with SGD, 7.5 ms "
        "for 4 with AdamW; `bad` leaves a factor of 5, because a program takes longer than the least",
    ),
    "busy": Threshold(
        *(0.5, 0.05, "the least time, in which the matrix units work"),
        source="a choice of this project: below a twentieth, what a TPU is made for hardly counts",
    ),
    "batch": Threshold(
        *(ROWS, ROWS, "rows on a device"),
        source="https://cloud.google.com/tpu/docs/performance-guide: divisible by 8 or 128, as large as fits",
    ),
    "padding": Threshold(
        *(0.1, 0.25, "the HBM in use"),
        source="a choice of this project: a quarter of memory is a quarter of its traffic",
    ),
    "bf16": Threshold(0.9, 0.5, "the FLOPs of multiplications", "f32 takes twice the memory and twice its traffic"),
    "irregular": Threshold(
        *(0.05, 0.3, "the time, if gathers, scatters and sorts were as fast as copies"),
        source="a choice of this project: how much slower they are is not known",
    ),
    "room": Threshold(0.5, 0.0, "the HBM, free", "the performance guide: use the largest batch that fits"),
}


# -- the roofline -----------------------------------------------------------------------------------------------------


# The model: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
# architectures", CACM 52(4), 2009. A step takes at least its FLOPs over the peak rate, and at least its bytes over the
# bandwidth of the memory. It is an estimate, and a lower bound of the time: no program keeps either at its peak, and
# transfers between chips and work of the host are not in it. Only of a program with branches, or with a loop that may
# end early, it is no bound: how much such a program does is decided when it runs.
#
# Three things that libtpu counts in its own way, measured with libtpu 0.0.52 for v5e:
# - The body of a loop counts once, however often it runs, whether the count is known or not (a scan of ten
#   multiplications had the FLOPs of one). So FLOPs are too few where a program loops, and the bound still holds.
# - It leaves out the kernels that it makes itself (of attention on v5e); their multiplications are added here.
# - "bytes accessed" counts what is copied into on-chip memory several times (a product of two f32[1024,1024] had 7
#   times 4 MiB, and moves 3 times 4 MiB of HBM). It is therefore no bound, and is shown but never divided by the
#   bandwidth.

COMPUTE, MEMORY = "compute", "memory"
BF16 = "bf16"

NO_PROGRAM = "no program was compiled"
NO_FLOPS = "the compiler reported no FLOPs"
NO_BYTES = "the bytes that it moves could not be read from the program or its memory"
NO_FIGURE = "this chip's figure is unknown"
NO_SHARE = "in loops, multiplications count once per iteration, but all other FLOPs only once"
NO_MULTIPLICATIONS = "the multiplications could not be read from the program"
LOOPS = (
    "In loops, multiplications count once per iteration, if the program gives the number; all other FLOPs count once."
)
ONE_PASS = (
    "The peak is that of bf16. A TPU multiplies f32 operands in one bf16 pass, unless a higher precision is requested, "
    "so the bound holds for f32 too. But f32 needs more memory and memory traffic."
)


_FIGURES = ("flops", "bytes", "compute", "memory", "matmul_share")


@dataclass(frozen=True)
class Roofline:
    """The least time of one execution on one device.

    `flops`: of one execution; `matmul_flops`: of them in matrix multiplications and convolutions; `bytes`: that it
    moves to or from HBM, and `counted`: where they are from ("program": its instructions, "arguments": each argument
    read and each output written once, which it cannot do without); `compute`, `memory`: seconds that each takes at
    least; `ridge`: FLOPs per byte at which both take equally long on this chip; `matmul_share`: of all FLOPs, 0 to 1.
    None where not known: `reasons` say why, by the field's name. `least`: whether every execution does as much; False
    where the program has branches or loops of unknown rounds, so that nothing here is a bound.
    """

    flops: float | None
    matmul_flops: float | None
    bytes: float | None
    counted: str
    compute: float | None
    memory: float | None
    ridge: float | None
    matmul_share: float | None
    least: bool
    reasons: dict[str, str]

    @property
    def bound(self) -> str:
        """COMPUTE or MEMORY; "" where one of them is unknown."""
        if self.compute is None or self.memory is None:
            return ""
        return COMPUTE if self.compute >= self.memory else MEMORY

    @property
    def seconds(self) -> float | None:
        """A lower bound of the time where `least`; of the one that is known where the other is not."""
        known = [one for one in (self.compute, self.memory) if one is not None]
        return max(known, default=None)

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second at most."""
        return 1 / self.seconds if self.seconds else None

    @property
    def hasty(self) -> bool:
        """Whether such a step ends before Python can start the next one."""
        return self.seconds is not None and self.seconds < THRESHOLDS["step"].good

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def busy(self) -> float | None:
        """The part of the least time that the matrix units work, 0 to 1."""
        return self.compute / self.seconds if self.compute is not None and self.bound and self.seconds else None


def roofline(compiled: CompileResult, peak: float | None, bandwidth: float | None) -> Roofline:
    """The roofline of a program on one device. `peak`: FLOP/s in bf16; `bandwidth`: bytes/s of HBM. Without a
    compiled program all figures are None."""
    if not is_made(compiled):
        return Roofline(None, None, None, "", None, None, None, None, False, dict.fromkeys(_FIGURES, NO_PROGRAM))
    multiplied = matmul_flops(compiled.multiplications)
    flops, moved = _flops(compiled, multiplied), _bytes(compiled)
    share = _share(compiled, flops, multiplied)
    reasons = {
        "flops": NO_FLOPS if flops is None else "",
        "bytes": NO_BYTES if moved is None else "",
        "compute": NO_FLOPS if flops is None else NO_FIGURE if not peak else "",
        "memory": NO_BYTES if moved is None else NO_FIGURE if not bandwidth else "",
        "matmul_share": "" if share is not None else _no_share(compiled, flops),
    }
    return Roofline(
        flops=flops,
        matmul_flops=multiplied,
        bytes=moved[0] if moved else None,
        counted=moved[1] if moved else "",
        compute=flops / peak if flops is not None and peak else None,
        memory=moved[0] / bandwidth if moved and bandwidth else None,
        ridge=peak / bandwidth if peak and bandwidth else None,
        matmul_share=share,
        least=not compiled.guessed,
        reasons={name: reason for name, reason in reasons.items() if reason},
    )


def is_made(compiled: CompileResult) -> bool:
    """Whether the compiler finished the program. One that is too large it gives up; the dump is then its last try,
    which recomputes more and more values to save memory. Colab's libtpu compiles some that are too large
    (compiler/__main__.py)."""
    return compiled.status == "fits" or (compiled.memory is not None and compiled.memory.arguments is not None)


def matmul_flops(found: Multiplications | None) -> float | None:
    """FLOPs of all multiplications; None where they were not read."""
    return None if found is None else float(sum(found.flops.values()))


def bf16_share(compiled: CompileResult) -> float | None:
    """The part of the FLOPs of multiplications whose operands are bf16, 0 to 1. None: not read, or there are none."""
    found = compiled.multiplications
    every = matmul_flops(found)
    return found.flops.get(BF16, 0.0) / every if found is not None and every else None


def waste(compiled: CompileResult) -> float | None:
    """The part of the HBM in use that is padding of tiles, 0 to 1. None: not known, or no program was compiled."""
    found = compiled.padding if is_made(compiled) else None
    return None if found is None or found.padded <= 0 else max(0.0, 1 - found.plain / found.padded)


def _flops(compiled: CompileResult, multiplied: float | None) -> float | None:
    """The compiler's count with what it leaves out; where that is less than the multiplications alone (it counts the
    body of a loop once, they count as often as it runs), these."""
    found = compiled.multiplications
    own = compiled.flops if compiled.flops is not None and math.isfinite(compiled.flops) else -1.0
    whole = own + found.kernels if own >= 0 and found is not None else own
    return max((one for one in (whole, multiplied) if one is not None and one >= 0), default=None)


def _share(compiled: CompileResult, flops: float | None, multiplied: float | None) -> float | None:
    """Unknown if loops multiply: their other FLOPs are not counted per iteration."""
    if not flops or multiplied is None or compiled.loops or compiled.flops is None:
        return None
    return min(1.0, multiplied / flops)


def _no_share(compiled: CompileResult, flops: float | None) -> str:
    if flops is None or compiled.flops is None:
        return NO_FLOPS
    if compiled.multiplications is None:
        return NO_MULTIPLICATIONS
    return NO_SHARE if compiled.loops else "it has no FLOPs"


def _bytes(compiled: CompileResult) -> tuple[float, str] | None:
    if compiled.hbm_bytes is not None:
        return compiled.hbm_bytes, "program"
    memory = compiled.memory
    if memory is None or memory.arguments is None or memory.outputs is None:
        return None
    return float(memory.arguments + memory.outputs), "arguments"


# -- graphs that take turns -------------------------------------------------------------------------------------------

# Gradient accumulation, two optimizers, a small graph between two steps.


@dataclass(frozen=True)
class Cost:
    """The cost of one full turn on one device. `syncs`: number of syncs; `seconds`: the sum of the least times of their
    graphs (None: one of them is unknown); `least`: whether each of these is a lower bound."""

    syncs: int
    seconds: float | None
    least: bool

    @classmethod
    def of(cls, found: Sequence[Roofline]) -> Cost:
        known = [one.seconds for one in found if one.seconds is not None]
        whole = sum(known) if found and len(known) == len(found) else None
        return cls(len(found), whole, all(one.least for one in found))


def turn(traced: TraceResult) -> tuple[int, ...]:
    """The indices in `traced.graphs` of the graphs that later steps repeat, in the order of their syncs: for
    an accumulation of four e.g. (0, 1, 1, 3). Empty where that is not known, or no step was like the one before it."""
    steady = {place for place, one in enumerate(traced.graphs) if one.steady}
    if not traced.settled:
        return ()
    if not traced.sequence:
        return tuple(steady) if len(steady) == 1 else ()
    newest = traced.sequence[-1]
    before = [place for place, one in enumerate(traced.sequence[:-1]) if one == newest]
    found = traced.sequence[before[-1] + 1 :] if before else ()
    return found if steady <= set(found) else ()
