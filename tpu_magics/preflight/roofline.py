"""How fast one device can run a program at best, by its FLOPs and by its bytes: the roofline.

What lives here: arithmetic on what the compiler counted. What does not: what a chip can do (targets.py), and what
follows for the person (judge.py).

The model: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. A step takes at least its FLOPs over the peak rate, and at least its bytes over the
bandwidth of the memory. It is an estimate, and a lower bound of the time: no program keeps either at its peak, and
transfers between chips and work of the host are not in it.

Two things that libtpu counts in its own way, measured with libtpu 0.0.52 for v5e:
- The body of a loop counts once, however often it runs, whether the count is known or not (a scan of ten
  multiplications had the FLOPs of one). So FLOPs are too few where a program loops, and the bound still holds.
- "bytes accessed" counts what is copied into on-chip memory several times (a product of two f32[1024,1024] had 7 times
  4 MiB, and moves 3 times 4 MiB of HBM). It is therefore no bound, and is shown but never divided by the bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpu_magics.preflight.facts import Compiled, Multiplications

COMPUTE, MEMORY = "compute", "memory"
BF16 = "bf16"

NO_FLOPS = "the compiler gave no count of FLOPs"
NO_BYTES = "neither the program nor its memory could be read for the bytes that it moves"
NO_FIGURE = "this chip's figure is not known"
LOOPS = "The body of a loop counts once, however often it runs."
ONE_PASS = (
    "The peak is bf16's. A TPU multiplies f32 operands in one bf16 pass, unless a higher precision is asked for: so it "
    "bounds f32 as well, which costs memory and its traffic."
)


@dataclass(frozen=True)
class Roofline:
    """The least time of one execution on one device.

    `flops`: of one execution; `matmul_flops`: of them in matrix multiplications and convolutions; `bytes`: that it
    moves to or from HBM, and `counted`: where they are from ("program": its instructions, "arguments": each argument
    read and each output written once, which it cannot do without); `compute`, `memory`: seconds that each takes at
    least; `ridge`: FLOPs a byte at which both take as long on this chip. None where not known: `reasons` say why, by
    the field's name.
    """

    flops: float | None
    matmul_flops: float | None
    bytes: float | None
    counted: str
    compute: float | None
    memory: float | None
    ridge: float | None
    reasons: dict[str, str]

    @property
    def bound(self) -> str:
        """What binds: COMPUTE or MEMORY; "" where one of both is not known."""
        if self.compute is None or self.memory is None:
            return ""
        return COMPUTE if self.compute >= self.memory else MEMORY

    @property
    def seconds(self) -> float | None:
        """A lower bound of the time; of the one that is known where the other is not."""
        known = [one for one in (self.compute, self.memory) if one is not None]
        return max(known, default=None)

    @property
    def steps_per_second(self) -> float | None:
        """At most."""
        return 1 / self.seconds if self.seconds else None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def matmul_share(self) -> float | None:
        """0 to 1, of all FLOPs."""
        if self.flops is None or self.matmul_flops is None or self.flops <= 0:
            return None
        return min(1.0, self.matmul_flops / self.flops)

    @property
    def busy(self) -> float | None:
        """The part of the least time that the matrix units work, 0 to 1."""
        return self.compute / self.seconds if self.compute is not None and self.bound and self.seconds else None


def roofline(compiled: Compiled, peak: float | None, bandwidth: float | None) -> Roofline:
    """The roofline of a program on one device. `peak`: FLOP/s in bf16; `bandwidth`: bytes/s of HBM."""
    multiplied = matmul_flops(compiled.multiplications)
    flops, moved = _flops(compiled, multiplied), _bytes(compiled)
    reasons = {
        "flops": NO_FLOPS if flops is None else "",
        "bytes": NO_BYTES if moved is None else "",
        "compute": NO_FLOPS if flops is None else NO_FIGURE if not peak else "",
        "memory": NO_BYTES if moved is None else NO_FIGURE if not bandwidth else "",
    }
    return Roofline(
        flops=flops,
        matmul_flops=multiplied,
        bytes=moved[0] if moved else None,
        counted=moved[1] if moved else "",
        compute=flops / peak if flops is not None and peak else None,
        memory=moved[0] / bandwidth if moved and bandwidth else None,
        ridge=peak / bandwidth if peak and bandwidth else None,
        reasons={name: reason for name, reason in reasons.items() if reason},
    )


def matmul_flops(found: Multiplications | None) -> float | None:
    """FLOPs of all multiplications; None where they were not read."""
    return None if found is None else float(sum(found.flops.values()))


def bf16_share(compiled: Compiled) -> float | None:
    """The part of the FLOPs of multiplications whose operands are bf16, 0 to 1. None: not read, or there are none."""
    found = compiled.multiplications
    every = matmul_flops(found)
    return found.flops.get(BF16, 0.0) / every if found is not None and every else None


def waste(compiled: Compiled) -> float | None:
    """The part of HBM that is padding of tiles, 0 to 1."""
    found = compiled.padding
    return None if found is None or found.padded <= 0 else max(0.0, 1 - found.plain / found.padded)


def _flops(compiled: Compiled, multiplied: float | None) -> float | None:
    """Whichever count is larger: the compiler's counts the body of a loop once, the program's as often as it runs."""
    known = [one for one in (compiled.flops, multiplied) if one is not None and math.isfinite(one) and one >= 0]
    return max(known, default=None)


def _bytes(compiled: Compiled) -> tuple[float, str] | None:
    if compiled.hbm_bytes is not None:
        return compiled.hbm_bytes, "program"
    memory = compiled.memory
    if memory is None or memory.arguments is None or memory.outputs is None:
        return None
    return float(memory.arguments + memory.outputs), "arguments"
