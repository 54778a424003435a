"""The thresholds of the verdict, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "SETTLES", "THRESHOLDS", "Threshold"]

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
    "room": Threshold(0.5, 0.0, "the HBM, free", "the performance guide: use the largest batch that fits"),
}
